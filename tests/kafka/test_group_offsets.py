"""The offsets of the group, committed for those who watch the lag, while its coordinator comes and goes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from holdfast.connectors.kafka.cluster import ClusterView
from holdfast.connectors.kafka.offsets import KafkaTopicPartition
from holdfast.testing.kafka import KafkaBroker
from kafka_fixtures import produce

pytestmark = pytest.mark.kafka

_COMMITS = """
    import logging, sys
    from holdfast.connectors.kafka.cluster import ClusterView
    from holdfast.connectors.kafka.offsets import KafkaTopicPartition
    view = ClusterView({"bootstrap.servers": sys.argv[1]}, True)
    partition = KafkaTopicPartition("t", 0)
    for line in sys.stdin:  # an offset to commit
        pending = view.commit("watched", {partition: int(line)})
        error = pending.exception(60)
        print("committed" if error is None else type(error).__name__, flush=True)
"""


@pytest.mark.fault
@pytest.mark.timeout(600)
def test_the_process_that_commits_offsets_outlives_every_death_of_the_broker(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path) as kafka:
        kafka.create_topic("t")
        produce(kafka.bootstrap_servers, "t", [b"x"] * 100)
        program = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_COMMITS), kafka.bootstrap_servers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert program.stdin is not None
        assert program.stdout is not None

        def commit(offset: int) -> str:
            assert program.stdin is not None
            assert program.stdout is not None
            program.stdin.write(f"{offset}\n")
            program.stdin.flush()
            answer = program.stdout.readline().strip()
            assert answer, f"the process ended with {program.wait()}"
            return answer

        assert commit(1) == "committed"
        for death in range(3):
            kafka.kill()
            assert commit(10 * death + 2) == "BrokerUnavailable"  # after eight seconds
            kafka.start()
            while commit(10 * death + 3) != "committed":
                pass
        program.stdin.close()
        assert program.wait(60) == 0
        program.stdout.close()
        partition = KafkaTopicPartition("t", 0)
        view = ClusterView({"bootstrap.servers": kafka.bootstrap_servers}, read_committed=True)
        assert view.committed("watched", [partition]) == {partition: 23}
        kafka.kill()
