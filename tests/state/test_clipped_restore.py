"""State restored by key groups: from a part of one predecessor, from several, from the other backend's files."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.handles import RawFile
from holdfast.errors import CorruptFile
from holdfast.state import backend as backends
from holdfast.state import rocksdb
from holdfast.state.key_groups import KeyGroupRange, key_group, key_group_range
from holdfast.state.layout import META, group_prefix, section
from holdfast.state.manifest import _BLOCK, _records, without_files
from holdfast.state.sst import needed
from holdfast.state.store import RocksDBStore, rocksdb_settings

from .filled import STATES, WINDOWS, Filled

KINDS = ["rocksdb", "hashmap"]


def mine(content: dict[Any, Any], groups: KeyGroupRange) -> dict[Any, Any]:
    def held(key: Any) -> bool:
        return key_group(key[1] if isinstance(key, tuple) else key, 128) in groups

    found = {key: value for key, value in content.items() if key != "timers" and held(key)}
    return {**found, "timers": [timer for timer in content["timers"] if held(timer[1])]}


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    every: list[Filled] = []

    def make(kind: str, groups: KeyGroupRange | None = None, **config: str) -> Filled:
        one = Filled(kind, STATES, tmp_path / str(len(every)), **config)
        if groups is not None:
            one.close()
            one.groups = groups
            one.begin([], None)
        every.append(one)
        return one

    yield make
    for one in every:
        one.close()


KEYS = range(1_000)
NEXT_FILE_100 = b"\x03\x64"
NEXT_FILE_1000 = b"\x03\xe8\x07"
"""Parts of a version edit that say which number the next file has."""


@pytest.fixture(autouse=True)
def bases_after_few_deltas_and_files_that_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "MOST_DELTAS", 4)
    monkeypatch.setattr(rocksdb, "_SMALL", 1)
    monkeypatch.setattr(rocksdb, "_LEAST_FILE", 2048)


def restored(made: Any, kind: str, groups: KeyGroupRange, *sources: Filled) -> Filled:
    """A subtask of these key groups that starts from the last checkpoints of others."""
    new = made(kind)
    new.close()
    new.groups = groups
    new.storage, new.objects = sources[0].storage, sources[0].objects
    for other in sources[1:]:
        new.objects.objects.update(other.objects.objects)
    handles = []
    for source in sources:
        for handle in source.checkpoints[-1][0]:
            first, last = max(handle.first, groups.first), min(handle.last, groups.last)
            if first <= last:
                handles.append(msgspec.structs.replace(handle, first=first, last=last))
    new.checkpoints = [(handles, sources[0].checkpoints[-1][1])]
    new.open(0)
    return new


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", KINDS)
@pytest.mark.parametrize("epochs", [3, 7])
def a_subtask_takes_its_key_groups_out_of_a_predecessors_state(made, kind, by, epochs):
    old = made(kind)
    old.fill(KEYS, epochs)
    everything = old.content(KEYS)
    for subtask in (0, 3, 7):
        groups = key_group_range(128, 8, subtask)
        new = restored(made, by, groups, old)
        assert new.content(KEYS) == mine(everything, groups)
        new.put(next(key for key in KEYS if key_group(key, 128) in groups), -1)
        changed = new.content(KEYS)
        for _ in range(6):  # over its own first base
            new.checkpoint()
            new.put(10_000_000, 1)
        new.restart(elsewhere=True)
        assert new.content(KEYS) == changed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", KINDS)
def a_subtask_merges_the_states_of_several_predecessors(made, kind, by):
    sources = []
    everything: dict[Any, Any] = {"timers": []}
    for subtask in range(3):
        groups = key_group_range(128, 3, subtask)
        old = made(kind, groups)
        owned = [key for key in KEYS if key_group(key, 128) in groups]
        old.fill(owned, 6)
        if subtask == 1:  # one has dropped a window that the others still have
            old.spaces[True].drop(WINDOWS[0])
            old.checkpoint()
        content = old.content(KEYS)
        everything["timers"] += content.pop("timers")
        everything.update(content)
        sources.append(old)
    everything["timers"].sort()
    groups = KeyGroupRange(20, 100)
    new = restored(made, by, groups, *sources)
    assert new.content(KEYS) == mine(everything, groups)
    new.put(next(key for key in KEYS if key_group(key, 128) in groups), -1)
    changed = new.content(KEYS)
    assert len(new.checkpoint()) == 4
    new.checkpoint()
    assert len(new.checkpoint()) == 1  # its own base has taken their place
    for elsewhere in (False, True):
        new.restart(elsewhere=elsewhere)
        assert new.content(KEYS) == changed


def a_clipped_restore_leaves_files_of_rocksdb_in_the_storage(made, monkeypatch):
    old = made("rocksdb")
    for key in range(20_000):
        old.put(key, key)
    old.checkpoint()
    for _ in range(5):
        old.put(1, 1)
        old.checkpoint()
    (handle,) = old.checkpoints[-1][0]
    assert handle.kind == "rocksdb"
    files = [each for each in handle.base if isinstance(each, RawFile) and each.name.endswith(".sst")]
    assert len(files) > 24, "too few files to leave some out"
    assert all(file.level and file.first_key and file.last_key for file in files)
    groups = key_group_range(128, 8, 2)
    wanted = [file for file in files if needed(file, groups, lambda state: False)]
    assert sum(file.size for file in wanted) < sum(file.size for file in files) / 6
    for file in files:
        if file not in wanted:
            del old.objects.objects[file.path]
    new = restored(made, "rocksdb", groups, old)
    owned = [key for key in range(20_000) if key_group(key, 128) in groups]
    new.spaces[False].table().load(owned)
    assert all(new.spaces[False].table().rows[key][1] == key for key in owned)
    assert len(list(new.state.store.scan(section(1).prefix, section(2).prefix))) == len(owned)


@pytest.mark.parametrize("by", KINDS)
def a_damaged_file_of_a_base_is_named_by_a_clipped_restore(made, by):
    old = made("rocksdb")
    old.fill(KEYS, 7)
    (handle,) = old.checkpoints[-1][0]
    file = next(each for each in handle.base if each.name.endswith(".sst"))
    data = bytearray(old.objects.objects[file.path])
    data[len(data) // 2] ^= 1
    old.objects.objects[file.path] = bytes(data)
    with pytest.raises(CorruptFile, match=file.path.split("/")[-1]):
        restored(made, by, KeyGroupRange(0, 126), old)


first_last = st.tuples(st.integers(0, 127), st.integers(0, 127)).map(sorted)


@given(st.booleans(), first_last, first_last, st.binary(max_size=3), st.binary(max_size=3))
def a_file_is_needed_if_it_may_hold_rows_of_the_key_groups(sliced, within, wanted, low, high):
    prefix = section(2, 60_000 if sliced else None).prefix
    first, last = sorted([group_prefix(prefix, within[0]) + low, group_prefix(prefix, within[1]) + high])
    file = RawFile("p", 1, b"", "000001.sst", first, last)
    overlap = within[0] <= wanted[1] and within[1] >= wanted[0]
    assert needed(file, KeyGroupRange(*wanted), lambda state: sliced) == overlap
    noted = RawFile("p", 1, b"", "000001.sst", META, group_prefix(section(1).prefix, within[1]))
    assert needed(noted, KeyGroupRange(*wanted), lambda state: False) == (wanted[0] <= within[1])
    assert needed(noted, KeyGroupRange(*wanted), lambda state: True)
    across = RawFile("p", 1, b"", "000001.sst", group_prefix(section(1).prefix, 127), last)
    assert needed(across, KeyGroupRange(*wanted), lambda state: sliced and state == 2)


@pytest.mark.parametrize("room", [0, 1, 6, 7, 8, 20, 20_000])
def a_manifest_loses_files_wherever_its_last_block_ends(tmp_path, room):
    """``room``: bytes that are left in the block of 32 KB where the edit begins; it may go on in the next one."""
    settings = rocksdb_settings({})
    path = tmp_path / "db"
    store = RocksDBStore(str(path), settings)
    pick = random.Random(room)
    content = {struct.pack(">HHI", 1, batch, key): pick.randbytes(50) for batch in range(8) for key in range(500)}
    for batch in range(3):
        store.write([(key, value) for key, value in content.items() if key[3] % 3 == batch])
        store.flush()
    store.close()
    files = RocksDBStore.files_in(str(path), settings)
    gone = {name: each for name, each in files.items() if each[1] >= struct.pack(">HH", 1, 1)}
    assert gone
    assert len(gone) < len(files)
    manifest = path / (path / "CURRENT").read_text().strip()
    log = manifest.read_bytes()
    filler = _BLOCK - room - len(log) - 7
    log += b"".join(_records(len(log), NEXT_FILE_1000 * (filler % 2) + NEXT_FILE_100 * ((filler - filler % 2 * 3) // 2)))
    assert len(log) == _BLOCK - room
    manifest.write_bytes(without_files(log, [(level, int(name[:-4])) for name, (level, _, _) in gone.items()]))
    for name in gone:
        (path / name).unlink()
    store = RocksDBStore(str(path), settings)
    kept = [key for key in content if not any(first <= key <= last for _, first, last in gone.values())]
    assert dict(store.scan(b"\0\1", b"\0\2")).keys() >= set(kept)
    store.close()
