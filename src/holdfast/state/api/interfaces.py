"""The state types of user functions: Flink's five kinds of keyed state, and broadcast state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Generic

from holdfast.common.values.type_variables import IN, OUT, R, S, V
from holdfast.state.api.descriptors import (
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


class State(ABC):
    """A state; its content belongs to the current key."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the current key's content and free its storage."""


class ValueState(State, Generic[V]):
    """One value per key."""

    @abstractmethod
    def value(self) -> V | None:
        """The value; None if there is no value."""

    @abstractmethod
    def update(self, value: V | None) -> None:
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


class ReducingState(MergingState[V, V]):
    """One value per key; each added value is reduced into it. It is None before the first value."""


class AggregatingState(MergingState[IN, OUT]):
    """One accumulator per key; each added value is aggregated into it. The result is None before the first value."""


class ListState(MergingState[V, Iterable[V]]):
    """A list per key."""

    @abstractmethod
    def get(self) -> Iterable[V]:
        """The elements; an empty iterable if there are none."""

    @abstractmethod
    def update(self, values: list[V]) -> None:
        """Replace all elements."""

    @abstractmethod
    def add_all(self, values: list[V]) -> None:
        """Append elements."""

    def __iter__(self) -> Iterator[V]:
        return iter(self.get())


class _MapReads(State, Generic[S, V]):
    @abstractmethod
    def get(self, key: S) -> V | None:
        """The entry's value; None if there is no such entry."""

    @abstractmethod
    def contains(self, key: S) -> bool:
        """Whether the map has this entry."""

    @abstractmethod
    def items(self) -> Iterable[tuple[S, V]]:
        """The entries, in no particular order."""

    @abstractmethod
    def keys(self) -> Iterable[S]:
        """The entries' keys."""

    @abstractmethod
    def values(self) -> Iterable[V]:
        """The entries' values."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether the map is empty."""

    def __getitem__(self, key: S) -> V | None:
        return self.get(key)

    def __contains__(self, key: S) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[S]:
        return iter(self.keys())


class _MapWrites(State, Generic[S, V]):
    @abstractmethod
    def put(self, key: S, value: V) -> None:
        """Set an entry."""

    @abstractmethod
    def put_all(self, dict_value: dict[S, V] | Iterable[tuple[S, V]]) -> None:
        """Set entries, from a dict or from pairs."""

    @abstractmethod
    def remove(self, key: S) -> None:
        """Remove an entry, if it exists."""

    def __setitem__(self, key: S, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: S) -> None:
        self.remove(key)


class MapState(_MapReads[S, V], _MapWrites[S, V]):
    """A map per key; entries are read and written one by one."""


class ReadOnlyBroadcastState(_MapReads[S, V]):
    """A map held by every subtask, as seen from the non-broadcast stream."""


class BroadcastState(ReadOnlyBroadcastState[S, V], _MapWrites[S, V]):
    """A map held by every subtask, as seen from the broadcast stream."""


class KeyedStateStore(ABC):
    """Provides the handles of keyed state. A name always refers to the same state; handles access the current key."""

    @abstractmethod
    def get_state(self, state_descriptor: ValueStateDescriptor[V]) -> ValueState[V]:
        """The handle of a ValueState."""

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor[V]) -> ListState[V]:
        """The handle of a ListState."""

    @abstractmethod
    def get_map_state(self, state_descriptor: MapStateDescriptor[S, V]) -> MapState[S, V]:
        """The handle of a MapState."""

    @abstractmethod
    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor[V]) -> ReducingState[V]:
        """The handle of a ReducingState."""

    @abstractmethod
    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor[V, R]) -> AggregatingState[V, R]:
        """The handle of an AggregatingState."""


class OperatorStateStore(ABC):
    """Provides the handles of operator state, which belongs to a subtask. A name always refers to the same state."""

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor[V]) -> ListState[V]:
        """A list per subtask. When the parallelism changes, the elements of all lists are divided evenly."""

    @abstractmethod
    def get_union_list_state(self, state_descriptor: ListStateDescriptor[V]) -> ListState[V]:
        """A list per subtask. At every restore, each subtask gets the elements of all lists."""

    @abstractmethod
    def get_broadcast_state(self, state_descriptor: MapStateDescriptor[S, V]) -> BroadcastState[S, V]:
        """A map that must be the same in every subtask. When the parallelism changes, each new subtask gets a copy."""
