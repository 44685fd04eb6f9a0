"""The state types of user functions: Flink's five kinds of keyed state, and broadcast state.

An object of one of the five kinds declares a state of the class that has it as an attribute:

    class Count(KeyedProcessFunction):
        count = ValueState("count", int)

Before a function's ``open``, the runtime replaces it, in the function object, by the handle of the state
(`holdfast.functions.declared_states`). Handles are no subclasses of these, for speed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NoReturn, Protocol, get_origin, overload

from holdfast.common.state_ttl import StateTtlConfig
from holdfast.common.time import Duration, Time
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.typeinfo.pojo import type_of_class
from holdfast.common.values.type_variables import IN, OUT, R, S, V
from holdfast.state.api.descriptors import (
    Aggregates,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
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


Ttl = StateTtlConfig | Time | Duration
"""A time-to-live: how long after its last write a content expires, or a whole configuration."""


class State(ABC):  # noqa: B024 - each kind defines what it can do
    """A state; its content belongs to the current key."""

    _descriptor: StateDescriptor | None = None

    @property
    def descriptor(self) -> StateDescriptor:
        """The descriptor of a declared state: ``Count.count.descriptor`` of the attribute ``count`` of a class ``Count``."""
        if self._descriptor is None:
            self._unopened()
        return self._descriptor

    def _declare(self, descriptor: StateDescriptor, ttl: Ttl | None) -> None:
        if ttl is not None:
            config = StateTtlConfig.new_builder(ttl).build() if isinstance(ttl, (Time, Duration)) else ttl
            descriptor.enable_time_to_live(config)
        self._descriptor = descriptor

    def _unopened(self) -> NoReturn:
        if self._descriptor is None:
            raise NotImplementedError(f"{type(self).__name__} does not define this method")
        raise RuntimeError(
            f"the state {self._descriptor.name!r} is not open. States that are declared by the class of a function are "
            "opened before its open(), if an operator with keyed state calls the function"
        )

    def clear(self) -> None:
        """Remove the current key's content and free its storage."""
        self._unopened()


def _type(given: Any, name: str) -> TypeInformation | None:
    """The declared type for a class or a type; None: values are pickled."""
    if given is None or isinstance(given, TypeInformation):
        return given
    if isinstance(given, type) or get_origin(given) is not None:
        return type_of_class(given)
    raise TypeError(f"the type of state {name!r} must be a class or a type like Types.LONG(), got {given!r}")


class ValueState(State, Generic[V]):
    """One value per key.

    Args:
        name: The state's name, unique within the operator.
        value_type: The values' type: a class such as ``int`` (LONG), ``list[str]`` or a dataclass (POJO), or one of `Types`.
            Values of other classes, or without a type, are pickled.
        ttl: Lets the content expire, so long after its last write or as a StateTtlConfig says.
    """

    @overload
    def __init__(
        self: ValueState[Any],
        name: str = "",
        value_type: None = None,
        *,
        ttl: Ttl | None = None,
    ) -> None: ...

    @overload
    def __init__(self, name: str, value_type: type[V] | TypeInformation[V], *, ttl: Ttl | None = None) -> None: ...

    def __init__(self, name: str = "", value_type: Any = None, *, ttl: Ttl | None = None) -> None:
        if name or type(self) is ValueState:
            self._declare(ValueStateDescriptor(name, _type(value_type, name)), ttl)

    def value(self) -> V | None:
        """The value; None if there is no value."""
        self._unopened()

    def update(self, value: V | None) -> None:
        """Set the value; None removes it."""
        self._unopened()


class AppendingState(State, Generic[IN, OUT]):
    """A state to which values are added."""

    def get(self) -> OUT | None:
        """The result of the added values; None if there are none."""
        self._unopened()

    def add(self, value: IN) -> None:
        """Add a value."""
        self._unopened()


class MergingState(AppendingState[IN, OUT]):
    """Appending state that two windows can merge."""


class _Reduces(Protocol[V]):
    """A ReduceFunction, as far as its types go."""

    def reduce(self, value1: V, value2: V, /) -> V: ...


class ReducingState(MergingState[V, V]):
    """One value per key; each added value is reduced into it. It is None before the first value.

    Args:
        name: The state's name, unique within the operator.
        reduce_function: A callable ``(accumulated, value) -> accumulated`` or a ReduceFunction.
        value_type: The values' type, as for `ValueState`.
        ttl: Lets the content expire.
    """

    def __init__(
        self,
        name: str = "",
        reduce_function: Callable[[V, V], V] | _Reduces[V] | None = None,
        value_type: type[V] | TypeInformation[V] | None = None,
        *,
        ttl: Ttl | None = None,
    ) -> None:
        if name or type(self) is ReducingState:
            self._declare(ReducingStateDescriptor(name, reduce_function, _type(value_type, name)), ttl)


class AggregatingState(MergingState[IN, OUT]):
    """One accumulator per key; each added value is aggregated into it. The result is None before the first value.

    Args:
        name: The state's name, unique within the operator.
        agg_function: The AggregateFunction.
        accumulator_type: The accumulators' type, as for `ValueState`.
        ttl: Lets the content expire.
    """

    def __init__(
        self,
        name: str = "",
        agg_function: Aggregates[IN, OUT] | None = None,
        accumulator_type: type[Any] | TypeInformation | None = None,
        *,
        ttl: Ttl | None = None,
    ) -> None:
        if name or type(self) is AggregatingState:
            function: Any = agg_function
            self._declare(AggregatingStateDescriptor(name, function, _type(accumulator_type, name)), ttl)


class ListState(MergingState[V, Iterable[V]]):
    """A list per key.

    Args:
        name: The state's name, unique within the operator.
        element_type: The elements' type, as for `ValueState`.
        ttl: Lets each element expire.
    """

    @overload
    def __init__(
        self: ListState[Any],
        name: str = "",
        element_type: None = None,
        *,
        ttl: Ttl | None = None,
    ) -> None: ...

    @overload
    def __init__(self, name: str, element_type: type[V] | TypeInformation[V], *, ttl: Ttl | None = None) -> None: ...

    def __init__(self, name: str = "", element_type: Any = None, *, ttl: Ttl | None = None) -> None:
        if name or type(self) is ListState:
            self._declare(ListStateDescriptor(name, _type(element_type, name)), ttl)

    def get(self) -> Iterable[V]:
        """The elements; an empty iterable if there are none."""
        self._unopened()

    def update(self, values: list[V]) -> None:
        """Replace all elements."""
        self._unopened()

    def add_all(self, values: list[V]) -> None:
        """Append elements."""
        self._unopened()

    def __iter__(self) -> Iterator[V]:
        return iter(self.get())


class _MapReads(State, Generic[S, V]):
    def get(self, key: S) -> V | None:
        """The entry's value; None if there is no such entry."""
        self._unopened()

    def contains(self, key: S) -> bool:
        """Whether the map has this entry."""
        self._unopened()

    def items(self) -> Iterable[tuple[S, V]]:
        """The entries, in no particular order."""
        self._unopened()

    def keys(self) -> Iterable[S]:
        """The entries' keys."""
        self._unopened()

    def values(self) -> Iterable[V]:
        """The entries' values."""
        self._unopened()

    def is_empty(self) -> bool:
        """Whether the map is empty."""
        self._unopened()

    def __getitem__(self, key: S) -> V | None:
        return self.get(key)

    def __contains__(self, key: S) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[S]:
        return iter(self.keys())


class _MapWrites(State, Generic[S, V]):
    def put(self, key: S, value: V) -> None:
        """Set an entry."""
        self._unopened()

    def put_all(self, dict_value: dict[S, V] | Iterable[tuple[S, V]]) -> None:
        """Set entries, from a dict or from pairs."""
        self._unopened()

    def remove(self, key: S) -> None:
        """Remove an entry, if it exists."""
        self._unopened()

    def __setitem__(self, key: S, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: S) -> None:
        self.remove(key)


class MapState(_MapReads[S, V], _MapWrites[S, V]):
    """A map per key; entries are read and written one by one.

    Args:
        name: The state's name, unique within the operator.
        key_type: The type of the entries' keys, as for `ValueState`.
        value_type: The type of their values.
        ttl: Lets each entry expire.
    """

    @overload
    def __init__(
        self: MapState[Any, Any],
        name: str = "",
        key_type: None = None,
        value_type: None = None,
        *,
        ttl: Ttl | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        key_type: type[S] | TypeInformation[S],
        value_type: type[V] | TypeInformation[V] | None = None,
        *,
        ttl: Ttl | None = None,
    ) -> None: ...

    def __init__(
        self,
        name: str = "",
        key_type: Any = None,
        value_type: Any = None,
        *,
        ttl: Ttl | None = None,
    ) -> None:
        if name or type(self) is MapState:
            self._declare(MapStateDescriptor(name, _type(key_type, name), _type(value_type, name)), ttl)


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
