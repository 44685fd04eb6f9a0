"""Tables of streams and their joins: Kafka Streams' documented cases, and random changes against plain dictionaries."""

from __future__ import annotations

import pickle
import re
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.inprocess import LEDGERS, LedgerSink, SplitSource
from engine.test_same_results import backends, config, crashes, few, frames, lab, parallelisms
from holdfast.common import RowKind, Time, WatermarkStrategy
from holdfast.connectors.kafka.sink.producer_record import KafkaSinkContext
from holdfast.connectors.kafka.sink.upserts import UpsertSerializer
from holdfast.datastream import ProcessFunction, ProcessJoinFunction, StreamExecutionEnvironment
from holdfast.errors import ConfigurationError, UserCodeError
from holdfast.table import KStream, KTable

from .kafka_cases import (
    IN_ORDER,
    INPUT,
    INTERVALS,
    SELF_INPUT,
    SELF_JOIN,
    STREAM_STREAM,
    STREAM_TABLE,
    TABLE_TABLE,
    TABLE_TABLE_TABLE,
)


def joined(left: Any, right: Any) -> str:
    return f"{'null' if left is None else left},{'null' if right is None else right}"


def pairs(env: Any, records: list[Any], side: int, cut: int) -> KStream:
    """One side of records (side, key, value), which come in one order."""
    source = env.from_source(SplitSource({"all": records}, cut), WatermarkStrategy.no_watermarks(), f"source-{cut}")
    mine = source.filter(lambda record: record[0] == side)
    return KStream.of(mine, lambda record: record[1], lambda record: record[2])


def outcome(build: Any, **options: Any) -> list[Any]:
    with lab(build, **options) as job:
        job.run(options.pop("crashes", ()))
        return list(LEDGERS["out"].values)


def streams(env: Any, records: list[Any], watermarks: WatermarkStrategy) -> list[Any]:
    """The left and the right records (side, value, time, key), which come in one order."""
    timed = watermarks.with_timestamp_assigner(lambda record, _: record[2])
    source = env.from_source(SplitSource({"all": records}, 1), timed, "source")
    return [source.filter(lambda record, side=side: record[0] == side) for side in (0, 1)]


class Timed(ProcessFunction):
    """Makes results texts, as the cases have them."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        value = value[1] if isinstance(value, tuple) else value
        yield f"{'null' if value is None else value}@{ctx.timestamp()}"


def step_by_step(steps: list[Any], join: Any, watermarks: WatermarkStrategy | None = None) -> list[str]:
    """What a join emits, with one record in an epoch."""
    records = [(*step, "key")[:4] for step in steps]

    def build(env: Any) -> None:
        both = streams(env, records, watermarks or WatermarkStrategy.no_watermarks())
        join(*both).process(Timed()).sink_to(LedgerSink("out"))

    return outcome(build, parallelism=1, budget=1)


def dashed(left: Any, right: Any) -> str:
    return joined(left, right).replace(",", "-")


def of(stream: Any) -> KStream:
    return KStream.of(stream, lambda record: record[3], lambda record: record[1])


def values(told: list[str]) -> list[str]:
    return [result.split("@")[0] for result in told]


def by_time(told: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for result in told:
        found[result.split("@")[1]].append(result)
    return {time: sorted(results) for time, results in found.items()}


@pytest.mark.parametrize("how", sorted(TABLE_TABLE))
def the_joins_of_two_tables_are_those_of_kafka_streams(how: str):
    found = step_by_step(
        INPUT,
        lambda left, right: getattr(of(left).to_table(), how)(of(right).to_table(), dashed).to_stream().to_data_stream(),
    )
    assert values(found) == values(TABLE_TABLE[how].split())


@pytest.mark.parametrize("how", sorted(TABLE_TABLE_TABLE))
def the_joins_of_three_tables_hold_the_same_rows_as_those_of_kafka_streams(how: str):
    first, second = how.split()

    def join(left: Any, right: Any) -> Any:
        table, other = of(left).to_table(), of(right).to_table()
        once = getattr(table, first)(other, dashed)
        return getattr(once, second)(other, dashed).to_stream().to_data_stream()

    # Both joins have the right table: what a step emits in between depends on which of them gets its record first.
    found = step_by_step(IN_ORDER[:15], join)
    assert held(by_step(found)) == held(by_step(TABLE_TABLE_TABLE[how].split()))


def by_step(told: list[str]) -> dict[int, str]:
    """The last result of each time."""
    return {int(result.split("@")[1]): result.split("@")[0] for result in told}


def held(steps: dict[int, str]) -> list[str]:
    """The row after each time."""
    rows = ["null"]
    for time in range(1, 16):
        rows.append(steps.get(time, rows[-1]))
    return rows


@pytest.mark.parametrize("how", sorted(STREAM_TABLE))
def the_joins_of_a_stream_and_a_table_are_those_of_kafka_streams(how: str):
    found = step_by_step(INPUT, lambda left, right: getattr(of(left), how)(of(right).to_table(), dashed).to_data_stream())
    assert found == STREAM_TABLE[how].split()


class Joined(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
        key = (left or right)[3]
        yield 0, dashed(None if left is None else left[1], None if right is None else right[1]), ctx.get_timestamp(), key


def keyed(stream: Any) -> Any:
    return stream.filter(lambda record: record[1] is not None).key_by(lambda record: record[3])


def text_of(record: Any) -> Any:
    return record[3], record[1]


@pytest.mark.parametrize("how", ["inner", "left", "full"])
def the_joins_of_two_streams_are_those_of_kafka_streams(how: str):
    def join(left: Any, right: Any) -> Any:
        between = keyed(left).interval_join(keyed(right)).between(Time.seconds(-10), Time.seconds(10))
        outer = {"inner": lambda: between, "left": between.left_outer, "full": between.full_outer}[how]()
        return outer.process(Joined()).map(text_of)

    found, wanted = step_by_step(IN_ORDER, join), STREAM_STREAM[how].split()
    assert sorted(values(found)) == sorted(values(wanted))
    assert by_time([each for each in found if "null" not in each]) == by_time(
        [each for each in wanted if "null" not in each]
    )


def the_join_of_three_streams_is_that_of_kafka_streams():
    def join(left: Any, right: Any) -> Any:
        interval = Time.seconds(-10), Time.seconds(10)
        once = keyed(left).interval_join(keyed(right)).between(*interval).process(Joined())
        return keyed(once).interval_join(keyed(right)).between(*interval).process(Joined()).map(text_of)

    assert by_time(step_by_step(IN_ORDER, join)) == by_time(STREAM_STREAM["inner inner"].split())


def the_join_of_a_stream_with_itself_is_that_of_kafka_streams():
    def join(left: Any, right: Any) -> Any:
        between = keyed(left).interval_join(keyed(left)).between(Time.seconds(-10), Time.seconds(10))
        return between.process(Joined()).map(text_of)

    assert by_time(step_by_step(SELF_INPUT, join)) == by_time(SELF_JOIN["inner"].split())


@pytest.mark.parametrize("bounds", sorted(INTERVALS))
def the_intervals_of_a_join_are_those_of_kafka_streams(bounds: tuple[int, int]):
    lower, upper = (Time.milliseconds(bound) for bound in bounds)
    records = [
        (side, f"{letter}{key}", start + key * step, key)
        for side, letter, keys, start, step, _ in INTERVALS[bounds]
        for key in range(keys)
    ]

    def build(env: Any) -> None:
        left, right = streams(env, records, WatermarkStrategy.no_watermarks())
        between = keyed(left).interval_join(keyed(right)).between(lower, upper)
        between.process(Joined()).map(text_of).process(Timed()).sink_to(LedgerSink("out"))

    wanted = " ".join(step[5] for step in INTERVALS[bounds]).split()
    assert sorted(outcome(build, parallelism=1, budget=7)) == sorted(wanted)


RECORDS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from("abc"), st.sampled_from([None, 1, 2, 3, 4])), min_size=1, max_size=30
)


def newest(records: list[Any], side: int) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for each, key, value in records:
        if each == side:
            table[key] = value
    return {key: value for key, value in table.items() if value is not None}


def replayed(changes: list[Any]) -> dict[Any, Any]:
    """The table that changes lead to; each takes back what the one before it said."""
    table: dict[Any, Any] = defaultdict(lambda: None)
    for key, new, old in changes:
        assert table[key] == old
        table[key] = new
    return {key: value for key, value in table.items() if value is not None}


NAMES = {1: "a", 2: "b", 3: "z"}
"""What a left row refers to; 4 refers to nothing."""


def sums(left: KTable, right: KTable) -> KTable:
    return left.group_by(lambda key, value: (value % 2, value)).aggregate(
        int, lambda group, value, total: total + value, lambda group, value, total: total - value
    )


def grouped(records: list[Any], counts: bool) -> dict[Any, Any]:
    groups: dict[Any, Any] = dict.fromkeys({v % 2 for s, _, v in records if s == 0 and v is not None}, 0)
    for value in newest(records, 0).values():
        groups[value % 2] += 1 if counts else value
    return groups


def both(left: Any, right: Any, keeps_left: bool, keeps_right: bool) -> dict[Any, Any]:
    keys = (left.keys() if keeps_left else left.keys() & right.keys()) | (
        right.keys() if keeps_right else left.keys() & right.keys()
    )
    return {key: joined(left.get(key), right.get(key)) for key in keys}


def referring(left: Any, right: Any, keeps_left: bool) -> dict[Any, Any]:
    found = {key: right.get(NAMES.get(value)) for key, value in left.items()}
    return {key: joined(left[key], other) for key, other in found.items() if keeps_left or other is not None}


def best_of(records: list[Any], n: int) -> dict[Any, Any]:
    # Of equal rows of several subtasks, either may come first: the key decides.
    pairs = sorted(((value // 2, key), (value, key)) for key, value in newest(records, 0).items())
    groups: dict[bool, list[Any]] = {}
    for _, pair in reversed(pairs):
        groups.setdefault(pair[1] < "c", []).append(pair)
    return {group: best[:n] for group, best in groups.items()}


OPERATIONS: dict[str, tuple[Any, Any]] = {
    "to_table": (lambda left, right: left, lambda r: newest(r, 0)),
    "filter": (
        lambda left, right: left.filter(lambda key, value: value > 2),
        lambda r: {k: v for k, v in newest(r, 0).items() if v > 2},
    ),
    "filter_not": (
        lambda left, right: left.filter_not(lambda key, value: value > 2),
        lambda r: {k: v for k, v in newest(r, 0).items() if v <= 2},
    ),
    "map_values": (
        lambda left, right: left.map_values(lambda value: -value),
        lambda r: {k: -v for k, v in newest(r, 0).items()},
    ),
    "join": (
        lambda left, right: left.join(right, joined),
        lambda r: both(newest(r, 0), newest(r, 1), False, False),
    ),
    "left_join": (
        lambda left, right: left.left_join(right, joined),
        lambda r: both(newest(r, 0), newest(r, 1), True, False),
    ),
    "outer_join": (
        lambda left, right: left.outer_join(right, joined),
        lambda r: both(newest(r, 0), newest(r, 1), True, True),
    ),
    "join by foreign key": (
        lambda left, right: left.join(right, joined, foreign_key_extractor=NAMES.get),
        lambda r: referring(newest(r, 0), newest(r, 1), False),
    ),
    "left_join by foreign key": (
        lambda left, right: left.left_join(right, joined, foreign_key_extractor=NAMES.get),
        lambda r: referring(newest(r, 0), newest(r, 1), True),
    ),
    "top_n": (
        lambda left, right: left.group_by(lambda key, value: (key < "c", (value, key))).top_n(
            2, lambda pair: (pair[0] // 2, pair[1])
        ),
        lambda r: best_of(r, 2),
    ),
    "top_n ascending": (
        lambda left, right: left.group_by(lambda key, value: (value % 2, (value, key))).top_n(
            1, lambda pair: pair, descending=False
        ),
        lambda r: {
            group: [min((value, key) for key, value in newest(r, 0).items() if value % 2 == group)]
            for group in {value % 2 for value in newest(r, 0).values()}
        },
    ),
    "aggregate": (sums, lambda r: grouped(r, False)),
    "count": (
        lambda left, right: left.group_by(lambda key, value: (value % 2, value)).count(),
        lambda r: grouped(r, True),
    ),
    "reduce": (
        lambda left, right: left.group_by(lambda key, value: (value % 2, value)).reduce(
            lambda total, value: total + value, lambda total, value: total - value
        ),
        lambda r: grouped(r, False),
    ),
}


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
@few
@given(
    records=RECORDS,
    cut=st.integers(1, 10),
    backend=backends,
    parallelism=parallelisms,
    frame=frames,
    crashes=crashes,
)
def the_changes_of_a_table_lead_to_what_plain_dictionaries_hold(
    operation, records, cut, backend, parallelism, frame, crashes
):
    apply, model = OPERATIONS[operation]

    def build(env: Any) -> None:
        left, right = (pairs(env, records, side, cut).to_table() for side in (0, 1))
        apply(left, right).to_changes().sink_to(LedgerSink("out"))

    with lab(build, parallelism=parallelism, budget=cut, config=config(backend, frame)) as job:
        job.run(crashes)
        assert replayed(LEDGERS["out"].values) == model(records)


@few
@given(records=RECORDS, cut=st.integers(1, 10), backend=backends, parallelism=parallelisms, crashes=crashes)
def the_upserts_of_a_table_keep_a_compacted_topic_equal_to_it(records, cut, backend, parallelism, crashes):
    def build(env: Any) -> None:
        pairs(env, records, 0, cut).to_table().to_changelog().sink_to(LedgerSink("out"))

    with lab(build, parallelism=parallelism, budget=cut, config=config(backend, "3")) as job:
        job.run(crashes)
        rows = LEDGERS["out"].values
    topic: dict[str, str | None] = {}
    serializer = UpsertSerializer("t", lambda row: str(row[1]), lambda row: row[0])
    batch = serializer.to_batch(rows, None, KafkaSinkContext({}, "u"))
    for key, value in zip(batch.keys or [], batch.values, strict=True):
        assert key is not None
        topic[key.decode()] = None if value is None else value.decode()
    assert {key: int(value) for key, value in topic.items() if value is not None} == newest(records, 0)
    # With both halves of each update, the rows are those of a table at any time.
    rows_now: dict[str, Any] = {}
    for row in rows:
        if row.get_row_kind() in (RowKind.UPDATE_BEFORE, RowKind.DELETE):
            assert rows_now.pop(row[0]) == row[1]
        else:
            assert rows_now.setdefault(row[0], row[1]) is row[1]


@few
@given(records=RECORDS, cut=st.integers(1, 10), backend=backends, parallelism=parallelisms, crashes=crashes)
def a_stream_is_aggregated_into_a_table(records, cut, backend, parallelism, crashes):
    def build(env: Any) -> None:
        keyed = pairs(env, records, 0, cut).group_by_key()
        keyed.reduce(lambda total, value: total + value).to_changes().map(lambda c: ("sum", *c)).union(
            keyed.count().to_changes().map(lambda c: ("count", *c)),
            keyed.aggregate(list, lambda key, value, held: [*held, value]).to_changes().map(lambda c: ("all", *c)),
        ).sink_to(LedgerSink("out"))

    values: dict[str, list[int]] = defaultdict(list)
    for side, key, value in records:
        if side == 0 and value is not None:
            values[key].append(value)
    with lab(build, parallelism=parallelism, budget=cut, config=config(backend, "3")) as job:
        job.run(crashes)
        told = LEDGERS["out"].values
        tables = {name: replayed([c[1:] for c in told if c[0] == name]) for name in ("sum", "count", "all")}
    assert tables["sum"] == {key: sum(each) for key, each in values.items()}
    assert tables["count"] == {key: len(each) for key, each in values.items()}
    assert tables["all"] == dict(values)


def the_only_row_of_a_group_can_change_when_the_subtractor_deletes_empty_groups():
    rows = [(0, "a", 2), (0, "a", 4), (0, "a", None)]

    def build(env: Any) -> None:
        groups = pairs(env, rows, 0, 1).to_table().group_by(lambda key, value: ("all", value))
        groups.aggregate(
            lambda: (0, 0),
            lambda group, value, held: (held[0] + 1, held[1] + value),
            lambda group, value, held: (held[0] - 1, held[1] - value) if held[0] > 1 else None,
        ).to_changes().sink_to(LedgerSink("out"))

    assert outcome(build, parallelism=1, budget=1) == [
        ("all", (1, 2), None),
        ("all", (1, 4), (1, 2)),
        ("all", None, (1, 4)),
    ]


def a_row_follows_the_row_that_it_refers_to_and_is_deleted_there():
    rows = [(1, "x", "X1"), (1, "y", "Y1"), (0, "a", "x"), (1, "x", "X2"), (0, "a", "y"), (1, "x", "X3"), (0, "a", None)]

    def build(env: Any) -> None:
        left, right = (pairs(env, rows, side, 1).to_table() for side in (0, 1))
        left.join(right, joined, foreign_key_extractor=str).to_changes().sink_to(LedgerSink("out"))

    assert outcome(build, parallelism=1, budget=1) == [
        ("a", "x,X1", None),
        ("a", "x,X2", "x,X1"),
        ("a", "y,Y1", "x,X2"),
        ("a", None, "y,Y1"),
    ]


def a_row_whose_value_is_mapped_to_none_is_deleted():
    rows = [(0, "a", 1), (0, "a", 2), (0, "a", 3), (0, "a", None)]

    def build(env: Any) -> None:
        table = pairs(env, rows, 0, 1).to_table()
        table.map_values(lambda value: value if value % 2 == 0 else None).to_changes().sink_to(LedgerSink("out"))

    assert outcome(build, parallelism=1, budget=1) == [("a", 2, None), ("a", None, 2)]


@dataclass
class Player:
    """Equal to another one of its name and score."""

    name: str
    score: int
    city: str = field(compare=False)


def the_best_rows_follow_changes_that_equality_does_not_see():
    rows = [(0, "ann", Player("ann", 5, city)) for city in ("Pune", "Delhi")] + [(0, "bob", 1), (0, "bob", 1)]

    def build(env: Any) -> None:
        table = pairs(env, rows, 0, 1).to_table().group_by(lambda key, value: (type(value).__name__, value))
        best = table.top_n(3, lambda value: value.score if isinstance(value, Player) else value)
        best.to_stream().to_data_stream().map(lambda row: [getattr(v, "city", v) for v in row[1]]).sink_to(LedgerSink("out"))

    assert outcome(build, parallelism=1, budget=1) == [["Pune"], ["Delhi"], [1]]


@pytest.mark.parametrize("value", [np.float64(2.5), float("inf"), Fraction(1, 2), Player("ann", 5, "Pune")], ids=repr)
def a_row_that_is_written_again_as_it_is_does_not_change_the_best_rows(value: Any):
    rows = [(0, "ann", value), (0, "ann", pickle.loads(pickle.dumps(value))), (0, "bob", value)]

    def build(env: Any) -> None:
        table = pairs(env, rows, 0, 1).to_table().group_by(lambda key, value: ("all", (key, value)))
        best = table.top_n(3, lambda row: getattr(row[1], "score", row[1]))
        best.to_stream().to_data_stream().map(lambda row: [key for key, _ in row[1]]).sink_to(LedgerSink("out"))

    assert outcome(build, parallelism=1, budget=1) == [["ann"], ["ann", "bob"]]


def a_row_ordered_by_nan_is_told():
    def build(env: Any) -> None:
        table = pairs(env, [(0, "ann", float("nan"))], 0, 1).to_table().group_by(lambda key, value: ("all", value))
        table.top_n(3, lambda value: value).to_stream().to_data_stream().sink_to(LedgerSink("out"))

    with pytest.raises(UserCodeError, match="cannot order an element by nan"):
        outcome(build, parallelism=1, budget=1)


def test_wrong_calls_are_told_at_once():
    env, other = (
        StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
        for _ in range(2)
    )
    env.set_parallelism(1)
    other.set_parallelism(1)
    stream = KStream.of(env.from_collection([("a", 1)]), lambda pair: pair[0])
    elsewhere = KStream.of(other.from_collection([("a", 1)]), lambda pair: pair[0])
    table = stream.to_table()
    for text, call in {
        "KStream.of() takes a stream": lambda: KStream.of([1], lambda pair: pair),  # type: ignore[arg-type]
        "KStream.of() is called with (element)": lambda: KStream.of(env.from_collection([1]), lambda: 1),  # type: ignore
        "join() of a KStream takes a KTable": lambda: stream.join(stream, joined),  # type: ignore[arg-type]
        "join() of a KTable takes a KTable": lambda: table.join(stream, joined),  # type: ignore[arg-type]
        "takes tables of one environment": lambda: table.join(elsewhere.to_table(), joined),
        "takes a stream and a table of one environment": lambda: stream.join(elsewhere.to_table(), joined),
        "outer_join() of a KTable is called with (value, other_value)": lambda: table.outer_join(table, lambda a: a),  # type: ignore
        "filter() of a KTable is called with (key, value)": lambda: table.filter(lambda value: True),  # type: ignore
        "left_join() by foreign key is called with (value)": lambda: table.left_join(
            table,
            joined,
            foreign_key_extractor=lambda: 1,  # type: ignore
        ),
        "top_n() keeps a positive number of values, not 0": lambda: table.group_by(lambda k, v: (k, v)).top_n(0, len),
        "aggregate() of a KGroupedTable is called with (group, value, aggregate)": lambda: table.group_by(
            lambda key, value: (key, value)
        ).aggregate(int, lambda group, value: 1, lambda group, value, total: 1),  # type: ignore
    }.items():
        with pytest.raises((TypeError, ConfigurationError), match=re.escape(text)):
            call()
