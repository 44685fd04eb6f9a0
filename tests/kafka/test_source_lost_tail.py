"""Partitions that lose their tail: a broker's disk comes back from an old copy, acknowledged records are gone."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from holdfast.connectors.kafka.source import enumerator
from holdfast.connectors.kafka.source.reader import KafkaReader
from holdfast.errors import InputLost
from holdfast.testing.kafka import KafkaBroker
from kafka_fixtures import produce
from kafka_source_helpers import Job, source

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker(heap="256m") as running:
        yield running


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What must last a while to be believed needs less of it here."""
    monkeypatch.setattr(enumerator, "_MISSING_S", 1.0)


def lose_tail(broker: KafkaBroker, topic: str, between: Callable[[], None]) -> None:
    """What is written in ``between`` is acknowledged, but not on the copy that the disk is restored from."""
    partition = next(broker.directory.glob(f"**/{topic}-0"))
    copy = Path(f"{broker.directory}-copy-{topic}")
    shutil.copytree(partition, copy)  # records that are acknowledged are in the file
    between()
    broker.kill()
    shutil.rmtree(partition)
    shutil.move(copy, partition)
    broker.start()


def after_loss(broker: KafkaBroker, topic: str, **options: Any) -> tuple[Job, Any]:
    """A job that has read 60 records, of which the partition has lost the last 20; and its state."""
    broker.create_topic(topic)
    produce(broker.bootstrap_servers, topic, [b"%d" % i for i in range(40)])
    job = Job(source(broker, topics=(topic,), **options))

    def more() -> None:
        produce(broker.bootstrap_servers, topic, [b"%d" % i for i in range(40, 60)])
        assert len(read_until(job, 60)) == 60

    lose_tail(broker, topic, more)
    return job, job.enumerator.snapshot()


def read_until(job: Job, count: int, seconds: float = 600.0) -> list[Any]:
    """The values of epochs until there are so many."""
    values: list[Any] = []
    deadline = time.monotonic() + seconds
    while len(values) < count and time.monotonic() < deadline:
        job.enumerator.wait(0.2)
        values += job.epoch()
    return values


def test_a_running_job_notices_a_partition_that_ends_before_its_position(broker: KafkaBroker) -> None:
    job, _ = after_loss(broker, "running")
    with job, pytest.raises(InputLost, match=r"topic running, partition 0: .*offset 60.*ends at 40"):
        read_until(job, 1)


def test_a_restored_job_notices_a_partition_that_ends_before_its_position(broker: KafkaBroker) -> None:
    job, state = after_loss(broker, "restored")
    with job, Job(source(broker, topics=("restored",)), state) as again, pytest.raises(InputLost, match="ends at 40"):
        read_until(again, 1)


def test_other_records_at_the_offsets_that_were_lost_are_noticed_by_the_leader_epoch(broker: KafkaBroker) -> None:
    job, state = after_loss(broker, "overwritten")
    produce(broker.bootstrap_servers, "overwritten", [b"new %d" % i for i in range(50)])
    with job, Job(source(broker, topics=("overwritten",)), state) as again:
        with pytest.raises(InputLost, match=r"topic overwritten, partition 0.*offset 60"):
            read_until(again, 1)
        with pytest.raises(InputLost, match=r"topic overwritten, partition 0.*offset 60"):
            read_until(job, 1)


def test_the_loss_is_noticed_also_when_the_client_library_reads_on_without_a_look_at_the_leader_epoch(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does now and then while leaders move: the fault campaign found it."""

    def careless(reader: KafkaReader, key: tuple[str, int]) -> TopicPartition:
        return TopicPartition(*key, reader._partitions[key].fetched)

    monkeypatch.setattr(KafkaReader, "_next_of", careless)
    job, state = after_loss(broker, "unseen")
    produce(broker.bootstrap_servers, "unseen", [b"new %d" % i for i in range(50)])
    lost = pytest.raises(InputLost, match=r"topic unseen, partition 0: the records before offset 60 are no longer those")
    with job, Job(source(broker, topics=("unseen",)), state) as again, lost:
        read_until(again, 1)


def test_a_leader_that_changes_between_two_epochs_of_the_job_is_no_loss(broker: KafkaBroker) -> None:
    broker.create_topic("moved")
    with Job(source(broker, topics=("moved",))) as job:
        for n in range(3):
            produce(broker.bootstrap_servers, "moved", [b"%d" % n] * 5)
            assert read_until(job, 5) == [str(n)] * 5
            broker.restart()


def test_a_reset_policy_reads_on_at_the_new_end(broker: KafkaBroker, caplog: pytest.LogCaptureFixture) -> None:
    job, _ = after_loss(broker, "reset", **{"auto.offset.reset": "earliest"})
    with job:
        deadline = time.monotonic() + 600
        while "records are lost" not in caplog.text and time.monotonic() < deadline:
            job.enumerator.wait(0.2)
            job.epoch()
        produce(broker.bootstrap_servers, "reset", [b"new %d" % i for i in range(3)])
        assert read_until(job, 3) == ["new 0", "new 1", "new 2"]


def test_a_broker_that_restarts_with_all_its_records_is_no_loss(broker: KafkaBroker) -> None:
    broker.create_topic("whole")
    produce(broker.bootstrap_servers, "whole", [b"%d" % i for i in range(40)])
    with Job(source(broker, topics=("whole",))) as job:
        assert len(read_until(job, 40)) == 40
        state = job.enumerator.snapshot()
        broker.restart()
        produce(broker.bootstrap_servers, "whole", [b"new %d" % i for i in range(3)])
        assert read_until(job, 3) == ["new 0", "new 1", "new 2"]
        with Job(source(broker, topics=("whole",)), state) as again:
            assert read_until(again, 3) == ["new 0", "new 1", "new 2"]


def test_a_transaction_that_ends_in_a_later_leader_epoch_is_no_loss(broker: KafkaBroker) -> None:
    broker.create_topic("transaction")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t", "log_level": 0})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("transaction", b"a", partition=0)
    producer.flush()
    broker.restart()
    producer.commit_transaction()
    with Job(source(broker, topics=("transaction",))) as job:
        assert read_until(job, 1) == ["a"]
        state = job.enumerator.snapshot()
        job.reader._unassign([("transaction", 0)])  # as when too much waits in the buffers
        produce(broker.bootstrap_servers, "transaction", [b"b"])
        assert read_until(job, 1) == ["b"]
        with Job(source(broker, topics=("transaction",)), state) as again:
            assert read_until(again, 1) == ["b"]
