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
    HEAP,
    PART,
    ROCKSDB,
    LocalStore,
    Materialisation,
    Place,
    StateBackendSettings,
    clip,
    size_of,
)
from holdfast.state.backends.compaction import Base, Merge, due, part_of
from holdfast.state.backends.delta_merge import DeltaMerge, merged
from holdfast.state.backends.heap import HeapDump, HeapStore
from holdfast.state.backends.part_store import PartStore
from holdfast.state.backends.rocksdb import RocksDBFiles, RocksDBLocalStore
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.rows.lazy_deltas import LazyDeltas, LazyRows
from holdfast.state.stored.delta import Change
from holdfast.state.stored.delta_files import DeltaFiles
from holdfast.state.stored.schema import OperatorSchema

__all__ = ["KeyedStateBackend", "NewPath"]

log = logging.getLogger(__name__)

_MOST_FAILURES = 192
"""The job fails after this many failed attempts in a row to store a base, because each further delta lengthens recovery."""
_SETTLED = 128 << 20
"""Approximate limit of the deltas, in bytes, that a restart on the same host reads."""
_CHANGED = 2 << 30
"""Approximate limit of the memory of their rows, in bytes. Small rows make small deltas, but a million of them take half a
second to apply."""
_READ_AHEAD = 32 << 20
"""Largest delta, in bytes, to read ahead while others are applied."""
_PAUSE = 3
"""Pause of a merge for each second of its work, in seconds: it shares the interpreter with the epochs."""
_SMALL = 2 << 20
"""`_MANY` deltas up to this size, in bytes, are read ahead, and `_FEW` larger ones."""
_MANY, _FEW = 16, 4
_UPLOAD_PATIENCE = 10.0
"""Seconds to wait for a running upload on close."""

NewPath = Callable[[str], str]
"""Returns a unique storage path for a kind of file."""
_Changes = tuple[Change, Sequence[LazyRows]]
"""The changes of a section, and those whose rows are fetched later."""
_Parts = tuple[LocalStore, DeltaFiles, Materialisation]


def _heap(place: Place, settings: StateBackendSettings) -> _Parts:
    return HeapStore(place, settings), DeltaFiles(place.storage, settings.inline_bytes), HeapDump(place.storage)


def _rocksdb(place: Place, settings: StateBackendSettings) -> _Parts:
    local = RocksDBLocalStore(place, settings)
    return local, DeltaFiles(place.storage, settings.inline_bytes), RocksDBFiles(place.storage, local, place, settings)


def _part(place: Place, settings: StateBackendSettings) -> _Parts:
    return PartStore(place, settings), DeltaFiles(place.storage, settings.inline_bytes), HeapDump(place.storage)


_BACKENDS: dict[str, Callable[[Place, StateBackendSettings], _Parts]] = {HEAP: _heap, ROCKSDB: _rocksdb, PART: _part}


class KeyedStateBackend:
    """The keyed state of one subtask of an operator: local store, deltas and bases."""

    def __init__(self, place: Place, settings: StateBackendSettings, uploads: ThreadPoolExecutor) -> None:
        self._place = place
        self._uploads = uploads
        self._kept_inline = settings.kept_inline_bytes
        self._local, self._deltas, self._bases = _BACKENDS[settings.kind](place, settings)
        self._stored: list[KeyedHandle] = []
        self._pending: Future[list[Handle]] | None = None
        self._begun: tuple[Epoch, Base | Merge, int] = Epoch(0), Base(), 0
        """The epoch in which the pending base or merge began, which of the two, and how many deltas a base covers."""
        self._flushing: tuple[Iterator[None], list[Handle]] | None = None
        """The running flush, and the last delta whose rows the local store will have after it."""
        self._failures = 0
        self._changed = 0.0
        """Estimated memory of the rows loaded in each epoch since the last flush, in bytes."""
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
        """The epoch in the file names of the running upload; None: no upload is running."""
        return None if self._pending is None else self._begun[0]

    # restoring

    def open(self, handles: Sequence[KeyedHandle], schema: OperatorSchema | None) -> KeyedState:
        """Restore the part of the state held by the local store and bases of RocksDB; `replay` restores the rest.

        Args:
            handles: The checkpoint's handles for the subtask's key groups; several after a change of parallelism.
            schema: The schema of all of them.

        Raises:
            CorruptFile: a file of the checkpoint is missing or altered.
        """
        groups = self._place.groups
        self._stored = list(handles)
        self.state = self._local.open(handles, schema)
        if len(handles) != 1 or (handles[0].first, handles[0].last) != (groups.first, groups.last):
            self._stored.append(KeyedHandle(groups.first, groups.last))
        return self.state

    def replay(self) -> None:
        """Apply the checkpoint's dumps and deltas to the opened state. The operator has declared its states by now.

        Raises:
            CorruptFile: a file of the checkpoint is missing or altered.
        """
        if self._local.complete:
            return
        for handle in self._stored:
            groups = clip(handle, self._place.groups)
            # A later handle may have newer rows than the deltas of an earlier one.
            deltas = self._local.missing(handle.deltas) if len(self._stored) == 1 else handle.deltas
            if len(deltas) == len(handle.deltas):  # else the store holds the rows of the base, or newer ones
                for dump in handle.base:
                    if isinstance(dump, IndexedFile):
                        self._apply(self._read(groups, None, dump), groups)
            lazy = self._local.lazy_deltas(deltas)
            small = lazy is not None or all(size_of(delta) <= _SMALL for delta in deltas)
            for changes in in_parallel(partial(self._read, groups, lazy), deltas, _MANY if small else _FEW):
                self._apply(changes, groups)
        self.state.applied()
        self._local.begin_fetching()
        self._changed = self.state.restored_memory()

    def _read(self, groups: KeyGroupRange, lazy: LazyDeltas | None, delta: Handle) -> Iterable[_Changes]:
        """The changes of a delta: read and verified, unless it is mapped or lazy."""
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
        if self._local.changelog is not None:
            self._local.changelog.begin(self.state, epoch, committed)

    def snapshot(self, new_path: NewPath) -> list[KeyedHandle]:
        """Append the epoch's changes to the delta log; returns the state's handles for the checkpoint.

        Raises:
            CorruptFile: a file of the restored checkpoint is altered.
        """
        self._local.check()
        adopted = self._adopt()
        *others, own = self._stored
        changes = self.state.collect()
        if self._local.changelog is not None:
            self._local.changelog.append(self.state, changes)
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
        """Prepare the changelog's transaction; returns its committables. ``handles``: those of the snapshot."""
        changelog = self._local.changelog
        return [] if changelog is None else changelog.prepare(self.state, handles)

    def completed(self, handles: list[KeyedHandle], epoch: Epoch, new_path: NewPath) -> None:
        """Complete the epoch of these ``handles``: checkpointed rows may enter the store; a base or a merge may begin."""
        self._stored = handles
        self._local.follow(handles)
        self._local.completed()
        if self._local.changelog is not None:
            self._local.changelog.completed()
        self.state.completed()
        self.bound()
        self._changed += self.state.touched_memory
        if self._local.fetching:  # retention must keep its files, and RocksDB cannot copy them yet
            return
        epochs = epoch - handles[-1].base_epoch
        wanted = due(handles, self._bases.linked, epochs, self._kept_inline) if self._pending is None else None
        if wanted is not None and self._failures:  # a base needs no delta, which may be damaged
            wanted = Base()
        if self._flushing is None and self._flush_is_due(handles, wanted):
            self._flushing = self._local.flushing(self.state, handles), handles[-1].deltas[-1:]
            self._changed = 0.0
        last: list[Handle] = []
        if self._flushing is not None:
            steps, last = self._flushing
            if next(steps, self) is self:
                self._flushing = None
            elif (wanted := self._meanwhile(wanted, self._covered(handles, last))) is None:
                return
        if wanted is not None or self._migration is not None:
            self._migrate()
        if wanted is not None:
            self._begun = epoch, wanted, self._covered(handles, last)
            job = self._merge(wanted, new_path) if isinstance(wanted, Merge) else self._base(new_path)
            self._pending = self._uploads.submit(job)

    def _flush_is_due(self, handles: list[KeyedHandle], wanted: Base | Merge | None) -> bool:
        """Whether to flush all checkpointed rows: because ``wanted`` needs it, or because the store lacks many."""
        if isinstance(wanted, Base) or (wanted is not None and self.state.restored_memory()):
            return True  # a restored row may lie in a file, which stays only while checkpoints refer to it
        if len(handles) > 1:
            return False
        return self._changed > _CHANGED or sum(map(size_of, self._local.missing(handles[0].deltas))) > _SETTLED

    def _covered(self, handles: list[KeyedHandle], last: list[Handle]) -> int:
        """The number of the subtask's deltas up to the ``last`` one that the store has, if any."""
        deltas = handles[-1].deltas
        return deltas.index(last[0]) + 1 if last and last[0] in deltas else 0

    def _meanwhile(self, wanted: Base | Merge | None, flushed: int) -> Merge | None:
        """What may begin before the flush up to this delta has ended: a merge of later ones, which leaves it in place."""
        return part_of(wanted, flushed) if isinstance(wanted, Merge) and not self.state.restored_memory() else None

    def _base(self, new_path: NewPath) -> Callable[[], list[Handle]]:
        """Begin a base of the checkpointed state; the returned function stores it."""
        return self._bases.begin(self.state, new_path, self._ended.is_set)

    def _merge(self, which: Merge, new_path: NewPath) -> Callable[[], list[Handle]]:
        """Begin to merge deltas; the returned function reads them, and stores the merged ones."""
        groups = clip(self._stored[-1], self._place.groups)
        deltas = self._stored[-1].deltas[which.first : which.end]
        kinds = {state.id: state.kind for state in self.state.schema.states.values()}

        def run() -> list[Handle]:
            throttle = _Throttle(self._ended)
            return merged(self._deltas, deltas, lambda: DeltaMerge(kinds, groups), lambda: new_path("delta"), throttle.pause)

        return run

    def _migrate(self) -> None:
        """Rewrite some of the local store's rows of former types; a base can begin before all are rewritten."""
        evolved = self.state.schema.evolved
        if self._migration is None:
            if self._local.migrated == evolved:
                return
            self._migration = self.state.migration()
        if next(self._migration, self) is self:
            self._migration = None
            self._local.migrated = evolved
            self._local.follow(self._stored)

    def _adopt(self) -> bool:
        """Replace deltas by the base or the merged delta that is finished; returns whether there was one."""
        if self._pending is None or not self._pending.done() or not self._local.flushed_ahead():
            return False
        pending, self._pending = self._pending, None
        own = self._stored[-1]
        epoch, what, covered = self._begun
        try:
            stored = pending.result()
        except Exception as error:
            self._failures += 1
            if self._failures >= _MOST_FAILURES:
                raise
            kind = "merged deltas" if isinstance(what, Merge) else "a new base"
            log.warning("storing %s of the state of %s failed, will retry: %s", kind, self._place.where, error)
            return False
        self._failures = 0
        if isinstance(what, Merge):
            deltas = [*own.deltas[: what.first], *stored, *own.deltas[what.end :]]
            self._stored = [msgspec.structs.replace(own, deltas=deltas)]
        else:
            deltas = own.deltas[covered:]
            self._stored = [
                msgspec.structs.replace(own, base_epoch=epoch, base=stored, kind=self._bases.kind, deltas=deltas)
            ]
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
    """Slows a background thread down to leave the interpreter to the epochs."""

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
