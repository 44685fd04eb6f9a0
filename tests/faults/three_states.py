"""The program of ``test_killed_states.py``: keyed, operator and broadcast state, and two inputs, from Kafka to Kafka."""

import json
import os
import uuid
from typing import Any

from kafka_ends import kafka_source, results_sink

from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import (
    CheckpointedFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)

RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())
SERIES = Types.TUPLE([Types.STRING(), Types.LONG()])
"""The name of a series, and its last number."""


class Numbered(MapFunction, CheckpointedFunction):
    """Numbers the payments of a subtask, in one series; a subtask without one begins one.

    Series are a list, split at another parallelism, and once more a union list, which each subtask sees whole: with its
    first payment, a subtask tells what it saw.
    """

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.split = store.get_list_state(ListStateDescriptor("series", SERIES))
        self.union = store.get_union_list_state(ListStateDescriptor("all series", SERIES))
        self.series = [list(each) for each in self.split.get()]
        self.told = {"own": dict(self.series), "all": [list(each) for each in self.union.get()]}
        if not self.series:
            self.series.append([uuid.uuid4().hex, 0])

    def snapshot_state(self, context: Any) -> None:
        rows = [tuple(each) for each in self.series]
        self.split.update(rows)
        self.union.update(rows)

    def map(self, value: Any) -> Any:
        told, self.told = self.told, None
        self.series[0][1] += 1
        name, number = self.series[0]
        return {**json.loads(value), "series": name, "number": number, "restored": told}


class Ruled(KeyedBroadcastProcessFunction):
    """Numbers the payments of a merchant, with the newest rule."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES)["newest"] = json.loads(value)["version"]

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield {**value, "nth": self.count.value(), "rule": ctx.get_broadcast_state(RULES)["newest"] or 0}


class Both(KeyedCoProcessFunction):
    """Numbers the payments of a merchant again, after they went two ways."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element1(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield {**value, "both": self.count.value()}

    process_element2 = process_element1


def topic(env: StreamExecutionEnvironment, name: str) -> Any:
    return env.from_source(kafka_source(name), WatermarkStrategy.no_watermarks(), name)


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.get_checkpoint_config().set_checkpoint_storage_dir(os.environ["CHECKPOINTS"])
    sink = results_sink(lambda result: result["merchant_id"])
    rules = topic(env, "RULES_TOPIC").broadcast(RULES)
    payments = topic(env, "PAYMENTS_TOPIC").rebalance().map(Numbered()).uid("numbered")
    ruled = payments.key_by(lambda payment: payment["merchant_id"]).connect(rules).process(Ruled()).uid("ruled")
    first, second = ruled.filter(lambda each: each["nth"] % 2), ruled.filter(lambda each: each["nth"] % 2 == 0)
    by_merchant = first.connect(second).key_by(lambda each: each["merchant_id"], lambda each: each["merchant_id"])
    by_merchant.process(Both()).uid("both").sink_to(sink)
    env.execute("three-states")


if __name__ == "__main__":
    main()
