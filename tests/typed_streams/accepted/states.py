"""States that a class declares know what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from typing_extensions import reveal_type

from holdfast.common import Time, Types
from holdfast.datastream import (
    AggregateFunction,
    AggregatingState,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListState,
    MapState,
    ReduceFunction,
    ReducingState,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueState,
)

env = StreamExecutionEnvironment.get_execution_environment()


@dataclass(frozen=True)
class Order:
    shop: str
    amount: float


class Mean(AggregateFunction[float, tuple[float, int], float]):
    def create_accumulator(self) -> tuple[float, int]:
        return 0.0, 0

    def add(self, value: float, accumulator: tuple[float, int]) -> tuple[float, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[float, int]) -> float:
        return accumulator[0] / accumulator[1]


class Larger(ReduceFunction[int]):
    def reduce(self, value1: int, value2: int) -> int:
        return max(value1, value2)


class Count(KeyedProcessFunction[str, Order, int]):
    count = ValueState("n", int)
    last = ValueState("last", Order, ttl=StateTtlConfig.new_builder(Time.hours(1)).build())
    small = ValueState("small", Types.INT())
    anything = ValueState("anything")
    picture = ValueState("picture", Types.PRIMITIVE_ARRAY(Types.BYTE()))
    marks = ValueState("marks", Types.PRIMITIVE_ARRAY(Types.SHORT()))
    shops = ListState("shops", list[str])
    totals = MapState("totals", str, Types.DOUBLE())
    most = ReducingState("most", Larger())
    sum = ReducingState("sum", lambda a, b: a + b, float)
    mean = AggregatingState("mean", Mean())

    def process_element(self, value: Order, ctx: KeyedProcessFunction.Context[str]) -> Iterator[int]:
        reveal_type(self.count.value())  # int | None
        reveal_type(self.last.value())  # Order | None
        reveal_type(self.small.value())  # int | None
        reveal_type(self.anything.value())  # Any | None
        reveal_type(self.picture.value())  # bytes | None
        reveal_type(self.marks.value())  # list[int] | None
        reveal_type(self.shops.get())  # Iterable[list[str]]
        reveal_type(self.totals[value.shop])  # float | None
        reveal_type(self.most.get())  # int | None
        reveal_type(self.sum.get())  # float | None
        reveal_type(self.mean.get())  # float | None
        self.mean.add(value.amount)
        self.count.update((self.count.value() or 0) + 1)
        yield self.count.value() or 0


class Both(KeyedCoProcessFunction[str, Order, str, str]):
    left: ListState[Order] = ListState("left", Order)

    def process_element1(self, value: Order, ctx: KeyedCoProcessFunction.Context) -> None:
        self.left.add(value)

    def process_element2(self, value: str, ctx: KeyedCoProcessFunction.Context) -> Iterator[str]:
        for order in self.left:
            yield order.shop


class More(Count):
    more: ValueState[Any] = ValueState("more")
