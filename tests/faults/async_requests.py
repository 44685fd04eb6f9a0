"""The program of ``test_killed_async_io.py``: slow requests for each payment, ordered and unordered, from Kafka to Kafka."""

import asyncio
import json
import os
import random
from typing import Any

from holdfast.common import Time, WatermarkStrategy
from holdfast.datastream import AsyncDataStream, AsyncFunction, StreamExecutionEnvironment
from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink, KafkaSource


class Score(AsyncFunction):
    """Answers after up to a second: most payments are in flight for several epochs."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    async def async_invoke(self, value: Any) -> list[Any]:
        await asyncio.sleep(random.random() ** 3)
        return [{**value, "kind": self._kind}]


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(1_000)
    env.get_checkpoint_config().set_checkpoint_storage_dir(os.environ["CHECKPOINTS"])
    serializer = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(os.environ["RESULTS_TOPIC"])
        .set_key_serialization_schema(lambda result: f"{result['kind']} {result['partition']}")
        .set_value_serialization_schema(json.dumps)
        .build()
    )
    sink = (
        KafkaSink.builder()
        .set_bootstrap_servers(os.environ["KAFKA"])
        .set_record_serializer(serializer)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix("async-requests")
        .build()
    )
    builder = KafkaSource.builder().set_bootstrap_servers(os.environ["KAFKA"]).set_topics(os.environ["PAYMENTS_TOPIC"])
    source = builder.set_starting_offsets("earliest").build()
    payments = env.from_source(source, WatermarkStrategy.no_watermarks(), "payments").uid("payments").map(json.loads)
    ordered = AsyncDataStream.ordered_wait(payments, Score("ordered"), Time.seconds(30), 200).uid("ordered")
    unordered = AsyncDataStream.unordered_wait(payments, Score("unordered"), Time.seconds(30), 200).uid("unordered")
    ordered.union(unordered).sink_to(sink).uid("results")
    env.execute("async-requests")


if __name__ == "__main__":
    main()
