"""The throughput of the Kafka connector without the rest of the engine.

    python -m benchmarks.micro_kafka read            # a topic through KafkaReader.read, values as strings
    python -m benchmarks.micro_kafka write           # KafkaSink writer and committer, exactly once
    python -m benchmarks.micro_kafka latency         # from produce() until plan() returns it

Starts its own broker unless --bootstrap-servers is given. Rates are per second of wall-clock time and, because the broker
competes for the same cores, also per second of CPU time of this process.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.connectors.base import Committable, JobInfo, ReaderContext, WriterContext
from holdfast.connectors.delivery import DeliveryGuarantee
from holdfast.connectors.kafka.sink.serializer import RecordSerializer
from holdfast.connectors.kafka.sink.sink import KafkaSink
from holdfast.connectors.kafka.source.source import KafkaSource
from holdfast.testing.kafka import KafkaBroker

JOB = JobInfo("bench", "bench", 1, None)


@contextmanager
def broker(given: str | None) -> Iterator[str]:
    if given:
        yield given
    else:
        with KafkaBroker(heap="1g") as started:
            yield started.bootstrap_servers


def topic(servers: str, partitions: int) -> str:
    name = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result()
    return name


def fill(servers: str, name: str, partitions: int, records: int) -> None:
    settings = {"bootstrap.servers": servers, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
    producer = Producer(settings)
    for i in range(records):
        value = b'{"user_id": "user-%d", "amount": 12.5, "event_time": %d, "merchant": "m-%d"}' % (i % 10_000, i, i % 97)
        producer.produce(name, value, None, i // 1000 % partitions)
        if i % 20_000 == 0:
            producer.poll(0.01)
    producer.flush()


def read(servers: str, options: argparse.Namespace) -> None:
    name = topic(servers, options.partitions)
    fill(servers, name, options.partitions, options.records)
    source = KafkaSource(bootstrap_servers=servers, topics=name)
    enumerator = source.create_enumerator(JOB, "u")
    enumerator.start(None)
    reader = source.create_reader(ReaderContext(JOB, "u", 0, 1))
    count, batches, plans = 0, 0, []
    wall, cpu = time.perf_counter(), time.process_time()
    while count < options.records:
        began = time.perf_counter()
        ranges = enumerator.plan(options.epoch).ranges
        plans.append(time.perf_counter() - began)
        iterators = [reader.read(r, options.batch) for r in ranges]
        while iterators:
            for iterator in list(iterators):
                batch = next(iterator, None)
                if batch is None:
                    iterators.remove(iterator)
                else:
                    count += len(batch.values)
                    batches += 1
    report("read", count, time.perf_counter() - wall, time.process_time() - cpu)
    print(f"  {count / batches:.0f} records a batch; plan() median {statistics.median(plans) * 1000:.1f} ms")
    reader.close()
    enumerator.close()


def write(servers: str, options: argparse.Namespace) -> None:
    name = topic(servers, options.partitions)
    with tempfile.TemporaryDirectory() as storage:
        job = JobInfo("bench", "bench", 1, storage if options.outbox else None)
        sink = KafkaSink(
            properties={"bootstrap.servers": servers},
            record_serializer=RecordSerializer(name),
            delivery_guarantee=DeliveryGuarantee.EXACTLY_ONCE,
            transactional_id_prefix=name,
        )
        sink.validate()
        writer = sink.create_writer(WriterContext(job, "u", 0, 1))
        committer = sink.create_committer(job, "u")
        assert committer is not None
        values = [f'{{"user_id": "user-{i % 10_000}", "count": {i}, "rule": "rate-limit"}}' for i in range(options.batch)]
        commits, prepares, count, epoch = [], [], 0, 0
        wall, cpu = time.perf_counter(), time.process_time()
        while count < options.records:
            epoch += 1
            writer.begin_epoch(Epoch(epoch), str(epoch), CheckpointId(epoch - 1))
            for _ in range(max(1, options.epoch // options.batch)):
                writer.write(values, None)
                count += len(values)
            began = time.perf_counter()
            prepared: list[Any] = writer.prepare_commit()
            prepares.append(time.perf_counter() - began)
            began = time.perf_counter()
            committer.commit([Committable("u", 0, data) for data in prepared])
            commits.append(time.perf_counter() - began)
        report("write", count, time.perf_counter() - wall, time.process_time() - cpu)
        print(
            f"  {epoch} epochs; prepare median {statistics.median(prepares) * 1000:.1f} ms, commit median "
            f"{statistics.median(commits) * 1000:.1f} ms"
        )
        writer.close()
        committer.close()


def latency(servers: str, options: argparse.Namespace) -> None:
    name = topic(servers, 1)
    source = KafkaSource(bootstrap_servers=servers, topics=name)
    enumerator = source.create_enumerator(JOB, "u")
    enumerator.start(None)
    reader = source.create_reader(ReaderContext(JOB, "u", 0, 1))
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    planned, done = [], []
    enumerator.plan(1)
    for i in range(200):
        began = time.perf_counter()
        producer.produce(name, str(i))
        producer.poll(0)
        while not (ranges := enumerator.plan(100).ranges):
            enumerator.wait(1)
        planned.append(time.perf_counter() - began)
        assert [v for r in ranges for b in reader.read(r, 100) for v in b.values] == [str(i)]
        done.append(time.perf_counter() - began)
        time.sleep(0.02)
    for what, times in (("planned", planned), ("read", done)):
        times.sort()
        print(f"latency until {what}: p50 {times[100] * 1000:.1f} ms, p95 {times[190] * 1000:.1f} ms")
    reader.close()
    enumerator.close()


def report(what: str, count: int, wall: float, cpu: float) -> None:
    print(f"{what}: {count:,} records, {count / wall:,.0f}/s, {count / cpu:,.0f} per CPU second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["read", "write", "latency"])
    parser.add_argument("--bootstrap-servers")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--epoch", type=int, default=100_000, help="records per epoch")
    parser.add_argument("--batch", type=int, default=5_000, help="records per batch")
    parser.add_argument("--no-outbox", dest="outbox", action="store_false", help="keep no copy in the outbox")
    options = parser.parse_args()
    with broker(options.bootstrap_servers) as servers:
        {"read": read, "write": write, "latency": latency}[options.what](servers, options)


if __name__ == "__main__":
    main()
