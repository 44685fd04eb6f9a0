"""The temporal join against plain Python, for any epochs, parallelism and backend."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Row, RowKind, Time, Types
from holdfast.datastream import (
    FlatJoinFunction,
    JoinFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessWindowFunction,
    TumblingEventTimeWindows,
)
from holdfast.errors import ConfigurationError, UserCodeError
from holdfast.runtime.operators.joins.temporal_join import TemporalJoinOperator
from holdfast.runtime.records.records import RecordBatch

from .inprocess import LEDGERS, LedgerSink
from .one_operator import opened
from .programs import DELAY, records, stream
from .test_same_results import config, few, lab, runs, visible

LATE_LEFT, LATE_RIGHT = OutputTag("left"), OutputTag("right")


def key_of(record: Any) -> Any:
    return record[0]


class Both(JoinFunction):
    def open(self, runtime_context: Any) -> None:
        self.opened = True

    def join(self, first: Any, second: Any) -> Any:
        assert self.opened
        return first, second


class Whole(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield from elements


def in_time(data: dict[str, list[Any]]) -> tuple[list[Any], list[Any]]:
    """The records in time, and the late ones: those that their split's watermark has reached."""
    alive: list[Any] = []
    late: list[Any] = []
    for split in data.values():
        highest = None
        for record in split:
            (late if highest is not None and record[1] <= highest - DELAY - 1 else alive).append(record)
            highest = record[1] if highest is None else max(highest, record[1])
    return alive, late


@settings(few, max_examples=examples(3))
@given(
    **runs,
    outer=st.booleans(),
    jitter=st.sampled_from([DELAY, 3 * DELAY]),
)
def test_each_element_meets_the_version_of_its_time(seed, backend, parallelism, budget, frame, crashes, outer, jitter):
    orders, rates = records(seed, 100, keys=5, jitter=jitter), records(seed + 1, 60, keys=6, jitter=jitter)
    seen: set[Any] = set()
    # Of two versions with one timestamp, the later one counts; which that is depends on their split only.
    rates = {name: [r for r in split if not (r[:2] in seen or seen.add(r[:2]))] for name, split in rates.items()}  # type: ignore[func-returns-value]

    def build(env: Any) -> None:
        left, right = (stream(env, d, budget, uid).key_by(key_of) for d, uid in ((orders, "orders"), (rates, "rates")))
        joined = left.temporal_join(right).side_output_left_late_data(LATE_LEFT).side_output_right_late_data(LATE_RIGHT)
        results = (joined.left_outer() if outer else joined).apply(Both()).uid("join")
        late = [results.get_side_output(tag).map(lambda r, tag=tag: (tag.tag_id, r)) for tag in (LATE_LEFT, LATE_RIGHT)]
        # No result is late behind the join: a window has all of them.
        windowed = results.key_by(lambda result: 0).window(TumblingEventTimeWindows.of(Time.seconds(10)))
        windowed.process(Whole()).union(*late).sink_to(LedgerSink("out"))

    (left, late_left), (right, late_right) = in_time(orders), in_time(rates)
    expected: list[Any] = [("left", r) for r in late_left] + [("right", r) for r in late_right]
    for order in left:
        valid = max((r for r in right if r[0] == order[0] and r[1] <= order[1]), key=lambda r: r[1], default=None)
        if valid is not None or outer:
            expected.append((order, valid))
    with lab(build, parallelism=parallelism, budget=budget, config=config(backend, frame)) as job:
        job.run(crashes)
        assert visible() == Counter(map(repr, expected))


def a_deleted_version_is_no_version_and_leaves_nothing_behind():
    operator, clock, state, told = opened(TemporalJoinOperator(lambda a, b: (a, b), True))
    elements, versions = operator.inputs()
    rows = [Row("k", rate) for rate in (1, 2, 3)]
    rows[1].set_row_kind(RowKind.DELETE)
    versions(RecordBatch(rows, [10, 20, 40], ["k"] * 3))
    elements(RecordBatch(["a", "b", "c", "d"], [5, 15, 25, 45], ["k"] * 4))
    kept = []
    space = state.space("keyed")
    for watermark in (5, 15, 30, 50):
        clock.advance(watermark, operator.advance_watermark)
        (space.row,) = space.table().load(["k"])
        states = {"elements": None, "versions": None, "deletions": Types.BOOLEAN()}
        handles = [
            space.get_map_state(MapStateDescriptor(name, Types.LONG(), declared)) for name, declared in states.items()
        ]
        kept.append([sorted(handle.keys()) for handle in handles])
    assert told == [(("a", None), 5), (("b", rows[0]), 15), (("c", None), 25), (("d", rows[2]), 45)]
    assert kept == [
        [[15, 25, 45], [10, 40], [20]],
        [[25, 45], [10, 40], [20]],
        [[45], [40], []],
        [[], [40], []],
    ]
    assert not state.timer_queue("temporal-join")


class Each(FlatJoinFunction):
    def join(self, first: Any, second: Any) -> Any:
        if second[2] > 1:
            yield first[2]
            yield second[2]


def a_flat_join_function_gives_any_number_of_results(job):
    def build(env: Any) -> None:
        left = stream(env, {"s": [("a", 10, 7), ("a", 30, 8)]}, uid="orders").key_by(key_of)
        right = stream(env, {"s": [("a", 5, 1), ("a", 20, 2)]}, uid="rates").key_by(key_of)
        left.temporal_join(right).apply(Each()).sink_to(LedgerSink("out"))

    job(build, parallelism=1).run()
    assert LEDGERS["out"].values == [8, 2]


def test_what_cannot_be_joined_is_refused_where_it_is_written():
    def build(env: Any) -> None:
        first, second = stream(env, {"s": []}, uid="left"), stream(env, {"s": []}, uid="right")
        with pytest.raises(TypeError, match=r"temporal_join\(\) takes a KeyedStream.*call key_by\(...\) on it"):
            first.key_by(key_of).temporal_join(second)
        joined = first.key_by(key_of).temporal_join(second.key_by(key_of))
        with pytest.raises(ConfigurationError, match=r"called with \(element, version\)"):
            joined.apply(lambda element: element)
        with pytest.raises(TypeError, match="takes an OutputTag"):
            joined.side_output_left_late_data("late")  # type: ignore[arg-type]
        joined.apply(Both()).sink_to(LedgerSink("out"))

    with lab(build, parallelism=1, config={}) as job:
        job.plan()


def test_streams_without_timestamps_are_refused():
    def build(env: Any) -> None:
        first, second = (env.from_collection([("a", 1)]).key_by(key_of) for _ in range(2))
        first.temporal_join(second).apply(Both()).sink_to(LedgerSink("out"))

    with lab(build, parallelism=1, config={}) as job, pytest.raises(ConfigurationError, match="have no timestamps"):
        job.plan()


def the_error_of_a_join_names_key_and_element(job):
    def build(env: Any) -> None:
        left, right = (stream(env, {"s": [("a", 5, 0)]}, uid=uid).key_by(key_of) for uid in ("left", "right"))
        left.temporal_join(right).apply(lambda a, b: a[0] + b[2]).sink_to(LedgerSink("out"))

    with pytest.raises(UserCodeError, match="concatenate str") as failure:
        job(build, parallelism=1).run()
    assert failure.value.key == "'a'"
    assert "element: ('a', 5, 0)" in str(failure.value)
