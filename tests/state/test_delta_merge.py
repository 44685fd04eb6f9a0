"""Merged deltas have the effect of those that they replace: rows, entries and timers, through drops of whole windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.checkpoint.handles import Handle
from holdfast.checkpoint.stores.storage import Storage
from holdfast.state.backends import delta_merge
from holdfast.state.backends.delta_merge import DeltaMerge, merged
from holdfast.state.cells.codec import packed_array
from holdfast.state.cells.row_pieces import encoded_rows
from holdfast.state.keys.key_codec import encode_key, encode_keys
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.stored.delta import Change, Piece
from holdfast.state.stored.delta_files import DeltaFiles
from holdfast.state.stored.entry_pieces import DELETE, PUT, entry_piece, unpack_entries
from holdfast.state.stored.layout import Section, group_prefix, section
from holdfast.state.stored.schema import ENTRIES, ROWS, TIMERS

GROUPS = 8
ALL = KeyGroupRange(0, GROUPS - 1)
KINDS = {16: ROWS, 17: ENTRIES, 18: TIMERS}
SECTIONS = [section(16, 0), section(16, 1), section(17), section(18)]
Writes = dict[int, str | None]
"""By key, which is its key group, too: the new value; None: it is deleted."""


def piece(at: Section, writes: Writes) -> Piece:
    """Writes of one section in their stored form."""
    keys, kind = sorted(writes), KINDS[at.state]
    if kind is ENTRIES:
        entries = [(key, group_prefix(at.prefix, key) + encode_key(key), writes[key]) for key in keys]
        some = [(DELETE, at_key, b"") if v is None else (PUT, at_key, v.encode()) for _, at_key, v in entries]
        return entry_piece(some, len(at.prefix))
    if kind is TIMERS:  # opaque to a merge
        return Piece(keys[0], keys[-1], msgspec.msgpack.encode(writes))
    there, gone = ([key for key in keys if (writes[key] is None) is deleted] for deleted in (False, True))
    rows = packed_array([msgspec.msgpack.encode([writes[key]]) for key in there])
    runs, gone_runs = ([part for key in each for part in (key, 1)] for each in (there, gone))
    content = (1, runs, encode_keys(there), rows, gone_runs, encode_keys(gone))
    return Piece(keys[0], keys[-1], msgspec.msgpack.encode(content))


def read(at: Section, stored: Piece) -> Writes:
    """The writes of a piece."""
    kind = KINDS[at.state]
    if kind is TIMERS:
        return msgspec.msgpack.decode(stored.data, type=dict[int, str | None])
    if kind is ENTRIES:
        drops, puts, values, deletes = unpack_entries(stored)
        assert not drops
        found = [*zip(puts, [bytes(value).decode() for value in values], strict=True), *((key, None) for key in deletes)]
        return {int.from_bytes(key[:2], "big"): value for key, value in found}
    rows = encoded_rows(stored, None)
    assert rows.schema == 1
    return dict(zip(rows.keys, [msgspec.msgpack.decode(row)[0] for row in rows.rows])) | dict.fromkeys(rows.deleted)


def state_after(log: DeltaFiles, deltas: Sequence[Handle], groups: KeyGroupRange) -> dict[Section, Writes]:
    """What there is behind the deltas, where there was something of every key before."""
    state: dict[Section, Writes] = {at: dict.fromkeys(range(GROUPS), "before") for at in SECTIONS}
    for delta in deltas:
        for change in log.replay(delta, groups):
            if change.dropped:
                state[change.section].clear()
            for stored in change.pieces:
                state[change.section].update(read(change.section, stored))
    return {at: {key: v for key, v in held.items() if v is not None and key in groups} for at, held in state.items()}


writes = st.dictionaries(st.integers(0, GROUPS - 1), st.none() | st.sampled_from(["a", "b"]), min_size=1, max_size=4)
epochs = st.lists(
    st.dictionaries(st.sampled_from(SECTIONS), st.tuples(st.booleans(), st.lists(writes, max_size=2)), max_size=4),
    min_size=1,
    max_size=8,
)


@settings(max_examples=examples(40))
@given(epochs, st.sampled_from([ALL, KeyGroupRange(2, 5)]), st.integers(1, 9), st.sampled_from([0, 1000]))
def a_merge_of_deltas_has_the_effect_of_all_of_them(
    tmp_path_factory: pytest.TempPathFactory, epochs: Any, groups: KeyGroupRange, least: int, memory: int
):
    log = DeltaFiles(Storage.open(str(tmp_path_factory.getbasetemp())), 1 << 20)
    deltas = [
        log.append(
            [Change(at, dropped, [piece(at, each) for each in some]) for at, (dropped, some) in epoch.items()], f"{n}"
        )
        for n, epoch in enumerate(epochs)
    ]
    pauses: list[None] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_merge, "_LEAST", least)
        patch.setattr(delta_merge, "_AT_ONCE", memory)
        paths = iter(range(100))
        fewer = merged(
            log, deltas, lambda: DeltaMerge(KINDS, groups), lambda: f"merged {next(paths)}", lambda: pauses.append(None)
        )
    assert len(fewer) <= -(-len(deltas) // least)
    assert len(pauses) == len(deltas) + len(fewer), "it can end between any two files"
    assert state_after(log, fewer, groups) == state_after(log, deltas, groups)


def a_merged_delta_has_each_row_once_and_none_of_a_window_that_was_dropped():
    at, other = SECTIONS[0], SECTIONS[2]
    merge = DeltaMerge(KINDS, ALL)
    merge.add(Change(at, False, [piece(at, {0: "old", 1: "old"})]))
    merge.add(Change(other, False, [piece(other, {0: "old", 1: "old"})]))
    merge.add(Change(at, False, [piece(at, {1: "newer"})]))
    merge.add(Change(other, False, [piece(other, {1: "newer"})]))
    assert {change.section: change.dropped for change in merge.drain()} == {at: False, other: False}
    for change in merge.drain():
        assert [value for stored in change.pieces for value in read(change.section, stored).values()] == ["old", "newer"]
    for each in (at, other):
        merge.add(Change(each, True, []))
    assert [(change.dropped, [*change.pieces]) for change in merge.drain()] == [(True, []), (True, [])]
    merge.add(Change(at, False, [piece(at, {2: "newest"})]))
    (written,) = [change for change in merge.drain() if change.section == at]
    assert written.dropped
    assert [read(at, stored) for stored in written.pieces] == [{2: "newest"}]
