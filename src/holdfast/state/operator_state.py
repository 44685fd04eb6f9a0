"""All keyed state of one operator in one subtask: spaces, timers and the local store; how it is written and restored."""

from __future__ import annotations

import msgspec

from holdfast.state.registry import SchemaRegistry
from holdfast.state.schema import ROWS, TIMERS, OperatorSchema
from holdfast.state.space import StateSpace
from holdfast.state.store import RocksDBStore
from holdfast.state.timers import TimerQueue

__all__ = ["OperatorState"]

FORMAT = 1
"""Version of the delta's and the dump's layout."""

_SLICES = {"window": "window"}

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


class OperatorState:
    """The state that one keyed operator sees. Names are fixed: a space's or queue's name is part of the stored format."""

    def __init__(self, where: str, schema: OperatorSchema | None, store: RocksDBStore | None) -> None:
        """``schema``: that of the checkpoint, if there is one. ``where``: the operator, for messages."""
        self.store = store
        self.registry = SchemaRegistry(where, schema)
        self.spaces: dict[str, StateSpace] = {}
        self.timers: dict[str, TimerQueue] = {}
        for name, stored in self.registry.schema.states.items():
            if stored.kind == ROWS:
                self.space(name)

    def space(self, name: str) -> StateSpace:
        """The space of this name: ``keyed``, ``window`` or ``global``."""
        known = self.spaces.get(name)
        if known is None:
            known = self.spaces[name] = StateSpace(name, _SLICES.get(name, ""), self.registry, self.store)
        return known

    def timer_queue(self, name: str) -> TimerQueue:
        """The timers of a service: ``event``, ``processing`` or ``ttl``."""
        known = self.timers.get(name)
        if known is None:
            self.registry.state(f"{name}-timers", TIMERS, "time")
            known = self.timers[name] = TimerQueue()
        return known

    @property
    def schema(self) -> OperatorSchema:
        """What is stored and how, for the checkpoint's metadata."""
        return self.registry.schema

    def collect(self) -> bytes | None:
        """The barrier: the epoch's changes as one delta; None if nothing changed."""
        spaces = {name: delta for name, space in self.spaces.items() if (delta := space.collect())}
        timers = {name: changes for name, queue in self.timers.items() if (changes := queue.collect())}
        if not spaces and not timers:
            return None
        return _pack({"format": FORMAT, "spaces": spaces, "timers": timers})

    def committed(self) -> None:
        """The epoch that was last collected is complete."""
        self.registry.commit()
        for space in self.spaces.values():
            space.committed()

    def apply(self, data: bytes) -> None:
        """Take over a delta or a dump."""
        delta = _unpack(data)
        if delta["format"] != FORMAT:
            raise ValueError(f"state of format {delta['format']}; this version reads format {FORMAT}")
        for name, changes in delta["spaces"].items():
            self.space(name).apply(changes)
        for name, changes in delta["timers"].items():
            self.timer_queue(name).apply(changes)

    def dump(self) -> bytes:
        """Everything, in the form that `apply` takes (for state that is all in memory)."""
        return _pack(
            {
                "format": FORMAT,
                "spaces": {name: space.dump() for name, space in self.spaces.items()},
                "timers": {name: queue.dump() for name, queue in self.timers.items()},
            }
        )

    def flush(self) -> bytes:
        """Bring the local store up to date; returns what it does not hold: its index and the timers."""
        held = {name: space.flush() for name, space in self.spaces.items()}
        timers = {name: queue.dump() for name, queue in self.timers.items()}
        return _pack({"format": FORMAT, "held": held, "timers": timers})

    def opened(self, index: bytes, newer: bool) -> None:
        """The local store is as `flush` left it when it returned ``index``; ``newer``: or holds later rows, too."""
        stored = _unpack(index)
        for name, namespaces in stored["held"].items():
            self.space(name).in_store(namespaces, newer)
        for name, dump in stored["timers"].items():
            self.timer_queue(name).apply(dump)

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
