"""The heap backend: rows stay in memory; a materialisation is a dump of all rows."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence

from holdfast.checkpoint.handles import Handle, RawFile
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.checkpoint.storage import Storage
from holdfast.state.backend import HEAP, Place, StateBackendSettings, base_due, clip
from holdfast.state.delta import write_delta
from holdfast.state.keyed_state import KeyedState
from holdfast.state.ordered import SortedMemory
from holdfast.state.schema import OperatorSchema
from holdfast.state.sst import Sliced, fetch, rows_of, slicing
from holdfast.state.store import RocksDBStore

__all__ = ["HeapDump", "HeapStore"]

_BATCH = 10_000


class HeapStore:
    """The heap backend's local store: the state's own memory."""

    reused = False

    def __init__(self, place: Place, settings: StateBackendSettings) -> None:
        self._place = place
        self._settings = settings

    def open(self, handles: Sequence[KeyedHandle], schema: OperatorSchema | None) -> KeyedState:
        """Open the state; content of RocksDB bases is read into memory."""
        memory = SortedMemory()
        for handle in handles:
            if any(isinstance(each, RawFile) for each in handle.base):
                self._read(handle, slicing(schema), memory)
        state = KeyedState(self._place.where, schema, memory, self._place.max_parallelism)
        state.hold_all()
        return state

    def _read(self, handle: KeyedHandle, sliced: Sliced, memory: SortedMemory) -> None:
        """Copy a RocksDB base into memory, through a temporary store on disk."""
        os.makedirs(self._place.directory, exist_ok=True)
        path = tempfile.mkdtemp(prefix="base-", dir=self._place.directory)
        try:
            groups = clip(handle, self._place.groups)
            fetch(self._place.storage, handle, path, groups, sliced)
            store = RocksDBStore(path, self._settings.rocksdb)
            try:
                batch = []
                for row in rows_of(store, groups, sliced):
                    batch.append(row)
                    if len(batch) >= _BATCH:
                        memory.write(batch)
                        batch = []
                memory.write(batch)
            finally:
                store.close()
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def follow(self, handles: Sequence[KeyedHandle]) -> None:
        """Do nothing: memory does not outlive the process."""

    def bound(self, state: KeyedState) -> None:
        """Do nothing: all rows stay in memory."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class HeapDump:
    """The heap backend's materialisations."""

    kind = HEAP

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def due(self, handles: Sequence[KeyedHandle]) -> bool:
        """Whether there are too many deltas."""
        return base_due(handles)

    def begin(
        self, state: KeyedState, new_path: Callable[[str], str], ended: Callable[[], bool]
    ) -> Callable[[], list[Handle]]:
        """Encode the state now; the returned function stores it in the background."""
        dump = list(state.dump())
        return lambda: [write_delta(self._storage, new_path("dump"), dump)]
