"""Two exactly-once jobs from Kafka to Kafka, with JSON in and out and the broker on the same machine.

``fraud``  FraudCounter: an alert for each payment of a user beyond ten within a minute of event time; a timer clears the
           count. 10,000 users pay about eight times a minute each.
``upi``    Payments per merchant and minute: every record is parsed twice with the standard library; windows of one minute,
           1,000 merchants.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from benchmarks import jobs, measure
from benchmarks.data import START_MS
from holdfast.common import Duration, SimpleStringSchema, Time, Types, WatermarkStrategy
from holdfast.datastream import (
    DataStream,
    KeyedProcessFunction,
    MapFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.testing.kafka import KafkaBroker

PARTITIONS = 4
USERS = 10_000
MERCHANTS = 1_000
PAYMENTS_PER_MINUTE = 8
IN_ORDER_WITHIN = Duration.of_seconds(5)


class FraudCounter(KeyedProcessFunction):
    """Counts a user's events in the minute after the first one; emits an alert for each beyond the tenth."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.first_seen = runtime_context.get_state(ValueStateDescriptor("first_seen_ms", Types.LONG()))
        metrics = runtime_context.get_metrics_group()
        self.n = metrics.counter("n")
        self.alerts = metrics.counter("alerts")

    def process_element(self, value: dict[str, Any], ctx: Any) -> Iterator[tuple[str, str]]:
        self.n.inc()
        count = self.count.value() or 0
        if count == 0:
            self.first_seen.update(ctx.timestamp())
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)
        self.count.update(count + 1)
        if (self.count.value() or 0) > 10:
            self.alerts.inc()
            yield ctx.get_current_key(), "rate-limit-trip"

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        self.count.clear()
        self.first_seen.clear()


class Parse(MapFunction):
    """Parses JSON to a dict."""

    def open(self, runtime_context: RuntimeContext) -> None:
        jobs.note_start(runtime_context)

    def map(self, value: str) -> Any:
        return orjson.loads(value)


class MerchantAndOne(MapFunction):
    """Maps a payment to its merchant and a count of one."""

    def open(self, runtime_context: RuntimeContext) -> None:
        jobs.note_start(runtime_context)

    def map(self, value: str) -> tuple[str, int]:
        return json.loads(value)["merchant_id"], 1


def kafka_source(servers: str, topic: str, bounded: bool = True) -> KafkaSource:
    """A source of the topic from its beginning; bounded: up to its present end."""
    builder = (
        KafkaSource.builder()
        .set_bootstrap_servers(servers)
        .set_topics(topic)
        .set_group_id("benchmarks")
        .set_starting_offsets(KafkaOffsetsInitializer.earliest())
        .set_value_only_deserializer(SimpleStringSchema())
    )
    if bounded:
        builder = builder.set_bounded(KafkaOffsetsInitializer.latest())
    return builder.build()


def kafka_sink(servers: str, topic: str, *, exactly_once: bool = True) -> KafkaSink:
    """A sink of strings."""
    serializer = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(topic)
        .set_value_serialization_schema(SimpleStringSchema())
        .build()
    )
    return (
        KafkaSink.builder()
        .set_bootstrap_servers(servers)
        .set_record_serializer(serializer)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE if exactly_once else DeliveryGuarantee.AT_LEAST_ONCE)
        .set_transactional_id_prefix(f"benchmarks-{topic}")
        .build()
    )


def fraud(env: StreamExecutionEnvironment, source: KafkaSource) -> DataStream:
    """Build the fraud job: alerts as JSON."""
    in_time = WatermarkStrategy.for_bounded_out_of_orderness(IN_ORDER_WITHIN)
    return (
        env.from_source(source, WatermarkStrategy.no_watermarks(), "payments")
        .map(Parse())
        .assign_timestamps_and_watermarks(in_time.with_timestamp_assigner(lambda payment, _: payment["ts_ms"]))
        .key_by(lambda payment: payment["user_id"])
        .process(FraudCounter())
        .map(lambda alert: orjson.dumps(alert).decode())
    )


def upi(env: StreamExecutionEnvironment, source: KafkaSource) -> DataStream:
    """Build the UPI job: counts as JSON."""
    in_time = WatermarkStrategy.for_bounded_out_of_orderness(IN_ORDER_WITHIN)
    return (
        env.from_source(source, in_time.with_timestamp_assigner(lambda r, _: json.loads(r)["ts_ms"]), "upi-source")
        .map(MerchantAndOne())
        .key_by(lambda x: x[0])
        .window(TumblingEventTimeWindows.of(Time.minutes(1)))
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
        .map(json.dumps)
    )


def user_of(i: int) -> str:
    """The user of the i-th payment, pseudo-random, so that some pay more than ten times a minute."""
    return f"u{crc32(b'u%d' % i) % USERS:05d}"


def merchant_of(i: int) -> str:
    """The merchant of the i-th payment."""
    return f"M{crc32(b'm%d' % i) % MERCHANTS:04d}"


def timestamp_of(i: int) -> int:
    """The event time of the i-th payment, in ms."""
    return START_MS + i * 60_000 // (USERS * PAYMENTS_PER_MINUTE)


def fill(broker: KafkaBroker, topic: str, n: int) -> None:
    """Write ``n`` payments to the topic, with event times rising steadily within each partition."""
    broker.create_topic(topic, partitions=PARTITIONS)
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 20, "queue.buffering.max.messages": 500_000}
    )
    for i in range(n):
        payment = (
            f'{{"payment_id":"p{i:09d}","user_id":"{user_of(i)}","merchant_id":"{merchant_of(i)}",'
            f'"amount":{i % 4000 / 4},"currency":"INR","ts_ms":{timestamp_of(i)}}}'
        )
        while True:
            try:
                producer.produce(topic, payment, partition=i % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if i % 5000 == 0:
            producer.poll(0)
    producer.flush()


def committed_values(servers: str, topic: str) -> Iterator[bytes]:
    """Read the values of all committed records of a topic."""
    return (message.value() for message in committed_messages(servers, topic))


def committed_messages(servers: str, topic: str) -> Iterator[Any]:
    """Read all committed records of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "benchmarks-check",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        ended: set[int] = set()
        while len(ended) < PARTITIONS:
            for message in consumer.consume(10_000, 1.0):
                if message.error() is None:
                    yield message
                else:
                    if message.error().code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(message.error())
                    ended.add(message.partition())
    finally:
        consumer.close()


def check(name: str, n: int, values: Iterator[bytes], counters: dict[str, int], late: int) -> tuple[bool, int]:
    """Check that the committed output counts every record once; returns the verdict and the number of results.

    FraudCounter's timers fire within a batch depending on watermarks, so its alerts are compared with the counters of its
    functions in completed epochs. The windows' counts are compared with the input.
    """
    if name == "fraud":
        results = sum(1 for _ in values)
        return counters["n"] == n and results == counters["alerts"], results
    got = sorted(tuple(orjson.loads(value)) for value in values)
    windows = Counter((merchant_of(i), timestamp_of(i) // 60_000) for i in range(n))
    want = sorted((merchant, count) for (merchant, _), count in windows.items())
    return got == want and late == 0, len(got)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("job", choices=("fraud", "upi"))
    parser.add_argument("--events", type=int, default=6_000_000)
    parser.add_argument("--backend", default="rocksdb", choices=("rocksdb", "hashmap"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run a job on a topic filled beforehand; returns its figures, with the CPU time from the first event to the last."""
    work = jobs.scratch()
    try:
        with KafkaBroker(work / "kafka") as broker:
            servers = broker.bootstrap_servers
            fill(broker, "payments", options.events)
            broker.create_topic("results", partitions=PARTITIONS)
            env = StreamExecutionEnvironment.get_execution_environment(jobs.settings(work, options.backend, options.set))
            env.set_parallelism(2)
            build = {"fraud": fraud, "upi": upi}[options.job]
            build(env, kafka_source(servers, "payments")).sink_to(kafka_sink(servers, "results"))
            with measure.Course() as course:
                outcome = jobs.run(env, f"kafka-{options.job}")
            figures = outcome.summary()
            cpu = course.between(outcome.began, outcome.ended)
            checked_at = time.time()
            ok, results = check(
                options.job, options.events, committed_values(servers, "results"), outcome.counters(), figures["late"]
            )
    finally:
        jobs.tidy(work)
    return {
        "label": f"holdfast-{options.backend}",
        "workload": f"kafka-{options.job}",
        "data": f"{options.events}",
        **figures,
        "results": results,
        "check_s": round(time.time() - checked_at, 1),
        "cpu_us_by_process": {role: round(seconds / options.events * 1e6, 2) for role, seconds in cpu.items()},
        "ok": ok and figures["events"] == options.events,
    }
