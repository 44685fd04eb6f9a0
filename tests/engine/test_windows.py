"""What windows do beside their sums: late elements, errors, state across windows only where it is asked for."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Time, Types, WatermarkStrategy
from holdfast.datastream import (
    AggregateFunction,
    AllWindowFunction,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    ReduceFunction,
    ValueStateDescriptor,
    WindowFunction,
)
from holdfast.datastream.window import (
    CountTrigger,
    CumulativeEventTimeWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
)
from holdfast.errors import UserCodeError

from .inprocess import LEDGERS, Lab, LedgerSink, SplitSource
from .programs import MINUTE, stream

START = 1000 * MINUTE
MINUTES = TumblingEventTimeWindows.of(Time.minutes(1))


class Count(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        if value[2] < 0:
            raise ValueError("a negative value")
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return a + b


class Last(AggregateFunction):
    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return value[2]

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, a: Any, b: Any) -> Any:
        return b


class Named(ProcessWindowFunction):
    def process(self, key: str, context: Any, elements: Any) -> Any:
        yield key, context.window().start, *elements


def run(
    build: Any, batch: int, backend: str = "hashmap", cache: str = "256mb", budget: int = 1000, crashes: Any = ()
) -> list[Any]:
    config = {
        "state.backend.type": backend,
        "state.backend.cache.size": cache,
        "holdfast.batch.records": str(batch),
        "holdfast.frame.records": str(batch),
    }
    LEDGERS["out"].committed.clear()
    with tempfile.TemporaryDirectory() as directory:
        job = Lab(build, Path(directory), parallelism=1, budget=budget, config=config)
        try:
            job.run(crashes)
        finally:
            job.close()
    return list(LEDGERS["out"].values)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("named", [True, False])
def test_every_element_within_the_allowed_lateness_fires_its_window_again_however_they_are_batched(batch, named):
    on_time = [("a", START, 0), ("a", START + 1, 1), *[("b", START + 5 * MINUTE, 2)] * 10]
    late = [("a", START + 2, 3), ("a", START + 3, 4), ("a", START + 4, 5)]

    def build(env: Any) -> None:
        windows = stream(env, {"s": on_time + late}).key_by(lambda r: r[0]).window(MINUTES).allowed_lateness(10 * MINUTE)
        (windows.aggregate(Count(), Named()) if named else windows.aggregate(Count())).sink_to(LedgerSink("out"))

    counts = [2, 3, 4, 5, 10]
    windows = [("a", START)] * 4 + [("b", START + 5 * MINUTE)]
    assert run(build, batch) == ([(*window, n) for window, n in zip(windows, counts)] if named else counts)


@pytest.mark.parametrize("batch", [1, 1000])
@pytest.mark.parametrize("lateness", [0, 10 * MINUTE])
@pytest.mark.parametrize(
    "assigner",
    [
        MINUTES,
        SlidingEventTimeWindows.of(Time.minutes(2), Time.minutes(1)),
        SlidingEventTimeWindows.of(Time.seconds(40), Time.minutes(1)),
        CumulativeEventTimeWindows.of(Time.minutes(3), Time.minutes(1)),
    ],
)
def the_elements_of_windows_that_are_over_keep_their_order_however_they_are_batched(assigner, lateness, batch):
    tag = OutputTag("late")
    ahead = [("z", START + 9 * MINUTE, 0)] * 10
    over = [("a", START + at * MINUTE // 6, at) for at in (24, 0, 20, 12, 5, 4, 23, 6)]

    def build(env: Any) -> None:
        keyed = stream(env, {"s": [*ahead, *over, ("a", START + 9 * MINUTE, 9)]}).key_by(lambda r: r[0])
        told = keyed.window(assigner).allowed_lateness(lateness).side_output_late_data(tag).aggregate(Last(), Named())
        told.union(told.get_side_output(tag)).filter(lambda r: r[0] == "a").sink_to(LedgerSink("out"))

    told = [value for *_, value in run(build, batch, budget=10)]  # the first epoch has those that are ahead
    # Each fires the windows again that it is in, as their last element.
    given = [at for at in (24, 0, 20, 12, 5, 4, 23, 6) if lateness == 0 or told.count(at)]
    assert list(dict.fromkeys(value for value in told if value != 9)) == given
    assert lateness == 0 or len(given) >= 5


def test_an_element_that_an_aggregation_fails_on_is_named_also_if_its_batch_is_of_known_keys():
    good = [("a", START, 1), ("b", START, 2)]
    bad = [("a", START + 1, 3), ("b", START + 1, -4), ("a", START + 2, 5)]

    def build(env: Any) -> None:
        stream(env, {"s": good + bad}).key_by(lambda r: r[0]).window(MINUTES).aggregate(Count()).sink_to(LedgerSink("out"))

    with pytest.raises(UserCodeError, match="a negative value") as failure:
        run(build, 5)
    assert failure.value.key == "'b'"
    assert "-4" in str(failure.value)


CLEARED: list[Any] = []


class ClearsUp(ProcessWindowFunction):
    def process(self, key: str, context: Any, elements: Any) -> Any:
        yield key

    def clear(self, context: Any) -> None:
        CLEARED.append(context.window().start)


def test_clear_is_called_once_per_key_of_a_removed_window():
    data = [("a", START, 1), ("b", START, 2), ("a", START + MINUTE, 3)]
    CLEARED.clear()

    def build(env: Any) -> None:
        stream(env, {"s": data}).key_by(lambda r: r[0]).window(MINUTES).process(ClearsUp()).sink_to(LedgerSink("out"))

    assert sorted(run(build, 3)) == ["a", "a", "b"]
    assert sorted(CLEARED) == [START, START, START + MINUTE]


class CountsFirings(ProcessWindowFunction):
    def process(self, key: str, context: Any, elements: Any) -> Any:
        fired = context.window_state().get_state(ValueStateDescriptor("fired", Types.LONG()))
        fired.update((fired.value() or 0) + 1)
        yield key, context.window().start, fired.value(), sum(e[2] for e in elements)


@pytest.mark.parametrize("crashing", [False, True])
@pytest.mark.parametrize(("backend", "cache"), [("hashmap", "256mb"), ("rocksdb", "1kb")])
def test_window_state_written_by_a_window_function_is_kept_wherever_the_rows_are(backend, cache, crashing):
    keys = [f"k{n}" for n in range(20)]
    on_time = [(key, START, 1) for key in keys] + [("z", START + 2 * MINUTE, 0)] * 10
    late = [(key, START, 2) for key in keys]

    def build(env: Any) -> None:
        windows = stream(env, {"s": on_time + late}, cut=5).key_by(lambda r: r[0]).window(MINUTES)
        windows.allowed_lateness(10 * MINUTE).process(CountsFirings()).sink_to(LedgerSink("out"))

    expected = [(key, START, n, value) for key in keys for n, value in ((1, 1), (2, 3))]
    fired = run(build, 10, backend, cache, budget=7, crashes=[("after complete", 3)] * 4 if crashing else [])
    assert sorted(each for each in fired if each[0] != "z") == sorted(expected)


@pytest.mark.parametrize("timestamp", [2**63 - 1, 2**63 - 2, -(2**63) + MINUTE, -1])
def test_a_window_at_the_ends_of_time_fires(timestamp):
    data = [("a", timestamp, 1), ("a", timestamp, 2)]

    def build(env: Any) -> None:
        windows = stream(env, {"s": data}).key_by(lambda r: r[0]).window(MINUTES).allowed_lateness(2**63 - 1)
        windows.process(ClearsUp()).key_by(lambda key: key).window(MINUTES).reduce(max).sink_to(LedgerSink("out"))

    CLEARED.clear()
    assert run(build, 3) == ["a"]
    assert [timestamp - timestamp % MINUTE] == CLEARED


@pytest.mark.parametrize("timestamp", [None, 1.5, "soon", 2**63, -(2**63) + 1000])
@pytest.mark.parametrize("in_the_source", [True, False])
def test_a_missing_timestamp_is_reported_with_its_record(timestamp, in_the_source):
    data = [("a", START, 1), ("bad", START, 2), ("c", START, 3)]
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    assigned = strategy.with_timestamp_assigner(lambda r, _: timestamp if r[0] == "bad" else r[1])

    def build(env: Any) -> None:
        records = env.from_source(SplitSource({"s": data}), assigned if in_the_source else strategy, "source")
        timed = records if in_the_source else records.assign_timestamps_and_watermarks(assigned)
        timed.key_by(lambda r: r[0]).window(MINUTES).reduce(max).sink_to(LedgerSink("out"))

    with pytest.raises(UserCodeError, match="timestamp") as failure:
        run(build, 3)
    assert "element: ('bad'," in str(failure.value)
    assert "record: split s, record 1" in str(failure.value)


class Firings(ProcessWindowFunction):
    def open(self, runtime_context: Any) -> None:
        self.firings = runtime_context.get_state(ValueStateDescriptor("firings", Types.INT()))

    def process(self, key: str, context: Any, elements: Any) -> Any:
        self.firings.update((self.firings.value() or 0) + 1)
        same = context.global_state().get_state(ValueStateDescriptor("firings", Types.INT()))
        yield key, context.window().start, self.firings.value(), same.value()


class AppliedFirings(WindowFunction):
    def open(self, runtime_context: Any) -> None:
        self.firings = runtime_context.get_state(ValueStateDescriptor("firings", Types.INT()))

    def apply(self, key: str, window: Any, inputs: Any) -> Any:
        self.firings.update((self.firings.value() or 0) + 1)
        yield key, window.start, self.firings.value(), self.firings.value()


@pytest.mark.parametrize("budget", [1, 1000])
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("applied", [False, True])
def test_state_that_a_window_function_asks_for_when_it_is_opened_is_of_the_key_across_windows(applied, backend, budget):
    elements = [("a", START, 0), ("b", START, 1), ("a", START + MINUTE, 2), ("a", START + 2 * MINUTE, 3)]

    def build(env: Any) -> None:
        windows = stream(env, {"s": elements}).key_by(lambda r: r[0]).window(MINUTES)
        (windows.apply(AppliedFirings()) if applied else windows.process(Firings())).sink_to(LedgerSink("out"))

    assert sorted(run(build, 3, backend, budget=budget)) == [
        ("a", START, 1, 1),
        ("a", START + MINUTE, 2, 2),
        ("a", START + 2 * MINUTE, 3, 3),
        ("b", START, 1, 1),
    ]


def test_a_reduce_function_of_a_window_is_refused_state():
    class Stateful(ReduceFunction):
        def open(self, runtime_context: Any) -> None:
            runtime_context.get_state(ValueStateDescriptor("seen"))

        def reduce(self, value1: Any, value2: Any) -> Any:
            return value1

    def build(env: Any) -> None:
        windows = stream(env, {"s": [("a", START, 0)]}).key_by(lambda r: r[0]).window(MINUTES)
        windows.reduce(Stateful()).sink_to(LedgerSink("out"))

    with pytest.raises(UserCodeError, match="functions that reduce or aggregate windows have no state of their own"):
        run(build, 1)


class Everything(ProcessAllWindowFunction):
    """Tells the window and its elements, and counts the windows."""

    def process(self, context: Any, elements: Any) -> Any:
        before = context.global_state().get_state(ValueStateDescriptor("before", Types.LONG()))
        before.update((before.value() or 0) + 1)
        yield context.window().start, before.value(), sorted(each[2] for each in elements)

    def clear(self, context: Any) -> None:
        CLEARED.append(context.window().start)


class AppliedToAll(AllWindowFunction):
    def open(self, runtime_context: Any) -> None:
        self.before = runtime_context.get_state(ValueStateDescriptor("before", Types.LONG()))

    def apply(self, window: Any, inputs: Any) -> Any:
        self.before.update((self.before.value() or 0) + 1)
        yield window.start, self.before.value(), sorted(each[2] for each in inputs)


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("budget", [1, 1000])
def test_windows_without_keys_have_all_elements_in_one_subtask(applied, budget):
    elements = [("a", START, 0), ("b", START, 1), ("a", START + MINUTE, 2), ("c", START + MINUTE, 3)]
    CLEARED.clear()

    def build(env: Any) -> None:
        windows = stream(env.set_parallelism(3), {"s": elements}).window_all(MINUTES)
        result = windows.apply(AppliedToAll()) if applied else windows.process(Everything())
        assert result._transformation.parallelism == 1
        result.sink_to(LedgerSink("out"))

    assert run(build, 3, budget=budget) == [(START, 1, [0, 1]), (START + MINUTE, 2, [2, 3])]
    assert applied or CLEARED == [START, START + MINUTE]


@pytest.mark.parametrize(("size", "slide", "expected"), [(2, 0, ["ab", "cd"]), (3, 2, ["abc", "cde"]), (1, 3, ["a", "d"])])
@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("budget", [1, 1000])
def test_windows_of_a_number_of_elements_fire_when_they_are_full(keyed, size, slide, expected, budget):
    elements = [("k", START + n, letter) for n, letter in enumerate("abcde")]

    def build(env: Any) -> None:
        records = stream(env, {"s": elements})
        windows = (
            records.key_by(lambda r: r[0]).count_window(size, slide) if keyed else records.count_window_all(size, slide)
        )
        windows.reduce(lambda a, b: (a[0], b[1], a[2] + b[2])).map(lambda r: r[2]).sink_to(LedgerSink("out"))

    assert run(build, 3, budget=budget, crashes=[("after complete", 2)]) == expected


class Nonsense(CountTrigger):
    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> Any:
        return True


def test_an_invalid_trigger_result_is_reported_with_its_element():
    def build(env: Any) -> None:
        windows = stream(env, {"s": [("a", START, 1)]}).key_by(lambda r: r[0]).window(MINUTES).trigger(Nonsense(3))
        windows.reduce(max).sink_to(LedgerSink("out"))

    with pytest.raises(UserCodeError, match=r"on_element\(\) of the trigger CountTrigger\(3\) returned True") as failure:
        run(build, 3)
    assert "element: ('a'," in str(failure.value)


class Once(Trigger):
    """A trigger of the program's own: fires at the third element, and again two minutes after it, by timer."""

    seen = ValueStateDescriptor("seen", Types.LONG())

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        seen = ctx.get_partitioned_state(self.seen)
        seen.update((seen.value() or 0) + 1)
        if seen.value() != 3:
            return TriggerResult.CONTINUE
        ctx.register_event_time_timer(timestamp + 2 * MINUTE)
        return TriggerResult.FIRE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE_AND_PURGE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Any) -> None:
        raise AssertionError("these windows do not merge")

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.get_partitioned_state(self.seen).clear()


@pytest.mark.parametrize(("backend", "cache"), [("hashmap", "256mb"), ("rocksdb", "1kb")])
@pytest.mark.parametrize("crashing", [False, True])
def test_a_custom_trigger_has_state_and_timers(backend, cache, crashing):
    elements = [("a", START + n * 1000, n) for n in range(5)] + [("b", START + n * MINUTE, 0) for n in range(5)]

    def build(env: Any) -> None:
        windows = stream(env, {"s": elements}, cut=1).key_by(lambda r: r[0]).window(GlobalWindows.create()).trigger(Once())
        windows.aggregate(Sums()).sink_to(LedgerSink("out"))

    crashes = [("after complete", 2)] * 4 if crashing else []
    assert sorted(run(build, 1, backend, cache, budget=1, crashes=crashes)) == sorted([0 + 1 + 2, 0 + 1 + 2 + 3 + 4, 0, 0])


class Sums(Count):
    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + value[2]
