"""Programs as people write them for PyFlink, with nothing changed but imports and addresses, become the right plan."""

from __future__ import annotations

import json

import pytest

from holdfast.common import Duration, SimpleStringSchema, Time, Types
from holdfast.common.watermark_strategy import WatermarkStrategy
from holdfast.connectors.delivery import DeliveryGuarantee
from holdfast.datastream import CheckpointingMode, StreamExecutionEnvironment
from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink, KafkaSource
from holdfast.datastream.functions import KeyedProcessFunction
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.runtime.plan.plan import InputKind, Partitioning

ADDRESS = "localhost:1"


def kafka_sink_with_transactional_id(topic: str) -> KafkaSink:
    return (
        KafkaSink.builder()
        .set_bootstrap_servers(ADDRESS)
        .set_record_serializer(
            KafkaRecordSerializationSchema.builder()
            .set_topic(topic)
            .set_value_serialization_schema(SimpleStringSchema())
            .build()
        )
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix(topic)
        .build()
    )


class FraudCounter(KeyedProcessFunction):
    def open(self, ctx):
        self.count = ctx.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.first_seen = ctx.get_state(ValueStateDescriptor("first_seen_ms", Types.LONG()))

    def process_element(self, event, ctx):
        c = self.count.value() or 0
        if c == 0:
            self.first_seen.update(ctx.timestamp())
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)
        self.count.update(c + 1)
        if self.count.value() > 10:
            yield (ctx.get_current_key(), "rate-limit-trip")

    def on_timer(self, ts, ctx):
        self.count.clear()
        self.first_seen.clear()


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(30_000, CheckpointingMode.EXACTLY_ONCE)
    env.get_checkpoint_config().set_checkpoint_storage_dir("s3://flink-ckpts/upi/")
    return env


def payments(env: StreamExecutionEnvironment):
    source = (
        KafkaSource.builder()
        .set_bootstrap_servers(ADDRESS)
        .set_topics("upi-payments")
        .set_group_id("per-minute-counter")
        .set_starting_offsets("earliest")
        .build()
    )
    return env.from_source(
        source,
        WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5)).with_timestamp_assigner(
            lambda r, _: json.loads(r)["ts_ms"]
        ),
        "upi-source",
    )


def test_the_upi_count_per_minute(env):
    stream = payments(env)
    (
        stream.map(lambda r: (json.loads(r)["merchant_id"], 1))
        .key_by(lambda x: x[0])
        .window(TumblingEventTimeWindows.of(Time.minutes(1)))
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
        .sink_to(kafka_sink_with_transactional_id("upi-counts"))
    )
    plan = env._plan("upi-per-minute")
    assert [v.name for v in plan.vertices] == [
        "Source: upi-source -> Map",
        "Window(TumblingEventTimeWindows) -> Sink: KafkaSink",
    ]
    assert [v.parallelism for v in plan.vertices] == [2, 2]
    assert plan.levels == 2
    (channel,) = plan.vertices[0].chain[0].channels
    assert channel.partitioning is Partitioning.HASH
    assert plan.vertices[1].inputs == (InputKind.KEYED,)
    assert plan.config["execution.checkpointing.dir"] == "s3://flink-ckpts/upi/"
    assert plan.config["execution.checkpointing.mode"] == "EXACTLY_ONCE"


def test_the_fraud_counter_between_two_topics(env):
    (
        payments(env)
        .map(json.loads)
        .key_by(lambda event: event["merchant_id"])
        .process(FraudCounter())
        .uid("fraud-counter")
        .map(lambda alert: json.dumps(alert))
        .sink_to(kafka_sink_with_transactional_id("alerts"))
    )
    plan = env._plan("fraud")
    assert [v.name for v in plan.vertices] == [
        "Source: upi-source -> Map",
        "KeyedProcess -> Map -> Sink: KafkaSink",
    ]
    assert plan.vertices[1].chain[0].uid == "fraud-counter"


def test_the_running_average_over_a_socket():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    (
        env.socket_text_stream("localhost", 9000)
        .map(lambda line: (0, float(line), 1))
        .key_by(lambda x: x[0])
        .reduce(lambda a, b: (0, a[1] + b[1], a[2] + b[2]))
        .map(lambda x: x[1] / x[2])
        .print()
    )
    plan = env._plan("average")
    assert [(v.name, v.parallelism) for v in plan.vertices] == [
        ("Source: Socket Stream", 1),
        ("Map", 2),
        ("Reduce -> Map -> Sink: Print to Std. Out", 2),
    ]
