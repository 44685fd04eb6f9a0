"""Functions that make state from the rows of a DataFrame."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic

from holdfast.common.typeinfo import ListTypeInfo, MapTypeInfo, TypeInformation
from holdfast.common.values.type_variables import IN, KEY, S, V
from holdfast.functions.checkpointed_function import CheckpointedFunction
from holdfast.functions.function import Function, RuntimeContext
from holdfast.functions.process_functions import KeyedProcessFunction
from holdfast.state.api.descriptors import (
    AggregatingStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)
from holdfast.state.api.interfaces import BroadcastState
from holdfast.state_api.spark_types import from_spark, is_unchanged

__all__ = [
    "BroadcastStateBootstrapFunction",
    "ColumnsToState",
    "KeyedStateBootstrapFunction",
    "StateBootstrapFunction",
    "content_type",
]


class KeyedStateBootstrapFunction(Function, Generic[KEY, IN]):
    """Makes keyed state and timers from elements, as a job's function would. Declare the job's states in ``open``.

    Elements of a key come one after the other, in order of their timestamps if they have any. Timers are stored, and
    fire when the job runs.
    """

    Context = KeyedProcessFunction.Context

    @abstractmethod
    def process_element(self, value: IN, ctx: KeyedProcessFunction.Context) -> None:
        """Process an element: update states, register timers."""


class StateBootstrapFunction(Function, CheckpointedFunction, Generic[IN]):
    """Makes operator state from elements: ask for list states in ``initialize_state``, as the job's function does.

    There is one instance for each partition of the DataFrame; the subtasks of the job share the elements of all. The states
    that it makes replace those of the savepoint.
    """

    class Context(ABC):
        """The context of an element."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """The time at which the savepoint is written, in ms since 1970."""

    @abstractmethod
    def process_element(self, value: IN, ctx: Context) -> None:
        """Process an element: keep it in an attribute or a state."""


class BroadcastStateBootstrapFunction(Function, Generic[IN]):
    """Makes broadcast state from elements. One instance sees all of them. The states replace those of the savepoint."""

    class Context(StateBootstrapFunction.Context, ABC):
        """The context of an element."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor[S, V]) -> BroadcastState[S, V]:
            """The broadcast state of a descriptor."""

    @abstractmethod
    def process_element(self, value: IN, ctx: Context) -> None:
        """Process an element: change broadcast state."""


class ColumnsToState(KeyedProcessFunction[Any, Any, Any]):
    """Writes the values of a tuple to the states. None clears a state.

    Args:
        descriptors: The states, all with declared types.
    """

    def __init__(self, descriptors: Sequence[StateDescriptor]) -> None:
        self._descriptors = descriptors

    def open(self, runtime_context: RuntimeContext) -> None:
        """Declare the states."""
        self._writers = [_writer(each, runtime_context) for each in self._descriptors]
        self._last: Any = self

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        """Write a tuple, the only one of its key."""
        key = ctx.get_current_key()
        if self._last is not self and key == self._last:  # the rows of a key come one after the other
            raise ValueError("the key occurs twice in the DataFrame: group the rows by key first")
        self._last = key
        for write, content in zip(self._writers, value):
            write(content)


def content_type(descriptor: Any) -> TypeInformation[Any] | None:
    """The type of a state's content; None: not declared."""
    if descriptor.kind == "map":
        types = [descriptor.key_type_info, descriptor.value_type_info]
    else:
        types = [descriptor.element_type_info if descriptor.kind == "list" else descriptor.type_info]
    if any(each is None or each.is_pickled for each in types):
        return None
    if descriptor.kind == "map":
        return MapTypeInfo(*types)
    return ListTypeInfo(types[0]) if descriptor.kind == "list" else types[0]


class _Given:
    """An aggregation that takes an accumulator as it is."""

    def create_accumulator(self) -> Any:
        return ()

    def add(self, value: Any, accumulator: Any) -> Any:
        return value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator


def _writer(descriptor: Any, context: RuntimeContext) -> Callable[[Any], None]:
    """A function that replaces the state's content by a value of Spark's."""
    if isinstance(descriptor, (ReducingStateDescriptor, AggregatingStateDescriptor)):
        given: Any = copy.copy(descriptor)
        if isinstance(descriptor, ReducingStateDescriptor):
            given.reduce_function = lambda _, value: value
            state: Any = context.get_reducing_state(given)
        else:
            given.agg_function = _Given()
            state = context.get_aggregating_state(given)
        update: Callable[[Any], None] = state.add
    elif descriptor.kind == "map":
        state = context.get_map_state(descriptor)

        def update(entries: Any) -> None:
            state.clear()
            state.put_all(entries)

    else:
        state = context.get_list_state(descriptor) if descriptor.kind == "list" else context.get_state(descriptor)
        update = state.update

    declared = content_type(descriptor)
    if is_unchanged(declared):
        return lambda value: state.clear() if value is None else update(value)
    read = from_spark(declared)

    def write(value: Any) -> None:
        try:
            content = read(value)
        except Exception as error:
            raise ValueError(
                f"the column of state {descriptor.name!r} has {value!r:.200}, which does not fit {declared!r}: {error}"
            ) from error
        if content is None:
            state.clear()
        else:
            update(content)

    return write
