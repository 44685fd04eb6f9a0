"""The best rows of a group, change by change, against a sorted list."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common.typeinfo import Types
from holdfast.common.types import Row
from holdfast.errors import IncompatibleState
from holdfast.table.best import Best
from holdfast.testing import OneInputTestHarness


@settings(deadline=None, max_examples=examples(60))
@given(
    descending=st.booleans(),
    phases=st.lists(
        st.tuples(
            st.integers(1, 3),
            st.integers(0, 2),
            st.lists(st.tuples(st.sampled_from("fbcdae"), st.none() | st.integers(0, 4) | st.integers(0, 4)), max_size=30),
        ),
        min_size=1,
        max_size=3,
    ),
)
def the_best_rows_are_found_whatever_changes(descending: bool, phases: list[Any]):
    """In each phase, a program with another number of rows and another offset goes on; of equal rows the first is better."""
    rows: dict[str, tuple[int, int]] = {}
    snapshot, held = None, None
    for number, (n, offset, changes) in enumerate(phases):
        best = Best(n, lambda value: value[0], descending, offset)

        def build(stream: Any, best: Best = best) -> Any:
            return stream.key_by(lambda change: change[0], Types.STRING()).process(best)

        with OneInputTestHarness(build, snapshot=snapshot) as harness:
            for at, (key, value) in enumerate(changes):
                if value is None:
                    if key not in rows:
                        continue
                    del rows[key]
                elif key not in rows or rows[key][0] != value:
                    rows[key] = value, 1000 * number + at
                harness.process_element(("group", None if value is None else (value, key), None, key))
                for _, new, old in harness.extract_output_values():
                    assert old == held
                    held = new
                harness.clear_output()
                order = sorted(rows, key=lambda key: (-rows[key][0] if descending else rows[key][0], rows[key][1]))
                assert (held or []) == [(rows[key][0], key) for key in order][offset : offset + n]
            snapshot = harness.snapshot()


def test_the_smallest_rows_do_not_go_on_from_the_largest():
    programs = [Best(2, lambda value: value, descending, 0) for descending in (True, False)]
    for (stored, now), told in zip(itertools.permutations(programs), ("largest.*smallest", "smallest.*largest")):
        with pytest.raises(IncompatibleState, match=told):
            now.continuing(stored.definition())


def a_value_of_the_best_rows_that_becomes_nan_or_a_number_is_told_once():
    def build(stream: Any) -> Any:
        return stream.key_by(lambda change: change[0], Types.STRING()).process(Best(2, lambda value: value[0], True, 0))

    with OneInputTestHarness(build) as harness:
        told = []
        for value in (1.0, float("nan"), float("nan"), 2.0, 2.0, float("nan")):
            harness.process_element(("group", (5, value), None, "a"))
            told += [repr(new) for _, new, _ in harness.extract_output_values()]
            harness.clear_output()
    assert told == ["[(5, 1.0)]", "[(5, nan)]", "[(5, 2.0)]", "[(5, nan)]"]


def a_program_that_keeps_more_rows_knows_how_many_were_kept_before_it():
    def program(n: int, offset: int) -> Best:
        return Best(n, lambda value: value, True, offset)

    first = program(2, 1).definition()
    assert program(2, 1).continuing(first).definition() == first
    wider = program(5, 0).continuing(first).definition()
    assert wider["shorter"] == [3]
    assert program(7, 0).continuing(wider).definition()["shorter"] == [3, 5]
    assert program(1, 3).continuing(wider).definition()["shorter"] == [3]
    of_an_earlier_release = {"n": 2, "descending": True, "shorter": []}
    assert program(3, 0).continuing(of_an_earlier_release).definition()["shorter"] == [2]


@dataclass
class Player:
    """Equal to another one of its score."""

    score: int
    city: str = field(compare=False)


SIMILAR: list[tuple[Any, Any]] = [
    (1, 1.0),
    (1, True),
    ("a", "b"),
    ((1, "a"), (1, "b")),
    ((1, "a"), (1, "a", None)),
    ((1, "a"), [1, "a"]),
    ([Player(1, "Pune")], [Player(1, "Delhi")]),
    ({"a": 1}, {"a": 1.0}),
    ({"a": 1}, {"b": 1}),
    (Row(a=1), Row(b=1)),
    (Row(a=1), Row(a=True)),
    (Player(1, "Pune"), Player(1, "Delhi")),
]


@pytest.mark.parametrize(("one", "other"), SIMILAR, ids=str)
def a_value_that_becomes_a_similar_one_is_told_and_one_that_stays_is_not(one: Any, other: Any):
    def build(stream: Any) -> Any:
        return stream.key_by(lambda change: change[0], Types.STRING()).process(Best(2, lambda value: 0, True, 0))

    with OneInputTestHarness(build) as harness:
        told = []
        for value in (one, copy.deepcopy(one), other, copy.deepcopy(other), one):
            harness.process_element(("group", value, None, "a"))
            told += [repr(new) for _, new, _ in harness.extract_output_values()]
            harness.clear_output()
    assert told == [repr([one]), repr([other]), repr([one])]
