"""Programs with one keyed function between a source of given values and a ledger."""

from __future__ import annotations

from collections import Counter
from typing import Any

from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import (
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)

from .inprocess import LEDGERS, LedgerSink, SplitSource


def visible() -> Counter[Any]:
    return Counter(map(repr, LEDGERS["out"].values))


def strategy() -> Any:
    return WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda r, _: r[1])


def timed(env: StreamExecutionEnvironment, values: list[Any], cut: int = 0) -> Any:
    return env.from_source(SplitSource({"only": values}, cut), strategy(), "source").uid("source")


def program(function: Any, values: list[Any], cut: int = 0) -> Any:
    def build(env: StreamExecutionEnvironment) -> None:
        timed(env, values, cut).key_by(lambda r: r[0]).process(function).uid("keyed").sink_to(LedgerSink("out")).uid("out")

    return build


class Remember(KeyedProcessFunction):
    """Tells the value that it had kept, then keeps this one."""

    def __init__(self, type_info: Any = None, name: str = "kept") -> None:
        self._type = type_info
        self._name = name

    def open(self, runtime_context):
        self.kept = runtime_context.get_state(ValueStateDescriptor(self._name, self._type))

    def process_element(self, value, ctx):
        yield value[0], self.kept.value()
        self.kept.update(value[2])


class Pass(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Last(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        yield value[0], self.count.value()
