"""All keyed state of one operator in one subtask: spaces, timers and the store behind them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.state.delta import Change, Piece
from holdfast.state.key_groups import KeyGroupRange, key_grouper
from holdfast.state.layout import section
from holdfast.state.ordered import Family, OrderedStore, SortedMemory
from holdfast.state.registry import SchemaRegistry
from holdfast.state.schema import ROWS, TIMERS, OperatorSchema
from holdfast.state.space import StateSpace
from holdfast.state.timers import TimerQueue

__all__ = ["OperatorState"]

_SLICES = {"window": "window"}
_TIMERS = "-timers"


class OperatorState:
    """The state that one keyed operator sees: its families of rows and timers by name, each with an id in its schema."""

    def __init__(
        self,
        where: str,
        schema: OperatorSchema | None = None,
        store: OrderedStore | None = None,
        max_parallelism: int = 128,
    ) -> None:
        """Begin with what the store holds.

        Args:
            where: The operator, for messages.
            schema: That of the checkpoint, if there is one.
            store: Holds committed rows and entries; None: a new one in memory.
            max_parallelism: The number of key groups.
        """
        self.store = SortedMemory() if store is None else store
        self.registry = SchemaRegistry(where, schema)
        self.spaces: dict[str, StateSpace] = {}
        self.timers: dict[str, TimerQueue] = {}
        self._families: dict[int, Family] = {}
        self._groups_of = key_grouper(max_parallelism)
        for name, stored in self.registry.schema.states.items():
            if stored.kind == ROWS:
                self.space(name)
            elif stored.kind == TIMERS:
                self.timer_queue(name.removesuffix(_TIMERS))

    def space(self, name: str) -> StateSpace:
        """The space of this name: ``keyed``, ``window`` or ``global``."""
        known = self.spaces.get(name)
        if known is None:
            known = StateSpace(name, _SLICES.get(name, ""), self.registry, self.store, self._groups_of)
            self.spaces[name] = self._families[known.state_id] = known
            known.opened()
        return known

    def timer_queue(self, name: str) -> TimerQueue:
        """The timers of a service: ``event``, ``processing`` or ``ttl``."""
        known = self.timers.get(name)
        if known is None:
            state_id = self.registry.state(f"{name}{_TIMERS}", TIMERS, "time").id
            known = self.timers[name] = TimerQueue()
            family = self._families[state_id] = _Timers(state_id, known, self.store)
            family.opened()
        return known

    @property
    def schema(self) -> OperatorSchema:
        """What is stored and how, for the checkpoint's metadata."""
        return self.registry.schema

    def check(self, key: Any) -> None:
        """Make sure that what this epoch has changed of a key can be stored; the barrier would tell it without the record.

        Raises:
            UserCodeError: a value does not fit its declared type; names the state and the key.
        """
        for space in self.spaces.values():
            space.check(key)

    def collect(self) -> list[Change]:
        """The barrier: the epoch's changes; empty if nothing changed."""
        rows = [change for space in self.spaces.values() for change in space.collect()]
        others = [family for family in self._families.values() if family not in self.spaces.values()]
        return rows + [change for family in others for change in family.collect()]

    def committed(self) -> None:
        """The epoch that was last collected is complete."""
        self.registry.commit()
        for family in self._families.values():
            family.committed()

    def apply(self, change: Change, groups: KeyGroupRange | None = None) -> None:
        """Take over a change of a completed epoch, of its rows only those in ``groups`` (None: all)."""
        self._families[change.section.state].apply(change, groups)

    def dump(self) -> Iterator[Change]:
        """Everything, in the form that `apply` takes (for state that is all in memory)."""
        for family in self._families.values():
            yield from family.dump()

    def flush(self) -> None:
        """Bring the store up to date."""
        for family in self._families.values():
            family.flush()

    def rows(self) -> int:
        """How many rows are in memory."""
        return sum(space.rows() for space in self.spaces.values())

    def memory(self) -> float:
        """About how many bytes these rows take."""
        return sum(space.memory() for space in self.spaces.values())

    def evict(self, most: int) -> int:
        """Move up to ``most`` rows that this epoch has not touched out to the store; returns how many left."""
        left = most
        for space in self.spaces.values():
            if left > 0:
                left -= space.evict(left)
        return most - left


class _Timers:
    """The timers of one service as a family: one piece each time, for all key groups."""

    def __init__(self, state_id: int, queue: TimerQueue, store: OrderedStore) -> None:
        self._section = section(state_id)
        self._queue = queue
        self._store = store

    def opened(self) -> None:
        (stored,) = self._store.get_many([self._section.prefix])
        if stored is not None:
            self._queue.apply(stored)

    def collect(self) -> list[Change]:
        changes = self._queue.collect()
        return [] if changes is None else [self._change(changes)]

    def _change(self, data: bytes) -> Change:
        return Change(self._section, False, [Piece(0, (1 << 16) - 1, data)])

    def committed(self) -> None:
        """Nothing of it waits for that."""

    def apply(self, change: Change, groups: KeyGroupRange | None) -> None:
        for piece in change.pieces:
            self._queue.apply(piece.data)

    def flush(self) -> None:
        self._store.write([(self._section.prefix, self._queue.dump())])

    def dump(self) -> Iterator[Change]:
        yield self._change(self._queue.dump())
