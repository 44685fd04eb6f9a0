"""A state space: the states that share rows, per key or per key and namespace (a window's start)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NoReturn

from holdfast.state.api.interfaces import KeyedStateStore
from holdfast.state.cells import entries
from holdfast.state.cells.codec import RowCodec
from holdfast.state.cells.column import Column, expires, unreadable_cell
from holdfast.state.cells.entries import EntryFamily, LargeList, LargeMap
from holdfast.state.cells.handles import HANDLES
from holdfast.state.cells.large_values import ColumnUses, LargeValue
from holdfast.state.cells.part_codec import PartCodec
from holdfast.state.cells.row import DIRTY, Row
from holdfast.state.cells.row_pieces import encoded_rows
from holdfast.state.cells.typed import handle_class
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.rows.lazy_columns import LazyColumns
from holdfast.state.rows.lazy_deltas import LazyRows
from holdfast.state.rows.table import RowTable, store_keys
from holdfast.state.rows.ttl import TTL_HANDLES, ExpiringRow, Expiry, HasProcessingTime
from holdfast.state.store.ordered import Family, OrderedStore, Writes
from holdfast.state.stored.delta import Change
from holdfast.state.stored.layout import Section, after, group_prefix, section, slice_of
from holdfast.state.stored.registry import OperatorSchemaRegistry
from holdfast.state.stored.schema import ROWS, ColumnSchema
from holdfast.state.timers.timers import TimerQueue

__all__ = ["StateSpace"]


_BY_KEY = "keyed"
"""The space of user functions' states; only its large values may move to rows of their own."""


class _NoKey(list[Any]):
    """Stands in for the row while no key is current."""

    def __getitem__(self, position: Any, value: Any = None) -> NoReturn:
        raise RuntimeError(
            "keyed state is accessible only while an element or a timer of a key is processed (not in open())"
        )

    __setitem__ = __getitem__


NO_KEY: list[Any] = _NoKey()


class _NotLoaded(list[Any]):
    """Stands in for the rows of a batch while the operator has no state; loads the current key's row on access."""

    def __init__(self, space: StateSpace) -> None:
        super().__init__()
        self._space = space

    def _row(self) -> Row:
        space = self._space
        space.row = space.table().load_one(space.key)
        return space.row

    def __getitem__(self, position: Any) -> Any:
        return self._row()[position]

    def __setitem__(self, position: Any, value: Any) -> None:
        self._row()[position] = value


class StateSpace(ExpiringRow, KeyedStateStore):
    """States accessed through the current row."""

    def __init__(
        self,
        name: str,
        slices: str,
        registry: OperatorSchemaRegistry,
        store: OrderedStore,
        groups_of: Callable[[list[Any]], list[int]],
        add_family: Callable[[int, Family], None],
        add_values: Callable[[str], StateSpace],
        kind: str = ROWS,
    ) -> None:
        """Start without tables.

        Args:
            name: The state's name in the registry.
            slices: The kind of namespaces, as in `holdfast.state.stored.schema.StateSchema`.
            registry: The operator's schema.
            store: The store of checkpointed rows.
            groups_of: Returns the key groups of keys.
            add_family: Registers the entry family of a column under its state id.
            add_values: Returns a new space for the large values of a column, given the name of their state.
            kind: The kind of the state.
        """
        self.name = name
        self.where = registry.where
        self.store = store
        self.groups_of = groups_of
        """Returns the key groups of keys."""
        self.state_id = registry.state(name, kind, slices).id
        self._namespaced = bool(slices)
        self.codec = RowCodec(registry, name)
        self.tables: dict[int | None, RowTable] = {}
        self._dropped: dict[int, bool] = {}
        """Namespaces dropped in this epoch, and whether the store has rows of them."""
        self._handles: dict[str, Any] = {}
        self._registry = registry
        self._add_family = add_family
        self._entries: dict[int, EntryFamily] = {}
        """The entries of large maps and lists, by column position."""
        self._add_values = add_values
        self._values: dict[int, StateSpace] = {}
        """The large values, by column position."""
        self._uses: dict[int, ColumnUses] = {}
        """Use counts of the columns whose values may get rows of their own, by position."""
        self.row: Row = NO_KEY
        self._not_loaded = _NotLoaded(self)
        self.key: Any = None
        """The current key; operators set it together with the namespace and `row`."""
        self.namespace: int | None = None
        self.expiry: Expiry | None = None

    # what user functions call

    def get_state(self, state_descriptor: Any) -> Any:
        """Return the handle of a ValueState."""
        return self._handle(state_descriptor, "value")

    def get_list_state(self, state_descriptor: Any) -> Any:
        """Return the handle of a ListState."""
        return self._handle(state_descriptor, "list")

    def get_map_state(self, state_descriptor: Any) -> Any:
        """Return the handle of a MapState."""
        return self._handle(state_descriptor, "map")

    def get_reducing_state(self, state_descriptor: Any) -> Any:
        """Return the handle of a ReducingState."""
        return self._handle(state_descriptor, "reducing")

    def get_aggregating_state(self, state_descriptor: Any) -> Any:
        """Return the handle of an AggregatingState."""
        return self._handle(state_descriptor, "aggregating")

    def _handle(self, descriptor: Any, kind: str) -> Any:
        if getattr(descriptor, "kind", None) != kind:
            raise TypeError(
                f"state {getattr(descriptor, 'name', descriptor)!r} of {self.where}: a {kind} state needs a "
                f"{kind.capitalize()}StateDescriptor, not {type(descriptor).__name__}"
            )
        position = self.register(Column.of(descriptor), grows=kind in ("list", "map"))
        known = self._handles.get(descriptor.name)
        if known is None:
            kinds = TTL_HANDLES if expires(descriptor) else HANDLES
            known = self._handles[descriptor.name] = handle_class(kinds, descriptor)(self, position, descriptor)
            if self.name == _BY_KEY and self.store.on_disk and Column.of(descriptor).can_leave_rows:
                self._uses[position] = ColumnUses(known)
        return known

    def register(self, column: Column, *, grows: bool = False, stored: Sequence[ColumnSchema] | None = None) -> int:
        """Return the position of a column, added if new.

        Args:
            column: The column.
            grows: Its cells hold maps or lists; at the barrier, those that have become large leave their rows.
            stored: The columns before this declaration; None: those of the schema.
        """
        known = {i for i, declared in enumerate(self.codec.columns) if declared is not None}
        width = self.codec.width
        before = self._registry.schema.states[self.name].columns if stored is None else stored
        position = self.codec.register(column)
        if position in self._values:
            self._values[position].register(column, stored=before[position : position + 1])
        if self.codec.width != width:
            for table in self.tables.values():
                table.resize()
        elif position not in known:  # rows restored before the declaration hold the stored form
            if position in self._entries:
                self._entries[position].codec = self._part_codec(position, column)
            reading = column.reading(self.stored_column(position).since_types(before[position]))
            for namespace, table in self.tables.items():
                for key, row in table.rows.items():
                    cell = row[position + 1]
                    if position in self.codec.outside and type(cell) is int:
                        row[position + 1] = self.codec.outside[position]
                    elif position in self.codec.large and type(cell) is int:
                        self._bind(namespace, key, row)
                    elif cell is not None:
                        try:
                            row[position + 1] = reading.restored(cell)
                        except Exception as error:  # pickle and users' classes may raise anything
                            raise unreadable_cell(
                                column.schema, before[position].types, error, self._registry.where, key
                            ) from error
        if grows:
            self.codec.grow(position)
        return position

    # large maps, lists and values

    def _enlarge(self, namespace: int | None, key: Any, row: Row, group: int) -> None:
        """Move large maps and lists out of a row."""
        for column in tuple(self.codec.growing):
            content = row[column + 1]
            if type(content) not in (dict, list) or len(content) <= entries.MOST_IN_ROW:
                continue
            try:
                if type(content) is dict:
                    row[column + 1] = LargeMap(self.entry_family(column), namespace, group, key, content)
                else:
                    row[column + 1] = LargeList(self.entry_family(column), namespace, group, key, elements=content)
            except TypeError:  # a map key has no canonical form
                self.codec.grow(column, False)

    def large_columns(self) -> list[tuple[int, EntryFamily]]:
        """The positions of columns with large maps or lists, with their entries."""
        return list(self._entries.items())

    def entry_family(self, column: int) -> EntryFamily:
        """The entries of a column's large maps or lists; created on first use."""
        known = self._entries.get(column)
        if known is None:
            name = self._registry.outside(self.name, column)
            state_id = self._registry.schema.states[name].id
            known = self._entries[column] = EntryFamily(state_id, self._namespaced, self.store)
            declared = self.codec.columns[column]
            if declared is not None:
                known.codec = self._part_codec(column, declared)
            self.codec.enlarge(column)
            self._add_family(state_id, known)
        return known

    def values_of(self, column: int) -> StateSpace:
        """The large values of a column; created on first use."""
        known = self._values.get(column)
        if known is None:
            known = self._values[column] = self._add_values(self._registry.outside(self.name, column))
            declared = self.codec.columns[column]
            if declared is not None:
                known.register(declared)
            self.codec.let_out(column, LargeValue(self, known.table()))
        return known

    def _judge_values(self, table: RowTable) -> None:
        """At the barrier: move large, rarely used values of a column to rows of their own, or move them back.

        If they are used but rarely read, loads leave them on the disk instead.
        """
        accessed = table.touched_rows()
        for column, uses in self._uses.items():
            unused, unread = uses.judge(len(accessed))
            left = table.lazy is not None and column in table.lazy
            large = left or ((unused or unread) and self.codec.are_large(column, accessed))
            if unused and large:
                self.values_of(column)
                self.codec.leaving.add(column)
            elif unused is False:
                self.codec.leaving.discard(column)
            if unread and large and column not in self.codec.outside:
                table.lazy = table.lazy or LazyColumns(self, table)
                table.lazy.add(column)
            elif left and table.lazy and (unread is False or column in self.codec.outside):
                table.lazy.discard(column)

    def _move_out(self, keys: list[Any], rows: list[Row]) -> None:
        """Move the values of these columns out of changed rows."""
        for column in self.codec.leaving:
            outside, values, cell = self.codec.outside[column], self._values[column].table(), column + 1
            for at in [at for at, row in enumerate(rows) if row[cell] is not outside]:
                if rows[at][cell] is not None:
                    values.overwrite(keys[at], rows[at][cell])
                    rows[at][cell] = outside

    def forget_values(self) -> None:
        """Drop large values that were read on demand and not changed from memory."""
        for values in self._values.values():
            for table in values.tables.values():
                table.forget()

    def stored_column(self, position: int) -> ColumnSchema:
        """The schema of a column."""
        return self._registry.schema.states[self.name].columns[position]

    def _part_codec(self, position: int, column: Column) -> PartCodec:
        return PartCodec(column, self.stored_column(position), self.codec.schema_id, self.where)

    def _bind(self, namespace: int | None, key: Any, row: Row) -> None:
        for column in self.codec.large:
            marker = row[column + 1]
            declared = self.codec.columns[column]
            if type(marker) is int and declared is not None:
                family, (group,) = self._entries[column], self.groups_of([key])
                if declared.schema.kind == "map":
                    row[column + 1] = LargeMap(family, namespace, group, key)
                else:
                    row[column + 1] = LargeList(family, namespace, group, key, marker)

    # what operators call

    def state_of(self, descriptor: Any) -> tuple[Any, int]:
        """The handle of a state of any kind, and its cell's position in rows."""
        return self._handle(descriptor, descriptor.kind), self.register(Column.of(descriptor)) + 1

    def load(self, keys: Sequence[Any]) -> Iterable[Row]:
        """Load the rows of these keys, also for states declared later. Without any state there are none."""
        return self.table().load(keys) if self.codec.width else repeat(self._not_loaded, len(keys))

    def leave_key(self) -> None:
        """Clear the current key."""
        self.row, self.key = NO_KEY, None

    def expire_by(self, clock: HasProcessingTime, due: TimerQueue | None) -> None:
        """Let states with a time-to-live expire by this clock. ``due``: clean-up times of keys that are no longer read."""
        self.expiry = Expiry(clock, due)

    def sweep(self) -> None:
        """Remove the expired state of keys that are no longer read."""
        if self.expiry is not None:
            self.expiry.sweep(self.table())

    def table(self, namespace: int | None = None) -> RowTable:
        """The table of a namespace (a window's start), created on first use."""
        table = self.tables.get(namespace)
        if table is None:
            table = self._new_table(namespace, in_store=False)
        return table

    def _new_table(self, namespace: int | None, in_store: bool) -> RowTable:
        at = section(self.state_id, namespace)
        table = self.tables[namespace] = RowTable(
            self.codec,
            self.store,
            at.prefix,
            self.groups_of,
            in_store,
            partial(self._bind, namespace),
            partial(self._enlarge, namespace),
            self._move_out,
        )
        return table

    def drop(self, namespace: int) -> None:
        """Drop a namespace with all its rows."""
        in_store = self.tables.pop(namespace).in_store
        self._dropped[namespace] = in_store or self._dropped.get(namespace, False)
        for family in self._entries.values():
            family.drop_namespace(namespace)

    def collect(self) -> Sequence[Change]:
        """At the barrier: drain the changes, in stored form."""
        self.row = NO_KEY
        if self.expiry is not None and None in self.tables:
            self.expiry.note(self.tables[None])
        if self._uses and None in self.tables:
            self._judge_values(self.tables[None])
        changes = []
        for namespace, table in self.tables.items():
            pieces = table.collect(self.where)
            dropped = namespace in self._dropped
            if pieces or dropped:
                changes.append(Change(self._section(namespace), dropped, pieces))
        gone = [namespace for namespace in self._dropped if namespace not in self.tables]
        return changes + [Change(self._section(namespace), True, []) for namespace in gone]

    def _section(self, namespace: int | None) -> Section:
        return section(self.state_id, namespace)

    def check(self, key: Any) -> None:
        """Check that this epoch's changes of a key can be stored.

        Raises:
            UserCodeError: a value does not fit its declared type; names the state and the key.
        """
        for table in self.tables.values():
            row = table.rows.get(key)
            if row is not None and row[0] & DIRTY:
                if table.lazy is not None:
                    table.lazy.complete([key], [row])
                self.codec.check(key, row, self.where)

    def completed(self) -> None:
        """Complete the epoch: dropped namespaces leave the store."""
        for namespace, in_store in self._dropped.items():
            if in_store:
                self._delete(self._section(namespace))
        self._dropped.clear()

    def _delete(self, dropped: Section) -> None:
        self.store.delete_range(dropped.prefix, after(dropped.prefix))

    def apply(self, change: Change, groups: KeyGroupRange | None) -> None:
        """Apply a change of a completed epoch (in a restore); with ``groups``, only its rows in these key groups."""
        namespace = change.section.slice
        table = self.tables.get(namespace)
        if change.dropped and table is not None:
            table.drop(groups)
            if not table.rows and not table.in_store:
                del self.tables[namespace]
        for piece in change.pieces:
            if self.sets_aside:
                self.table().set_aside(encoded_rows(piece, groups))
            else:
                self.table(namespace).apply(piece, groups)

    @property
    def sets_aside(self) -> bool:
        """Whether a restore leaves rows encoded until they are needed."""
        # Namespaces are read as a whole and dropped soon; rows of former types must not enter the store.
        return self.store.on_disk and not self._namespaced and not self.codec.has_former_types

    def set_aside(self, lazy: Iterable[LazyRows]) -> None:
        """Apply changes whose rows are fetched later."""
        for each in lazy:
            self.table().set_aside(each)

    def writes(self, change: Change) -> Iterator[Writes]:
        """The pieces of a change as writes to the store."""
        prefix = change.section.prefix
        for piece in change.pieces:
            changed = encoded_rows(piece, None)
            head, start = self.codec.stored_head(changed.schema)
            rows = [head + memoryview(raw)[start:] for raw in changed.rows]
            puts = list(zip(self._store_keys(prefix, changed.keys), rows, strict=True))
            yield Writes([], puts, self._store_keys(prefix, changed.deleted))

    def _store_keys(self, prefix: bytes, keys: list[Any]) -> list[bytes]:
        return store_keys([group_prefix(prefix, group) for group in self.groups_of(keys)], keys)

    def dump(self) -> Iterator[Change]:
        """All rows in memory, in the form that `apply` takes."""
        for namespace, table in self.tables.items():
            yield Change(self._section(namespace), False, table.dump(self.where))

    def flush(self) -> None:
        """Write all checkpointed rows to the store."""
        for table in self.tables.values():
            table.flush()

    def flushing(self) -> Iterator[float]:
        """Flush the checkpointed rows to the store in steps; yields after each the memory of the rows written, in bytes.

        Epochs may run between two steps.
        """
        for namespace, table in list(self.tables.items()):
            steps = table.flushing()
            while (
                self.tables.get(namespace) is table and (rows := next(steps, None)) is not None
            ):  # the table may be dropped between two steps
                yield rows * self.codec.footprint.row_bytes

    def opened(self) -> None:
        """Find the namespaces that have rows in the store, with one seek each."""
        whole = section(self.state_id).prefix
        at, end = whole, after(whole)
        while (found := self.store.first_key(at, end)) is not None:
            namespace = slice_of(found) if self._namespaced else None
            self._new_table(namespace, in_store=True)
            at = after(self._section(namespace).prefix)

    def migration(self) -> Iterator[None]:
        """Rewrite the store's rows of former types in steps."""
        for table in list(self.tables.values()):
            yield from table.migration()

    def rows(self) -> int:
        """The number of rows in memory."""
        return sum(len(table.rows) for table in self.tables.values())

    def touched_memory(self) -> float:
        """Estimated memory of the rows loaded in this epoch, in bytes."""
        return sum(len(table.touched_rows()) for table in self.tables.values()) * self.codec.footprint.row_bytes

    def memory(self) -> float:
        """Estimated memory of these rows, in bytes."""
        return self.rows() * self.codec.footprint.row_bytes + self.restored_memory()

    def restored_memory(self) -> int:
        """Estimated memory of the restored rows that are still encoded, in bytes."""
        return self.tables[None].restored.memory if None in self.tables else 0

    def store_restored(self, memory: float) -> None:
        """Write restored rows to the store until this much memory is free."""
        if None in self.tables:
            self.tables[None].store_restored(memory)

    def evict(self, memory: float) -> float:
        """Evict rows not touched in this epoch until this much memory is free; returns the approximate bytes freed."""
        each = self.codec.footprint.row_bytes
        wanted = left = math.ceil(min(self.rows(), memory / each))
        for table in self.tables.values():
            if left > 0:
                left -= table.evict(left)
        return (wanted - left) * each
