"""The offsets of the group, committed for those who watch the lag, while its coordinator comes and goes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from holdfast.connectors.kafka.cluster import ClusterView
from holdfast.connectors.kafka.offsets import KafkaTopicPartition
from holdfast.testing.kafka import KafkaBroker
from kafka_fixtures import produce

pytestmark = pytest.mark.kafka

_COMMITS = """
    import sys, threading, time
    from holdfast.connectors.kafka.cluster import ClusterView
    from holdfast.connectors.kafka.offsets import KafkaTopicPartition
    view = ClusterView({"bootstrap.servers": sys.argv[1]}, True)
    partition = KafkaTopicPartition("t", 0)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    offset = 0
    while not ended.is_set():  # one after the other, as the job does with its checkpoints
        offset += 1
        error = view.commit("watched", {partition: offset}).exception(60)
        print(offset if error is None else 0, flush=True)
        time.sleep(0.05)
"""


@pytest.mark.fault
@pytest.mark.timeout(1800)
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

        def next_commit() -> int:
            """The offset that was committed next; commits that failed are passed over."""
            assert program.stdout is not None
            for line in program.stdout:
                if int(line):
                    return int(line)
            pytest.fail(f"the process ended with {program.wait()}")

        for outage in (0.0, 4.0, 12.0):
            next_commit()
            kafka.kill()
            time.sleep(outage)
            kafka.start()
            for _ in range(20):
                next_commit()
        last = next_commit()
        program.stdin.close()
        rest = [int(line) for line in program.stdout]
        last = max([last, *rest])
        assert program.wait(600) == 0
        program.stdout.close()
        partition = KafkaTopicPartition("t", 0)
        view = ClusterView({"bootstrap.servers": kafka.bootstrap_servers}, read_committed=True)
        assert view.committed("watched", [partition]) == {partition: last}
        kafka.kill()
