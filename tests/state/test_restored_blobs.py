"""Bases with blob files: restores from a directory and from a bucket, of all and of some key groups; damage."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.checkpoint.handles import RawFile
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.typeinfo import Types
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.errors import CorruptFile
from holdfast.state.backends import upkeep
from holdfast.state.backends.compaction import Base
from holdfast.state.keys.key_groups import KeyGroupRange, key_group_range
from holdfast.state.store import blob_files
from holdfast.state.store.blob_file import SUFFIX
from holdfast.testing.memory_store import MemoryStore

from .backend import Backend

VALUE = ValueStateDescriptor("value", Types.PRIMITIVE_ARRAY(Types.BYTE()))
KEYS = 12_000


def value(key: int, turn: int) -> bytes:
    return hashlib.shake_128(f"{key} {turn}".encode()).digest(1000)


class Bucket(MemoryStore):
    """Counts the bytes that are read. Whole files arrive in the background once they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.let_through = threading.Event()
        self.let_through.set()
        self.read = 0

    def get(self, path: str) -> bytes:
        self.read += len(found := super().get(path))
        return found

    def get_range(self, path: str, start: int, length: int) -> bytes:
        if threading.current_thread().name == "holdfast-lazy-restore":
            self.let_through.wait()
        found = super().get(path)[start : start + length]
        self.read += len(found)
        return found


class Stored(Backend):
    """A base with all keys."""

    def __init__(self, root: Path, storage: Storage, bucket: Bucket | None = None) -> None:
        super().__init__("rocksdb", [VALUE], root, **{"state.backend.cache.size": "1mb"})
        self.close()
        self.storage = storage
        self.bucket = bucket
        self.open(0)

    def write(self, keys: range, turn: int) -> None:
        for key in keys:
            self.use(key)
            self.handles["value"].update(value(key, turn))

    def base(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(upkeep, "due", lambda handles, *_: Base())
            self.begin_base()
        self.checkpoint()

    def blob_files(self) -> list[RawFile]:
        handles, _ = self.checkpoints[-1]
        found = [file for handle in handles for file in handle.base if isinstance(file, RawFile)]
        return [file for file in found if file.name.endswith(SUFFIX)]

    def base_bytes(self) -> int:
        handles, _ = self.checkpoints[-1]
        return sum(file.size for handle in handles for file in handle.base if isinstance(file, RawFile))

    def check(self, turns: dict[int, int]) -> None:
        keys = list(turns)
        mine = [key for key, group in zip(keys, self.spaces[False].groups_of(keys)) if group in self.groups]
        assert mine
        for at in range(0, len(mine), 500):
            part = mine[at : at + 500]
            for key, row in zip(part, self.spaces[False].table().load(part)):
                assert row[1] is not None, key
                assert bytes(row[1]) == value(key, turns[key]), key
            self.checkpoint()

    def read_some(self, turns: dict[int, int], keys: list[int]) -> None:
        for key, row in zip(keys, self.spaces[False].table().load(keys)):
            assert bytes(row[1]) == value(key, turns[key])

    def others_are_gone(self) -> None:
        keys = list(range(KEYS))
        others = [key for key, group in enumerate(self.spaces[False].groups_of(keys)) if group not in self.groups]
        assert all(row[1] is None for row in self.spaces[False].table().load(others[:500]))
        table = self.spaces[False].table()
        assert all(group in self.groups for group in self.spaces[False].groups_of([key for key, _ in table.stored_rows()]))


TURNS = {key: int(key % 3 == 0) for key in range(KEYS)}


@pytest.fixture(params=["directory", "bucket"])
def stored(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stored]:
    monkeypatch.setattr(blob_files, "_FILE_SIZE", 2 << 20)
    bucket = Bucket() if request.param == "bucket" else None
    storage = Storage(bucket) if bucket is not None else Storage.open(str(tmp_path / "storage"))
    one = Stored(tmp_path, storage, bucket)
    one.write(range(KEYS), 0)
    one.checkpoint()
    one.write(range(0, KEYS, 3), 1)
    one.checkpoint()
    one.base(monkeypatch)
    assert len(one.blob_files()) > 4
    yield one
    if bucket is not None:
        bucket.let_through.set()
    one.close()


def test_a_base_is_restored(stored: Stored) -> None:
    stored.restart(elsewhere=True)
    stored.check(TURNS)
    stored.restart()
    assert stored.backend.reused
    stored.check(TURNS)


def test_only_new_files_of_the_next_base_are_stored(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {file.name: file.path for file in stored.blob_files()}
    stored.restart(elsewhere=True)
    stored.write(range(0, KEYS, 10), 2)
    stored.checkpoint()
    stored.base(monkeypatch)
    after = {file.name: file.path for file in stored.blob_files()}
    kept = before.keys() & after.keys()
    assert len(kept) > len(before) / 2
    assert {name: before[name] for name in kept} == {name: after[name] for name in kept}
    assert after.keys() - before.keys()
    stored.restart(elsewhere=True)
    stored.check({key: 2 if key % 10 == 0 else turn for key, turn in TURNS.items()})


def test_an_eighth_of_the_key_groups_costs_at_most_a_sixth_of_a_bucket(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    total, number = stored.base_bytes(), len(stored.checkpoints) - 1
    for subtask in (0, 3, 7):
        stored.groups = key_group_range(128, 8, subtask)
        if stored.bucket is not None:
            stored.bucket.read = 0
        stored.restart(number, elsewhere=True)
        assert stored.bucket is None or total / 16 < stored.bucket.read <= total / 6
        stored.others_are_gone()
        stored.check(TURNS)


def test_a_part_of_a_base_is_the_beginning_of_the_next_one(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = dict(TURNS)
    for turn, groups in enumerate([KeyGroupRange(0, 63), KeyGroupRange(20, 63), KeyGroupRange(20, 31)], 2):
        stored.groups = groups
        stored.restart(elsewhere=True)
        owned = [key for key, group in enumerate(stored.spaces[False].groups_of(list(range(KEYS)))) if group in groups]
        stored.check(turns)
        for key in owned[::5]:
            stored.write(range(key, key + 1), turn)
            turns[key] = turn
        stored.checkpoint()
        stored.base(monkeypatch)
        stored.check(turns)
        stored.others_are_gone()


def test_a_file_may_have_no_chunk_of_a_subtask(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, number = dict(TURNS), len(stored.checkpoints) - 1
    for group in (5, 77):
        stored.groups = KeyGroupRange(group, group)
        stored.restart(number, elsewhere=True)
        stored.check(turns)
        stored.base(monkeypatch)
        stored.restart(elsewhere=True)
        stored.check(turns)


def test_subtasks_are_joined(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    handles, schema = stored.checkpoints[-1]
    [handle] = handles
    halves = [msgspec.structs.replace(handle, first=first, last=last) for first, last in ((0, 63), (64, 127))]
    stored.checkpoints.append((halves, schema))
    stored.restart(elsewhere=True)
    stored.check(TURNS)
    stored.base(monkeypatch)
    stored.restart(elsewhere=True)
    stored.check(TURNS)


def test_values_are_read_while_their_files_arrive(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    if stored.bucket is None:
        pytest.skip("files of a directory are linked")
    monkeypatch.setattr("holdfast.state.snapshots.lazy_restore._LARGE", 0)
    monkeypatch.setattr("holdfast.state.snapshots.lazy_files._LEAST", 16 << 10)
    total = stored.base_bytes()
    stored.bucket.let_through.clear()
    stored.bucket.read = 0
    stored.restart(elsewhere=True)
    lazy_restore = stored.backend._lazy_restore
    assert lazy_restore.incomplete
    assert stored.bucket.read < total / 10
    stored.read_some(TURNS, [1, 2, 3, 5000, 11_999])
    assert stored.bucket.read < total / 5
    turns = dict(TURNS)
    for key in (7, 9, 9000):
        stored.write(range(key, key + 1), 5)
        turns[key] = 5
    stored.checkpoint()
    assert not lazy_restore.complete
    rows = stored.spaces[False].table().stored_rows()
    next(rows)
    threading.Timer(0.2, stored.bucket.let_through.set).start()
    assert sum(1 for _ in rows) == KEYS - 1
    lazy_restore.wait()
    stored.check(turns)
    stored.base(monkeypatch)
    stored.restart(elsewhere=True)
    lazy_restore = stored.backend._lazy_restore
    lazy_restore.wait()
    stored.check(turns)


@pytest.mark.parametrize("at", [0.3, 0.9999])
@pytest.mark.parametrize("arrives", [False, True])
def test_a_damaged_file_is_named(stored: Stored, monkeypatch: pytest.MonkeyPatch, at: float, arrives: bool) -> None:
    if arrives:
        monkeypatch.setattr("holdfast.state.snapshots.lazy_restore._LARGE", 0)
        monkeypatch.setattr("holdfast.state.snapshots.lazy_files._LEAST", 16 << 10)
    damaged = stored.blob_files()[1]
    if stored.bucket is None:
        path = stored.root / "storage" / damaged.path
        data = bytearray(path.read_bytes())
        data[int(len(data) * at)] ^= 1
        path.write_bytes(data)
    else:
        data = bytearray(stored.bucket.objects[damaged.path])
        data[int(len(data) * at)] ^= 1
        stored.bucket.objects[damaged.path] = bytes(data)
    with pytest.raises(CorruptFile) as found:
        restart_and_check(stored)
    assert found.value.path.endswith(damaged.path)


def restart_and_check(stored: Stored) -> None:
    stored.restart(elsewhere=True)
    lazy_restore = stored.backend._lazy_restore
    lazy_restore.begin()
    stored.check(TURNS)
    linked = stored.backend._local._linked  # type: ignore[attr-defined]
    if linked is not None and linked._thread is not None:
        linked._thread.join()
    lazy_restore.wait()
    stored.checkpoint()


def test_a_killed_process_leaves_a_store_that_is_reused(stored: Stored) -> None:
    turns = dict(TURNS)
    for turn in range(2, 8):
        stored.write(range(turn, KEYS, 4), turn)
        turns.update({key: turn for key in range(turn, KEYS, 4)})
        stored.checkpoint()
        if turn % 2:
            stored.kill()
    stored.check(turns)
