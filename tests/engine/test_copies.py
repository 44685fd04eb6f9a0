"""What a function has emitted stays as it was, whatever the function does with its object afterwards."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque, namedtuple
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Row, Time, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, OutputTag, ProcessFunction, ValueStateDescriptor
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.runtime.copies import copied

from .inprocess import LEDGERS, Lab, LedgerSink

SIDE = OutputTag("side")


@dataclasses.dataclass
class Total:
    sum: int


def results(tmp_path: Path, build: Any) -> list[Any]:
    LEDGERS["out"].committed.clear()
    job = Lab(lambda env: build(env).sink_to(LedgerSink("out")), tmp_path, parallelism=1)
    try:
        job.run([])
    finally:
        job.close()
    return list(LEDGERS["out"].values)


class Gathers(KeyedProcessFunction):
    """Emits the list that it keeps in its state, and goes on filling."""

    def __init__(self, form: str) -> None:
        self.form = form

    def open(self, runtime_context: Any) -> None:
        self.items = runtime_context.get_state(ValueStateDescriptor("items"))

    def process_element(self, value: int, ctx: Any) -> Any:
        items = self.items.value() or []
        items.append(value)
        self.items.update(items)
        if self.form == "side":
            yield SIDE, items
        elif self.form == "timer":
            ctx.timer_service().register_event_time_timer(value)
        else:
            yield items if self.form == "list" else ("all", [items])

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        items = self.items.value()
        items.append(-timestamp)
        yield items


def by_one(env: Any, *values: Any) -> Any:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value)
    return env.from_collection(list(values)).assign_timestamps_and_watermarks(strategy).key_by(lambda value: "k")


@pytest.mark.parametrize("form", ["list", "tuple", "side", "timer"])
def test_an_emitted_object_keeps_its_content_when_the_function_changes_it(tmp_path: Path, form: str) -> None:
    def build(env: Any) -> Any:
        gathered = by_one(env, 1, 2, 3).process(Gathers(form))
        return gathered.get_side_output(SIDE) if form == "side" else gathered

    lists: list[Any] = [[1], [1, 2], [1, 2, 3]]
    if form == "tuple":
        lists = [("all", [each]) for each in lists]
    if form == "timer":
        lists = [[1, 2, 3, -1], [1, 2, 3, -1, -2], [1, 2, 3, -1, -2, -3]]
    assert results(tmp_path, build) == lists


def add_in_place(total: Any, more: Any) -> Any:
    if isinstance(total, Total):
        total.sum += more.sum
    else:
        total[0] += more[0]
    return total


@pytest.mark.parametrize(
    "make", [lambda n: [n], lambda n: Row(n), lambda n: {0: n}, Total], ids=["list", "Row", "dict", "class"]
)
def a_rolling_reduce_may_change_its_first_argument(tmp_path: Path, make: Any) -> None:
    found = results(
        tmp_path, lambda env: env.from_collection([make(1), make(2), make(3)]).key_by(lambda _: 0).reduce(add_in_place)
    )
    assert found == [make(1), make(3), make(6)]


def a_window_that_late_elements_fire_again_has_emitted_each_content(tmp_path: Path) -> None:
    def build(env: Any) -> Any:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value[1])
        stamped = env.from_collection([[1, 10], [1, 5_000], [1, 20], [1, 30]]).assign_timestamps_and_watermarks(strategy)
        windows = stamped.key_by(lambda _: 0).window(TumblingEventTimeWindows.of(Time.seconds(1)))
        return windows.allowed_lateness(60_000).reduce(add_in_place).map(lambda value: value[0])

    # The watermark comes with the batch, after it: a budget of two elements a batch makes the third and the fourth late.
    LEDGERS["out"].committed.clear()
    job = Lab(lambda env: build(env).sink_to(LedgerSink("out")), tmp_path, parallelism=1, budget=2)
    try:
        job.run([])
    finally:
        job.close()
    assert list(LEDGERS["out"].values) == [1, 2, 3, 1]


def test_two_operators_behind_one_do_not_see_each_other_s_changes(tmp_path: Path) -> None:
    class Marks(ProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            value["marks"].append("first")
            yield value

    def build(env: Any) -> Any:
        source = env.from_collection([{"marks": []}, {"marks": []}]).map(lambda value: value)
        return source.process(Marks()).union(source.map(lambda value: value))

    found = results(tmp_path, build)
    assert sorted(len(value["marks"]) for value in found) == [0, 0, 1, 1]


def a_job_that_reuses_objects_passes_them_on_as_they_are(tmp_path: Path) -> None:
    def build(env: Any) -> Any:
        env.get_config().enable_object_reuse()
        return by_one(env, 1, 2, 3).process(Gathers("list"))

    assert results(tmp_path, build) == [[1, 2, 3]] * 3


class Color(Enum):
    RED = 1


Pair = namedtuple("Pair", "left right")


def test_copies_share_nothing_that_can_change() -> None:
    loop: list[Any] = []
    loop.append(loop)
    twin = copied(loop)
    assert twin is not loop
    assert twin[0] is twin
    for value in ({1: [2]}, [Row(a=[1])], ({"x"},), Pair([1], 2), deque([1]), bytearray(b"x"), Total(1), {(1, 2): Total(3)}):
        assert copied(value) == value
        assert copied(value) is not value
    inner = [1]
    outer = copied(Pair(inner, Row(b=inner)))
    inner.append(2)
    assert outer == Pair([1], Row(b=[1]))


def test_immutable_and_uncopyable_objects_are_passed_on() -> None:
    for value in (1, "a", None, (1, "a", 2.5), Color.RED, Pair(1, 2), frozenset([1]), b"x", len, Total, threading.Lock()):
        assert copied(value) is value
