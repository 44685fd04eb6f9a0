"""Joins orders with their payments within fifteen minutes, and reports unpaid orders, from Kafka to Kafka, exactly once.

An order that is sent twice counts once. test_unpaid_orders.py shows how to test such a program without Kafka and Spark.
"""

import json
import os

from holdfast.common import Duration, Time, WatermarkStrategy
from holdfast.datastream import ProcessJoinFunction, StreamExecutionEnvironment
from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink, KafkaSource

KAFKA = os.environ.get("KAFKA", "localhost:9092")
CHECKPOINTS = os.environ.get("CHECKPOINTS", os.path.expanduser("~/holdfast-checkpoints"))
ORDERS, PAYMENTS, SETTLED = "orders", "order-payments", "settled-orders"


def order_id(event):
    return event["order_id"]


class Settle(ProcessJoinFunction):
    """Called with each order and payment of one id, and with None in place of a payment that did not come."""

    def process_element(self, order, payment, ctx):
        if payment is None:
            yield {"order_id": order["order_id"], "status": "unpaid", "amount": order["amount"]}
        else:
            after = (payment["ts_ms"] - order["ts_ms"]) // 1000
            yield {"order_id": order["order_id"], "status": "paid", "amount": payment["amount"], "after_seconds": after}


def settled(orders, payments):
    """The pipeline between the topics."""
    first = orders.key_by(order_id).dedup(Time.hours(24)).uid("orders-once")
    joined = first.key_by(order_id).interval_join(payments.key_by(order_id)).between(Time.seconds(0), Time.minutes(15))
    return joined.left_outer().process(Settle()).uid("settle")


def events(env, topic):
    """The JSON records of a topic, with their own times, at most five seconds out of order."""
    source = (
        KafkaSource.builder()
        .set_bootstrap_servers(KAFKA)
        .set_topics(topic)
        .set_group_id("unpaid-orders")
        .set_starting_offsets("earliest")
        .build()
    )
    times = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5)).with_idleness(Duration.of_minutes(1))
    timed = times.with_timestamp_assigner(lambda record, _: json.loads(record)["ts_ms"])
    return env.from_source(source, timed, topic).map(json.loads)


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(1_000)
    env.get_checkpoint_config().set_checkpoint_storage_dir(CHECKPOINTS)
    serializer = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(SETTLED)
        .set_key_serialization_schema(order_id)
        .set_value_serialization_schema(json.dumps)
        .build()
    )
    sink = (
        KafkaSink.builder()
        .set_bootstrap_servers(KAFKA)
        .set_record_serializer(serializer)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix("unpaid-orders")
        .build()
    )
    settled(events(env, ORDERS), events(env, PAYMENTS)).sink_to(sink)
    env.execute("unpaid-orders")


if __name__ == "__main__":
    main()
