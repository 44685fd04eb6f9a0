"""Tables of streams and their joins: Kafka Streams' documented cases, and random changes against plain dictionaries."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.inprocess import LEDGERS, LedgerSink, SplitSource
from engine.test_same_results import backends, config, crashes, few, frames, lab, parallelisms
from holdfast.common import WatermarkStrategy
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.errors import ConfigurationError
from holdfast.table import KStream, KTable

from .kafka_cases import STREAM_TABLE, TABLE_TABLE


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


def step_by_step(steps: list[Any], join: Any) -> list[Any]:
    """What a join emits, with one record in an epoch."""
    records = [(step[0], "key", step[1]) for step in steps]

    def build(env: Any) -> None:
        source = env.from_source(SplitSource({"all": records}, 1), WatermarkStrategy.no_watermarks(), "source")
        sides = [
            KStream.of(source.filter(lambda r, side=side: r[0] == side), lambda r: r[1], lambda r: r[2]) for side in (0, 1)
        ]
        join(*sides).to_data_stream().sink_to(LedgerSink("out"))

    return [value for _, value in outcome(build, parallelism=1, budget=1)]


@pytest.mark.parametrize(("how", "column"), [("join", 2), ("left_join", 3), ("outer_join", 4)])
def the_joins_of_two_tables_are_those_of_kafka_streams(how: str, column: int):
    found = step_by_step(
        TABLE_TABLE, lambda left, right: getattr(left.to_table(), how)(right.to_table(), joined).to_stream()
    )
    assert found == [step[column] for step in TABLE_TABLE if step[column] != "-"]


@pytest.mark.parametrize(("how", "column"), [("join", 2), ("left_join", 3)])
def the_joins_of_a_stream_and_a_table_are_those_of_kafka_streams(how: str, column: int):
    found = step_by_step(STREAM_TABLE, lambda left, right: getattr(left, how)(right.to_table(), joined))
    assert found == [step[column] for step in STREAM_TABLE if step[column] != "-"]


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
        "aggregate() of a KGroupedTable is called with (group, value, aggregate)": lambda: table.group_by(
            lambda key, value: (key, value)
        ).aggregate(int, lambda group, value: 1, lambda group, value, total: 1),  # type: ignore
    }.items():
        with pytest.raises((TypeError, ConfigurationError), match=re.escape(text)):
            call()
