"""Reports merchants with more than ten payments in a minute, from Kafka to Kafka, exactly once."""

import json
import os

from holdfast.common import Duration, Types, WatermarkStrategy
from holdfast.datastream import CheckpointingMode, KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink, KafkaSource
from holdfast.datastream.state import ValueStateDescriptor

BROKERS = os.environ.get("KAFKA", "localhost:9092")
CHECKPOINTS = os.environ.get("CHECKPOINTS", os.path.expanduser("~/holdfast-checkpoints"))
PAYMENTS = os.environ.get("PAYMENTS_TOPIC", "upi-payments")
ALERTS = os.environ.get("ALERTS_TOPIC", "upi-alerts")


class FraudCounter(KeyedProcessFunction):
    """Counts a merchant's payments; a minute after the first one, the count starts over."""

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
        self.count.clear()  # frees the row: an inactive merchant uses no storage
        self.first_seen.clear()


env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(1_000, CheckpointingMode.EXACTLY_ONCE)
env.get_checkpoint_config().set_checkpoint_storage_dir(CHECKPOINTS)

source = (
    KafkaSource.builder()
    .set_bootstrap_servers(BROKERS)
    .set_topics(PAYMENTS)
    .set_group_id("fraud-counter")
    .set_starting_offsets("earliest")
    .build()
)
event_time = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5)).with_timestamp_assigner(
    lambda r, _: json.loads(r)["ts_ms"]
)
serializer = (
    KafkaRecordSerializationSchema.builder()
    .set_topic(ALERTS)
    .set_key_serialization_schema(lambda alert: alert[0])
    .set_value_serialization_schema(json.dumps)
    .build()
)
sink = (
    KafkaSink.builder()
    .set_bootstrap_servers(BROKERS)
    .set_record_serializer(serializer)
    .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
    .set_transactional_id_prefix("fraud-alerts")
    .build()
)

(
    env.from_source(source, event_time, "payments")
    .key_by(lambda r: json.loads(r)["merchant_id"])
    .process(FraudCounter())
    .sink_to(sink)
)

env.execute("fraud-counter")
