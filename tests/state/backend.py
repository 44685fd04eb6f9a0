"""One subtask's keyed state with its files, as a task drives it: epochs, checkpoints, restarts on this host or another."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.checkpoint.paths import JobPaths, new_attempt
from holdfast.checkpoint.stores.storage import Storage
from holdfast.runtime.time.clock import Clock
from holdfast.state.backends.backend import INLINE_THRESHOLD, Place, StateBackendSettings
from holdfast.state.backends.keyed_backend import KeyedStateBackend
from holdfast.state.cells.large_values import LargeValue
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.rows.space import StateSpace
from holdfast.state.stored.schema import OperatorSchema
from holdfast.testing.memory_store import MemoryStore
from inline_uploads import Inline

SMALL = {
    "state.backend.rocksdb.writebuffer.size": "64kb",
    "state.backend.rocksdb.block.cache-size": "64kb",
    "state.backend.rocksdb.log.max-file-size": "64kb",
    INLINE_THRESHOLD: "200b",
}


def cell_content(cell: Any, key: Any) -> Any:
    """The content of a cell of a key's row, wherever its value is."""
    return cell.of(key) if type(cell) is LargeValue else cell


class Backend:
    """The state of one operator, and the checkpoints made of it."""

    def __init__(self, kind: str, states: Sequence[Any], directory: Path | str | None = None, **config: str) -> None:
        self.objects = MemoryStore()
        self.storage = Storage(self.objects)
        self.kind = kind
        self.config = {**SMALL, **config}
        self.groups = KeyGroupRange(0, 127)
        self.states = states
        self.root = Path(directory or tempfile.mkdtemp())
        if directory is None:
            weakref.finalize(self, shutil.rmtree, self.root, ignore_errors=True)
        self.directory = self.root / "host-0"
        self.hosts = 1
        self.epoch = 0
        self.clock = Clock()
        self.checkpoints: list[tuple[list[KeyedHandle], OperatorSchema | None]] = [([], None)]
        self.open(0)

    def open(self, number: int) -> None:
        """Start from the checkpoint with this number; 0: from nothing."""
        self.begin(*self.checkpoints[number])

    def begin(self, handles: Sequence[KeyedHandle], schema: OperatorSchema | None) -> None:
        """Start from these handles."""
        settings = StateBackendSettings.of({"state.backend.type": self.kind, **self.config})
        place = Place("'op' (uid 'op')", self.groups, 128, self.storage, str(self.directory))
        self.backend = KeyedStateBackend(place, settings, Inline())  # type: ignore[arg-type]
        self.state: KeyedState = self.backend.open(handles, schema)
        self.declare()
        self.backend.replay()

    def declare(self) -> None:
        """What an operator does when it is opened: declare its states."""
        self.spaces = {False: self.state.space("keyed"), True: self.state.space("window")}
        self.spaces[False].expire_by(self.clock, self.state.timer_queue("ttl"))
        self.spaces[True].expire_by(self.clock, None)
        self._handles = {
            sliced: {each.name: space._handle(each, each.kind) for each in self.states}
            for sliced, space in self.spaces.items()
        }
        self.go_to(None)

    def go_to(self, namespace: int | None) -> StateSpace:
        """Make the states of all keys, or those of windows, current."""
        self.space = self.spaces[namespace is not None]
        self.handles = self._handles[namespace is not None]
        return self.space

    def close(self) -> None:
        self.backend.close()

    def restart(self, number: int | None = None, *, elsewhere: bool = False, kind: str = "") -> None:
        """Forget what was not committed, go on from a checkpoint: the last, or an earlier one for good."""
        self.close()
        self.kind = kind or self.kind
        if number is not None:
            del self.checkpoints[number + 1 :]
        if elsewhere:
            self.hosts += 1
            self.directory = self.root / f"host-{self.hosts - 1}"
        self.open(len(self.checkpoints) - 1)

    def kill(self) -> None:
        """Die without closing and go on from the last checkpoint: of the store, only what is in its files is left."""
        left = self.root / "left"
        while not _copied(self.directory, left):
            shutil.rmtree(left)  # RocksDB's threads are at work
        self.close()
        shutil.rmtree(self.directory)
        left.rename(self.directory)
        self.open(len(self.checkpoints) - 1)

    def flushed(self) -> None:
        """Wait until RocksDB has written the buffers that it flushes in its own threads."""
        store = self.backend._local.store._db  # type: ignore[attr-defined]
        while any(store.property_int_value(f"rocksdb.{it}") for it in ("mem-table-flush-pending", "num-running-flushes")):
            time.sleep(0.001)

    def use(self, key: Any, namespace: int | None = None) -> None:
        """Make a key current."""
        table = self.go_to(namespace).table(namespace)
        table.load([key])
        self.space.row, self.space.key, self.space.namespace = table.rows[key], key, namespace

    def checkpoint(self, *, commit: bool = True) -> list[KeyedHandle]:
        """End the epoch; ``commit``: and let the next one begin."""
        self.epoch += 1
        handles = self.backend.snapshot(self._new_path)
        self.checkpoints.append((handles, self.state.schema))
        if commit:
            self.backend.completed(handles, self.epoch, self._new_path)
        return handles

    def begin_base(self) -> None:
        """End epochs until a base begins, which is due; it is in the next checkpoint."""
        while self.backend.uploading is None:
            self.checkpoint()

    def _new_path(self, kind: str) -> str:
        return JobPaths.of("job").state_file(1, self.epoch, "op", 0, new_attempt(), kind)


def _copied(directory: Path, to: Path) -> bool:
    """Copy a directory; returns whether it stayed the same meanwhile, so that the copy is what a killed process leaves."""
    before = _files(directory)
    try:
        shutil.copytree(directory, to)
    except (FileNotFoundError, shutil.Error):
        return False
    return _files(directory) == before


def _files(directory: Path) -> dict[Path, tuple[int, int]]:
    """The size and time of change of each file."""
    found = {}
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            stat = path.stat()
            found[path] = stat.st_size, stat.st_mtime_ns
    return found
