"""Joins of two streams by window and by an interval; those of drawn programs are in ``tests/programs``.

The cases of intervals are those of Flink's IntervalJoinOperatorTest (apache/flink, streaming.api.operators.co): elements
with the timestamps 1 to 4 on both sides.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Duration, Time, Types, WatermarkStrategy
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.datastream import (
    CoGroupFunction,
    EventTimeSessionWindows,
    JoinFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from holdfast.datastream.window import (
    EventTimeTrigger,
    Evictor,
    TimestampedValue,
    TimeWindow,
    Trigger,
    TriggerResult,
    WindowAssigner,
)
from holdfast.errors import ConfigurationError, UserCodeError
from holdfast.runtime.operators.joins.interval_join import IntervalJoinOperator
from holdfast.runtime.records.records import RecordBatch
from holdfast.testing import TwoInputTestHarness

from .inprocess import LedgerSink, SplitSource
from .one_operator import opened
from .programs import records, stream
from .test_same_results import config, few, lab, runs, visible

LATE_LEFT, LATE_RIGHT = OutputTag("left"), OutputTag("right")


class Pair(JoinFunction):
    def join(self, first: Any, second: Any) -> Any:
        return first[0], first[2], second[2]


class Both(CoGroupFunction):
    def co_group(self, first: Any, second: Any) -> Any:
        yield list(first), list(second)


def key_of(record: Any) -> Any:
    return record[0]


class ByWeight(WindowAssigner):
    """Windows whose size is the element's third field."""

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> list[TimeWindow]:
        return [TimeWindow(timestamp - timestamp % element[2], timestamp - timestamp % element[2] + element[2])]

    def get_default_trigger(self, env: Any) -> Trigger:
        return EventTimeTrigger.create()

    def is_event_time(self) -> bool:
        return True


class UntilLast(EventTimeTrigger):
    """Fires also with an element that says so."""

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        super().on_element(element, timestamp, window, ctx)
        return TriggerResult.FIRE if element[1] == "last" else TriggerResult.CONTINUE


class NoDrafts(Evictor):
    """Evicts the elements that say so, before the function is called."""

    def evict_before(self, elements: Any, size: int, window: Any, evictor_context: Any) -> None:
        elements[:] = [each for each in elements if each.value[1] != "draft"]

    def evict_after(self, elements: Any, size: int, window: Any, evictor_context: Any) -> None:
        pass


class Adds(NoDrafts):
    def evict_before(self, elements: Any, size: int, window: Any, evictor_context: Any) -> None:
        elements.append(TimestampedValue(("k", "new", 10), 1))


def grouped(assigner: Any, how: Any = lambda windows: windows) -> Any:
    def build(left: Any, right: Any) -> Any:
        windows = left.co_group(right).where(key_of).equal_to(key_of).window(assigner)
        return how(windows).apply(lambda firsts, seconds: [([each[1] for each in firsts], [each[1] for each in seconds])])

    return build


ASSIGNERS = [ByWeight(), EventTimeSessionWindows.with_dynamic_gap(lambda element: element[2])]


@pytest.mark.parametrize("assigner", ASSIGNERS)
@pytest.mark.parametrize(
    ("how", "early"),
    [(lambda windows: windows, []), (lambda windows: windows.trigger(UntilLast()), [(["a"], ["last"])])],
    ids=["", "trigger"],
)
def the_assigner_and_trigger_of_a_window_join_are_given_the_elements(assigner: Any, how: Any, early: Any) -> None:
    with TwoInputTestHarness(grouped(assigner, how)) as harness:
        harness.process_element1(("k", "a", 10), 1).process_element2(("k", "last", 10), 2)
        assert harness.extract_output_values() == early
        harness.process_element1(("k", "b", 10), 3).process_both_watermarks(50)
        assert harness.extract_output_values() == [*early, (["a", "b"], ["last"])]


def the_evictor_of_a_window_join_removes_elements_of_both_streams() -> None:
    build = grouped(TumblingEventTimeWindows.of(Time.milliseconds(10)), lambda windows: windows.evictor(NoDrafts()))
    with TwoInputTestHarness(build) as harness:
        harness.process_element1(("k", "a", 1), 1).process_element1(("k", "draft", 1), 1)
        harness.process_element2(("k", "draft", 1), 2).process_element2(("k", "b", 1), 3)
        assert harness.process_both_watermarks(50).extract_output_values() == [(["a"], ["b"])]
    build = grouped(TumblingEventTimeWindows.of(Time.milliseconds(10)), lambda windows: windows.evictor(Adds()))
    with TwoInputTestHarness(build) as harness:
        harness.process_element1(("k", "a", 1), 1)
        with pytest.raises(UserCodeError, match="it may only remove elements"):
            harness.process_both_watermarks(50)


@pytest.mark.parametrize(
    "assigner",
    [
        TumblingEventTimeWindows.of(Time.milliseconds(10)),
        SlidingEventTimeWindows.of(Time.milliseconds(20), Time.milliseconds(10)),
        EventTimeSessionWindows.with_gap(Time.milliseconds(10)),
        *ASSIGNERS,
    ],
)
def the_late_elements_of_a_window_join_go_to_the_side_output_as_they_are(assigner: Any) -> None:
    build = grouped(assigner, lambda windows: windows.side_output_late_data(LATE_LEFT))
    with TwoInputTestHarness(build) as harness:
        harness.process_both_watermarks(50)
        harness.process_element1(("k", "late", 10), 1).process_element2(("k", "late too", 10), 2)
        assert harness.get_side_output(LATE_LEFT) == [("k", "late", 10), ("k", "late too", 10)]


class Stamps(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
        assert ctx.get_timestamp() == max(left[1], right[1])
        assert (ctx.get_left_timestamp(), ctx.get_right_timestamp()) == (left[1], right[1])
        yield left[0], left[1], right[1], left[2], right[2]


def joined(left: Any, right: Any, lower: int, upper: int, exclusive: tuple[bool, bool], cut: int = 0) -> Any:
    def build(env: Any) -> None:
        first, second = (stream(env, data, cut, uid).key_by(key_of) for data, uid in ((left, "left"), (right, "right")))
        between = first.interval_join(second).between(Time.milliseconds(lower), Time.milliseconds(upper))
        if exclusive[0]:
            between.lower_bound_exclusive()
        if exclusive[1]:
            between.upper_bound_exclusive()
        between.side_output_left_late_data(LATE_LEFT).side_output_right_late_data(LATE_RIGHT)
        pairs = between.process(Stamps())
        late = [pairs.get_side_output(tag).map(lambda r, tag=tag: (tag.tag_id, *r)) for tag in (LATE_LEFT, LATE_RIGHT)]
        pairs.union(*late).sink_to(LedgerSink("out"))

    return build


CASES = {
    (1, 3, False, True): [(1, 2), (1, 3), (2, 3), (2, 4), (3, 4)],
    (-3, -1, True, False): [(2, 1), (3, 1), (3, 2), (4, 2), (4, 3)],
    (-2, -1, False, False): [(2, 1), (3, 1), (3, 2), (4, 2), (4, 3)],
    (-1, 1, False, False): [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 2), (3, 3), (3, 4), (4, 3), (4, 4)],
    (1, 2, False, False): [(1, 2), (1, 3), (2, 3), (2, 4), (3, 4)],
    (-3, -1, True, True): [(3, 1), (4, 2)],
    (-1, 1, True, True): [(1, 1), (2, 2), (3, 3), (4, 4)],
    (1, 3, True, True): [(1, 3), (2, 4)],
}


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("budget", [1, 1000])
def a_case_of_flinks_interval_join_gives_its_pairs(case, budget):
    lower, upper, *exclusive = case
    side = {"s": [("key", time, 0) for time in (1, 2, 3, 4)]}
    with lab(joined(side, side, lower, upper, tuple(exclusive)), parallelism=1, budget=budget, config={}) as job:
        job.run([("after complete", 2)] if budget == 1 else [])
        assert visible() == Counter(repr(("key", *pair, 0, 0)) for pair in CASES[case])


def test_what_cannot_be_joined_is_refused_where_it_is_written():
    def build(env: Any) -> None:
        first, second = stream(env, {"s": []}, uid="left"), stream(env, {"s": []}, uid="right")
        keyed = first.key_by(key_of)
        with pytest.raises(TypeError, match=r"call key_by\(...\) on it"):
            keyed.interval_join(second)
        pairs = keyed.interval_join(second.key_by(key_of))
        with pytest.raises(ConfigurationError, match="bounds in order"):
            pairs.between(Time.seconds(2), Time.seconds(1))
        with pytest.raises(ConfigurationError, match="interval of the join is empty"):
            pairs.between(Time.seconds(1), Time.seconds(1)).lower_bound_exclusive().process(Stamps())
        with pytest.raises(TypeError, match="takes a ProcessJoinFunction"):
            pairs.between(Time.seconds(1), Time.seconds(1)).process(Pair())  # type: ignore[arg-type]
        windows = first.join(second).where(key_of).equal_to(key_of).window(EventTimeSessionWindows.with_gap(Time.seconds(1)))
        with pytest.raises(TypeError, match=r"apply\(\) after join\(\) takes a function \(first, second\)"):
            windows.apply(Both())
        windows.apply(Pair()).sink_to(LedgerSink("out"))

    with lab(build, parallelism=1, config={}) as job:
        job.plan()


class Fails(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
        raise ValueError("no pair")


def the_error_of_a_join_names_key_and_element():
    def build(env: Any) -> None:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(1)).with_timestamp_assigner(
            lambda record, _: record[1]
        )
        sides = [env.from_source(SplitSource({"s": [("a", 5, 0)]}), strategy, uid).uid(uid) for uid in ("left", "right")]
        first, second = (side.key_by(key_of) for side in sides)
        pairs = first.interval_join(second).between(Time.seconds(-1), Time.seconds(1))
        pairs.process(Fails()).sink_to(LedgerSink("out"))

    with lab(build, parallelism=1, config={}) as job, pytest.raises(UserCodeError, match="no pair") as failure:
        job.run()
    assert failure.value.key == "'a'"
    assert "element: ('a', 5, 0)" in str(failure.value)


# ---- outer joins by interval --------------------------------------------------------------------------------------------


class Matched(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
        for side, stamp in ((left, ctx.get_left_timestamp()), (right, ctx.get_right_timestamp())):
            assert stamp == (MIN_TIMESTAMP if side is None else side[1])
        yield ctx.get_timestamp(), left, right


class Stamped(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        assert value[0] == ctx.timestamp()
        yield value


OUTER = {"left_outer": (True, False), "right_outer": (False, True), "full_outer": (True, True)}


@pytest.mark.parametrize("how", OUTER)
@settings(few, max_examples=examples(2))
@given(
    **runs,
    bounds=st.tuples(st.integers(-9_000, 9_000), st.integers(0, 9_000)),
)
def test_outer_joins_by_interval_emit_each_element_without_a_partner_once(
    how, seed, backend, parallelism, budget, frame, crashes, bounds
):
    lower, upper = bounds[0], bounds[0] + bounds[1]
    sides = [records(seed + n, 60, keys=11) for n in range(2)]

    def build(env: Any) -> None:
        first, second = (stream(env, data, budget, uid).key_by(key_of) for data, uid in zip(sides, ("left", "right")))
        between = first.interval_join(second).between(Time.milliseconds(lower), Time.milliseconds(upper))
        results = getattr(between, how)().process(Matched()).uid("join").process(Stamped())
        # No result is late behind the join: a window has all of them.
        windowed = results.key_by(lambda result: 0).window(TumblingEventTimeWindows.of(Time.seconds(10)))
        windowed.process(Whole()).sink_to(LedgerSink("out"))

    left, right = ([record for split in data.values() for record in split] for data in sides)
    expected: list[Any] = []
    alone = [set(left), set(right)]
    for a in left:
        for b in right:
            if a[0] == b[0] and lower <= b[1] - a[1] <= upper:
                expected.append((max(a[1], b[1]), a, b))
                alone[0].discard(a)
                alone[1].discard(b)
    if OUTER[how][0]:
        expected += [(a[1] + max(upper, 0) + 1, a, None) for a in left if a in alone[0]]
    if OUTER[how][1]:
        expected += [(b[1] + max(-lower, 0) + 1, None, b) for b in right if b in alone[1]]
    with lab(build, parallelism=parallelism, budget=budget, config=config(backend, frame)) as job:
        job.run(crashes)
        assert visible() == Counter(map(repr, expected))


class Whole(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield from elements


def the_state_of_an_outer_join_goes_when_the_watermark_has_passed():
    operator, clock, state, told = opened(IntervalJoinOperator(Matched(), 0, 10, outer=(True, True)))
    left, right = operator.inputs()
    left(RecordBatch([("k", 100, "a"), ("k", 300, "b")], [100, 300], ["k", "k"]))
    right(RecordBatch([("k", 305, "c"), ("k", 500, "d")], [305, 500], ["k", "k"]))
    seen = []
    for watermark in (110, 111, 311, 500, 501):
        clock.advance(watermark, operator.advance_watermark)
        seen.append(len(told))
    assert seen == [1, 2, 2, 2, 3]
    assert [value[1:] for value, _ in told] == [
        (("k", 300, "b"), ("k", 305, "c")),
        (("k", 100, "a"), None),
        (None, ("k", 500, "d")),
    ]
    space = state.space("keyed")
    (space.row,) = space.table().load(["k"])
    states = {
        "left-buffer": None,
        "right-buffer": None,
        "left-unmatched": Types.BOOLEAN(),
        "right-unmatched": Types.BOOLEAN(),
    }
    for name, declared in states.items():
        assert list(space.get_map_state(MapStateDescriptor(name, Types.LONG(), declared)).items()) == [], name
    assert not state.timer_queue("interval-join")
