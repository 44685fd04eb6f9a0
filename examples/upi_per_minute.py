"""Counts UPI payments per merchant and minute, from Kafka to Kafka, exactly once."""

import json
import os

from holdfast.common import Duration, Time
from holdfast.common.watermark_strategy import WatermarkStrategy
from holdfast.datastream import CheckpointingMode, StreamExecutionEnvironment
from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink, KafkaSource
from holdfast.datastream.window import TumblingEventTimeWindows

BROKERS = os.environ.get("KAFKA", "localhost:9092")
CHECKPOINTS = os.environ.get("CHECKPOINTS", os.path.expanduser("~/holdfast-checkpoints"))
PAYMENTS = os.environ.get("PAYMENTS_TOPIC", "upi-payments")
COUNTS = os.environ.get("COUNTS_TOPIC", "upi-counts")


def kafka_sink_with_transactional_id(topic):
    """Writes pairs as JSON, keyed by merchant, in transactions that are committed with the checkpoint."""
    serializer = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(topic)
        .set_key_serialization_schema(lambda pair: pair[0])
        .set_value_serialization_schema(json.dumps)
        .build()
    )
    return (
        KafkaSink.builder()
        .set_bootstrap_servers(BROKERS)
        .set_record_serializer(serializer)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix(topic)
        .build()
    )


env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(30_000, CheckpointingMode.EXACTLY_ONCE)
env.get_checkpoint_config().set_checkpoint_storage_dir(CHECKPOINTS)

source = (
    KafkaSource.builder()
    .set_bootstrap_servers(BROKERS)
    .set_topics(PAYMENTS)
    .set_group_id("per-minute-counter")
    .set_starting_offsets("earliest")
    .build()
)

stream = env.from_source(
    source,
    WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5)).with_timestamp_assigner(
        lambda r, _: json.loads(r)["ts_ms"]
    ),
    "upi-source",
)

(
    stream.map(lambda r: (json.loads(r)["merchant_id"], 1))
    .key_by(lambda x: x[0])
    .window(TumblingEventTimeWindows.of(Time.minutes(1)))
    .reduce(lambda a, b: (a[0], a[1] + b[1]))
    .sink_to(kafka_sink_with_transactional_id(COUNTS))
)

env.execute("upi-per-minute")
