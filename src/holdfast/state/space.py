"""A state space: the states that share rows and a namespace (per key, or per key and window)."""

from __future__ import annotations

import struct
from typing import Any, NoReturn

from holdfast.state.codec import Column, RowCodec, expires
from holdfast.state.handles import HANDLES
from holdfast.state.interfaces import KeyedStateStore
from holdfast.state.layout import after
from holdfast.state.registry import SchemaRegistry
from holdfast.state.schema import ROWS
from holdfast.state.store import RocksDBStore
from holdfast.state.table import RowTable, TableDelta
from holdfast.state.timers import TimerQueue
from holdfast.state.ttl import TTL_HANDLES, Expiry, HasProcessingTime
from holdfast.state.typed import typed

__all__ = ["StateSpace"]

_NAMESPACE = struct.Struct(">Q").pack


class _NoKey(list[Any]):
    """Stands for the row where no key is current."""

    def __getitem__(self, position: Any, value: Any = None) -> NoReturn:
        raise RuntimeError(
            "keyed state can be read and written only while an element or a timer of a key is processed (not in open())"
        )

    __setitem__ = __getitem__


NO_KEY: list[Any] = _NoKey()


class StateSpace(KeyedStateStore):
    """States that are read through one current row."""

    def __init__(self, name: str, slices: str, registry: SchemaRegistry, store: RocksDBStore | None) -> None:
        """``slices``: what namespaces are (see `holdfast.state.schema.StateSchema`)."""
        self.name = name
        self.where = registry.where
        self.store = store
        self._prefix = registry.state(name, ROWS, slices).id.to_bytes(2, "big")
        self.codec = RowCodec(registry, name)
        self.tables: dict[int | None, RowTable] = {}
        self._in_store: set[int | None] = set()
        self._store_is_newer = False
        self._dropped: list[int] = []
        self._dropped_from_store: list[int] = []
        self._handles: dict[str, Any] = {}
        self.row: list[Any] = NO_KEY
        self.expiry: Expiry | None = None

    # what user functions call

    def get_state(self, state_descriptor: Any) -> Any:
        """The handle of a ValueState."""
        return self._handle(state_descriptor, "value")

    def get_list_state(self, state_descriptor: Any) -> Any:
        """The handle of a ListState."""
        return self._handle(state_descriptor, "list")

    def get_map_state(self, state_descriptor: Any) -> Any:
        """The handle of a MapState."""
        return self._handle(state_descriptor, "map")

    def get_reducing_state(self, state_descriptor: Any) -> Any:
        """The handle of a ReducingState."""
        return self._handle(state_descriptor, "reducing")

    def get_aggregating_state(self, state_descriptor: Any) -> Any:
        """The handle of an AggregatingState."""
        return self._handle(state_descriptor, "aggregating")

    def _handle(self, descriptor: Any, kind: str) -> Any:
        if getattr(descriptor, "kind", None) != kind:
            raise TypeError(
                f"state {getattr(descriptor, 'name', descriptor)!r} of {self.where}: a {kind} state needs a "
                f"{kind.capitalize()}StateDescriptor, not {type(descriptor).__name__}"
            )
        position = self.register(Column.of(descriptor))
        known = self._handles.get(descriptor.name)
        if known is None:
            kinds = TTL_HANDLES if expires(descriptor) else HANDLES
            known = self._handles[descriptor.name] = typed(kinds[kind], descriptor)(self, position, descriptor)
        return known

    def register(self, column: Column) -> int:
        """The position of a column, new or known."""
        known = {i for i, declared in enumerate(self.codec.columns) if declared is not None}
        width = self.codec.width
        position = self.codec.register(column)
        if self.codec.width != width:
            for table in self.tables.values():
                table.resize()
        elif position not in known:  # rows restored before the state was declared still have its stored form
            for table in self.tables.values():
                for row in table.rows.values():
                    if row[position + 1] is not None:
                        row[position + 1] = column.restored(row[position + 1])
        return position

    # what operators call

    def expire_by(self, clock: HasProcessingTime, due: TimerQueue | None) -> None:
        """States with a time-to-live expire by this clock; ``due`` keeps when to look for keys that nobody reads."""
        self.expiry = Expiry(clock, due)

    def sweep(self) -> None:
        """Remove what has expired of keys that nobody reads."""
        if self.expiry is not None:
            self.expiry.sweep(self.table())

    def table(self, namespace: int | None = None) -> RowTable:
        """The table of a namespace (a window's start), made when first asked for."""
        table = self.tables.get(namespace)
        if table is None:
            prefix = self._prefix if namespace is None else self._prefix + _NAMESPACE(namespace + (1 << 63))
            table = RowTable(self.codec, self.store, prefix, namespace in self._in_store)
            self.tables[namespace] = table
        return table

    def drop(self, namespace: int) -> None:
        """Forget a namespace with all its rows."""
        table = self.tables.pop(namespace)
        self._dropped.append(namespace)
        if table.in_store:
            self._dropped_from_store.append(namespace)
        self._in_store.discard(namespace)

    def collect(self) -> dict[str, Any] | None:
        """The barrier: what changed, in stored form."""
        self.row = NO_KEY
        if self.expiry is not None and None in self.tables:
            self.expiry.note(self.tables[None])
        changes = [(namespace, *part) for namespace, table in self.tables.items() for part in table.collect(self.where)]
        dropped, self._dropped = self._dropped, []
        if not changes and not dropped:
            return None
        return {"schema": self.codec.schema_id, "tables": changes, "dropped": dropped}

    def committed(self) -> None:
        """The epoch is complete: the store may follow."""
        for namespace in self._dropped_from_store:
            assert self.store is not None
            prefix = self._prefix + _NAMESPACE(namespace + (1 << 63))
            self.store.delete_range(prefix, after(prefix))
        self._dropped_from_store.clear()

    def apply(self, delta: dict[str, Any]) -> None:
        """Take over the changes of a completed epoch (a restore)."""
        for namespace in delta["dropped"]:
            self.tables.pop(namespace, None)
            self._in_store.discard(namespace)
            if self.store is not None:
                prefix = self._prefix + _NAMESPACE(namespace + (1 << 63))
                self.store.delete_range(prefix, after(prefix))
        for namespace, *parts in delta["tables"]:
            table = self.table(namespace)
            table.in_store = table.in_store or self._store_is_newer
            table.apply(TableDelta(*parts), delta["schema"])

    def dump(self) -> dict[str, Any]:
        """Everything in memory, in the form that `apply` takes."""
        tables = [(namespace, *part) for namespace, table in self.tables.items() for part in table.dump(self.where)]
        return {"schema": self.codec.schema_id, "tables": tables, "dropped": []}

    def flush(self) -> list[int | None]:
        """Bring the store up to date; returns the namespaces that it holds rows of."""
        for table in self.tables.values():
            table.flush()
        held = {namespace for namespace, table in self.tables.items() if table.in_store}
        return sorted(held | self._in_store, key=lambda n: (n is not None, n or 0))

    def in_store(self, namespaces: list[int | None], newer: bool) -> None:
        """The store that was opened holds rows of these namespaces; ``newer``: and maybe of those in later deltas."""
        self._in_store = set(namespaces)
        self._store_is_newer = newer
        for namespace in namespaces:
            self.table(namespace)

    def rows(self) -> int:
        """How many rows are in memory."""
        return sum(len(table.rows) for table in self.tables.values())

    def memory(self) -> float:
        """About how many bytes these rows take."""
        return self.rows() * self.codec.footprint.row_bytes

    def evict(self, most: int) -> int:
        """Move up to ``most`` rows that this epoch has not touched out to the store."""
        left = most
        for table in self.tables.values():
            if left > 0:
                left -= table.evict(left)
        return most - left
