"""The state types as user functions see them: Flink's five kinds of keyed state, and broadcast state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from holdfast.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)

__all__ = [
    "AggregatingState",
    "AppendingState",
    "BroadcastState",
    "KeyedStateStore",
    "ListState",
    "MapState",
    "MergingState",
    "ReadOnlyBroadcastState",
    "ReducingState",
    "State",
    "ValueState",
]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


class State(ABC):
    """A piece of state; what it holds belongs to the current key."""

    @abstractmethod
    def clear(self) -> None:
        """Remove what the current key holds, freeing its storage."""


class ValueState(State, Generic[T]):
    """One value per key."""

    @abstractmethod
    def value(self) -> T | None:
        """The value; None when there is none."""

    @abstractmethod
    def update(self, value: T | None) -> None:
        """Set the value; None removes it."""


class AppendingState(State, Generic[IN, OUT]):
    """State that values are added to."""

    @abstractmethod
    def get(self) -> OUT | None:
        """What the added values amount to."""

    @abstractmethod
    def add(self, value: IN) -> None:
        """Add a value."""


class MergingState(AppendingState[IN, OUT]):
    """Appending state that two windows can merge."""


class ReducingState(MergingState[T, T]):
    """One value per key, into which all that is added is reduced; None when nothing was."""


class AggregatingState(MergingState[IN, OUT]):
    """One accumulator per key, into which all that is added is aggregated; its result is None when nothing was."""


class ListState(MergingState[T, Iterable[T]]):
    """A list per key."""

    @abstractmethod
    def get(self) -> Iterable[T]:
        """The elements; an empty iterable when there are none."""

    @abstractmethod
    def update(self, values: list[T]) -> None:
        """Replace all elements."""

    @abstractmethod
    def add_all(self, values: list[T]) -> None:
        """Append elements."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())


class _MapReads(State, Generic[K, V]):
    @abstractmethod
    def get(self, key: K) -> V | None:
        """The value of an entry; None when there is none."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Whether there is such an entry."""

    @abstractmethod
    def items(self) -> Iterable[tuple[K, V]]:
        """The entries, in no particular order."""

    @abstractmethod
    def keys(self) -> Iterable[K]:
        """The entries' keys."""

    @abstractmethod
    def values(self) -> Iterable[V]:
        """The entries' values."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there are no entries."""

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())


class _MapWrites(State, Generic[K, V]):
    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Set an entry."""

    @abstractmethod
    def put_all(self, dict_value: dict[K, V] | Iterable[tuple[K, V]]) -> None:
        """Set entries, from a dict or from pairs."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove an entry, if there is one."""

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)


class MapState(_MapReads[K, V], _MapWrites[K, V]):
    """A map per key, whose entries are read and written one by one."""


class ReadOnlyBroadcastState(_MapReads[K, V]):
    """A map that every subtask holds, as the stream that is not broadcast sees it."""


class BroadcastState(ReadOnlyBroadcastState[K, V], _MapWrites[K, V]):
    """A map that every subtask holds, as the broadcast stream sees it."""


class KeyedStateStore(ABC):
    """Gives handles of keyed state. The same name gives the same state; it is read and written for the current key."""

    @abstractmethod
    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState[Any]:
        """The state of one value per key."""

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """The state of a list per key."""

    @abstractmethod
    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        """The state of a map per key."""

    @abstractmethod
    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        """The state of one value per key, into which all that is added is reduced."""

    @abstractmethod
    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        """The state of one accumulator per key, into which all that is added is aggregated."""
