"""Reports payments above a limit that changes while the job runs: rules come from a separate topic."""

import json
import os

from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import CheckpointingMode, KeyedBroadcastProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink, KafkaSource
from holdfast.datastream.state import MapStateDescriptor, ValueStateDescriptor

BROKERS = os.environ.get("KAFKA", "localhost:9092")
CHECKPOINTS = os.environ.get("CHECKPOINTS", os.path.expanduser("~/holdfast-checkpoints"))
PAYMENTS = os.environ.get("PAYMENTS_TOPIC", "upi-payments")
LIMITS = os.environ.get("LIMITS_TOPIC", "upi-limits")
ALERTS = os.environ.get("ALERTS_TOPIC", "upi-alerts")

RULES = MapStateDescriptor("limits", Types.STRING(), Types.LONG())


class AboveLimit(KeyedBroadcastProcessFunction):
    """Numbers the alerts of each merchant. All subtasks share the limits; the numbers belong to keys."""

    def open(self, ctx):
        self.alerts = ctx.get_state(ValueStateDescriptor("alerts", Types.LONG()))

    def process_broadcast_element(self, rule, ctx):
        rule = json.loads(rule)
        ctx.get_broadcast_state(RULES)[rule["category"]] = rule["limit"]

    def process_element(self, payment, ctx):
        payment = json.loads(payment)
        limit = ctx.get_broadcast_state(RULES)[payment["category"]]
        if limit is not None and payment["amount"] > limit:
            number = (self.alerts.value() or 0) + 1
            self.alerts.update(number)
            yield ctx.get_current_key(), number, payment["amount"], limit


def topic(name):
    builder = KafkaSource.builder().set_bootstrap_servers(BROKERS).set_topics(name)
    source = builder.set_group_id("changing-limits").set_starting_offsets("earliest").build()
    return env.from_source(source, WatermarkStrategy.no_watermarks(), name)


env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(1_000, CheckpointingMode.EXACTLY_ONCE)
env.get_checkpoint_config().set_checkpoint_storage_dir(CHECKPOINTS)

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
    .set_transactional_id_prefix("changing-limits")
    .build()
)

limits = topic(LIMITS).broadcast(RULES)
(
    topic(PAYMENTS)
    .key_by(lambda payment: json.loads(payment)["merchant_id"])
    .connect(limits)
    .process(AboveLimit())
    .uid("above-limit")
    .sink_to(sink)
)

env.execute("changing-limits")
