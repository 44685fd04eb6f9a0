"""Stored state at another parallelism: nothing is lost, nothing comes twice, whatever the numbers of subtasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.handles import ContainedFile
from holdfast.checkpoint.metadata import (
    BROADCAST,
    SPLIT,
    UNION,
    WHOLE,
    KeyedHandle,
    ListedState,
    ListPart,
    OperatorCheckpoint,
    SubtaskState,
)
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.runtime.plan.redistribution import assigned
from holdfast.state.keys.key_groups import key_group_range

MAX = 128
subtasks = st.integers(1, 12)


def elements(parts: list[ListPart]) -> list[bytes]:
    """What a reader of the parts finds; file ``f`` holds the elements f0, f1, ..."""
    return [
        element
        for part in parts
        for element in (
            part.elements
            if part.file is None
            else [f"{part.file.path}{i}".encode() for i in range(part.first, part.first + part.count)]
        )
    ]


def file_part(number: int, count: int) -> ListPart:
    return ListPart(file=ContainedFile(f"file{number}-", 1, b"c"), count=count)


parts = st.builds(ListPart, st.lists(st.binary(), max_size=4)) | st.builds(file_part, st.integers(0, 9), st.integers(1, 9))
lists = st.lists(st.lists(parts), min_size=1, max_size=8)


def listed(mode: str, stored: list[list[ListPart]]) -> OperatorCheckpoint:
    states = [SubtaskState(lists={"l": parts} if parts else {}) for parts in stored]
    return OperatorCheckpoint("op", parallelism=len(stored), listed={"l": ListedState(mode)}, subtasks=states)


def shares(operator: OperatorCheckpoint, parallelism: int) -> list[list[bytes]]:
    return [elements(assigned(operator, parallelism, n).state.lists.get("l", [])) for n in range(parallelism)]


@given(lists, subtasks)
def the_elements_of_split_state_are_dealt_out_evenly_and_in_order(stored: list[list[ListPart]], parallelism: int):
    dealt = shares(listed(SPLIT, stored), parallelism)
    before = [elements(parts) for parts in stored]
    assert [e for share in dealt for e in share] == [e for share in before for e in share]
    if parallelism == len(stored):
        assert dealt == before
    else:
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


@given(lists, subtasks)
def the_list_of_a_subtask_that_stays_whole_is_given_to_one_subtask(stored: list[list[ListPart]], parallelism: int):
    dealt = shares(listed(WHOLE, stored), parallelism)
    before = [elements(parts) for parts in stored]
    assert [e for share in dealt for e in share] == [e for share in before for e in share]
    for number, share in enumerate(before):
        alone = [share if n == number else [] for n in range(len(before))]
        assert share in shares(listed(WHOLE, [[ListPart(each)] for each in alone]), parallelism)


@given(lists, subtasks)
def the_elements_of_union_state_are_given_to_every_subtask(stored: list[list[ListPart]], parallelism: int):
    every = [e for parts in stored for e in elements(parts)]
    assert shares(listed(UNION, stored), parallelism) == [every] * parallelism


@given(lists, subtasks, st.integers(1, 12))
def a_copy_of_broadcast_state_is_given_to_every_subtask(stored: list[list[ListPart]], parallelism: int, old: int):
    assert shares(listed(BROADCAST, [stored[0]] * old), parallelism) == [elements(stored[0])] * parallelism


@given(subtasks, subtasks)
def a_key_group_goes_to_the_one_subtask_that_owns_it(old: int, new: int):
    def state(n: int) -> SubtaskState:
        groups = key_group_range(MAX, old, n)
        return SubtaskState([KeyedHandle(groups.first, groups.last, schema=f"schema {n % 2}", base=[files[n]])])

    files = [ContainedFile(f"f{n}", 1, b"c") for n in range(old)]
    operator = OperatorCheckpoint(
        "op",
        max_parallelism=MAX,
        parallelism=old,
        schemas={"schema 0": {"version": 0}, "schema 1": {"version": 1}},
        subtasks=[state(n) for n in range(old)],
    )
    owners: dict[int, str] = {}
    for n in range(new):
        groups = key_group_range(MAX, new, n)
        snapshot = assigned(operator, new, n)
        for handle in snapshot.state.keyed:
            assert groups.first <= handle.first <= handle.last <= groups.last
            assert handle.schema in snapshot.schemas
            for group in range(handle.first, handle.last + 1):
                assert group not in owners
                owners[group] = handle.base[0].path  # type: ignore[union-attr]
        if old == new:
            assert snapshot.state == operator.subtasks[n]
    assert owners == {group: f"f{n}" for n in range(old) for group in range(*_span(key_group_range(MAX, old, n)))}


def _span(groups) -> tuple[int, int]:
    return groups.first, groups.last + 1


@pytest.mark.parametrize(("idle", "expected"), [([], 10), ([10], 20), ([20], 10), ([10, 20], 30), ([10, 20, 30], 30)])
def a_generator_goes_on_from_the_active_one_that_is_behind(idle, expected):
    """One that is idle does not hold event time back: it may never have had a record."""
    states = [{"max_timestamp": w, "emitted": w, **({"idle": True} if w in idle else {})} for w in (20, 10, 30)]
    operator = OperatorCheckpoint("op", parallelism=3, generators=states)
    assert assigned(operator, 1, 0).generator["emitted"] == expected
    assert [assigned(operator, 3, n).generator for n in range(3)] == states


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8), subtasks)
def the_generators_go_on_from_the_one_that_is_behind(watermarks: list[int], parallelism: int):
    generators = [{"max_timestamp": w, "emitted": w} for w in watermarks]
    operator = OperatorCheckpoint("op", parallelism=len(watermarks), generators=generators)
    for n in range(parallelism):
        expected = watermarks[n] if len(watermarks) == parallelism else min(watermarks, default=MIN_TIMESTAMP)
        assert assigned(operator, parallelism, n).generator == (
            {"max_timestamp": expected, "emitted": expected} if watermarks else None
        )


def an_operator_that_holds_event_time_back_goes_on_from_the_subtask_that_is_behind():
    operator = OperatorCheckpoint("op", parallelism=3, generators=[{"emitted": time} for time in (20, 10, 30)])
    assert assigned(operator, 2, 1).generator == {"emitted": 10}
