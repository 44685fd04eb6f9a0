"""Deduplication and Top-N against plain Python: whatever the epochs, the parallelism, the backend and the crashes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.inprocess import LEDGERS, LedgerSink, SplitSource
from engine.test_same_results import backends, config, crashes, few, frames, lab, parallelisms
from holdfast.common import Duration, Row, RowKind, Time, WatermarkStrategy
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.operations.ranking import as_row
from holdfast.errors import ConfigurationError, UserCodeError
from holdfast.testing import OneInputTestHarness

HOUR = Time.hours(1)
INSERT, BEFORE, AFTER, DELETE = RowKind.INSERT, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER, RowKind.DELETE

# Elements of a key are in one split, so that they have an order.
KEYS = {"one": "abc", "two": "de"}
events = st.fixed_dictionaries(
    {
        split: st.lists(st.tuples(st.sampled_from(keys), st.sampled_from("xyz"), st.integers(0, 6)), max_size=25)
        for split, keys in KEYS.items()
    }
)
options = {
    "data": events,
    "cut": st.integers(1, 10),
    "backend": backends,
    "parallelism": parallelisms,
    "frame": frames,
    "crashes": crashes,
}


def visible(operation: Any, data: Any, cut: int, backend: str, parallelism: int, frame: str, crashes: Any) -> list[Any]:
    """What an operation on the stream keyed by the first field emits; of each key, in order."""

    def build(env: Any) -> None:
        stream = env.from_source(SplitSource(data, cut), WatermarkStrategy.no_watermarks(), "events")
        operation(stream.key_by(lambda event: event[0])).sink_to(LedgerSink("out"))

    with lab(build, parallelism=parallelism, budget=cut, config=config(backend, frame)) as job:
        job.run(crashes)
        return list(LEDGERS["out"].values)


def by_key(data: dict[str, list[Any]]) -> dict[str, list[Any]]:
    found = defaultdict(list)
    for split in data.values():
        for event in split:
            found[event[0]].append(event)
    return found


def replayed(rows: list[Row]) -> dict[str, Counter[Any]]:
    """The rows of each key that a changelog leaves. No row goes that is not there, and an update has both halves."""
    tables: dict[str, Counter[Any]] = defaultdict(Counter)
    half: set[str] = set()
    for row in rows:
        kind, values = row.get_row_kind(), tuple(row)
        assert (kind is AFTER) == (row[0] in half)
        half.discard(row[0])
        if kind in (BEFORE, DELETE):
            assert tables[row[0]][values] > 0
            tables[row[0]][values] -= 1
            if kind is BEFORE:
                half.add(row[0])
        else:
            tables[row[0]][values] += 1
    assert not half
    return {key: +table for key, table in tables.items() if +table}


@few
@given(**options)
def the_first_element_of_each_key_is_kept(data, **how):
    found = visible(lambda keyed: keyed.dedup(HOUR), data, **how)
    assert sorted(found) == sorted(told[0] for told in by_key(data).values())


@few
@given(**options)
def the_last_element_of_each_key_is_kept(data, **how):
    found = visible(lambda keyed: keyed.dedup(HOUR, keep="last"), data, **how)
    assert replayed(found) == {key: Counter([told[-1]]) for key, told in by_key(data).items()}


@few
@given(n=st.integers(1, 4), descending=st.booleans(), offset=st.sampled_from([0, 0, 1, 2]), **options)
def the_best_elements_of_each_key_are_kept(n, descending, offset, data, **how):
    found = visible(lambda keyed: keyed.top_n(n, lambda event: event[2], descending=descending, offset=offset), data, **how)
    ranked = {key: sorted(told, key=lambda event: event[2], reverse=descending) for key, told in by_key(data).items()}
    best = {key: Counter(told[offset : offset + n]) for key, told in ranked.items() if told[offset:]}
    assert replayed(found) == best


@few
@given(n=st.integers(1, 4), offset=st.integers(0, 2), **options)
def a_rank_has_one_row(n, offset, data, **how):
    found = visible(
        lambda keyed: keyed.top_n(n, lambda event: event[2], descending=False, rank_field="rank", offset=offset), data, **how
    )
    best = {key: sorted(told, key=lambda event: event[2])[offset : offset + n] for key, told in by_key(data).items()}
    assert replayed(found) == {
        key: Counter((*event, rank) for rank, event in enumerate(told, offset + 1)) for key, told in best.items() if told
    }


def counted(told: list[Any]) -> list[Any]:
    """Running counts by the second field, in the order in which they were reached: Top-N of equal ones is by this order."""
    counts: Counter[str] = Counter()
    reached: dict[str, tuple[int, int]] = {}
    for i, event in enumerate(told):
        counts[event[1]] += 1
        reached[event[1]] = (-counts[event[1]], i)
    return [(told[0][0], name, -count) for name, (count, _) in sorted(reached.items(), key=lambda item: item[1])]


@few
@given(
    n=st.integers(1, 3),
    ranked=st.booleans(),
    offset=st.integers(0, 1),
    **{**options, "parallelism": st.just(1)},  # equal counts keep an order
)
def the_running_counts_are_ranked(n, ranked, offset, data, **how):
    def best(keyed: Any) -> Any:
        one = keyed.map(lambda event: (event[0], event[1], 1)).key_by(lambda event: event[:2])
        return (
            one.sum(2)
            .key_by(lambda count: count[0])
            .top_n(
                n,
                lambda count: count[2],
                unique_key=lambda count: count[1],
                rank_field="rank" if ranked else None,
                offset=offset,
            )
        )

    found = replayed(visible(best, data, **how))
    wanted = {key: counted(told)[offset : offset + n] for key, told in by_key(data).items()}
    if ranked:
        wanted = {key: [(*row, rank) for rank, row in enumerate(told, offset + 1)] for key, told in wanted.items()}
    assert found == {key: Counter(told) for key, told in wanted.items() if told}


# ---- by steps: kinds, order, time ------------------------------------------------------------------------------------


def steps(operation: Any, elements: list[Any]) -> list[list[Any]]:
    """The kinds and fields of the rows that each element emits."""
    with OneInputTestHarness(lambda stream: operation(stream.key_by(lambda element: "all"))) as harness:
        told = []
        for element in elements:
            harness.process_element(element)
            told.append([(row.get_row_kind(), *row) for row in harness.extract_output_values()])
            harness.clear_output()
        return told


def a_better_element_takes_the_place_of_the_last_one():
    told = steps(lambda keyed: keyed.top_n(2, lambda e: e[1]), [("a", 1), ("b", 2), ("c", 1), ("d", 3), ("e", 2), ("f", 3)])
    assert told == [
        [(INSERT, "a", 1)],
        [(INSERT, "b", 2)],
        [],  # as good as the last one, which came first
        [(DELETE, "a", 1), (INSERT, "d", 3)],
        [],
        [(DELETE, "b", 2), (INSERT, "f", 3)],
    ]


def the_ranks_behind_a_new_element_are_updated():
    told = steps(lambda keyed: keyed.top_n(2, lambda e: e[1], rank_field="rank"), [("a", 1), ("b", 2), ("c", 2), ("d", 9)])
    assert told == [
        [(INSERT, "a", 1, 1)],
        [(BEFORE, "a", 1, 1), (AFTER, "b", 2, 1), (INSERT, "a", 1, 2)],
        [(BEFORE, "a", 1, 2), (AFTER, "c", 2, 2)],
        [(BEFORE, "b", 2, 1), (AFTER, "d", 9, 1), (BEFORE, "c", 2, 2), (AFTER, "b", 2, 2)],
    ]


def the_elements_behind_an_offset_follow_those_before_it():
    elements = [("a", 1), ("b", 2), ("c", 3), ("d", 1), ("e", 2), ("f", 9)]
    told = steps(lambda keyed: keyed.top_n(2, lambda e: e[1], offset=1), elements)
    assert told == [
        [],  # the best one
        [(INSERT, "a", 1)],
        [(INSERT, "b", 2)],
        [],
        [(DELETE, "a", 1), (INSERT, "e", 2)],
        [(DELETE, "e", 2), (INSERT, "c", 3)],
    ]
    told = steps(lambda keyed: keyed.top_n(2, lambda e: e[1], offset=1, rank_field="rank"), elements)
    assert told == [
        [],
        [(INSERT, "a", 1, 2)],
        [(BEFORE, "a", 1, 2), (AFTER, "b", 2, 2), (INSERT, "a", 1, 3)],
        [],
        [(BEFORE, "a", 1, 3), (AFTER, "e", 2, 3)],
        [(BEFORE, "b", 2, 2), (AFTER, "c", 3, 2), (BEFORE, "e", 2, 3), (AFTER, "b", 2, 3)],
    ]


def an_element_that_gets_better_may_pass_an_offset():
    updates = [("a", 5), ("b", 4), ("c", 3), ("c", 3.5), ("c", 6), ("c", 7), ("b", 8)]
    told = steps(lambda keyed: keyed.top_n(2, lambda e: e[1], unique_key=lambda e: e[0], offset=1), updates)
    assert told == [
        [],
        [(INSERT, "b", 4)],
        [(INSERT, "c", 3)],
        [(BEFORE, "c", 3), (AFTER, "c", 3.5)],
        [(DELETE, "c", 3.5), (INSERT, "a", 5)],
        [],
        [(DELETE, "b", 4), (INSERT, "c", 7)],
    ]


def spoiled(row: Row) -> Row:
    row[0] += 10
    row[1].append("x")
    return row


@pytest.mark.parametrize("make", [lambda *fields: fields, Row], ids=["tuples", "rows"])
def test_what_happens_to_an_emitted_row_does_not_show_in_the_state(make):
    told = steps(lambda keyed: keyed.top_n(1, lambda e: e[0]).map(spoiled), [make(1, ["a"]), make(2, ["b"])])
    assert told == [[(INSERT, 11, ["a", "x"])], [(DELETE, 11, ["a", "x"]), (INSERT, 12, ["b", "x"])]]


def an_element_replaces_the_one_with_its_unique_key():
    updates = [("a", 1), ("b", 2), ("a", 3), ("a", 3), Row.of_kind(BEFORE, "a", 3), Row.of_kind(AFTER, "a", 4), ("b", 1)]
    told = steps(lambda keyed: keyed.top_n(2, lambda e: e[1], unique_key=lambda e: e[0]), updates)
    assert told == [
        [(INSERT, "a", 1)],
        [(INSERT, "b", 2)],
        [(BEFORE, "a", 1), (AFTER, "a", 3)],
        [(BEFORE, "a", 3), (AFTER, "a", 3)],
        [],
        [(BEFORE, "a", 3), (AFTER, "a", 4)],
        [(BEFORE, "b", 2), (AFTER, "b", 1)],  # no element was left out so far
    ]


def a_newer_element_replaces_the_last_one():
    told = steps(lambda keyed: keyed.dedup(Duration.of_hours(1), keep="last"), [{"id": 1, "n": 1}, {"id": 1, "n": 2}])
    assert told == [[(INSERT, 1, 1)], [(BEFORE, 1, 1), (AFTER, 1, 2)]]


def a_key_is_remembered_for_its_time_to_live():
    with OneInputTestHarness(lambda stream: stream.key_by(lambda e: e).dedup(Time.seconds(10))) as harness:
        for at in (0, 9_999, 10_001, 20_000):
            harness.set_processing_time(at)
            harness.process_element("a", at)
        assert harness.get_output() == [("a", 0), ("a", 10_001)]


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Named:
    x: int
    y: int


@pytest.mark.parametrize(
    ("element", "row"),
    [
        (Point(1, 2), Row(x=1, y=2)),
        (Named(1, 2), Row(x=1, y=2)),
        ({"x": 1, "y": 2}, Row(x=1, y=2)),
        (Row(x=1, y=2), Row(x=1, y=2)),
        ((1, 2), Row(1, 2)),
        ("text", Row("text")),
    ],
)
def the_fields_of_an_element_are_those_of_its_row(element: Any, row: Row) -> None:
    row.set_row_kind(DELETE)
    made = as_row(element, DELETE)
    assert (made, list(made._fields or ())) == (row, row._fields or [])


@pytest.mark.parametrize(
    ("options", "elements", "text"),
    [
        ({}, [Row.of_kind(DELETE, "a", 1)], "got a row of kind DELETE"),
        ({}, [Row.of_kind(BEFORE, "a", 1)], "Give updated rows a unique_key="),
        (
            {"unique_key": lambda e: e[0]},
            [("a", 5), ("b", 3), ("a", 2)],
            "the element with the key 'a' got worse, from 5 to 2, and one that was left out, with 3",
        ),
        ({"unique_key": lambda e: e[0]}, [("a", 5), ("b", 3), ("a", 3)], "order by something that only gets better"),
        ({"rank_field": "x"}, [{"x": 1, 1: 2}], "rank_field='x' is the name of a field"),
        ({}, [("a", 5.0), ("a", float("nan")), ("a", 7.0)], "cannot order an element by nan"),
        ({"descending": False}, [("a", Decimal("nan"))], "cannot order an element by Decimal('NaN')"),
        ({}, [("a", (float("nan"), 1))], "cannot order an element by nan"),
        ({"unique_key": lambda e: e[0]}, [("a", np.float64("nan"))], "cannot order an element by"),
    ],
)
def an_element_that_top_n_cannot_rank_is_told(options: Any, elements: list[Any], text: str) -> None:
    with pytest.raises(UserCodeError, match=re.escape(text)):
        steps(lambda keyed: keyed.top_n(1, lambda e: e[1], **options), elements)


def test_wrong_arguments_are_told_at_once():
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    keyed = env.from_collection([("a", 1)]).key_by(lambda e: e[0])
    for text, call in {
        "top_n() keeps a positive number of elements, not 0": lambda: keyed.top_n(0, lambda e: e),
        "top_n() keeps a positive number of elements, not True": lambda: keyed.top_n(True, lambda e: e),
        "top_n() leaves out the first offset elements, a number from 0 on, not -1": lambda: keyed.top_n(1, len, offset=-1),
        "top_n() leaves out the first offset elements, a number from 0 on, not 1.5": lambda: keyed.top_n(
            1,
            len,
            offset=1.5,  # type: ignore[arg-type]
        ),
        "order_by of top_n() is called with (element)": lambda: keyed.top_n(1, lambda: 1),  # type: ignore
        "unique_key of top_n() is called with (element)": lambda: keyed.top_n(1, lambda e: e, unique_key=lambda: 1),  # type: ignore
        'keeps the "first" or the "last" element of a key, not \'both\'': lambda: keyed.dedup(HOUR, "both"),  # type: ignore
        "must be positive": lambda: keyed.dedup(Time.seconds(0)),
    }.items():
        with pytest.raises(ConfigurationError, match=re.escape(text)):
            call()
