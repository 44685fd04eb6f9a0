"""Late records: by the watermark of their own split just before them, in lists and in columns."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.common import Time, WatermarkStrategy
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.datastream import EventTimeSessionWindows, StreamExecutionEnvironment, TumblingEventTimeWindows
from holdfast.runtime.plan import event_time
from holdfast.runtime.plan.event_time import (
    GeneratorState,
    LateRecords,
    Run,
    SplitTime,
    combined,
    deadlines,
    pieces,
    steps,
)
from holdfast.runtime.plan.plan import JobPlan, Vertex


@pytest.mark.parametrize("form", [list, lambda stamps: array("q", stamps)], ids=["list", "column"])
def a_record_is_late_from_the_watermark_of_its_deadline_on(form: Any):
    """The earliest deadline there may be is the watermark just before the record."""
    for behind, late in ((0, [(1, 2, 9)]), (1, [])):
        found = LateRecords(0, [lambda stamp, behind=behind: stamp - 1 + behind]).find(form([10, 10]), 5)
        assert found == late


def late_by_definition(stamps: list[int], highest: int, delay: int, given: list[Callable[[int], int]]) -> list[int]:
    """The watermark before each record that is late; for the others the least one."""
    told = []
    for stamp in stamps:
        watermark = MIN_TIMESTAMP if highest == MIN_TIMESTAMP else highest - delay - 1
        late = any(deadline(stamp) <= watermark for deadline in given)
        told.append(watermark if late else MIN_TIMESTAMP)
        highest = max(highest, stamp)
    return told


@given(
    stamps=st.lists(st.integers(0, 60), min_size=1, max_size=30),
    highest=st.sampled_from([MIN_TIMESTAMP, 0, 20, 70]),
    delay=st.integers(0, 25),
    sizes=st.lists(st.sampled_from([1, 10, 25]), min_size=1, max_size=2),
    column=st.booleans(),
)
@example(stamps=[50, 50, 50, 50, 0, 0, 0, 60, 0], highest=MIN_TIMESTAMP, delay=0, sizes=[1], column=False)
@example(stamps=[50, 50, 50, 50, 0, 0, 0, 60, 0], highest=MIN_TIMESTAMP, delay=0, sizes=[1], column=True)
def the_late_records_of_a_split_are_those_whose_first_deadline_has_passed(
    stamps: list[int], highest: int, delay: int, sizes: list[int], column: bool
):
    given = [lambda stamp, size=size: stamp - stamp % size + size - 1 for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_time, "_PART", 4)
        runs = LateRecords(delay, given).find(array("q", stamps) if column else stamps, highest)  # type: ignore[arg-type]
    told = [MIN_TIMESTAMP] * len(stamps)
    for first, end, watermark in runs:
        told[first:end] = [watermark] * (end - first)
    assert told == late_by_definition(stamps, highest, delay, given)
    assert all(one[1:] != (other[0], other[2]) for one, other in pairwise(runs)), "adjacent ones are one run"


def test_no_record_is_late_without_a_generator_or_an_operator_that_drops_late_ones():
    assert LateRecords(None, [lambda stamp: stamp]).find([50, 1], 90) == []
    assert LateRecords(0, []).find([50, 1], 90) == []


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 9)), max_size=5), st.integers(0, 3))
def test_records_are_cut_into_late_runs_and_what_is_between_them(parts: list[tuple[int, int, int]], rest: int):
    runs: list[Run] = []
    told, at = [], 0
    for gap, length, watermark in parts:
        runs.append((at + gap, at + gap + length, watermark))
        told += [MIN_TIMESTAMP] * gap + [watermark] * length
        at += gap + length
    told += [MIN_TIMESTAMP] * rest
    cut = list(pieces(len(told), runs))
    assert [watermark for first, end, watermark in cut for _ in range(first, end)] == told
    assert [first for first, _, _ in cut] == [0, *(end for _, end, _ in cut[:-1])][: len(cut)]
    assert all(first < end for first, end, _ in cut)


@pytest.mark.parametrize(
    ("stamps", "cut"),
    [
        ([], []),
        ([9, 9, 19], [(0, 2, 8), (2, 3, 18)]),
        ([1, 2], [(0, 1, 0), (1, 2, 1)]),
        ([MIN_TIMESTAMP], [(0, 1, MIN_TIMESTAMP)]),
    ],
)
def test_results_come_right_before_the_watermark_of_their_time(stamps: list[int], cut: list[Run]):
    assert list(steps(stamps)) == cut


def the_watermark_of_a_split_is_behind_its_highest_timestamp_or_what_its_own_generator_has_emitted():
    assert SplitTime().watermark(5) == MIN_TIMESTAMP
    assert SplitTime(100).watermark(None) == MIN_TIMESTAMP
    assert SplitTime(100).watermark(5) == 94
    assert SplitTime(100, generated=GeneratorState(b"", 70, False)).watermark(5) == 70


@pytest.mark.parametrize("generated", [None, GeneratorState(b"pickled", 70, True)])
def the_time_of_a_split_comes_back_from_the_checkpoint(generated: GeneratorState | None):
    assert SplitTime.of(SplitTime(100, True, True, generated).plain()) == SplitTime(100, generated=generated)


def test_inputs_have_the_time_of_the_active_one_that_is_furthest_behind_and_all_idle_ones_of_the_furthest():
    assert combined([(70, False), (50, True), (60, False)]) == 60
    assert combined([(70, True), (50, True)]) == 70
    assert combined([]) == MIN_TIMESTAMP


def firsts(plan: JobPlan, vertex: Vertex, position: int) -> list[int]:
    """For a record at 12, the deadlines of the operators behind this one in the chain."""
    chained = vertex.chain[position]
    edges, channels = [edge.target for edge in chained.edges], [channel.target for channel in chained.channels]
    return sorted(deadline(12) for deadline in deadlines(plan, vertex, edges, channels))


@pytest.mark.parametrize("parallelism", [1, 2])
def the_deadlines_of_a_record_are_those_downstream_up_to_the_next_watermark_generator(parallelism: int):
    env = StreamExecutionEnvironment.get_execution_environment(spark=object()).set_parallelism(parallelism)  # type: ignore[arg-type]
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value)
    keyed = env.from_collection([1]).assign_timestamps_and_watermarks(times).map(lambda v: v).key_by(lambda v: v)
    ten = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(10))).reduce(max)
    session = keyed.window(EventTimeSessionWindows.with_gap(Time.milliseconds(3))).reduce(max)
    both = ten.union(session).map(lambda v: v)  # reached twice
    both.key_by(lambda v: v).window(TumblingEventTimeWindows.of(Time.milliseconds(100))).reduce(max).print()
    anew = both.assign_timestamps_and_watermarks(times)
    anew.key_by(lambda v: v).window(TumblingEventTimeWindows.of(Time.milliseconds(1000))).reduce(max).print()
    plan = env._plan("job")
    source = next(vertex for vertex in plan.vertices if vertex.source is not None)
    assert deadlines(plan, source, (0,), ()) == ()
    found = [
        firsts(plan, vertex, position)
        for vertex in plan.vertices
        for position, chained in enumerate(vertex.chain)
        if chained.factory.makes_watermarks
    ]
    assert sorted(found) == [[11, 19, 99], [999]]  # a session may end before the element
