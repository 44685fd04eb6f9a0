"""KeyedStateBackend: restores, writes and bounds the keyed state of one subtask of an operator.

Every epoch appends its changes to the delta log. From time to time, in the background, small deltas are merged, or a
materialisation writes a new base (`holdfast.state.backends.compaction`), so a restore reads the bases and a bounded amount
of deltas.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from functools import partial
from threading import Event
from typing import Any

import msgspec

from holdfast.checkpoint.handles import Handle, IndexedFile
from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.checkpoint.stores.in_parallel import in_parallel
from holdfast.state.backends.backend import (
    PART,
    ROCKSDB,
    LocalStore,
    Materialisation,
    Place,
    StateBackendSettings,
    clip,
    size_of,
)
from holdfast.state.backends.compaction import Merge
from holdfast.state.backends.delta_merge import DeltaMerge, merged
from holdfast.state.backends.heap import HeapDump, HeapStore
from holdfast.state.backends.part_store import PartStore
from holdfast.state.backends.rocksdb import RocksDBFiles, RocksDBLocalStore
from holdfast.state.backends.upkeep import Checkpoint, Flush, Migrate, Store, Upkeep
from holdfast.state.changelogs.keyed_changelog import KeyedChangelog
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.rows.lazy_deltas import LazyDeltas, LazyRows
from holdfast.state.snapshots.lazy_restore import LazyRestore
from holdfast.state.stored.damage import naming
from holdfast.state.stored.delta import Change
from holdfast.state.stored.delta_files import DeltaFiles
from holdfast.state.stored.schema import OperatorSchema

__all__ = ["KeyedStateBackend", "NewPath"]

log = logging.getLogger(__name__)

_READ_AHEAD = 32 << 20
"""Largest delta, in bytes, that is read ahead while others are applied."""
_PAUSE = 3
"""Seconds that a merge pauses for each second it works: it shares the interpreter with the epochs."""
_SMALL = 2 << 20
"""Up to `_MANY` deltas of this size, in bytes, are read ahead, but only `_FEW` larger ones."""
_MANY, _FEW = 16, 4
_UPLOAD_PATIENCE = 10.0
"""Seconds to wait for a running upload on close."""

NewPath = Callable[[str], str]
"""Returns a unique storage path for a kind of file."""
_Changes = tuple[Change, Sequence[LazyRows]]
"""The changes of a section, and those whose rows are fetched lazily."""


class KeyedStateBackend:
    """The keyed state of one subtask of an operator: local store, deltas and bases, and its changelog, if it has one."""

    _local: LocalStore
    _bases: Materialisation

    def __init__(self, place: Place, settings: StateBackendSettings, uploads: ThreadPoolExecutor) -> None:
        self._place = place
        self._uploads = uploads
        self._deltas = DeltaFiles(place.storage, settings.inline_bytes)
        self._lazy_restore = LazyRestore()
        self._changelog = None
        if (changelog := place.changelog) is not None:
            self._changelog = KeyedChangelog(changelog, place.where, place.groups, place.max_parallelism, place.uncommitted)
        if settings.kind == ROCKSDB:
            self._local = local = RocksDBLocalStore(place, settings, self._lazy_restore, self._changelog)
            self._bases = RocksDBFiles(place.storage, local, place, settings)
        else:
            self._local = PartStore(place, settings) if settings.kind == PART else HeapStore(place, settings)
            self._bases = HeapDump(place.storage)
        self._upkeep = Upkeep(settings.kept_inline_bytes, self._bases.kind)
        self._pending: Future[list[Handle]] | None = None
        """The base or merge being stored."""
        self._flush: Iterator[None] | None = None
        """The running flush."""
        self._migration: Iterator[None] | None = None
        self._ended = Event()
        self.written = 0
        """Size of the last delta, in bytes."""

    @property
    def reused(self) -> bool:
        """Whether the last restore could reuse the store left on this host."""
        return self._local.reused

    @property
    def uploading(self) -> Epoch | None:
        """The epoch in the file names of the running upload; None without one."""
        return None if self._upkeep.storing is None else self._upkeep.storing.epoch

    # restoring

    def open(self, handles: Sequence[KeyedHandle], schema: OperatorSchema | None) -> KeyedState:
        """Open the part of the state that the local store and RocksDB bases hold; `replay` restores the rest.

        Args:
            handles: The checkpoint's handles for the subtask's key groups; several after a change of parallelism.
            schema: The schema of all of them.

        Raises:
            CorruptFile: a file of the checkpoint is missing or altered.
        """
        self.state = self._local.open(handles, schema)
        self._upkeep.restore(handles, self._place.groups.first, self._place.groups.last)
        return self.state

    def replay(self) -> None:
        """Apply the checkpoint's dumps and deltas to the opened state, once the operator has declared its states.

        Raises:
            CorruptFile: a file of the checkpoint is missing or altered.
        """
        if self._local.complete:
            return
        handles = self._upkeep.handles
        for handle in handles:
            groups = clip(handle, self._place.groups)
            # A later handle may have newer rows than the deltas of an earlier one.
            deltas = self._local.missing(handle.deltas) if len(handles) == 1 else handle.deltas
            if len(deltas) == len(handle.deltas):  # else the store holds the rows of the base, or newer ones
                for dump in handle.base:
                    if isinstance(dump, IndexedFile):
                        self._apply(self._read(groups, None, dump), groups)
            lazy = self._lazy_deltas(deltas)
            small = lazy is not None or all(size_of(delta) <= _SMALL for delta in deltas)
            for changes in in_parallel(partial(self._read, groups, lazy), deltas, _MANY if small else _FEW):
                self._apply(changes, groups)
        self.state.applied()
        self._lazy_restore.begin()
        self._upkeep.replayed(self.state.restored_memory())

    def _lazy_deltas(self, deltas: Sequence[Handle]) -> LazyDeltas | None:
        if self._bases.kind != ROCKSDB:  # rows in memory are decoded
            return None
        place = self._place
        named = naming(place.where, lambda: self.state.schema)
        return LazyDeltas.of(deltas, place.storage, place.directory, self._lazy_restore, named)

    def _read(self, groups: KeyGroupRange, lazy: LazyDeltas | None, delta: Handle) -> Iterable[_Changes]:
        """The changes of a delta, which is read and verified unless it is mapped or lazy."""
        if lazy is not None and isinstance(delta, IndexedFile) and delta.path in lazy:
            return lazy.read(delta.path, groups, self.state.sets_aside)
        changes = ((change, ()) for change in self._deltas.replay(delta, groups))
        return list(changes) if size_of(delta) <= _READ_AHEAD else changes

    def _apply(self, changes: Iterable[_Changes], groups: KeyGroupRange) -> None:
        for change, late in changes:
            self.state.apply(change, groups)
            if late:
                self.state.set_aside(change.section, late)
            self._local.bound(self.state, restoring=True)

    # writing

    def begin_epoch(self, epoch: Epoch, committed: CheckpointId) -> None:
        """Begin an epoch. ``committed``: the last checkpoint whose output is committed."""
        if self._changelog is not None:
            self._changelog.begin(self.state, epoch, committed)

    def snapshot(self, new_path: NewPath) -> list[KeyedHandle]:
        """Append the epoch's changes to the delta log; returns the state's handles for the checkpoint.

        Raises:
            CorruptFile: a file of the restored checkpoint is altered.
        """
        self._local.check()
        adopted = self._adopt()
        *others, own = self._upkeep.handles
        changes = self.state.collect()
        if self._changelog is not None:
            self._changelog.append(self.state, changes)
        self.written = 0
        deltas = own.deltas
        if changes:
            delta = self._deltas.append(changes, new_path("delta"))
            self.written = size_of(delta)
            deltas = [*deltas, delta]
        handles = [*others, msgspec.structs.replace(own, deltas=deltas, schema=self.state.schema.fingerprint)]
        if adopted:
            self._local.adopt(handles)
        return handles

    def prepare_commit(self, handles: Sequence[KeyedHandle]) -> list[Any]:
        """Prepare the changelog's transaction; returns its committables. ``handles``: the snapshot's."""
        return [] if self._changelog is None else self._changelog.prepare(self.state, handles)

    def completed(self, handles: list[KeyedHandle], epoch: Epoch, new_path: NewPath) -> None:
        """The epoch's checkpoint (``handles``) is complete: its rows may enter the store; a base or a merge may begin."""
        incomplete = self._lazy_restore.incomplete
        self._local.completed(handles, incomplete=incomplete)
        if self._changelog is not None:
            self._changelog.completed()
        self.state.completed()
        self.bound()
        step = self._upkeep.completed(self._checkpoint(handles, epoch, incomplete))
        while step is not None:
            step = self._carry_out(step, handles, new_path)

    def _checkpoint(self, handles: list[KeyedHandle], epoch: Epoch, incomplete: bool) -> Checkpoint:
        if incomplete:
            return Checkpoint(epoch, handles, fetching=True, changed=self.state.touched_memory)
        return Checkpoint(
            epoch,
            handles,
            linked=self._bases.linked,
            restored=bool(self.state.restored_memory()),
            changed=self.state.touched_memory,
            lacking=sum(map(size_of, self._local.missing(handles[-1].deltas))),
            outdated=self._local.migrated != self.state.schema.evolved,
        )

    def _carry_out(
        self, step: Flush | Migrate | Store, handles: list[KeyedHandle], new_path: NewPath
    ) -> Migrate | Store | None:
        match step:
            case Flush():
                if self._flush is None:
                    self._flush = self._local.flushing(self.state, handles)
                if done := next(self._flush, self) is self:
                    self._flush = None
                return self._upkeep.flushed(done)
            case Migrate():
                return self._upkeep.migrated(self._migrate(handles))
            case Store(what=Merge() as which):
                self._pending = self._uploads.submit(self._merge(which, handles[-1], new_path))
            case Store():
                self._pending = self._uploads.submit(self._bases.begin(self.state, new_path, self._ended.is_set))
        return None

    def _merge(self, which: Merge, own: KeyedHandle, new_path: NewPath) -> Callable[[], list[Handle]]:
        """Prepare a merge of deltas; the returned function runs it in the background."""
        groups, deltas = clip(own, self._place.groups), own.deltas[which.first : which.end]
        kinds = {state.id: state.kind for state in self.state.schema.states.values()}

        def run() -> list[Handle]:
            throttle = _Throttle(self._ended)
            return merged(self._deltas, deltas, lambda: DeltaMerge(kinds, groups), lambda: new_path("delta"), throttle.pause)

        return run

    def _migrate(self, handles: list[KeyedHandle]) -> bool:
        """Rewrite some of the local store's rows that have former types; returns whether all are done."""
        if self._migration is None:
            self._migration = self.state.migration()
        if next(self._migration, self) is not self:
            return False
        self._migration = None
        self._local.migrated = self.state.schema.evolved
        self._local.follow(handles)
        return True

    def _adopt(self) -> bool:
        """Put a finished base or merged delta in its place; returns whether there was one."""
        if self._pending is None or not self._pending.done() or not self._local.flushed_ahead():
            return False
        pending, self._pending = self._pending, None
        what = self._upkeep.storing
        try:
            files = pending.result()
        except Exception as error:
            if self._upkeep.failed():
                raise
            kind = "merged deltas" if what is not None and isinstance(what.what, Merge) else "a new base"
            log.warning("storing %s of the state of %s failed, will retry: %s", kind, self._place.where, error)
            return False
        self._upkeep.stored(files)
        return True

    def bound(self) -> None:
        """Evict rows until memory is within the budget."""
        self._local.bound(self.state)

    def close(self) -> None:
        """Close the local store; its files stay for this host's next process."""
        self._ended.set()
        if self._pending is not None:
            self._pending.cancel()
            wait([self._pending], _UPLOAD_PATIENCE)
            self._pending = None
        self._local.close()


class _Throttle:
    """Slows a background thread down so that epochs get the interpreter."""

    def __init__(self, ended: Event) -> None:
        self._ended = ended
        self._worked = time.thread_time()

    def pause(self) -> None:
        """Pause in proportion to the processor time since the last pause.

        Raises:
            CancelledError: the subtask has ended.
        """
        if self._ended.wait(_PAUSE * (time.thread_time() - self._worked)):
            raise CancelledError("the subtask has ended")
        self._worked = time.thread_time()
