"""The program of ``test_killed_channel_state.py``: numbers the records of each key; one key may be slow. Kafka to Kafka."""

import json
import os
import time
from pathlib import Path
from typing import Any

from kafka_ends import kafka_source, results_sink

from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor

HOT = "hot"
SECONDS = 0.02


class Numbered(KeyedProcessFunction):
    """Adds the number that the state gives a record; takes its time for the hot key while a file is there."""

    def __init__(self, slow: str) -> None:
        self.slow = Path(slow)

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        if value["key"] == HOT and self.slow.exists():
            time.sleep(SECONDS)  # what it waits for, such as a service, takes this time
        self.count.update((self.count.value() or 0) + 1)
        yield {**value, "count": self.count.value()}


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.get_checkpoint_config().enable_unaligned_checkpoints()
    sink = results_sink(lambda result: result["key"])
    records = (
        env.from_source(kafka_source("RECORDS_TOPIC"), WatermarkStrategy.no_watermarks(), "records")
        .uid("records")
        .map(json.loads)
    )
    numbered = records.key_by(lambda record: record["key"]).process(Numbered(os.environ["SLOW"])).uid("numbered")
    numbered.sink_to(sink).uid("results")
    env.execute("slow-key")


if __name__ == "__main__":
    main()
