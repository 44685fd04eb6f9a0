"""The program of ``test_killed_async_io.py``: slow requests for each payment, ordered and unordered, from Kafka to Kafka."""

import asyncio
import json
import os
import random
from typing import Any

from kafka_ends import kafka_source, results_sink

from holdfast.common import Time, WatermarkStrategy
from holdfast.datastream import AsyncDataStream, AsyncFunction, StreamExecutionEnvironment


class Score(AsyncFunction):
    """Answers after up to a second: most payments are in flight for several epochs."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    async def async_invoke(self, value: Any) -> list[Any]:
        await asyncio.sleep(random.random() ** 3)
        return [{**value, "kind": self._kind}]


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.get_checkpoint_config().set_checkpoint_storage_dir(os.environ["CHECKPOINTS"])
    sink = results_sink(lambda result: f"{result['kind']} {result['partition']}")
    payments = (
        env.from_source(kafka_source("PAYMENTS_TOPIC"), WatermarkStrategy.no_watermarks(), "payments")
        .uid("payments")
        .map(json.loads)
    )
    ordered = AsyncDataStream.ordered_wait(payments, Score("ordered"), Time.seconds(30), 200).uid("ordered")
    unordered = AsyncDataStream.unordered_wait(payments, Score("unordered"), Time.seconds(30), 200).uid("unordered")
    ordered.union(unordered).sink_to(sink).uid("results")
    env.execute("async-requests")


if __name__ == "__main__":
    main()
