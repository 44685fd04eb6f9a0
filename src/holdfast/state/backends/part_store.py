"""PartStore: the local store for state that is read once, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.state.backends.heap import HeapStore
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.store.spilling import SpillingStore
from holdfast.state.stored.schema import OperatorSchema
from holdfast.state.timers.timers import TIMER_BYTES

__all__ = ["PartStore"]


class PartStore(HeapStore):
    """Holds encoded rows in memory, and on disk beyond the budget.

    Read them by `holdfast.state.rows.table.RowTable.blocks`, or by `holdfast.state.backends.portions`.
    """

    def open(self, handles: Sequence[KeyedHandle], schema: OperatorSchema | None) -> KeyedState:
        """Open the state; the content of RocksDB bases is copied into it."""
        place, budget = self._place, self._settings.cache_bytes
        self._store = SpillingStore(place.directory, self._settings.rocksdb, budget // 2)
        try:
            self._copy_bases(handles, schema, self._store)
            return KeyedState(place.where, schema, self._store, place.max_parallelism, budget // (4 * TIMER_BYTES))
        except BaseException:
            self._store.close()
            raise

    def bound(self, state: KeyedState, *, restoring: bool = False) -> None:
        """Move rows to disk if they exceed the memory budget."""
        used, budget = state.memory(), self._settings.cache_bytes
        if used <= budget:
            return
        self._store.spill()
        if state.restored_memory():
            state.store_restored(used - budget / 2)
        else:
            state.evict(used - budget / 2)

    def close(self) -> None:
        """Close the store, and delete its files."""
        self._store.close()
