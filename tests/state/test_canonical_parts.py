"""The parts of an operator's keyed state in a checkpoint: small enough for memory, with the files of their key groups."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.handles import IndexedFile
from holdfast.checkpoint.metadata import KeyedHandle, OperatorCheckpoint, SubtaskState
from holdfast.state.backends import canonical
from holdfast.state.backends.canonical import part_of, parts_of
from holdfast.state.keys.key_groups import KeyGroupRange, key_group_range


def handle(groups: KeyGroupRange, schema: str, *sizes: int) -> KeyedHandle:
    """A handle of a base and of deltas of these sizes."""
    files: list[Any] = [IndexedFile(f"{schema}/{groups.first}/{n}", size, b"") for n, size in enumerate(sizes)]
    return KeyedHandle(groups.first, groups.last, schema, base=files[:1], deltas=files[1:])


def operator(most: int, subtasks: list[SubtaskState], *schemas: str) -> OperatorCheckpoint:
    return OperatorCheckpoint(
        "op", max_parallelism=most, parallelism=len(subtasks), subtasks=subtasks, schemas={name: [name] for name in schemas}
    )


@given(st.integers(1, 40), st.data())
def the_parts_are_as_many_as_the_bytes_need_and_cover_all_key_groups_once(most: int, data: st.DataObject):
    width = data.draw(st.integers(1, min(most, 4)))
    sizes = data.draw(st.lists(st.integers(0, 300), min_size=width, max_size=width))
    ranges = [key_group_range(most, width, n) for n in range(width)]
    made = operator(most, [SubtaskState([handle(own, "s", size, 50)]) for own, size in zip(ranges, sizes)], "s")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canonical, "_PART", 100)
        parts = list(parts_of("uid", made))
    assert len(parts) == min(most, 1 + (sum(sizes) + 50 * width) // 100)
    assert [group for part in parts for group in range(part.groups.first, part.groups.last + 1)] == list(range(most))
    widths = [part.groups.last - part.groups.first for part in parts]
    assert max(widths) - min(widths) <= 1
    for part in parts:
        expected = [own for own in ranges if own.first <= part.groups.last and part.groups.first <= own.last]
        assert [(each.first, each.last) for each in part.handles] == [(own.first, own.last) for own in expected]
        assert (part.uid, part.where, part.max_parallelism) == ("uid", "'op' (uid 'uid')", most)


def the_state_of_a_rescaled_subtasks_predecessors_is_read_with_its_own_schema():
    low, high = KeyGroupRange(0, 3), KeyGroupRange(4, 7)
    whole = KeyGroupRange(0, 7)
    predecessors = [handle(low, "gone", 1), handle(high, "also gone", 1), handle(whole, "now", 1)]
    other = [handle(whole, "known", 1), handle(whole, "now", 1)]
    made = operator(8, [SubtaskState(predecessors), SubtaskState(other)], "now", "known")
    part = part_of("uid", made, low)
    assert part is not None
    assert [each.schema for each in part.handles] == ["now", "now", "known", "now"]
    assert part.handles[0] == msgspec.structs.replace(predecessors[0], schema="now")
    assert part.schemas == {"now": ["now"], "known": ["known"]}


def test_key_groups_without_files_have_no_part():
    low, high = KeyGroupRange(0, 3), KeyGroupRange(4, 7)
    made = operator(8, [SubtaskState([handle(low, "s")]), SubtaskState([handle(high, "s", 1)])], "s")
    assert part_of("uid", made, low) is None
    assert part_of("uid", made, KeyGroupRange(3, 4)) is not None
    assert part_of("uid", made, KeyGroupRange(7, 7)) is not None
    assert list(parts_of("uid", operator(8, [SubtaskState([handle(low, "s")])], "s"))) == []
