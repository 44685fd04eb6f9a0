"""States that hold something else."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.common import Types
from holdfast.datastream import (
    KeyedProcessFunction,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)


class Count(KeyedProcessFunction[str, str, int]):
    count = ValueState("n", int)
    words: ListState[str] = ListState("words", int)  # Argument 2 to "ListState" has incompatible type "type[int]"
    totals = MapState("totals", str, Types.DOUBLE())
    longest = ReducingState("longest", max, str)
    wrong = ValueState("wrong", 5)  # No overload variant of "ValueState" matches argument types "str", "int"

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
        self.count.update(value)  # Argument 1 to "update" of "ValueState" has incompatible type "str"; expected "int | None"
        self.totals[value] = value  # expression has type "str", target has type "float"
        self.longest.add(5)  # Argument 1 to "add" of "AppendingState" has incompatible type "int"; expected "str"
        yield self.count.value() + 1  # Unsupported operand types for + ("None" and "int")
