"""A restore from a directory: files of the base are linked, large deltas mapped; kills, damage and deletions meanwhile."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint import files
from holdfast.checkpoint.handles import RawFile
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.typeinfo import Types
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.errors import CorruptFile
from holdfast.state.backends import rocksdb, upkeep
from holdfast.state.backends.compaction import Base
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.rows import keyed_state
from holdfast.state.rows.table import RowTable
from holdfast.state.snapshots import sst
from holdfast.state.snapshots.linked_files import LinkedFiles
from holdfast.state.store import blob_files
from holdfast.state.store.blob_file import SUFFIX
from holdfast.state.store.store import RocksDBStore

from .backend import Backend, cell_content

BLOB = ValueStateDescriptor("blob", Types.PRIMITIVE_ARRAY(Types.BYTE()))
KEYS = 6_000


def blob(key: int, turn: int) -> bytes:
    return hashlib.shake_128(f"{key} {turn}".encode()).digest(700)


def turn_of(key: int) -> int:
    return 0 if key % 3 else 1 + (key % 2)


class Local(Backend):
    """Checkpoints in a directory: a base with all keys, and two deltas with a third of them, each above a megabyte."""

    values = ".sst"
    """How the names of the base's files end that hold the values."""

    def __init__(self, root: Path) -> None:
        super().__init__("rocksdb", [BLOB], root)
        self.close()
        self.stored = root / "storage"
        self.storage = Storage.open(str(self.stored))
        self.open(0)

    def write(self, keys: range, turn: int) -> None:
        for key in keys:
            self.use(key)
            self.handles["blob"].update(blob(key, turn))

    def store_base(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Store a base, and no other one by itself."""
        monkeypatch.setattr(upkeep, "due", lambda handles, *_: Base())
        self.begin_base()
        monkeypatch.setattr(upkeep, "due", lambda handles, *_: None)
        self.checkpoint()

    def check(self) -> None:
        table = self.spaces[False].table()
        mine = [key for key, group in enumerate(self.groups_of_keys()) if group in self.groups]
        for key, row in zip(mine, table.load(mine)):
            assert row[1] is not None
            assert bytes(cell_content(row[1], key)) == blob(key, turn_of(key))

    def groups_of_keys(self) -> list[int]:
        return self.spaces[False].groups_of(list(range(KEYS)))

    def base(self) -> list[Path]:
        """The SST files of the base in the storage."""
        return [self.stored / file.path for file in self.base_files()]

    def base_files(self) -> list[RawFile]:
        handles, _ = self.checkpoints[-1]
        return [file for file in handles[-1].base if isinstance(file, RawFile) and file.name.endswith(self.values)]

    def verified(self) -> None:
        """Wait for the verification in the background."""
        linked = self.backend._local._linked  # type: ignore[attr-defined]
        if linked is not None and linked._thread is not None:
            linked._thread.join()


@pytest.fixture(params=[".sst", SUFFIX])
def local(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Local]:
    monkeypatch.setattr(Local, "values", request.param)
    monkeypatch.setattr(blob_files, "_LEAST", 512 if request.param == SUFFIX else 1 << 20)
    monkeypatch.setattr(blob_files, "_FILE_SIZE", 256 << 10)
    backend = Local(tmp_path)
    backend.write(range(KEYS), 0)
    backend.store_base(monkeypatch)
    backend.write(range(0, KEYS, 3), 1)
    backend.write(range(1, KEYS, 1_000), 0)
    backend.checkpoint()
    backend.write(range(3, KEYS, 6), 2)
    backend.checkpoint()
    yield backend
    backend.close()


def content(paths: list[Path]) -> list[bytes]:
    return [path.read_bytes() for path in paths]


def links(paths: list[Path]) -> set[int]:
    """The number of names that these files have."""
    return {path.stat().st_nlink for path in paths}


def the_files_of_a_base_are_linked_and_never_changed(local: Local):
    stored = sorted(path for path in local.stored.rglob("*") if path.is_file())
    before = content(stored)
    assert links(local.base()) == {2}, "the storage has the files of the store that wrote the base"
    local.restart(elsewhere=True)
    assert links(local.base()) == {3}
    assert local.state.restored_memory() < 2 * 250 * KEYS, "the rows of large deltas stay in their files"
    local.check()
    local.write(range(KEYS), 3)
    local.checkpoint()
    store = local.backend._local.store  # type: ignore[attr-defined]
    local.state.flush()
    store.flush()
    store._db.compact_range(None, None)
    local.checkpoint()
    local.close()
    assert content(stored) == before
    local.open(len(local.checkpoints) - 1)


def a_restore_copies_the_files_where_links_are_not_possible(local: Local, monkeypatch: pytest.MonkeyPatch):
    def refused(source: str, target: str) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "link", refused)
        patched.setattr(Storage, "map", lambda self, path: None)
        local.close()
        local.directory = local.root / "another file system"
        local.open(len(local.checkpoints) - 1)
    assert links(local.base()) == {2}
    local.check()


def a_base_is_known_to_be_linked_after_a_restore_too(local: Local, monkeypatch: pytest.MonkeyPatch):
    asked: list[bool] = []
    monkeypatch.setattr(upkeep, "due", lambda _, linked, *rest: asked.append(linked))
    local.checkpoint()
    local.restart()
    local.checkpoint()
    local.restart(elsewhere=True)
    local.checkpoint()
    with monkeypatch.context() as patched:
        patched.setattr(sst, "link_raw", lambda *_: False)
        local.restart(elsewhere=True)
        local.checkpoint()
    assert asked == [True, True, True, False], "the last store has copies of the files"


def a_linked_base_is_not_preceded_by_a_compaction(local: Local, monkeypatch: pytest.MonkeyPatch):
    sorted_: list[int] = []
    monkeypatch.setattr(rocksdb, "_SMALL", 0)
    monkeypatch.setattr(rocksdb, "_UNSORTED_SHARE", 0.0)
    monkeypatch.setattr(RocksDBStore, "sort_by_itself", lambda store, size: sorted_.append(size))
    monkeypatch.setattr(rocksdb, "_SORTING_PATIENCE", 0.0)
    monkeypatch.setattr(upkeep, "due", lambda handles, *_: Base())
    local.write(range(0, KEYS, 2), 3)
    local.begin_base()
    assert not sorted_
    with monkeypatch.context() as patched:
        patched.setattr(Storage, "local_path", lambda *_: None)
        local.restart()
        local.write(range(0, KEYS, 2), 4)
        local.begin_base()
        assert sorted_, "whoever cannot link the files reads those of level 0 as a whole"


def a_base_outlives_the_store_that_wrote_it(local: Local):
    local.close()
    for path in local.directory.rglob("*"):
        if path.is_file():
            path.unlink()
    local.open(len(local.checkpoints) - 1)
    local.check()


def an_eighth_of_the_key_groups_is_linked_and_clipped(local: Local):
    local.groups = KeyGroupRange(32, 47)
    local.restart(elsewhere=True)
    local.check()
    others = [key for key, group in enumerate(local.groups_of_keys()) if group not in local.groups]
    assert all(row[1] is None for row in local.spaces[False].table().load(others[:500]))


def the_files_that_retention_deletes_meanwhile_stay_readable(local: Local):
    local.restart(elsewhere=True)
    for path in local.stored.rglob("*"):
        if path.is_file():
            path.unlink()
    local.check()
    local.checkpoint()
    local.verified()
    local.checkpoint()


def damage(path: Path, at: float) -> None:
    with open(path, "r+b") as file:
        file.seek(int(path.stat().st_size * at))
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def a_damaged_file_is_found_in_the_background(local: Local):
    damage(path := local.base()[0], 0.3)
    local.restart(elsewhere=True)
    local.checkpoint()
    local.verified()
    with pytest.raises(CorruptFile, match=r"checksum.*it holds state of 'op' \(uid 'op'\): .*'keyed'") as found:
        local.checkpoint()
    assert found.value.path.endswith(path.name)


def a_file_that_a_restore_verifies_is_named_when_it_is_damaged_and_no_other_one_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    backend = Local(tmp_path)
    for window in (0, 60_000):
        for key in range(2_000):
            backend.use(key, window)
            backend.handles["blob"].update(blob(key, window)[:200])
        backend.store_base(monkeypatch)
    store = backend.backend._local.store  # type: ignore[attr-defined]
    store.sort_by_itself(16 << 10)  # into files of a few keys
    while store.file_bytes()[1]:
        time.sleep(0.01)
    store.sort_when_needed()
    backend.spaces[True].drop(0)
    backend.checkpoint()
    backend.store_base(monkeypatch)
    (handle,) = backend.checkpoint()
    of_base = [file for file in handle.base if isinstance(file, RawFile) and sst.shared(file.name)]
    verified = [file for file in sst.verified_files(backend.storage, handle, backend.groups) if file in of_base]
    assert 0 < len(verified) < len(of_base)

    def restore_and_run() -> None:
        backend.restart(elsewhere=True)
        assert len(dict(backend.spaces[True].table(60_000).stored_rows())) == 2_000
        backend.checkpoint()
        backend.verified()
        backend.checkpoint()

    for file in of_base:
        path = backend.stored / file.path
        intact = path.read_bytes()
        damage(path, 0.3)
        if file in verified:
            with pytest.raises(CorruptFile) as found:
                restore_and_run()
            assert found.value.path.endswith(file.path)
        else:
            restore_and_run()
        path.write_bytes(intact)
    backend.close()


@pytest.mark.parametrize("at", [0.3, 0.9999])
def a_damaged_file_that_is_read_first_is_named(local: Local, at: float):
    path = local.base()[0]
    if local.values == SUFFIX:
        if at > 0.99:
            pytest.skip("lookups do not read the end of a blob file")
        for row in range(3):  # two of them are not in a delta
            damage(path, at + row * 730 / path.stat().st_size)
    else:
        damage(path, at)

    def restore_and_read() -> None:
        local.restart(elsewhere=True)
        local.check()

    with pytest.raises(CorruptFile, match=r"it holds state of 'op'") as found:
        restore_and_read()
    assert found.value.path.endswith(path.name)


def a_truncated_or_missing_file_is_refused_at_once(local: Local):
    path = local.base()[0]
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(CorruptFile, match="truncated or altered") as found:
        local.restart(elsewhere=True)
    assert found.value.path.endswith(path.name)
    path.unlink()
    with pytest.raises(CorruptFile, match="missing"):
        local.restart(elsewhere=True)


def a_damaged_delta_is_refused_before_the_first_epoch(local: Local):
    handles, _ = local.checkpoints[-1]
    delta = local.stored / handles[-1].deltas[-2].path  # type: ignore[union-attr]
    assert delta.stat().st_size > 700 * KEYS // 3
    damage(delta, 0.5)
    with pytest.raises(CorruptFile) as found:
        local.restart(elsewhere=True)
    assert found.value.path.endswith(delta.name)


def the_restored_rows_go_to_the_store_in_portions_before_a_base(local: Local, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keyed_state, "_PORTION", 50 << 10)
    local.restart(elsewhere=True)
    monkeypatch.setattr(upkeep, "due", lambda handles, *_: Base())
    before, left = local.base(), [local.state.restored_memory()]
    while left[-1] > 50 << 10:
        local.checkpoint()
        left.append(local.state.restored_memory())
        assert left[-2] - (200 << 10) < left[-1] < left[-2]
        assert local.base() == before
    assert len(left) > 3
    local.checkpoint()
    local.checkpoint()
    assert local.base() != before
    local.restart(elsewhere=True)
    local.check()


KILLS: list[tuple[object, str, bool]] = [
    (sst, "link_raw", True),
    (rocksdb, "fetch", True),
    (rocksdb, "clip_store", True),
    (RocksDBStore, "set_meta", False),
    (RocksDBStore, "set_meta", True),
    (RowTable, "set_aside", True),
    (RowTable, "store_restored", True),
    (LinkedFiles, "begin", False),
    (LinkedFiles, "begin", True),
]


@pytest.mark.parametrize("kill", range(len(KILLS)))
def a_kill_amid_the_restore_is_made_up_for(local: Local, kill: int):
    local.close()
    local.directory = local.root / "host-2"
    before = content(local.base())
    spawn = multiprocessing.get_context("forkserver")  # a forked process has none of RocksDB's threads
    spawn.set_forkserver_preload([__name__])
    child = spawn.Process(target=_die, args=(local.root, local.directory, local.checkpoints, kill))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    local.open(len(local.checkpoints) - 1)
    local.check()
    local.checkpoint()
    local.verified()
    local.checkpoint()
    assert content(local.base()) == before


def _die(root: Path, directory: Path, checkpoints: list[Any], kill: int) -> None:
    backend = Local(root)
    backend.close()
    backend.directory, backend.checkpoints, backend.epoch = directory, checkpoints, 100
    owner, function, after = KILLS[kill]
    setattr(owner, function, _killing(getattr(owner, function), after))
    keyed_state._PORTION = 50 << 10
    upkeep.due = lambda handles, *_: Base()
    backend.open(len(checkpoints) - 1)
    for _ in range(3):
        backend.checkpoint()


def a_slot_that_lost_its_directory_writes_into_no_file_of_its_successor(local: Local, monkeypatch: pytest.MonkeyPatch):
    """The directory is deleted, with its lock, while a slot of an older driver has its store open."""
    local.close()
    spawn = multiprocessing.get_context("forkserver")
    spawn.set_forkserver_preload([__name__])
    has_opened, may_go_on = spawn.Event(), spawn.Event()
    child = spawn.Process(target=_go_on, args=(local.root, local.directory, local.checkpoints, has_opened, may_go_on))
    child.start()
    has_opened.wait()
    shutil.rmtree(local.directory)
    local.open(len(local.checkpoints) - 1)
    local.write(range(0, KEYS, 3), 1)
    local.write(range(3, KEYS, 6), 2)
    local.store_base(monkeypatch)
    before = content(local.base())
    may_go_on.set()
    child.join()
    assert child.exitcode == 0
    assert content(local.base()) == before
    local.restart()
    local.check()
    local.restart(elsewhere=True)
    local.check()


def _go_on(root: Path, directory: Path, checkpoints: list[Any], has_opened: Event, may_go_on: Event) -> None:
    backend = Local(root)
    backend.close()
    backend.directory, backend.checkpoints = directory, checkpoints
    backend.open(len(checkpoints) - 1)
    store = backend.backend._local.store  # type: ignore[attr-defined]
    has_opened.set()
    may_go_on.wait()
    with suppress(OSError):  # the store finds that its directory is gone
        for _ in range(10):
            backend.write(range(KEYS), 9)
            backend.state.flush()
            store.flush()


def _killing(call: Callable[..., object], after: bool) -> Callable[..., object]:
    def killing(*args: object, **kwargs: object) -> None:
        if after:
            call(*args, **kwargs)
        time.sleep(0.02)  # some of what runs in threads gets done
        os.kill(os.getpid(), signal.SIGKILL)

    return killing
