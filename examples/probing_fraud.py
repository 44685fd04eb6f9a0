"""Reports three small payments of a card before a large one, within ten minutes, from Kafka to Kafka, exactly once."""

import json
import os

from holdfast.cep import CEP, AfterMatchSkipStrategy, Pattern
from holdfast.common import Duration, Time, WatermarkStrategy
from holdfast.datastream import CheckpointingMode, StreamExecutionEnvironment
from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink, KafkaSource

BROKERS = os.environ.get("KAFKA", "localhost:9092")
CHECKPOINTS = os.environ.get("CHECKPOINTS", os.path.expanduser("~/holdfast-checkpoints"))
PAYMENTS = os.environ.get("CARD_PAYMENTS_TOPIC", "card-payments")
ALERTS = os.environ.get("CARD_ALERTS_TOPIC", "card-alerts")

probing = (
    Pattern.begin("probes", AfterMatchSkipStrategy.skip_past_last_event())
    .where(lambda payment: payment["amount"] < 5)
    .times(3)
    .followed_by("large")
    .where(lambda payment: payment["amount"] > 500)
    .within(Time.minutes(10))
)


def alert(match):
    large = match["large"][0]
    return {
        "card": large["card"],
        "amount": large["amount"],
        "probed_at": [payment["ts_ms"] for payment in match["probes"]],
        "at": large["ts_ms"],
    }


env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(1_000, CheckpointingMode.EXACTLY_ONCE)
env.get_checkpoint_config().set_checkpoint_storage_dir(CHECKPOINTS)

source = (
    KafkaSource.builder()
    .set_bootstrap_servers(BROKERS)
    .set_topics(PAYMENTS)
    .set_group_id("probing-fraud")
    .set_starting_offsets("earliest")
    .build()
)
event_time = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5)).with_timestamp_assigner(
    lambda record, _: json.loads(record)["ts_ms"]
)
serializer = (
    KafkaRecordSerializationSchema.builder()
    .set_topic(ALERTS)
    .set_key_serialization_schema(lambda alert: alert["card"])
    .set_value_serialization_schema(json.dumps)
    .build()
)
sink = (
    KafkaSink.builder()
    .set_bootstrap_servers(BROKERS)
    .set_record_serializer(serializer)
    .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
    .set_transactional_id_prefix("probing-fraud")
    .build()
)

payments = env.from_source(source, event_time, "payments").map(json.loads)
CEP.pattern(payments.key_by(lambda payment: payment["card"]), probing).select(alert).uid("probing").sink_to(sink)

env.execute("probing-fraud")
