"""Adds to each payment from Kafka the category of its merchant, from a database that is asked for many at a time.

The database is the SQLite file DATABASE with a table ``merchants (merchant_id, category)``; it is created if it does not
exist. A category is remembered for ten minutes.
"""

import asyncio
import json
import os
import sqlite3
from contextlib import closing

from holdfast.common import Time, WatermarkStrategy
from holdfast.datastream import AsyncDataStream, StreamExecutionEnvironment
from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink, KafkaSource
from holdfast.datastream.operations.lookup_join import AsyncLookupFunction, LookupCache, LookupJoin

KAFKA = os.environ.get("KAFKA", "localhost:9092")
PAYMENTS_TOPIC = os.environ.get("PAYMENTS_TOPIC", "upi-payments")
ENRICHED_TOPIC = os.environ.get("ENRICHED_TOPIC", "upi-enriched")
DATABASE = os.environ.get("DATABASE", os.path.expanduser("~/merchants.db"))
CHECKPOINTS = os.environ.get("CHECKPOINTS", os.path.expanduser("~/holdfast-checkpoints"))


class Categories(AsyncLookupFunction):
    """Reads the category of a merchant. SQLite's client blocks, so each call runs in a thread."""

    async def async_lookup(self, merchant):
        return await asyncio.to_thread(self.read, merchant)

    def read(self, merchant):
        with closing(sqlite3.connect(DATABASE)) as database:
            database.execute("create table if not exists merchants (merchant_id text primary key, category text)")
            return database.execute("select category from merchants where merchant_id = ?", [merchant]).fetchall()


def enriched(payment, row):
    return {**payment, "category": "unknown" if row is None else row[0]}


env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(1_000)
env.get_checkpoint_config().set_checkpoint_storage_dir(CHECKPOINTS)

source = (
    KafkaSource.builder().set_bootstrap_servers(KAFKA).set_topics(PAYMENTS_TOPIC).set_starting_offsets("earliest").build()
)
payments = env.from_source(source, WatermarkStrategy.no_watermarks(), "payments").map(json.loads)
# By key, so that each category is in the cache of one subtask.
by_merchant = payments.key_by(lambda payment: payment["merchant_id"])
join = LookupJoin(
    lambda payment: payment["merchant_id"],
    Categories(),
    enriched,
    cache=LookupCache(max_rows=100_000, expire_after_write=Time.minutes(10)),
    left_outer=True,
)
results = AsyncDataStream.unordered_wait(by_merchant, join, timeout=Time.seconds(10), capacity=100).uid("categories")

serializer = (
    KafkaRecordSerializationSchema.builder()
    .set_topic(ENRICHED_TOPIC)
    .set_key_serialization_schema(lambda payment: payment["merchant_id"])
    .set_value_serialization_schema(json.dumps)
    .build()
)
sink = (
    KafkaSink.builder()
    .set_bootstrap_servers(KAFKA)
    .set_record_serializer(serializer)
    .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
    .set_transactional_id_prefix("enrich-payments")
    .build()
)
results.sink_to(sink)

env.execute("enrich-payments")
