"""The state types of user functions: Flink's five kinds of keyed state, and broadcast state."""

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
    "OperatorStateStore",
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
    """A state; its content belongs to the current key."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the current key's content and free its storage."""


class ValueState(State, Generic[T]):
    """One value per key."""

    @abstractmethod
    def value(self) -> T | None:
        """The value; None if there is no value."""

    @abstractmethod
    def update(self, value: T | None) -> None:
        """Set the value; None removes it."""


class AppendingState(State, Generic[IN, OUT]):
    """A state to which values are added."""

    @abstractmethod
    def get(self) -> OUT | None:
        """The result of the added values; None if there are none."""

    @abstractmethod
    def add(self, value: IN) -> None:
        """Add a value."""


class MergingState(AppendingState[IN, OUT]):
    """Appending state that two windows can merge."""


class ReducingState(MergingState[T, T]):
    """One value per key; each added value is reduced into it. It is None before the first value."""


class AggregatingState(MergingState[IN, OUT]):
    """One accumulator per key; each added value is aggregated into it. The result is None before the first value."""


class ListState(MergingState[T, Iterable[T]]):
    """A list per key."""

    @abstractmethod
    def get(self) -> Iterable[T]:
        """The elements; an empty iterable if there are none."""

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
        """The entry's value; None if there is no such entry."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Whether the map has this entry."""

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
        """Whether the map is empty."""

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
        """Remove an entry, if it exists."""

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)


class MapState(_MapReads[K, V], _MapWrites[K, V]):
    """A map per key; entries are read and written one by one."""


class ReadOnlyBroadcastState(_MapReads[K, V]):
    """A map held by every subtask, as seen from the non-broadcast stream."""


class BroadcastState(ReadOnlyBroadcastState[K, V], _MapWrites[K, V]):
    """A map held by every subtask, as seen from the broadcast stream."""


class KeyedStateStore(ABC):
    """Provides the handles of keyed state. A name always refers to the same state; handles access the current key."""

    @abstractmethod
    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState[Any]:
        """The handle of a ValueState."""

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """The handle of a ListState."""

    @abstractmethod
    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        """The handle of a MapState."""

    @abstractmethod
    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        """The handle of a ReducingState."""

    @abstractmethod
    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        """The handle of an AggregatingState."""


class OperatorStateStore(ABC):
    """Provides the handles of operator state, which belongs to a subtask. A name always refers to the same state."""

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """A list per subtask. When the parallelism changes, the elements of all lists are divided evenly."""

    @abstractmethod
    def get_union_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """A list per subtask. At every restore, each subtask gets the elements of all lists."""

    @abstractmethod
    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        """A map that must be the same in every subtask. When the parallelism changes, each new subtask gets a copy."""
