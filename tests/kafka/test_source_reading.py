from __future__ import annotations

import logging
import random
import threading
import time
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.connectors.base import ReaderContext, SplitRange
from holdfast.connectors.kafka.sink.outbox import OutgoingBatch
from holdfast.connectors.kafka.sink.producers import RecordProducer
from holdfast.connectors.kafka.source.consumer_record import CalledWithRecord
from holdfast.errors import InputLost, UserCodeError
from holdfast.testing.kafka import KafkaBroker
from kafka_fixtures import produce, read_all
from kafka_source_helpers import INFO, Job, source

pytestmark = pytest.mark.kafka


def transactional(kafka: Any, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name, "linger.ms": 1})
    producer.init_transactions()
    return producer


def test_open_and_aborted_transactions_are_not_read_and_do_not_hold_a_range_up(kafka: Any, new_topic: Any) -> None:
    topic = new_topic()
    producer = transactional(kafka, topic)
    for number, outcome in enumerate(["commit", "abort", "commit", "abort"]):
        producer.begin_transaction()
        for i in range(3):
            producer.produce(topic, f"{outcome}-{number}-{i}")
        producer.flush()
        producer.commit_transaction() if outcome == "commit" else producer.abort_transaction()
    producer.begin_transaction()
    producer.produce(topic, "open")
    producer.flush()
    with Job(source(kafka, topics=(topic,))) as job:
        expected = [f"commit-{n}-{i}" for n in (0, 2) for i in range(3)]
        plan = job.enumerator.plan(100)
        assert [(r.start, r.end) for r in plan.ranges] == [(0, 16)]  # up to the open one, markers included
        assert job.read(plan.ranges) == expected
        # the same range again, then in pieces that begin and end at markers and within aborted transactions
        assert job.read(plan.ranges) == expected
        pieces = [SplitRange(r.split, a, a + 1, 1, r.payload) for r in plan.ranges for a in range(r.start, r.end)]
        assert [v for piece in pieces for v in job.read([piece])] == expected
        producer.commit_transaction()
        job.enumerator.wait(10)
        assert job.epoch() == ["open"]


def test_gaps_of_compaction_are_skipped(kafka: Any, new_topic: Any) -> None:
    topic = new_topic(
        cleanup_policy="compact",
        segment_ms="200",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="300",
        delete_retention_ms="0",
    )
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 1})
    for i in range(100):
        producer.produce(topic, f"v{i}", key=f"k{i % 3}")
    producer.flush()
    end = 100
    deadline = time.monotonic() + 600
    with Job(source(kafka, topics=(topic,))) as job:
        while len(job.read([SplitRange(f"{topic}-0", 0, 100, 1, (topic, 0, -1))])) > 50:
            assert time.monotonic() < deadline, "the broker has not compacted the topic"
            producer.produce(topic, f"w{end}", key=f"w{end}")  # rolls the segment
            producer.flush()
            end += 1
    with Job(source(kafka, topics=(topic,))) as job:
        ranges = [SplitRange(f"{topic}-0", a, a + 10, 1, (topic, 0, -1)) for a in range(0, 100, 10)]
        in_pieces = [v for r in ranges for v in job.read([r])]
        assert in_pieces == job.read([SplitRange(f"{topic}-0", 0, 100, 1, (topic, 0, -1))])
        assert in_pieces[-1] in ("v99", "v98", "v97")


def test_ranges_read_again_in_any_order_give_the_same_records(kafka: Any, new_topic: Any) -> None:
    topic = new_topic(partitions=3)
    for p in range(3):
        produce(kafka.bootstrap_servers, topic, [f"{p}:{i}" for i in range(20_000)], partition=p)
    rng = random.Random(7)
    with Job(source(kafka, topics=(topic,))) as job:
        for _ in range(40):
            ranges = []
            for p in rng.sample(range(3), rng.randint(1, 3)):
                start = rng.randrange(19_000)
                end = min(20_000, start + rng.choice([1, 10, 1000, 8000]))
                ranges.append(SplitRange(f"{topic}-{p}", start, end, 1, (topic, p, -1)))
            got = job.read(
                ranges, rng.choice([1, 7, 1000, 100_000]) if sum(r.end - r.start for r in ranges) < 3000 else 1000
            )
            assert got == [f"{r.payload[1]}:{i}" for r in ranges for i in range(r.start, r.end)]


def test_several_ranges_are_pulled_alternately(kafka: Any, new_topic: Any) -> None:
    topic = new_topic(partitions=4)
    for p in range(4):
        produce(kafka.bootstrap_servers, topic, [f"{p}:{i}" for i in range(500)], partition=p)
    with Job(source(kafka, topics=(topic,))) as job:
        ranges = job.enumerator.plan(10_000).ranges
        iterators = {r.payload[1]: job.reader.read(r, 64) for r in ranges}
        got: dict[int, list[str]] = {p: [] for p in iterators}
        rng = random.Random(3)
        while iterators:
            p = rng.choice(list(iterators))
            batch = next(iterators[p], None)
            if batch is None:
                del iterators[p]
            else:
                assert len(batch.values) <= 64
                assert batch.locate(0) == f"topic {topic}, partition {p}, offset {len(got[p])}"
                got[p] += batch.values
        assert got == {p: [f"{p}:{i}" for i in range(500)] for p in range(4)}


def test_the_readers_buffers_are_bounded(kafka: Any, new_topic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.connectors.kafka.source.reader._BUFFER_BYTES", 20_000)
    topic = new_topic(partitions=3)
    for p in range(3):
        produce(kafka.bootstrap_servers, topic, [f"{p}:{i}:{'x' * 100}" for i in range(3000)], partition=p)
    with Job(source(kafka, topics=(topic,))) as job:
        for _ in range(3):
            got = [v.split(":")[:2] for v in job.epoch(3000)]
            assert len(got) == 3000
            assert sorted(got) == sorted(map(list, {tuple(g) for g in got}))
        assert job.reader._buffered == sum(p.buffered for p in job.reader._partitions.values())  # type: ignore[attr-defined]


def test_timestamps_keep_step_with_values_when_some_records_emit_nothing(kafka: Any, new_topic: Any) -> None:
    topic = new_topic()
    produce(kafka.bootstrap_servers, topic, [b"1", None, b"skip", b"2"], timestamps=[10, 20, 30, 40])
    src = source(kafka, topics=(topic,), value_only_deserializer=lambda data: None if data == b"skip" else int(data))
    with Job(src) as job:
        (batch,) = [b for r in job.enumerator.plan(10).ranges for b in job.reader.read(r, 100)]
        assert (batch.values, batch.timestamps) == ([1, 2], [10, 40])
        assert batch.locate(1).endswith("offset 3")


def test_a_record_that_does_not_parse_is_named(kafka: Any, new_topic: Any) -> None:
    topic = new_topic()
    produce(kafka.bootstrap_servers, topic, [b"1", b"2", b"three", b"4"])
    with Job(source(kafka, topics=(topic,), value_only_deserializer=int)) as job, pytest.raises(UserCodeError) as caught:
        job.epoch()
    assert caught.value.record == f"topic {topic}, partition 0, offset 2"
    assert "invalid literal for int()" in str(caught.value)
    assert "b'three'" in str(caught.value)


def test_a_range_below_retention_is_lost_input(kafka: Any, new_topic: Any) -> None:
    topic = new_topic()
    produce(kafka.bootstrap_servers, topic, [f"v{i}" for i in range(10)])
    Job.delete_before(kafka, topic, 6)
    part = SplitRange(f"{topic}-0", 2, 8, 6, (topic, 0, -1))
    context = ReaderContext(INFO, "u", 0, 1)
    reader = source(kafka, topics=(topic,)).create_reader(context)
    with pytest.raises(InputLost, match=rf"topic {topic}, partition 0: .* offset 2, but Kafka holds the offsets 6 to 10"):
        list(reader.read(part, 10))
    reader.close()
    reader = source(kafka, topics=(topic,), **{"auto.offset.reset": "earliest"}).create_reader(context)
    assert [v for b in reader.read(part, 10) for v in b.values] == ["v6", "v7"]
    assert [v for b in reader.read(SplitRange(f"{topic}-0", 8, 10, 2, (topic, 0, -1)), 10) for v in b.values] == ["v8", "v9"]
    reader.close()


def test_the_source_waits_for_an_unavailable_broker(caplog: pytest.LogCaptureFixture) -> None:
    with KafkaBroker() as kafka:
        kafka.create_topic("t")
        lines = [f"{i:06d}{'x' * 1000}" for i in range(20_000)]
        produce(kafka.bootstrap_servers, "t", lines)
        with Job(source(kafka, topics=("t",), **{"queued.max.messages.kbytes": 1024})) as job:
            (part,) = job.enumerator.plan(100_000).ranges
            seen: list[str] = []
            batches = job.reader.read(part, 500)
            seen += next(batches).values
            kafka.kill()
            assert job.enumerator.plan(100).ranges == ()  # it does not wait for the broker, which is dead until it returns
            with caplog.at_level(logging.WARNING):
                while "no answer from Kafka" not in caplog.text:
                    job.enumerator.wait(1)
            back = threading.Thread(target=kafka.start)
            back.start()
            for batch in batches:
                seen += batch.values
            back.join()
            assert [v[:6] for v in seen] == [f"{i:06d}" for i in range(20_000)]
            produce(kafka.bootstrap_servers, "t", ["after"])
            found: list[str] = []
            while not found:
                job.enumerator.wait(1)
                found = job.epoch()
            assert found == ["after"]


def test_records_from_before_1970_are_written_as_old_not_as_of_now(kafka: Any, new_topic: Any) -> None:
    topic = new_topic(retention_ms="-1")
    before = int(time.time() * 1000)
    producer = RecordProducer({"bootstrap.servers": kafka.bootstrap_servers}, "test")
    times = [0, -5, 1, 1_700_000_000_000, MIN_TIMESTAMP]
    producer.send(OutgoingBatch(topic, [b"x"] * len(times), None, times))
    producer.flush()
    with Job(source(kafka, topics=(topic,))) as job:
        ranges = job.enumerator.plan(100).ranges
        got = [t for r in ranges for batch in job.reader.read(r, 100) for t in batch.timestamps or []]
    assert got[:4] == [1, 1, 1, 1_700_000_000_000]
    assert got[4] >= before  # it had no timestamp


@pytest.mark.parametrize("headers", [None, [[("name", b"value")]] * 2])
@pytest.mark.parametrize("partitions", [None, [0, 0]])
@pytest.mark.parametrize("given", [None, [MIN_TIMESTAMP, MIN_TIMESTAMP]])
def test_records_of_elements_without_a_timestamp_get_the_time_of_their_writing(
    kafka: Any, new_topic: Any, headers: Any, partitions: Any, given: Any
) -> None:
    topic = new_topic()
    before = int(time.time() * 1000)
    producer = RecordProducer({"bootstrap.servers": kafka.bootstrap_servers}, "test")
    producer.send(OutgoingBatch(topic, [b"x", b"y"], None, given, headers, partitions))
    producer.flush()
    assert all(message.timestamp()[1] >= before for message in read_all(kafka.bootstrap_servers, topic))


def test_a_record_without_a_timestamp_is_an_element_without_one(kafka: Any, new_topic: Any) -> None:
    from kafka import KafkaProducer

    topic = new_topic()
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    producer.send(topic, value=b"without", timestamp_ms=-1)
    producer.send(topic, value=b"first of 1970", timestamp_ms=0)
    producer.close()
    with Job(source(kafka, topics=(topic,))) as job:
        ranges = job.enumerator.plan(100).ranges
        got = [t for r in ranges for batch in job.reader.read(r, 100) for t in batch.timestamps or []]
    assert got == [MIN_TIMESTAMP, 0]


def test_a_record_whose_headers_cannot_be_read_is_named(kafka: Any, new_topic: Any) -> None:
    from kafka import KafkaProducer

    class Latin(str):
        def encode(self, *_: Any) -> bytes:
            return b"\xff"

    topic = new_topic()
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    producer.send(topic, value=b"one")
    producer.send(topic, value=b"two", headers=[(Latin("name"), b"1")])
    producer.close()
    with (
        Job(source(kafka, topics=(topic,), deserializer=CalledWithRecord(lambda record: record.value))) as job,
        pytest.raises(UserCodeError, match="a header's name is not UTF-8") as caught,
    ):
        job.epoch()
    assert caught.value.record == f"topic {topic}, partition 0, offset 1"
    with Job(source(kafka, topics=(topic,))) as job:  # of values
        assert job.epoch() == ["one", "two"]
