"""A restore from an object store: the job begins while files of the base are being fetched; kills, damage and faults."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.checkpoint.handles import IndexedFile, RawFile
from holdfast.checkpoint.stores.object_store import Unavailable
from holdfast.checkpoint.stores.storage import RetryPolicy, Storage
from holdfast.common.typeinfo import Types
from holdfast.datastream.state import MapStateDescriptor, ValueStateDescriptor
from holdfast.errors import CorruptFile, StorageError
from holdfast.state.backends import rocksdb, upkeep
from holdfast.state.backends.compaction import Base
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.rows import keyed_state
from holdfast.state.snapshots import blob_parts, lazy_file, lazy_files, sparse_file
from holdfast.state.snapshots.lazy_restore import LazyRestore
from holdfast.state.snapshots.sparse_file import Present
from holdfast.state.store import blob_file, blob_files
from holdfast.state.store.blob_file import SUFFIX
from holdfast.testing.memory_store import MemoryStore

from .backend import Backend, cell_content

BLOB = ValueStateDescriptor("blob", Types.PRIMITIVE_ARRAY(Types.BYTE()))
MAP = MapStateDescriptor("map", Types.INT(), Types.INT())
KEYS = 4_000
LARGE = 7
"""A key with a large map."""


class Bucket(MemoryStore):
    """Objects of which whole SST files arrive when they are let through; counts the bytes of the ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.let_through = threading.Event()
        self.let_through.set()
        self.ranges: list[tuple[str, int, int]] = []
        self.held: tuple[str, ...] = (".sst",)
        """How the names of the files end that are watched and held back."""
        self.held_from = 0
        """Where the parts of whole files begin that are held back."""
        self.before: Callable[[str, int], None] = lambda path, start: None

    def get_range(self, path: str, start: int, length: int) -> bytes:
        if path.endswith(self.held):
            self.before(path, start)
            if threading.current_thread().name == "holdfast-lazy-restore":
                if start >= self.held_from:
                    self.let_through.wait()
            else:
                self.ranges.append((path, start, length))
        return super().get(path)[start : start + length]


class Remote(Backend):
    """Checkpoints in a bucket: a base with all keys, and a delta with a third of them."""

    values = ".sst"
    """How the names of the base's files end that hold the values."""

    def __init__(self, root: Path) -> None:
        super().__init__("rocksdb", [BLOB, MAP], root, **{"state.backend.cache.size": "1mb"})
        self.close()
        self.bucket = self.objects = Bucket()
        self.storage = Storage(self.bucket, RetryPolicy(budget=0.2, first_delay=0.01))
        self.open(0)

    def write(self, keys: range, turn: int | bool) -> None:
        for key in keys:
            self.use(key)
            self.handles["blob"].update(blob(key, turn))

    def rewrite(self) -> None:
        """Change some rows, without another outcome."""
        for key in range(1, KEYS, 500):
            self.write(range(key, key + 1), key % 3 == 0)

    def read(self, keys: list[int]) -> None:
        for key, row in zip(keys, self.spaces[False].table().load(keys)):
            assert row[1] is not None, key
            assert bytes(cell_content(row[1], key)) == blob(key, key % 3 == 0), key

    def check(self) -> None:
        groups = self.spaces[False].groups_of(list(range(KEYS)))
        self.read([key for key, group in enumerate(groups) if group in self.groups])
        if self.spaces[False].groups_of([LARGE])[0] in self.groups:
            self.use(LARGE)
            assert dict(self.handles["map"].items()) == {n: n for n in range(1000)}

    def base(self) -> list[RawFile]:
        handles, _ = self.checkpoints[-1]
        return [file for file in handles[-1].base if isinstance(file, RawFile) and file.name.endswith(self.values)]

    @property
    def lazy(self) -> LazyRestore:
        return self.backend._lazy_restore

    def arrive(self) -> None:
        """Let everything arrive."""
        self.bucket.let_through.set()
        self.lazy.wait()

    def damage(self, file: RawFile | IndexedFile, at: float) -> None:
        data = bytearray(self.bucket.objects[file.path])
        data[int(len(data) * at)] ^= 1
        self.bucket.objects[file.path] = bytes(data)


def blob(key: int, turn: int | bool) -> bytes:
    return hashlib.shake_128(f"{key} {int(turn)}".encode()).digest(600)


@pytest.fixture(params=[".sst", SUFFIX])
def remote(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    monkeypatch.setattr(Remote, "values", request.param)
    monkeypatch.setattr(blob_files, "_LEAST", 512 if request.param == SUFFIX else 1 << 20)
    monkeypatch.setattr(blob_files, "_FILE_SIZE", 256 << 10)
    monkeypatch.setattr(blob_file, "_CHUNK", 4 << 10)
    monkeypatch.setattr(blob_parts, "_GAP", 0)
    monkeypatch.setattr("holdfast.state.snapshots.lazy_restore._LARGE", 0)
    monkeypatch.setattr(sparse_file, "_MOST_IN_PART", 32 << 10)
    monkeypatch.setattr(rocksdb, "_SMALL", 0)
    monkeypatch.setattr(rocksdb, "_LEAST_FILE", 256 << 10)
    monkeypatch.setattr(lazy_files, "_LEAST", 16 << 10)
    monkeypatch.setattr(lazy_file, "_GAP", 0)
    monkeypatch.setattr(lazy_files, "_MOST_IN_RANGE", 64 << 10)
    monkeypatch.setattr(keyed_state, "_PORTION", 64 << 20)
    backend = Remote(tmp_path)
    backend.write(range(KEYS), 0)
    backend.use(LARGE)
    backend.handles["map"].put_all({n: n for n in range(1000)})
    backend.checkpoint()
    monkeypatch.setattr(upkeep, "due", lambda handles, *_: Base())
    backend.checkpoint()
    monkeypatch.setattr(upkeep, "due", lambda handles, *_: None)
    backend.checkpoint()
    backend.write(range(0, KEYS, 3), 1)
    backend.checkpoint()
    yield backend
    backend.bucket.let_through.set()
    backend.close()


def restored(remote: Remote) -> None:
    """Restore on another host, while the files of the base are held back."""
    remote.bucket.let_through.clear()
    remote.bucket.ranges.clear()
    remote.restart(elsewhere=True)
    assert remote.lazy._files


@pytest.mark.parametrize("seed", range(20))
def the_present_parts_of_a_file_are_those_of_a_model(seed: int):
    pick = random.Random(seed)
    present, model = Present(size := 60), [False] * 61
    for _ in range(30):
        start = pick.randrange(size)
        end = pick.randint(start + 1, min(size, start + 12))
        assert present.has(start, end) == all(model[start:end])
        gap = pick.choice([0, 3])
        found = present.lacking(start, gap)
        first = next((at for at in range(start, size) if not model[at]), None)
        if first is None:
            assert found is None
        else:
            assert found is not None
            assert found[0] == first
            here = "".join("x" if each else "." for each in model[first : found[1]])
            assert all(len(part) <= gap for part in here.split("."))  # what is here in between is short
            rest = "".join("x" if each else "." for each in model[found[1] : size])
            assert not rest or len(rest) - len(rest.lstrip("x")) > gap or not rest.strip("x")
        present.add(start, end)
        model[start:end] = [True] * (end - start)


def a_read_fetches_the_blocks_that_it_needs(remote: Remote):
    size = sum(file.size for file in remote.base())
    assert len(remote.base()) > 3
    assert size > 600 * KEYS
    restored(remote)
    opened = sum(length for _, _, length in remote.bucket.ranges)
    assert opened < size / 10
    remote.read([1, 2, 3, 4])
    read = sum(length for _, _, length in remote.bucket.ranges) - opened
    assert 0 < read < 3 * 4 * 2 * 5000
    remote.read([1, 2, 3, 4])
    before = len(remote.bucket.ranges)
    for key in range(KEYS, KEYS + 100):
        remote.use(key)
        assert remote.handles["blob"].value() is None
    assert len(remote.bucket.ranges) - before < 20, "Bloom filters tell that there are no such keys"
    remote.rewrite()
    remote.checkpoint()
    assert remote.lazy.incomplete
    remote.arrive()
    remote.checkpoint()
    assert not remote.lazy.incomplete
    remote.check()
    remote.restart()
    assert remote.backend.reused
    remote.check()


@pytest.mark.parametrize("seed", range(4))
def test_everything_is_there_before_and_after_all_has_arrived(remote: Remote, seed: int):
    pick = random.Random(seed)
    restored(remote)
    left = list(range(KEYS))
    pick.shuffle(left)
    for step in range(40):
        keys, left = left[:50], left[50:]
        remote.read(keys)
        for key in pick.sample(keys, 10):
            remote.use(key)
            remote.handles["blob"].clear() if pick.random() < 0.1 else remote.handles["blob"].update(blob(key, key % 3 == 0))
            if remote.handles["blob"].value() is None:
                remote.handles["blob"].update(blob(key, key % 3 == 0))
        if pick.random() < 0.3:
            remote.checkpoint()
        if step == 30:
            remote.bucket.let_through.set()
    remote.arrive()
    remote.checkpoint()
    remote.check()
    store = remote.backend._local.store  # type: ignore[attr-defined]
    remote.state.flush()
    store.flush()
    store._db.compact_range(None, None)
    remote.check()


def a_scan_of_few_rows_fetches_them_and_a_long_one_waits(remote: Remote):
    restored(remote)
    remote.use(LARGE)
    assert dict(remote.handles["map"].items()) == {n: n for n in range(1000)}
    table = remote.spaces[False].table()
    rows = table.stored_rows()
    next(rows)
    assert not remote.lazy.complete
    table.store.write([(table.prefix + b"\0\0\0", b"")])  # an iteration sees the store as of its first step
    threading.Timer(0.2, remote.bucket.let_through.set).start()
    assert sum(1 for _ in rows) == KEYS - 1
    assert remote.lazy.complete


def a_base_waits_until_all_files_are_there(remote: Remote, monkeypatch: pytest.MonkeyPatch):
    restored(remote)
    before = remote.base()
    monkeypatch.setattr(upkeep, "due", lambda handles, *_: Base())
    for _ in range(3):
        remote.write(range(0, 300, 3), 1)
        remote.checkpoint()
        assert remote.base() == before
    remote.arrive()
    for _ in range(3):
        remote.checkpoint()
    assert remote.base() != before
    remote.restart(elsewhere=True)
    remote.check()


def test_only_some_key_groups_are_taken_over_of_files_that_arrive(remote: Remote):
    for groups in (KeyGroupRange(0, 63), KeyGroupRange(16, 127), KeyGroupRange(32, 47)):
        remote.groups = groups
        remote.bucket.let_through.set()
        remote.restart(4, elsewhere=True)
        remote.check()
        others = [key for key, group in enumerate(remote.spaces[False].groups_of(list(range(KEYS)))) if group not in groups]
        remote.arrive()
        assert all(row[1] is None for row in remote.spaces[False].table().load(others[:300]))
        remote.check()


@pytest.mark.parametrize("complete", [False, True])
def a_killed_process_leaves_a_store_that_is_reused_only_if_it_is_complete(remote: Remote, complete: bool):
    restored(remote)
    remote.read([1, 2, 4])
    for _ in range(3):
        remote.rewrite()
        remote.checkpoint()
        remote.state.flush()
        remote.backend._local.store.flush()  # type: ignore[attr-defined]
    if complete:
        remote.arrive()
    remote.bucket.let_through.set()
    left = remote.root / "left"
    arriving = remote.lazy
    if not complete:
        arriving.close()
    shutil.copytree(remote.directory, left)
    remote.close()
    shutil.rmtree(remote.directory)
    left.rename(remote.directory)
    remote.open(len(remote.checkpoints) - 1)
    assert remote.backend.reused is complete
    remote.check()


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def a_damaged_block_is_never_read_and_its_file_is_named(remote: Remote, at: float):
    damaged = remote.base()[-1]
    remote.damage(damaged, at)
    remote.bucket.let_through.clear()
    with pytest.raises(CorruptFile, match=r"it holds state of 'op' \(uid 'op'\): .*'keyed'") as found:
        restored_and_read(remote)
    assert found.value.path.endswith(damaged.path)


def restored_and_read(remote: Remote) -> None:
    restored(remote)
    remote.check()


def test_damage_in_a_part_of_a_whole_file_that_is_read_before_the_whole_is_verified_is_found(remote: Remote):
    damaged = remote.base()[-1]
    remote.damage(damaged, 0.1)
    remote.bucket.held_from = 64 << 10
    restored(remote)
    arriving = remote.lazy
    while not all(each.present.has(0, min(remote.bucket.held_from, each.file.size)) for each in arriving._files[:4]):
        time.sleep(0.001)
    threading.Timer(0.2, remote.bucket.let_through.set).start()
    with pytest.raises(CorruptFile, match="it holds state of 'op'") as found:
        remote.check()
    assert found.value.path.endswith(damaged.path)


def test_damage_that_nobody_reads_is_found_in_the_background(remote: Remote):
    check_damage_in_the_background(remote, remote.base()[-1], 0.3)


def check_damage_in_the_background(remote: Remote, damaged: RawFile | IndexedFile, at: float) -> None:
    remote.damage(damaged, at)
    remote.restart(elsewhere=True)
    with pytest.raises(CorruptFile, match="it holds state of 'op'"):
        remote.arrive()
    with pytest.raises(CorruptFile, match="it holds state of 'op'"):
        remote.checkpoint()


def a_file_that_vanishes_is_missed(remote: Remote):
    restored(remote)
    for file in remote.base():
        del remote.bucket.objects[file.path]
    with pytest.raises(CorruptFile, match="missing; it holds state of 'op'"):
        remote.check()
    remote.bucket.let_through.set()
    with pytest.raises(CorruptFile, match="missing; it holds state of 'op'"):
        remote.arrive()


def a_damaged_end_is_refused_before_the_first_epoch(remote: Remote):
    check_damage_at_the_start(remote, remote.base()[0], 0.9999)


def check_damage_at_the_start(remote: Remote, damaged: RawFile | IndexedFile, at: float) -> None:
    remote.damage(damaged, at)
    with pytest.raises(CorruptFile) as found:
        remote.restart(elsewhere=True)
    assert found.value.path.endswith(damaged.path)


def test_storage_that_does_not_answer_is_tried_again_and_then_fails_the_epoch(remote: Remote):
    check_silent_storage(remote, remote.check)


def check_silent_storage(remote: Remote, look_up: Callable[[], None]) -> None:
    """Two and three failures pass unnoticed; more of them fail ``look_up``, and with it the epoch."""
    failures = [2]

    def fail(path: str, start: int) -> None:
        if failures[0]:
            failures[0] -= 1
            raise Unavailable("injected")

    remote.bucket.before = fail
    remote.restart(elsewhere=True)
    failures[0] = 3
    remote.check()
    remote.arrive()
    remote.checkpoint()
    restored(remote)
    failures[0] = 1_000_000
    with pytest.raises(StorageError, match="could not get"):
        look_up()
    with pytest.raises(StorageError, match="could not get"):  # also if a function has caught the error
        remote.checkpoint()
    remote.bucket.let_through.set()
    with pytest.raises(StorageError, match="could not get"):
        remote.arrive()
    with pytest.raises(StorageError, match="could not get"):
        remote.checkpoint()
    failures[0] = 0
    remote.restart(elsewhere=True)
    remote.check()


def a_closed_store_is_built_anew_by_the_next_one_at_its_place(remote: Remote):
    restored(remote)
    remote.read([1, 2, 4])
    waiting = threading.active_count()
    remote.close()
    remote.open(len(remote.checkpoints) - 1)
    remote.read([1, 2, 4])
    remote.bucket.let_through.set()
    remote.arrive()
    for _ in range(200):
        if threading.active_count() < waiting:
            break
        time.sleep(0.01)
    remote.check()
    assert not any(name == "ARRIVING" for _, _, names in os.walk(remote.directory) for name in names)
