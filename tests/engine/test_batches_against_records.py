"""Columns against records: the same keys, routes and windows, to the last bit, whatever the values and the cuts."""

from __future__ import annotations

import math
import pickle
from array import array
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Time, Types
from holdfast.common.formats.columns import ColumnForm, ColumnKeys, Columns, columns_of
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.connectors.base import JobInfo
from holdfast.datastream import OutputTag, StreamExecutionEnvironment
from holdfast.datastream.operations.batches import Avg, Count, CountDistinct, Max, Min, Sum, col
from holdfast.datastream.window import CumulativeEventTimeWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from holdfast.functions.aggregates import Aggregates
from holdfast.metrics.user import MetricGroup
from holdfast.runtime.operators.windows import waiting_columns
from holdfast.runtime.operators.windows.grouped_columns import GroupedColumns
from holdfast.runtime.plan.context import OperatorContext
from holdfast.runtime.plan.event_time import LateRecords
from holdfast.runtime.records.column_routes import subtasks
from holdfast.runtime.records.records import RecordBatch, select_keys
from holdfast.runtime.records.user_code import OperatorName
from holdfast.runtime.time.clock import Clock
from holdfast.state.keys.key_groups import group_assigner
from holdfast.state.rows.keyed_state import KeyedState

TYPES = {"i": Types.LONG(), "f": Types.DOUBLE(), "s": Types.STRING()}
OWNER = OperatorName("operator", "operator")
whole = st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1))
real = st.one_of(st.sampled_from([0.0, -0.0, 0.1, 1e300, -1e300]), st.floats(width=64))
text = st.text(st.characters(codec="utf-8"), max_size=3)


def same(given: Any, expected: Any) -> bool:
    """Equal values of one type, NaN and the sign of a zero included."""
    if isinstance(expected, float):
        return isinstance(given, float) and (
            math.copysign(1, given) == math.copysign(1, expected) and given == expected
            if expected == expected
            else given != given
        )
    return type(given) is type(expected) and bool(given == expected)


@settings(max_examples=examples(50), deadline=None)
@given(
    keys=st.one_of(st.lists(whole, min_size=1), st.lists(text, min_size=1)),
    parallelism=st.integers(1, 7),
    groups=st.sampled_from([7, 128, 300]),
)
def the_keys_of_columns_go_to_the_subtasks_of_the_same_keys(keys: list[Any], parallelism: int, groups: int) -> None:
    column = Columns(pa.RecordBatch.from_pydict({"key": keys}))
    assign = group_assigner(groups, parallelism)
    found = subtasks(ColumnKeys(column, col("key")), assign, groups, parallelism)
    assert found.tolist() == group_assigner(groups, parallelism)(keys)


@settings(max_examples=examples(50), deadline=None)
@given(
    steps=st.lists(st.integers(-40, 60), min_size=1, max_size=60),
    repeats=st.integers(1, 40),
    highest=st.sampled_from([MIN_TIMESTAMP, 0, 500]),
    delay=st.integers(0, 30),
)
def the_late_records_of_columns_are_those_of_records(steps: list[int], repeats: int, highest: int, delay: int) -> None:
    late = LateRecords(delay, [lambda timestamp: timestamp - timestamp % 50 + 49])
    stamps = np.cumsum(steps * repeats).tolist()
    assert late.find(array("q", stamps), highest) == late.find(stamps, highest)  # type: ignore[arg-type]


@settings(max_examples=examples(30), deadline=None)
@given(rows=st.lists(st.tuples(st.none() | whole, st.none() | real, st.none() | text), min_size=1), data=st.data())
def the_rows_come_out_of_columns_as_they_went_in(rows: list[Any], data: Any) -> None:
    declared = Types.ROW_NAMED(list(TYPES), list(TYPES.values()))
    form = ColumnForm.of(declared)
    assert form is not None
    given = [declared.conform(row) for row in rows]
    columns = form.columns(given)
    assert columns is not None
    assert columns.fits(declared)
    first = data.draw(st.integers(0, len(rows)))
    for part, expected in ((columns, given), (columns[first:], given[first:])):
        received = list(pickle.loads(pickle.dumps(part)))
        assert all(same(a, b) for x, y in zip(received, expected, strict=True) for a, b in zip(x, y, strict=True))


def ms(count: int) -> Time:
    return Time.milliseconds(count)


TUMBLING = TumblingEventTimeWindows.of(ms(10))
WINDOWS = [
    *(TUMBLING, SlidingEventTimeWindows.of(ms(20), ms(10)), SlidingEventTimeWindows.of(ms(25), ms(10), ms(3))),
    *(SlidingEventTimeWindows.of(ms(5), ms(15)), CumulativeEventTimeWindows.of(ms(30), ms(10))),
]


class Subtask:
    """The window operator of a program in one subtask."""

    def __init__(self, lateness: int, windows: Any = TUMBLING) -> None:
        env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
        env.set_parallelism(1)
        late = OutputTag("late")
        stream = env.from_collection([{"key": 1}]).key_by(col("key")).window(windows)
        made = (
            stream.allowed_lateness(lateness)
            .side_output_late_data(late)
            .agg(
                rows=Count(),
                known=Count("f"),
                whole=Sum("i"),
                real=Sum("f"),
                least=Min("f"),
                most=Max("f"),
                first=Min("s"),
                last=Max("i"),
                mean=Avg("i"),
                average=Avg("f"),
                different=CountDistinct("f"),
                words=CountDistinct("s"),
            )
        )
        factory: Any = made._transformation.factory  # type: ignore[attr-defined]
        self.operator, self.clock, self.state = factory.create(), Clock(), KeyedState("operator")
        self.out: list[Any] = []
        self.late: list[Any] = []
        self.columnar = 0
        self.operator.context = OperatorContext(
            job=JobInfo("j", "job", 1, ""),
            uid="operator",
            name="operator",
            subtask=0,
            parallelism=1,
            max_parallelism=128,
            clock=self.clock,
            state=self.state,
            metrics=MetricGroup(),
            emit=self._emitted,
            side_outputs={"late": lambda batch: self.late.extend(zip(map(list, batch.values), batch.stamps(), strict=True))},
        )
        self.operator.open()

    def _emitted(self, batch: RecordBatch) -> None:
        self.columnar += columns_of(batch.values) is not None
        self.out.extend(zip(map(list, batch.values), batch.stamps(), strict=True))

    def process(self, values: Any, stamps: list[int], late_by: int) -> None:
        self.clock.passing.late_by = late_by
        self.operator.process(RecordBatch(values, stamps, select_keys(col("key"), None, values, OWNER)))
        self.clock.passing.late_by = MIN_TIMESTAMP

    def advance(self, watermark: int) -> None:
        self.clock.advance(watermark, self.operator.advance_watermark)

    def contents(self) -> dict[Any, Any]:
        tables = self.state.space("window").tables
        return {
            (start, key): row[1] for start, table in tables.items() for key, row in table.rows.items() if row[1] is not None
        }


record = st.tuples(st.integers(0, 3), st.none() | whole, st.none() | real, st.none() | text, st.integers(-25, 15))
step = st.one_of(
    st.tuples(st.just("frame"), st.lists(record, min_size=1, max_size=12), st.booleans(), st.booleans()),
    st.tuples(st.just("advance"), st.integers(1, 15)),
    st.tuples(st.just("barrier")),
)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    windows=st.sampled_from(WINDOWS),
    steps=st.lists(step, max_size=12),
    lateness=st.sampled_from([0, 0, 7]),
    most=st.sampled_from([1 << 18, 5]),
)
def the_windows_of_columns_are_those_of_records(windows: Any, steps: list[Any], lateness: int, most: int) -> None:
    declared = Types.ROW_NAMED(["key", *TYPES, "at"], [Types.LONG(), *TYPES.values(), Types.LONG()])
    form = ColumnForm.of(declared)
    assert form is not None
    before, waiting_columns._MOST_WAITING = waiting_columns._MOST_WAITING, most
    try:
        records, columns = Subtask(lateness, windows), Subtask(lateness, windows)
        now = 100
        for kind, *how in [*steps, ("advance", 1000)]:
            if kind == "advance":
                now += how[0]
                records.advance(now)
                columns.advance(now)
            elif kind == "barrier":
                records.operator.end_epoch()
                columns.operator.end_epoch()
                compare(records.contents(), columns.contents())
            else:
                rows = [declared.conform((*row[:-1], now + row[-1])) for row in how[0]]
                stamps = [row.at for row in rows]
                late_by = now + 5 if how[1] else MIN_TIMESTAMP
                records.process(rows, stamps, late_by)
                columns.process(rows if how[2] else form.columns(rows), stamps, late_by)
            for given, expected, by in ((columns.out, records.out, place), (columns.late, records.late, key)):
                given, expected = sorted(given, key=by), sorted(expected, key=by)
                assert [stamp for _, stamp in given] == [stamp for _, stamp in expected]
                for (fields, _), (others, _) in zip(given, expected, strict=True):
                    assert all(same(a, b) for a, b in zip(fields, others, strict=True)), (fields, others)
            for told in (records.out, columns.out, records.late, columns.late):
                told.clear()
    finally:
        waiting_columns._MOST_WAITING = before


def place(result: Any) -> Any:
    fields, stamp = result
    return stamp, fields[0]


def key(element: Any) -> Any:
    """Late elements of a key stay in their order."""
    return element[0][0]


def compare(expected: dict[Any, Any], given: dict[Any, Any]) -> None:
    assert expected.keys() == given.keys()
    for at, parts in expected.items():
        for part, other in zip(parts, given[at], strict=True):
            flat = part if isinstance(part, tuple) else (part,)
            others = other if isinstance(other, tuple) else (other,)
            assert all(same(b, a) for a, b in zip(flat, others, strict=True)), (at, part, other)


def a_window_that_opens_and_closes_between_two_barriers_gives_columns() -> None:
    subtask = Subtask(0)
    values = Columns(
        pa.RecordBatch.from_pydict({"key": [1, 2, 1], "i": [1, 2, 3], "f": [0.5, 1.0, 1.5], "s": ["a", "b", "c"]})
    )
    subtask.process(values, [101, 102, 103], MIN_TIMESTAMP)
    subtask.advance(200)
    assert subtask.columnar == 1
    assert [fields[:5] for fields, _ in subtask.out] == [[1, 100, 110, 2, 2], [2, 100, 110, 1, 1]]
    assert not subtask.state.space("window").tables


def the_sums_of_columns_are_added_in_the_order_of_the_records() -> None:
    subtask, values = Subtask(0), np.random.default_rng(1).random(300) * 10.0 ** np.arange(300)
    total = 0.0
    for value in values.tolist():
        total += value
    for part in np.split(values, [100, 150, 151]):
        size = len(part)
        batch = pa.RecordBatch.from_pydict({"key": [1] * size, "i": [1] * size, "f": part, "s": ["a"] * size})
        subtask.process(Columns(batch), [101] * size, MIN_TIMESTAMP)
        subtask.operator.end_epoch()
    subtask.advance(200)
    ((fields, _),) = subtask.out
    assert fields[6] == total


@pytest.mark.parametrize("names", [["n"], ["s"], ["n", "s"]])
def the_accumulators_of_many_keys_are_those_of_their_records(names: list[str]) -> None:
    numbers = np.random.default_rng(2).integers(0, 3000, 20_000).tolist()
    columns = {"n": numbers, "s": [f"key {number % 1009}" for number in numbers], "value": list(range(20_000))}
    batch = pa.RecordBatch.from_pydict(columns)
    function = Aggregates({"n": Count(), "total": Sum("value"), "most": Max("value"), "different": CountDistinct("n")})
    grouped, select = GroupedColumns(col(*names), function), col(*names)
    expected: dict[Any, Any] = {}
    known: dict[Any, Any] = {}
    first, second = batch.slice(0, 7000), batch.slice(7000)
    for part in (first, second):
        for row in part.to_pylist():
            expected[select(row)] = function.add(row, expected.get(select(row)) or function.create_accumulator())
        unique = grouped.unique(part)
        known.update(zip(unique, grouped.accumulated(part, unique, [known.get(key) for key in unique]), strict=True))
        assert known == expected
    seen = grouped.unique(first)
    half = dict(zip(seen, grouped.accumulated(first, seen, [None] * len(seen)), strict=True))
    wanted = {(key if len(names) > 1 else (key,)): tuple(function.get_result(parts)) for key, parts in expected.items()}
    for rest, before in ((batch, {}), (second, half), (batch.slice(0, 0), expected)):
        keys, results = grouped.results(rest, before)
        given = zip(*(column.to_pylist() for column in keys), strict=True)
        assert dict(zip(given, zip(*(column.to_pylist() for column in results), strict=True), strict=True)) == wanted
