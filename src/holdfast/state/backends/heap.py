"""The heap backend: rows stay in memory; a materialisation is a dump of all rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from holdfast.checkpoint.handles import Handle, RawFile
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.checkpoint.stores.storage import Storage
from holdfast.state.backends.backend import HEAP, Place, StateBackendSettings, clip
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.snapshots.sst import copy_base, slicing
from holdfast.state.store.ordered import OrderedStore, SortedMemory
from holdfast.state.stored.delta import write_delta
from holdfast.state.stored.schema import OperatorSchema

__all__ = ["HeapDump", "HeapStore"]


class HeapStore:
    """The heap backend's local store: the state's own memory."""

    reused = False
    complete = False
    migrated = ""

    def __init__(self, place: Place, settings: StateBackendSettings) -> None:
        self._place = place
        self._settings = settings

    def open(self, handles: Sequence[KeyedHandle], schema: OperatorSchema | None) -> KeyedState:
        """Open the state; content of RocksDB bases is read into memory."""
        place, memory = self._place, SortedMemory()
        self._copy_bases(handles, schema, memory)
        state = KeyedState(place.where, schema, memory, place.max_parallelism)
        state.hold_all()
        return state

    def _copy_bases(self, handles: Sequence[KeyedHandle], schema: OperatorSchema | None, into: OrderedStore) -> None:
        """Copy the content of RocksDB bases into a store."""
        place, sliced = self._place, slicing(schema)
        for handle in handles:
            if any(isinstance(each, RawFile) for each in handle.base):
                os.makedirs(place.directory, exist_ok=True)
                groups = clip(handle, place.groups)
                copy_base(place.storage, handle, place.directory, groups, sliced, self._settings.rocksdb, into, place.where)

    def missing(self, deltas: Sequence[Handle]) -> Sequence[Handle]:
        """All deltas: memory does not outlive the process."""
        return deltas

    def follow(self, handles: Sequence[KeyedHandle]) -> None:
        """Do nothing: memory does not outlive the process."""

    def flushed_ahead(self) -> bool:
        """True: there is nothing to flush."""
        return True

    def adopt(self, handles: Sequence[KeyedHandle]) -> None:
        """Do nothing: memory does not outlive the process."""

    def flushing(self, state: KeyedState, handles: Sequence[KeyedHandle]) -> Iterator[None]:
        """Do nothing: memory does not outlive the process, and a base reads the rows from memory."""
        return iter(())

    def completed(self, handles: Sequence[KeyedHandle], *, incomplete: bool) -> None:
        """Do nothing: nothing runs in the background."""

    def check(self) -> None:
        """Do nothing: everything has been read."""

    def bound(self, state: KeyedState, *, restoring: bool = False) -> None:
        """Do nothing: all rows stay in memory."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class HeapDump:
    """The heap backend's materialisations."""

    kind = HEAP
    linked = False

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def begin(
        self, state: KeyedState, new_path: Callable[[str], str], ended: Callable[[], bool]
    ) -> Callable[[], list[Handle]]:
        """Encode the state now; the returned function stores it in the background."""
        dump = list(state.dump())
        return lambda: [write_delta(self._storage, new_path("dump"), dump)]
