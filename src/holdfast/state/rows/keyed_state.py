"""All keyed state of one operator in one subtask: state spaces, timers and their store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import Any

from holdfast.errors import IncompatibleState
from holdfast.state.keys.key_groups import KeyGroupRange, key_grouper
from holdfast.state.rows.lazy_deltas import LazyRows
from holdfast.state.rows.space import StateSpace
from holdfast.state.store.ordered import Family, OrderedStore, SortedMemory
from holdfast.state.stored.delta import Change
from holdfast.state.stored.layout import Section, after, section
from holdfast.state.stored.registry import OperatorSchemaRegistry
from holdfast.state.stored.schema import ENTRIES, ROWS, TIMERS, VALUES, OperatorSchema, StateSchema
from holdfast.state.timers.timer_family import TimerFamily

__all__ = ["KeyedState"]

_SLICES = {"window": "window"}
_TIMERS = "-timers"
_BY_KEY_AND_WINDOW = frozenset(("windows", "window-event", "window-processing", "interval-join"))
"""Spaces and timers keyed by pairs of a key and a window (or the side of a join), not by a key alone."""
_PORTION, _STEPS = 512 << 10, 512
"""The least memory of rows, in bytes, that a step of the flush writes; and the most steps of a flush."""
_SHARE = 4
"""A step flushes this fraction of what the last epoch loaded, so that epochs take little longer."""
_EVICTED = 2
"""Flush this multiple of the last epoch's evictions as well, up to what it loaded: the rows likely to be evicted next."""


class KeyedState:
    """The state of one keyed operator: families of rows and timers by name, each with an id in the operator's schema."""

    def __init__(
        self,
        where: str,
        schema: OperatorSchema | None = None,
        store: OrderedStore | None = None,
        max_parallelism: int = 128,
        most_timers: int = 1 << 62,
        registry: type[OperatorSchemaRegistry] = OperatorSchemaRegistry,
    ) -> None:
        """Open the state on the content of the store.

        Args:
            where: The operator, for error messages.
            schema: The checkpoint's schema, if any.
            store: The store of checkpointed rows and entries; None: a new one in memory.
            max_parallelism: The number of key groups.
            most_timers: Approximate limit of timers in memory per service.
            registry: The class of the schema's registry.
        """
        self.store = SortedMemory() if store is None else store
        self.registry = registry(where, schema)
        self.spaces: dict[str, StateSpace] = {}
        self.timers: dict[str, TimerFamily] = {}
        self._most_timers = most_timers
        self.touched_memory = 0.0
        """Estimated memory of the rows that the last collected epoch loaded, in bytes."""
        self._evicted = 0.0
        """Estimated memory of the rows evicted in the last epoch, in bytes."""
        self._evicting = 0.0
        """The same for the running epoch."""
        self._families: dict[int, Family] = {}
        self._groups_of = key_grouper(max_parallelism)
        for name, stored in self.registry.schema.states.items():
            if stored.kind == ROWS:
                self.space(name)
            elif stored.kind == TIMERS:
                self.timer_queue(name.removesuffix(_TIMERS))
            elif stored.kind in (ENTRIES, VALUES):
                space, column = name.split("/", 1)
                position = self.registry.schema.column(space, column)
                assert position is not None
                if stored.kind == ENTRIES:
                    self.space(space).entry_family(position)
                else:
                    self.space(space).values_of(position)

    def space(self, name: str) -> StateSpace:
        """The state space of this name.

        Names are stored: ``keyed`` (states of user functions), ``window`` (contents of aligned windows, by namespace),
        ``windows`` (contents by key and window), ``merging`` (the windows of a key), ``assigner`` and ``global``.
        """
        known = self.spaces.get(name)
        return self._add_space(name, ROWS) if known is None else known

    def _add_space(self, name: str, kind: str) -> StateSpace:
        added = StateSpace(
            name,
            _SLICES.get(name, ""),
            self.registry,
            self.store,
            self._groups_of_pairs if name in _BY_KEY_AND_WINDOW else self._groups_of,
            self._families.__setitem__,
            partial(self._add_space, kind=VALUES),
            kind,
        )
        self.spaces[name] = self._families[added.state_id] = added
        added.opened()
        return added

    def timer_queue(self, name: str) -> TimerFamily:
        """The timers of a service: ``event``, ``processing``, ``ttl``, ``window-event``, ..."""
        known = self.timers.get(name)
        if known is None:
            state_id = self.registry.state(f"{name}{_TIMERS}", TIMERS, "time").id
            pairs = name in _BY_KEY_AND_WINDOW
            known = TimerFamily(state_id, self.store, self._groups_of, namespaced=pairs, bound=self._most_timers)
            self.timers[name] = self._families[state_id] = known
            known.opened()
        return known

    def _groups_of_pairs(self, pairs: list[Any]) -> list[int]:
        return self._groups_of([key for key, _ in pairs])

    @property
    def schema(self) -> OperatorSchema:
        """The stored states and their forms, for the checkpoint's metadata."""
        return self.registry.schema

    def check(self, key: Any) -> None:
        """Check that this epoch's changes of a key can be stored: at the barrier, the error could not name the record.

        Raises:
            UserCodeError: a value does not fit its declared type; names the state and the key.
        """
        for space in self.spaces.values():
            space.check(key)

    def collect(self) -> list[Change]:
        """At the barrier: drain the epoch's changes; empty if nothing changed."""
        spaces = list(self.spaces.values())  # a copy: collecting may add spaces for large values
        self.touched_memory = sum(space.touched_memory() for space in spaces)
        rows = [change for space in spaces for change in space.collect()]
        others = [family for family in self._families.values() if family not in spaces]
        return rows + [change for family in others for change in family.collect()]

    def row_changes(self, changes: Iterable[Change], keys: Callable[[bytes], Iterable[bytes]]) -> dict[bytes, bytes | None]:
        """The rows that an epoch's changes put or delete (None), in the form of the store.

        ``keys`` returns the keys with a prefix as of before the epoch: content dropped as a whole is deleted row by row.
        """
        rows: dict[bytes, bytes | None] = {}
        for change in changes:
            if change.dropped:
                rows.update(dict.fromkeys(keys(change.section.prefix)))
            for drops, puts, deletes in self._families[change.section.state].writes(change):
                for prefix in drops:
                    rows.update(dict.fromkeys(keys(prefix)))
                rows.update(puts)
                rows.update(dict.fromkeys(deletes))
        return rows

    def stored_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """All checkpointed rows in the form of the store, in order; called between epochs."""
        self.flush()
        for number, family in sorted(self._families.items()):
            if isinstance(family, TimerFamily):
                yield from zip(family.single_rows(), repeat(b""))
            else:
                prefix = section(number).prefix
                yield from self.store.scan(prefix, after(prefix))

    def completed(self) -> None:
        """Complete the last collected epoch."""
        self._evicted, self._evicting = self._evicting, 0.0
        self.registry.complete()
        for family in self._families.values():
            family.completed()

    def apply(self, change: Change, groups: KeyGroupRange | None = None) -> None:
        """Apply a change of a completed epoch; with ``groups``, only its rows in these key groups."""
        self._family(change.section).apply(change, groups)

    def _family(self, changed: Section) -> Family:
        """The family of a change's section.

        Raises:
            IncompatibleState: the checkpoint's schema has no such state.
        """
        try:
            return self._families[changed.state]
        except KeyError:
            raise IncompatibleState(
                f"a delta holds changes of state {changed.state} of {self.registry.where}, which the checkpoint's schema "
                "does not have"
            ) from None

    def applied(self) -> None:
        """Complete the applied changes (in a restore)."""
        for timers in self.timers.values():
            timers.applied()

    def sets_aside(self, changed: Section) -> bool:
        """Whether a restore may leave the rows of this section to be fetched later."""
        family = self._family(changed)
        return isinstance(family, StateSpace) and family.sets_aside

    def set_aside(self, changed: Section, lazy: Iterable[LazyRows]) -> None:
        """Apply changes of a completed epoch whose rows are fetched later."""
        family = self._family(changed)
        assert isinstance(family, StateSpace)
        family.set_aside(lazy)

    @property
    def decodes_deltas(self) -> bool:
        """Whether `apply` decodes rows, so that states should be declared before."""
        states = self.registry.schema.states.values()
        return not self.store.on_disk or any(_is_decoded(stored) for stored in states)

    def dump(self) -> Iterator[Change]:
        """The complete state, in the form that `apply` takes (for the heap backend)."""
        for family in self._families.values():
            yield from family.dump()

    def flush(self) -> None:
        """Write all checkpointed changes to the store."""
        for family in self._families.values():
            family.flush()

    def flushing(self) -> Iterator[None]:
        """Flush the rows that are checkpointed now, or newer ones, to the store in steps; epochs may run between them."""
        while self.restored_memory():
            self.store_restored(self._portion())
            yield
        left = self._portion()
        for space in list(self.spaces.values()):
            for written in space.flushing():
                left -= written
                if left <= 0:
                    yield
                    left = self._portion()
        for timers in list(self.timers.values()):
            yield from timers.flushing()

    def _portion(self) -> float:
        evicted = min(self._evicted, self.touched_memory)
        return max(self.touched_memory / _SHARE + _EVICTED * evicted, self.memory() / _STEPS, _PORTION)

    def migration(self) -> Iterator[None]:
        """Rewrite the store's content of former types in steps; epochs may run between two steps."""
        for family in list(self._families.values()):
            yield from family.migration()

    def hold_all(self) -> None:
        """Move all rows from the store into memory (for the heap backend)."""
        for space in self.spaces.values():
            for table in space.tables.values():
                table.hold_all()

    def rows(self) -> int:
        """The number of rows in memory."""
        return sum(space.rows() for space in self.spaces.values())

    def memory(self) -> float:
        """Estimated memory of these rows, in bytes."""
        return sum(space.memory() for space in self.spaces.values())

    def restored_memory(self) -> int:
        """Estimated memory of the restored rows that are still encoded, in bytes."""
        return sum(space.restored_memory() for space in self.spaces.values())

    def store_restored(self, memory: float) -> None:
        """Write restored rows to the store until this much memory is free, in bytes."""
        for space in self.spaces.values():
            space.store_restored(memory)

    def forget(self) -> None:
        """Drop all checkpointed rows from memory because they will not be read again. Called between epochs."""
        for space in self.spaces.values():
            for table in space.tables.values():
                table.rows.clear()

    def discard(self) -> None:
        """Discard this epoch's changes of large maps, lists and values, because they will not be collected."""
        for space in self.spaces.values():
            space.forget_values()
            for _, entries in space.large_columns():
                entries.discard()

    def evict(self, memory: float) -> float:
        """Evict rows not touched in this epoch until this much memory is free; returns the approximate bytes freed.

        Large values go first: without them, a row takes little memory.
        """
        freed = 0.0
        for space in sorted(self.spaces.values(), key=lambda space: space.codec.footprint.row_bytes, reverse=True):
            if freed < memory:
                freed += space.evict(memory - freed)
        self._evicting += freed
        return freed


def _is_decoded(stored: StateSchema) -> bool:
    """Whether a restore decodes rows of this state: those with namespaces, and those of former types."""
    return stored.kind in (ROWS, VALUES) and (bool(stored.slices) or any(column.former for column in stored.columns))
