"""The program of ``test_killed_phases.py``: numbers the payments of each merchant, from Kafka to Kafka."""

import json
import os
import sys
from typing import Any

from kafka_ends import kafka_source, results_sink

from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, MapStateDescriptor, StreamExecutionEnvironment, ValueStateDescriptor


class Numbered(KeyedProcessFunction):
    """Counts the payments of a merchant, in a value and in a map. A process installs the hooks when it gets it."""

    def __init__(self, armed: str, hooks: str) -> None:
        self.armed, self.hooks = armed, hooks

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        if self.hooks not in sys.path:
            sys.path.insert(0, self.hooks)
        from phases import install

        install(self.armed)

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.minutes = runtime_context.get_map_state(MapStateDescriptor("minutes", Types.LONG(), Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        payment = json.loads(value)
        minute = payment["ts_ms"] // 60_000
        self.count.update((self.count.value() or 0) + 1)
        self.minutes.put(minute, (self.minutes.get(minute) or 0) + 1)
        yield {**payment, "nth": self.count.value(), "in_minute": self.minutes.get(minute)}


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    sink = results_sink(lambda result: result["merchant_id"])
    payments = env.from_source(kafka_source("PAYMENTS_TOPIC"), WatermarkStrategy.no_watermarks(), "payments").uid("payments")
    by_merchant = payments.key_by(lambda record: json.loads(record)["merchant_id"])
    function = Numbered(os.environ["ARMED"], os.path.dirname(os.path.abspath(__file__)))
    function.__setstate__({})  # the driver, too
    by_merchant.process(function).uid("numbered").sink_to(sink).uid("results")
    env.execute("numbered-payments")


if __name__ == "__main__":
    main()
