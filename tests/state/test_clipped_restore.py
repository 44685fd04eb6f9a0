"""State restored by key groups: from a part of one predecessor, from several, from the other backend's files."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.errors import CorruptFile
from holdfast.state.backends import compaction, rocksdb
from holdfast.state.keys.key_groups import KeyGroupRange, key_group, key_group_range
from holdfast.state.snapshots import sst
from holdfast.state.snapshots.manifest import _BLOCK, _records, without_files
from holdfast.state.store.store import RocksDBStore, rocksdb_settings

from .filled import STATES, WINDOWS, Filled

KINDS = ["rocksdb", "hashmap"]
LEAST_FILE = rocksdb._LEAST_FILE


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
    monkeypatch.setattr(compaction, "MOST_DELTAS", 4)
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


def big(made: Any, slices: int, rows: int) -> Filled:
    """A state of rows of 1 KB in a base of RocksDB, of keys or of windows."""
    one = made("rocksdb", **{"state.backend.rocksdb.writebuffer.size": "4mb"})
    pick = random.Random(slices)
    for epoch in range(4):
        for number in range(slices):
            for key in range(epoch, rows, 4):
                one.use(key, None if slices == 1 else number * 1_000)
                one.handles["text"].update(pick.randbytes(500).hex())
        one.checkpoint()
    one.begin_base()
    one.put(-1, 1)
    one.checkpoint()
    assert [each.kind for each in one.checkpoints[-1][0]] == ["rocksdb"]
    return one


@pytest.mark.parametrize(("slices", "rows"), [(1, 2_000), (1, 20_000), (200, 250)])
def test_one_eighth_of_the_key_groups_costs_at_most_a_sixth_of_a_base(made, monkeypatch, slices, rows):
    """Counted at the storage. Beyond an eighth, a restore reads up to two blocks per slice, and the ends of the files."""
    monkeypatch.setattr(rocksdb, "_LEAST_FILE", LEAST_FILE)
    old = big(made, slices, rows)
    total = sum(each.size for handle in old.checkpoints[-1][0] for each in handle.handles())
    for part in (0, 3, 7):
        groups = key_group_range(128, 8, part)
        reads = Reads(old, monkeypatch)
        new = restored(made, "rocksdb", groups, old)
        assert reads.bytes <= total / 6
        owned = [key for key in range(rows) if key_group(key, 128) in groups]
        for number in {0, slices // 2, slices - 1}:
            table = new.go_to(None if slices == 1 else number * 1_000).table(None if slices == 1 else number * 1_000)
            assert sorted(key for key, _ in table.stored_rows() if key >= 0) == owned


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


@pytest.mark.parametrize("seed", range(6))
def the_rows_of_windows_that_are_dropped_and_come_back_survive_rescalings_and_bases(made, monkeypatch, seed):
    """Windows are dropped and come back, in subtasks of ever fewer key groups, whose bases refer to files of others."""
    monkeypatch.setattr(rocksdb, "_LEAST_FILE", 40_000)
    pick = random.Random(seed)
    parts = []
    original = sst.fetch_parts
    monkeypatch.setattr(sst, "fetch_parts", lambda *args: parts.append(original(*args)) or parts[-1])
    one, content = made("rocksdb"), {}
    windows = [None, *range(0, 6_000, 1_000)]
    for first, last in [(0, 127), (0, 63), (20, 63), (20, 31)]:
        groups = KeyGroupRange(first, last)
        if one.groups != groups:
            one = restored(made, "rocksdb", groups, one)
        owned = [key for key in range(600) if key_group(key, 128) in groups]
        content = {at: value for at, value in content.items() if key_group(at[1], 128) in groups}
        for turn in range(3):
            for _ in range(pick.randrange(3, 8)):
                for window in pick.sample(windows, 3):
                    for key in pick.sample(owned, len(owned) // 3):
                        one.use(key, window)
                        content[window, key] = pick.randbytes(150).hex()
                        one.handles["text"].update(content[window, key])
                for window in pick.sample(windows[1:], 2):
                    one.go_to(window).table(window)
                    one.spaces[True].drop(window)
                    content = {at: value for at, value in content.items() if at[0] != window}
                one.checkpoint()
            assert rows_in(one, windows) == content, (seed, groups, turn)
            one.restart(elsewhere=pick.random() < 0.7)
            assert rows_in(one, windows) == content, (seed, groups, turn, "restarted")
    assert any(parts), "no file was read in part"


def rows_in(one: Filled, windows: list[int | None]) -> dict[Any, str]:
    found = {}
    for window in windows:
        table = one.go_to(window).table(window)
        rows = {**(dict(table.stored_rows()) if table.in_store else {}), **table.rows}
        for key in set(rows):
            one.use(key, window)
            if one.handles["text"].value() is not None:
                found[window, key] = one.handles["text"].value()
    return found


class Reads:
    """Counts the bytes read from a subtask's storage."""

    def __init__(self, source: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        store = source.objects

        def counted(data: bytes) -> bytes:
            self.bytes += len(data)
            return data

        objects = store.objects
        monkeypatch.setattr(store, "get", lambda path: counted(objects[path]))
        monkeypatch.setattr(store, "get_range", lambda path, at, length: counted(objects[path][at : at + length]))


@pytest.mark.parametrize("room", [0, 1, 6, 7, 8, 20, 20_000])
def a_manifest_loses_files_wherever_its_last_block_ends(tmp_path, room):
    """``room``: bytes that are left in the block of 32 KB where the edit begins; it may go on in the next one."""
    settings = rocksdb_settings({})
    path = tmp_path / "db"
    store = RocksDBStore(str(path), settings)
    pick = random.Random(room)
    content = {struct.pack(">HHI", 1, batch, key): b"\x90" + pick.randbytes(49) for batch in range(8) for key in range(500)}
    for batch in range(3):
        store.write([(key, value) for key, value in content.items() if key[3] % 3 == batch])
        store.flush()
    store.close()
    with closing(RocksDBStore(str(path), settings, read_only=True)) as store:
        files = store.files()
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
