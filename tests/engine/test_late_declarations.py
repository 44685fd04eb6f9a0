"""States that a function declares when it first needs them, in the middle of a batch, and not in `open`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import (
    KeyedProcessFunction,
    MapFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)

from .inprocess import LEDGERS, LedgerSink, SplitSource


class Counts:
    """Counts the elements of each key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.context, self.count = runtime_context, None

    def next_count(self) -> int:
        if self.count is None:
            self.count = self.context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.count.update((self.count.value() or 0) + 1)
        return self.count.value()


class Processed(Counts, KeyedProcessFunction):
    def process_element(self, value: int, ctx: Any) -> Iterator[tuple[int, int]]:
        yield value, self.next_count()


class Mapped(Counts, MapFunction):
    def map(self, value: int) -> tuple[int, int]:
        return value, self.next_count()


@pytest.mark.parametrize("function", [Processed(), Mapped()], ids=["process", "map"])
@pytest.mark.parametrize("crashes", [(), (("before complete", 1), ("after complete", 1))], ids=["no crash", "crashes"])
@pytest.mark.parametrize("budget", [4, 100], ids=["small epochs", "one epoch"])
def a_state_declared_by_the_first_element_is_that_of_each_key(job, function, crashes, budget):
    numbers = [0, 1, 0, 2, 1, 0, 2, 2, 0, 1, 1, 0]

    def build(env: StreamExecutionEnvironment) -> None:
        keyed = env.from_source(SplitSource({"a": numbers}), WatermarkStrategy.no_watermarks(), "numbers").key_by(
            lambda n: n
        )
        counted = keyed.process(function) if isinstance(function, Processed) else keyed.map(function)
        counted.sink_to(LedgerSink("out"))

    job(build, parallelism=1, budget=budget).run(crashes)
    seen: Counter[int] = Counter()
    expected = []
    for number in numbers:
        seen[number] += 1
        expected.append((number, seen[number]))
    assert LEDGERS["out"].values == expected
