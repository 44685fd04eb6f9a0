"""The demo's job: payments in, totals per merchant and minute and fraud alerts out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from holdfast.common import Encoder, SimpleStringSchema, Time, WatermarkStrategy
from holdfast.datastream import (
    AggregateFunction,
    CheckpointingMode,
    DataStream,
    EmbeddedRocksDBStateBackend,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
)
from holdfast.datastream.connectors.datagen import PaymentsSource
from holdfast.datastream.connectors.file_system import BucketAssigner, FileSink
from holdfast.datastream.window import TimeWindow, TumblingEventTimeWindows
from holdfast.demo.rules import FraudRules

__all__ = ["JOB_NAME", "RULES_OPERATOR", "build", "file_sink", "generated_payments", "kafka_payments", "kafka_sink"]

JOB_NAME = "holdfast-demo"
RULES_OPERATOR = "fraud-rules"
_CUSTOMERS = 2_000_000
_FRAUD_SHARE = 0.01

Total = tuple[int, float]


class _Totals(AggregateFunction):
    """Counts payments and sums their amounts."""

    def create_accumulator(self) -> Total:
        return (0, 0.0)

    def add(self, value: Mapping[str, Any], accumulator: Total) -> Total:
        return (accumulator[0] + 1, accumulator[1] + value["amount"])

    def get_result(self, accumulator: Total) -> Total:
        return accumulator

    def merge(self, a: Total, b: Total) -> Total:
        return (a[0] + b[0], a[1] + b[1])


class _WithMerchantAndMinute(ProcessWindowFunction[Total, dict[str, Any], str, TimeWindow]):
    """Adds the merchant and the minute to a total."""

    def process(
        self, key: str, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[Total]
    ) -> Iterator[dict[str, Any]]:
        for payments, amount in elements:
            yield {"minute_ms": context.window().start, "merchant": key, "payments": payments, "sum": amount}


def build(env: StreamExecutionEnvironment, payments: DataStream, totals_sink: Any, alerts_sink: Any) -> None:
    """Add the operators and both sinks. Every operator has a uid, so that it keeps its state when the program changes."""
    totals = (
        payments.key_by(lambda payment: payment["merchant_id"])
        .window(TumblingEventTimeWindows.of(Time.minutes(1)))
        .aggregate(_Totals(), _WithMerchantAndMinute())
        .name("totals-per-minute")
        .uid("totals")
    )
    alerts = payments.key_by(lambda payment: payment["customer_id"]).process(FraudRules())
    alerts = alerts.name(RULES_OPERATOR).uid("fraud-rules")
    for stream, name, sink in ((totals, "totals", totals_sink), (alerts, "alerts", alerts_sink)):
        lines = stream.map(_to_json).name(f"{name}-as-json").uid(f"{name}-as-json")
        lines.sink_to(sink).name(f"{name}-sink").uid(f"{name}-sink")


def _to_json(value: Any) -> str:
    return orjson.dumps(value).decode()


def configure(env: StreamExecutionEnvironment, state_dir: Path) -> None:
    """Configure RocksDB, and exactly-once checkpoints on the local disk."""
    env.set_state_backend(EmbeddedRocksDBStateBackend())
    env.enable_checkpointing(1_000, CheckpointingMode.EXACTLY_ONCE)
    env.get_checkpoint_config().set_checkpoint_storage_dir((state_dir / "checkpoints").resolve().as_uri())


def generator(rate: float) -> PaymentsSource:
    """Create the generator of ``rate`` payments a second, with enough customers that few pay several times a minute."""
    return PaymentsSource(seed=7, rate_per_second=rate, customers=_CUSTOMERS, fraud_share=_FRAUD_SHARE)


def generated_payments(env: StreamExecutionEnvironment, rate: float) -> DataStream:
    """Create a stream of payments from the embedded generator."""
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    return env.from_source(generator(rate), strategy, "payments").uid("payments")


def kafka_payments(env: StreamExecutionEnvironment, bootstrap_servers: str, topic: str) -> DataStream:
    """Create a stream of JSON payments from a Kafka topic, with the Kafka records' timestamps."""
    from holdfast.datastream.connectors.kafka import KafkaOffsetsInitializer, KafkaSource

    source = (
        KafkaSource.builder()
        .set_bootstrap_servers(bootstrap_servers)
        .set_topics(topic)
        .set_group_id(JOB_NAME)
        .set_starting_offsets(KafkaOffsetsInitializer.earliest())
        .set_value_only_deserializer(SimpleStringSchema())
        .build()
    )
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    lines = env.from_source(source, strategy, "payments-topic").uid("payments")
    return lines.map(orjson.loads).name("parse").uid("parse")


def file_sink(directory: Path) -> FileSink:
    """Create a file sink of JSON lines; files appear with their checkpoint, in hourly directories."""
    return (
        FileSink.for_row_format(str(directory.resolve()), Encoder.simple_string_encoder())
        .with_bucket_assigner(BucketAssigner.date_time_bucket_assigner())
        .build()
    )


def kafka_sink(bootstrap_servers: str, topic: str) -> Any:
    """Create an exactly-once sink of JSON to a Kafka topic."""
    from holdfast.datastream.connectors.base import DeliveryGuarantee
    from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink

    serializer = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(topic)
        .set_value_serialization_schema(SimpleStringSchema())
        .build()
    )
    return (
        KafkaSink.builder()
        .set_bootstrap_servers(bootstrap_servers)
        .set_record_serializer(serializer)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix(f"{JOB_NAME}-{topic}")
        .build()
    )
