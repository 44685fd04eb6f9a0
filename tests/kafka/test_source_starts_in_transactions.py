"""Where a source starts in a partition with transactions: open ones, ended ones, and records that are gone."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Producer

from awaiting import until
from effort import seeds
from holdfast.connectors.kafka.cluster import ClusterView
from holdfast.connectors.kafka.offsets import KafkaOffsetResetStrategy, KafkaOffsetsInitializer, KafkaTopicPartition
from holdfast.connectors.kafka.source import enumerator
from kafka_fixtures import produce
from kafka_source_helpers import Job, source

pytestmark = pytest.mark.kafka

OFFSETS = KafkaOffsetsInitializer
_names = itertools.count()


@dataclass
class Partition:
    """A partition, and a model of its log."""

    kafka: Any
    topic: str
    log: list[tuple[str, int] | None] = field(default_factory=list)
    """Value and timestamp of the record at each offset; None: a transaction's marker."""
    open: list[tuple[Producer, set[int]]] = field(default_factory=list)
    """The open transactions, with the offsets of their records."""
    aborted: set[int] = field(default_factory=set)
    first: int = 0

    @property
    def place(self) -> KafkaTopicPartition:
        return KafkaTopicPartition(self.topic, 0)

    def record(self) -> tuple[str, int]:
        made = f"v{len(self.log)}", 1_000 + 10 * len(self.log)
        self.log.append(made)
        return made

    def plain(self) -> None:
        value, timestamp = self.record()
        produce(self.kafka.bootstrap_servers, self.topic, [value], timestamps=[timestamp])

    def begin(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self.kafka.bootstrap_servers, "transactional.id": f"start-{next(_names)}", "linger.ms": 1}
        )
        producer.init_transactions()
        producer.begin_transaction()
        self.open.append((producer, set()))
        self.write(-1)

    def write(self, number: int) -> None:
        producer, offsets = self.open[number]
        offsets.add(len(self.log))
        value, timestamp = self.record()
        producer.produce(self.topic, value, partition=0, timestamp=timestamp)
        producer.flush()

    def end(self, number: int, commit: bool) -> None:
        producer, offsets = self.open.pop(number)
        producer.commit_transaction() if commit else producer.abort_transaction()
        self.log.append(None)
        # Kafka answers before the marker is in the partition: another record could come before it.
        view = ClusterView({"bootstrap.servers": self.kafka.bootstrap_servers}, read_committed=False)
        until(lambda: view.high_watermarks([self.place])[self.place] == len(self.log))
        if not commit:
            self.aborted |= offsets

    def delete_before(self, offset: int) -> None:
        Job.delete_before(self.kafka, self.topic, offset)
        self.first = max(self.first, offset)

    @property
    def stable(self) -> int:
        """The last stable offset."""
        return min((min(offsets) for _, offsets in self.open), default=len(self.log))

    def at_time(self, timestamp: int) -> int:
        """The first offset with this timestamp or a later one; that of a marker is the present time."""
        found = (at for at, r in enumerate(self.log) if at >= self.first and (r is None or r[1] >= timestamp))
        return next(found, len(self.log))

    def committed_from(self, offset: int) -> list[str]:
        """The committed values from an offset on."""
        assert not self.open
        return [r[0] for at, r in enumerate(self.log) if r is not None and at >= offset and at not in self.aborted]


def some_partition(kafka: Any, topic: str, rng: random.Random) -> Partition:
    partition = Partition(kafka, topic)
    for _ in range(rng.randrange(6, 16)):
        step = rng.choice(["plain", "plain", "begin", "write", "commit", "abort"])
        if step == "plain":
            partition.plain()
        elif step == "begin" and len(partition.open) < 2:
            partition.begin()
        elif partition.open:
            number = rng.randrange(len(partition.open))
            partition.write(number) if step == "write" else partition.end(number, step == "commit")
    if rng.random() < 0.5:
        partition.delete_before(rng.randrange(partition.stable + 1))
    return partition


def some_starts(partition: Partition, rng: random.Random) -> list[tuple[KafkaOffsetsInitializer, int]]:
    """Starting offsets of each kind, with the offset that they mean."""
    end = len(partition.log)
    at = {partition.stable, end, *rng.sample(range(partition.first, end + 1), min(3, end + 1 - partition.first))}
    times = [1_000 + 10 * offset - rng.choice([0, 5]) for offset in at]
    committed = rng.choice(sorted(at))
    view = ClusterView({"bootstrap.servers": partition.kafka.bootstrap_servers}, read_committed=True)
    view.commit(partition.topic, {partition.place: committed}).result()
    return [
        *((OFFSETS.offsets({partition.place: o}), o) for o in at),
        *((OFFSETS.timestamp(t), partition.at_time(t)) for t in times),
        (OFFSETS.committed_offsets(), committed),
        (OFFSETS.earliest(), partition.first),
        (OFFSETS.latest(), partition.stable),
        (OFFSETS.offsets({partition.place: end + 5}), partition.first),
        (OFFSETS.offsets({partition.place: end + 5}, KafkaOffsetResetStrategy.LATEST), partition.stable),
    ]


@pytest.mark.parametrize("seed", seeds(8))
def test_every_start_reads_the_committed_records_from_there_on(
    kafka: Any, new_topic: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(enumerator, "_MISSING_S", 0.0)  # a partition that ends before its position is looked at at once
    rng = random.Random(seed)
    partition = some_partition(kafka, new_topic(), rng)
    starts = some_starts(partition, rng)
    options = {"group.id": partition.topic, "commit.offsets.on.checkpoint": "false"}
    jobs: list[tuple[Job, KafkaOffsetsInitializer, int, list[str]]] = []
    for start, offset in starts:
        job = Job(source(kafka, topics=(partition.topic,), starting_offsets=start, **options))
        jobs.append((job, start, offset, [v for _ in range(3) for v in job.epoch()]))
    while partition.open:
        partition.end(rng.randrange(len(partition.open)), rng.random() < 0.5)
    for job, start, offset, values in jobs:
        with job:
            expected = partition.committed_from(offset)
            deadline = time.monotonic() + 60
            while len(values) < len(expected) and time.monotonic() < deadline:
                job.enumerator.wait(1)
                values += job.epoch()
            assert values + job.epoch() == expected, (start, offset, partition.log)


def test_a_position_behind_an_open_transaction_is_no_lost_input(
    kafka: Any, new_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enumerator, "_MISSING_S", 0.0)
    partition = Partition(kafka, new_topic())
    partition.plain()
    partition.begin()
    partition.plain()
    with Job(source(kafka, topics=(partition.topic,), **{"isolation.level": "read_uncommitted"})) as job:
        assert job.epoch() == ["v0", "v1", "v2"]
        state = job.enumerator.snapshot()
    with Job(source(kafka, topics=(partition.topic,)), state) as job:
        assert [v for _ in range(3) for v in job.epoch()] == []
        partition.end(0, commit=True)
        partition.plain()
        job.enumerator.wait(60)
        assert job.epoch() == ["v4"]
