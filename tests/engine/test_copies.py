"""What a function has emitted stays as it was, whatever the function does with its object afterwards."""

from __future__ import annotations

import dataclasses
import heapq
import threading
from collections import deque, namedtuple
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Configuration, Row, Time, WatermarkStrategy
from holdfast.datastream import (
    AggregateFunction,
    CumulativeEventTimeWindows,
    FilterFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    ValueStateDescriptor,
)
from holdfast.datastream.window import (
    CountEvictor,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    PurgingTrigger,
    TriggerResult,
    TumblingEventTimeWindows,
)
from holdfast.runtime.records.copies import copied
from holdfast.runtime.records.shared_results import held_before, own_each
from holdfast.testing import InProcessEnvironment

from .inprocess import LEDGERS, Lab, LedgerSink, SplitSource

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


@pytest.mark.parametrize("purges", [False, True])
def a_trigger_sees_elements_as_they_came_whatever_the_reduce_function_does_with_them(tmp_path: Path, purges: bool) -> None:
    def add_and_spoil(total: Any, more: Any) -> Any:
        total[0] += more[0]
        more[0] = -1
        return total

    def build(env: Any) -> Any:
        trigger = DeltaTrigger.of(2, lambda old, new: abs(new[0] - old[0]))
        keyed = env.from_collection([[1], [2], [3], [4], [5]]).key_by(lambda _: 0)
        windows = keyed.window(GlobalWindows.create()).trigger(PurgingTrigger.of(trigger) if purges else trigger)
        return windows.reduce(add_and_spoil).map(lambda value: value[0])

    assert results(tmp_path, build) == [10]


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


class Best(AggregateFunction):
    """The three largest numbers, by a heap that `get_result` empties."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: Any, accumulator: list[int]) -> list[int]:
        heapq.heappush(accumulator, value["n"])
        if len(accumulator) > 3:
            heapq.heappop(accumulator)
        return accumulator

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return sorted(heapq.nlargest(3, a + b))

    def get_result(self, accumulator: list[int]) -> list[int]:
        return [heapq.heappop(accumulator) for _ in range(len(accumulator))][::-1]


class Halves(ProcessWindowFunction):
    """The sum of halves, which it makes in place."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        for each in elements:
            each["n"] /= 2
        yield context.window().end, sum(each["n"] for each in elements)


def add_to_first(a: Any, b: Any) -> Any:
    a["n"] += b["n"]
    return a


NUMBERS = [(10, 1), (10, 4), (20, 12), (30, 15), (40, 26), (50, 39)]
"""Numbers with their timestamps."""
WINDOWS = {
    "sliding": SlidingEventTimeWindows.of(Time.milliseconds(20), Time.milliseconds(10)),
    "cumulative": CumulativeEventTimeWindows.of(Time.milliseconds(20), Time.milliseconds(10)),
    "tumbling": TumblingEventTimeWindows.of(Time.milliseconds(20)),
    "session": EventTimeSessionWindows.with_gap(Time.milliseconds(9)),
}
FORMS: dict[str, Callable[[Any], Any]] = {
    "by panes": lambda windows: windows,
    "with lateness": lambda windows: windows.allowed_lateness(1_000),
    "with a trigger": lambda windows: windows.trigger(Twice()),
    "with an evictor": lambda windows: windows.evictor(CountEvictor.of(100)),
    "with lateness and evictor": lambda windows: windows.allowed_lateness(1_000).evictor(CountEvictor.of(100)),
}


class Twice(EventTimeTrigger):
    """Fires for each element of 30 and more, too."""

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        decided = super().on_element(element, timestamp, window, ctx)
        return TriggerResult.FIRE if element["n"] >= 30 else decided


def spread(given: Any, how: str) -> Any:
    return {
        "aggregate": lambda: given.aggregate(Best()).map(str),
        "process": lambda: given.process(Halves()),
        "reduce": lambda: given.reduce(add_to_first, Halves()),
    }[how]()


@pytest.mark.parametrize("how", ["aggregate", "process", "reduce"])
@pytest.mark.parametrize(
    ("kind", "form"),
    [
        *(("sliding", form) for form in FORMS),
        ("cumulative", "by panes"),
        *(("tumbling", form) for form in ("with lateness", "with a trigger", "with lateness and evictor")),
        *(("session", form) for form in ("with lateness", "with a trigger")),
    ],
)
def test_what_a_window_gives_does_not_depend_on_changes_by_functions(tmp_path: Path, kind: str, form: str, how: str) -> None:
    """Beside the same program with functions that leave alone what they are given, and however the input is cut."""

    def build(env: Any, *, keeps: bool, cut: int) -> Any:
        def each_its_own(value: Any) -> Any:
            return {"n": value[0]}

        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value[1])
        stream = env.from_source(SplitSource({"only": NUMBERS}, cut), strategy, "s").map(each_its_own).key_by(lambda _: 0)
        given = FORMS[form](stream.window(WINDOWS[kind]))
        if not keeps:
            return spread(given, how)
        return {
            "aggregate": lambda: given.aggregate(KeepsBest()).map(str),
            "process": lambda: given.process(KeepsHalves()),
            "reduce": lambda: given.reduce(lambda a, b: {"n": a["n"] + b["n"]}, KeepsHalves()),
        }[how]()

    expected = sorted(results(tmp_path / "kept", lambda env: build(env, keeps=True, cut=0)))
    for cut in (0, 1):
        assert sorted(results(tmp_path / str(cut), lambda env, cut=cut: build(env, keeps=False, cut=cut))) == expected


class KeepsBest(Best):
    def add(self, value: Any, accumulator: list[int]) -> list[int]:
        return sorted([*accumulator, value["n"]])[-3:]

    def get_result(self, accumulator: list[int]) -> list[int]:
        return accumulator[::-1]


class KeepsHalves(Halves):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield context.window().end, sum(each["n"] / 2 for each in elements)


def count(value: Any) -> Any:
    value["n"] += 1
    return value


@pytest.mark.parametrize("parallelism", [1, 2])
def test_each_value_of_a_collection_is_an_object_of_its_own(parallelism: int) -> None:
    shared = {"n": 0}
    env = InProcessEnvironment().set_parallelism(parallelism)
    with env.from_collection([shared] * 3).map(count).execute_and_collect() as found:
        assert list(found) == [{"n": 1}] * 3
    pairs = env.from_collection([("a", shared), ("b", shared)]).map(lambda pair: (pair[0], count(pair[1])["n"]))
    with pairs.execute_and_collect() as found:
        assert sorted(found) == [("a", 1), ("b", 1)]


class Looks(MapFunction):
    """Returns what it keeps, itself or within another object."""

    def __init__(self, form: str) -> None:
        self.form = form

    def open(self, runtime_context: Any) -> None:
        self.kept = {"n": 10}

    def map(self, value: str) -> Any:
        held = {"plain": self.kept, "tuple": (value, self.kept), "row": Row(value, self.kept), "deep": [{"in": self.kept}]}
        return held[self.form] if self.form in held else Holder(self.kept)


class Keeps(MapFunction, FilterFunction):
    """Passes on elements, and what it has kept of the ones before."""

    def open(self, runtime_context: Any) -> None:
        self.kept: list[Any] = []

    def map(self, value: Any) -> Any:
        self.kept.append(value)
        assert all(each["n"] == 10 for each in self.kept)
        return value

    def filter(self, value: Any) -> bool:
        return self.map(value) is value


@pytest.mark.parametrize("records", ["1", "64"])
@pytest.mark.parametrize("call", ["map", "filter"])
def an_element_that_a_function_keeps_and_passes_on_is_changed_by_no_other(call: str, records: str) -> None:
    configuration = Configuration()
    configuration.set_string("holdfast.frame.records", records)
    env = InProcessEnvironment(configuration).set_parallelism(1)
    kept = getattr(env.from_collection([{"n": 10}] * 4), call)(Keeps())
    again = getattr(kept, call)(Keeps())
    with again.map(count).execute_and_collect() as found:
        assert [each["n"] for each in found] == [11] * 4


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held


class CountsWithin(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        inner = value
        while type(inner) is not dict or "n" not in inner:
            inner = inner.held if type(inner) is Holder else inner["in"] if type(inner) is dict else list(inner)[-1]
        yield count(inner)["n"]


@pytest.mark.parametrize("form", ["plain", "tuple", "row", "deep", "object"])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_function_behind_a_map_changes_no_object_that_the_map_keeps(parallelism: int, form: str) -> None:
    for records in ("1", "64"):
        configuration = Configuration()
        configuration.set_string("holdfast.frame.records", records)
        env = InProcessEnvironment(configuration).set_parallelism(parallelism)
        looked = env.from_collection(["a"] * 4).map(Looks(form)).key_by(lambda _: 0)
        with looked.process(CountsWithin()).execute_and_collect() as found:
            assert list(found) == [11] * 4


def a_result_that_nothing_else_holds_is_not_copied() -> None:
    def copies(value: Any) -> Any:
        raise AssertionError(f"{value} is copied")

    values: list[Any] = [{"n": 1}, [2]]
    fresh: list[Any] = [
        *values, {"n": [{"m": 1.5}]}, [[1], "a"], (1, {"n": 2}), Row(1, [2]), Holder([Holder(1)]), (1, "a"), "a", None
    ]  # fmt: skip
    own_each(fresh, [*values, *[None] * 8], held_before(values), copies)
