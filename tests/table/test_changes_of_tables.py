"""The changes of tables, one at a time: what is told, what is taken back, and what was told before it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from holdfast.common import Types
from holdfast.common.types import Row, RowKind
from holdfast.errors import IncompatibleState
from holdfast.table.changes import (
    Aggregate,
    Cogrouped,
    JoinForeignKey,
    JoinTable,
    JoinTables,
    Kept,
    LatestVersion,
    Mapped,
    Materialize,
    Reduced,
    Regroup,
    Subscribe,
    added,
    changelog,
    key_of,
    nothing,
    owner_of,
)
from holdfast.testing import OneInputTestHarness, TwoInputTestHarness

A, B, GONE = 1, 2, None


def one(function: Any, elements: Iterable[Any]) -> list[list[Any]]:
    """The results of each element, in a function of a keyed stream."""
    found = []
    with OneInputTestHarness(lambda stream: stream.key_by(key_of, Types.STRING()).process(function)) as harness:
        for element in elements:
            harness.process_element(element)
            found.append(list(harness.extract_output_values()))
            harness.clear_output()
    return found


def two(function: Any, elements: Iterable[tuple[int, Any]], keys: tuple[Any, Any] = (key_of, key_of)) -> list[list[Any]]:
    """The results of each element, which is of the first or the second of two keyed streams."""
    found = []

    def build(first: Any, second: Any) -> Any:
        return first.key_by(keys[0]).connect(second.key_by(keys[1])).process(function)

    with TwoInputTestHarness(build) as harness:
        for side, element in elements:
            (harness.process_element1 if side == 1 else harness.process_element2)(element)
            found.append(list(harness.extract_output_values()))
            harness.clear_output()
    return found


def the_old_value_of_a_change_is_the_new_one_of_the_change_before():
    pairs = [("k", 1), ("other", 7), ("k", 2), ("k", None), ("k", None), ("k", 3)]
    assert one(Materialize(Types.INT()), pairs) == [
        [("k", 1, None)],
        [("other", 7, None)],
        [("k", 2, 1)],
        [("k", None, 2)],
        [],
        [("k", 3, None)],
    ]


def the_rows_of_a_change_have_the_kinds_of_a_changelog():
    told = {
        change: [(row.get_row_kind(), *row) for row in changelog(("k", *change))]
        for change in ((1, GONE), (GONE, 1), (2, 1))
    }
    assert told == {
        (1, GONE): [(RowKind.INSERT, "k", 1)],
        (GONE, 1): [(RowKind.DELETE, "k", 1)],
        (2, 1): [(RowKind.UPDATE_BEFORE, "k", 1), (RowKind.UPDATE_AFTER, "k", 2)],
    }
    assert all(isinstance(row, Row) for row in changelog(("k", 2, 1)))


@pytest.mark.parametrize("wanted", [True, False])
def a_row_that_a_predicate_no_longer_keeps_is_deleted(wanted: bool):
    keep = Kept(lambda key, value: value > 5 if wanted else "" if value > 5 else "kept as any true value", wanted)
    if not wanted:
        keep = Kept(lambda key, value: value <= 5, wanted)
    changes = {(7, GONE): (7, None), (3, GONE): None, (8, 7): (8, 7), (3, 7): (None, 7), (7, 3): (7, None), (3, 2): None}
    for (new, old), expected in changes.items():
        assert list(keep(("k", new, old))) == ([] if expected is None else [("k", *expected)])
    assert list(keep(("k", None, 7))) == [("k", None, 7)]
    assert list(keep(("k", None, 3))) == []


def a_converted_row_that_becomes_none_is_no_row():
    half = Mapped(lambda value: value // 2 or None)
    assert list(half(("k", 8, 6))) == [("k", 4, 3)]
    assert list(half(("k", 1, 6))) == [("k", None, 3)]
    assert list(half(("k", None, 6))) == [("k", None, 3)]
    assert list(half(("k", 8, None))) == [("k", 4, None)]
    assert list(half(("k", 1, None))) == []


@pytest.mark.parametrize(("left", "right"), [(False, False), (True, False), (False, True), (True, True)])
def a_join_of_tables_takes_back_what_it_has_told(left: bool, right: bool):
    def results(rows: tuple[Any, Any]) -> Any:
        there = tuple(row is not None for row in rows)
        kept = {(True, True): True, (True, False): left, (False, True): right, (False, False): False}
        return "{}-{}".format(*rows) if kept[there] else None

    rows: list[Any] = [None, None]
    steps, expected, told = [], [], None
    for side, value in (
        (1, "a"),
        (2, "x"),
        (1, "b"),
        (2, None),
        (1, None),
        (2, "y"),
        (1, "c"),
        (2, "z"),
        (1, None),
        (2, None),
    ):
        steps.append((side, ("k", value, rows[side - 1])))
        rows[side - 1] = value
        new = results((rows[0], rows[1]))
        expected.append([] if new is None and told is None else [("k", new, told)])
        told = new
    join = JoinTables("{}-{}".format, left, right)
    assert two(join, steps) == expected
    kinds = {(False, False): "inner", (True, False): "left", (False, True): "right", (True, True): "outer"}
    for before, kind in kinds.items():
        says = f"those of the kind '{kind}' of join, and the program's join is '{kinds[left, right]}'"
        with pytest.raises(IncompatibleState, match=says):
            join.continuing({"outer": [*before]})


@pytest.mark.parametrize("left", [True, False])
def a_pair_of_a_stream_meets_the_row_that_a_table_has_then(left: bool):
    steps = [(1, ("k", 1)), (2, ("k", "x", None)), (1, ("k", 2)), (1, ("k", None)), (2, ("k", None, "x")), (1, ("k", 3))]
    alone = [[("k", "1-None")], [("k", "3-None")]] if left else [[], []]
    assert two(JoinTable("{}-{}".format, left), steps) == [alone[0], [], [("k", "2-x")], [], [], alone[1]]


def an_aggregate_adds_a_value_and_takes_back_the_one_before():
    total = Aggregate(int, lambda group, value, sum: sum + value, lambda group, value, sum: sum - value, Types.INT())
    steps = [("g", 5, None, "a"), ("g", 7, 5, "a"), ("h", 1, None, "b"), ("g", None, 7, "a"), ("g", None, None, "a")]
    assert one(total, steps) == [[("g", 5, None)], [("g", 7, 5)], [("h", 1, None)], [("g", 0, 7)], [("g", 0, 0)]]
    added_only = Aggregate(int, lambda group, value, sum: sum + value, None, Types.INT())
    assert one(added_only, [("g", 5, None), ("g", 7, 5)]) == [[("g", 5, None)], [("g", 12, 5)]]
    reduced = Aggregate(nothing, Reduced(max), None, None)
    assert one(reduced, [("g", 5, None), ("g", 7, None), ("g", 3, None)]) == [
        [("g", 5, None)],
        [("g", 7, 5)],
        [("g", 7, 7)],
    ]


def an_aggregate_that_becomes_none_is_gone():
    only_odd = Aggregate(int, lambda group, value, sum: value if value % 2 else None, None, None)
    steps = [("g", 2, None), ("g", 3, None), ("g", 4, None), ("g", 6, None), ("g", 5, None)]
    assert one(only_odd, steps) == [[], [("g", 3, None)], [("g", None, 3)], [], [("g", 5, None)]]


def a_row_that_changes_its_group_is_taken_back_there_and_added_here():
    regroup = Regroup(lambda key, value: (value[0], value[1]))
    assert list(regroup(("k", ("g", 1), None))) == [("g", 1, None, "k")]
    assert list(regroup(("k", ("g", 2), ("g", 1)))) == [("g", 2, 1, "k")]
    assert list(regroup(("k", ("h", 3), ("g", 2)))) == [("g", None, 2, "k"), ("h", 3, None, "k")]
    assert list(regroup(("k", None, ("h", 3)))) == [("h", None, 3, "k")]


def the_values_of_several_streams_come_to_their_own_aggregator():
    both = Cogrouped([lambda key, value, sum: sum + value, lambda key, value, sum: sum * value])
    assert both("k", (0, 3), 2) == 5
    assert both("k", (1, 3), 2) == 6
    assert list(Cogrouped.numbered(1)(("k", 3))) == [("k", (1, 3), None)]
    assert list(Cogrouped.numbered(1)(("k", None))) == []
    assert list(added(("k", 3))) == [("k", 3, None)]
    assert list(added(("k", None))) == []


# joins by foreign key


def the_newest_result_of_a_row_is_that_of_the_row_that_it_refers_to_now():
    """Results come from other subtasks, in any order: one of the row that it referred to before may arrive last."""
    (first,), (gone, second), (away,) = one(
        Subscribe(lambda value: value[0]),
        [("order", ("anna", 1), None), ("order", ("ben", 2), ("anna", 1)), ("order", None, ("ben", 2))],
    )
    versions = [sent[2] for sent in (first, gone, second, away)]
    assert versions == sorted(versions)
    assert versions[0] < versions[1] == versions[2] < versions[3]
    assert [(sent[0][1], sent[3]) for sent in (first, gone, second, away)] == [
        ("anna", ("anna", 1)),
        ("anna", None),
        ("ben", ("ben", 2)),
        ("ben", None),
    ]
    results = [
        ("order", second[2], "ben's"),
        ("order", first[2], "anna's, late"),
        ("order", second[2], "ben's new one"),
        ("order", away[2], None),
        ("order", second[2], "ben's, late"),
    ]
    assert one(LatestVersion(), results) == [
        [("order", "ben's", None)],
        [],
        [("order", "ben's new one", "ben's")],
        [("order", None, "ben's new one")],
        [],
    ]


@pytest.mark.parametrize("left", [True, False])
def the_rows_that_refer_to_a_row_are_joined_with_it_as_it_changes(left: bool):
    def place(customer: str) -> Any:
        return owner_of((customer, None, None))

    steps = [
        (1, (place("anna"), "o1", 1, "tea", True)),
        (2, ("anna", "Berlin", None)),
        (1, (place("anna"), "o2", 1, "cake", True)),
        (2, ("anna", "Paris", "Berlin")),
        (1, (place("anna"), "o1", 2, None, False)),  # it refers to another row now, where its result is
        (1, (place("anna"), "o2", 2, None, True)),  # it is gone, and so is its result
        (2, ("anna", None, "Paris")),
    ]
    told = two(JoinForeignKey("{}-{}".format, left), steps, (key_of, owner_of))
    assert told == [
        [("o1", 1, "tea-None" if left else None)],
        [("o1", 1, "tea-Berlin")],
        [("o2", 1, "cake-Berlin")],
        [("o1", 1, "tea-Paris"), ("o2", 1, "cake-Paris")],
        [],
        [("o2", 2, None)],
        [],
    ]


def a_row_that_refers_to_none_has_a_place_of_its_own():
    def sent(foreign_key: Any, *changes: Any) -> list[list[Any]]:
        """Without the versions."""
        told = one(Subscribe(foreign_key), changes)
        return [[(place, key, value, has_result) for place, key, _, value, has_result in each] for each in told]

    assert sent(lambda value: value, ("k", None, None), ("k", "anna", None), ("k", "anna", "anna"), ("l", "k", None)) == [
        [],
        [((0, "anna"), "k", "anna", True)],
        [((0, "anna"), "k", "anna", True)],
        [((0, "k"), "l", "k", True)],
    ]
    assert sent(lambda value: None, ("k", "anna", None)) == [[((1, "k"), "k", "anna", True)]], "not that of the row 'k'"
    moved = ("k", {"to": "b"}, {"to": None})
    assert sent(lambda value: value["to"], moved) == [[((1, "k"), "k", None, False), ((0, "b"), "k", {"to": "b"}, True)]]
