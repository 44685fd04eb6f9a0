"""The classes that users' functions extend. Where one method is enough, a plain callable does as well."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from holdfast.datastream.broadcast_functions import (
    BaseBroadcastProcessFunction,
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
)
from holdfast.datastream.co_functions import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
)
from holdfast.datastream.function_base import Function, KeyedStateStore, RuntimeContext
from holdfast.datastream.process_functions import KeyedProcessFunction, ProcessFunction
from holdfast.datastream.window_functions import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)

__all__ = [
    "AggregateFunction",
    "AllWindowFunction",
    "BaseBroadcastProcessFunction",
    "BroadcastProcessFunction",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStateStore",
    "MapFunction",
    "Partitioner",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessWindowFunction",
    "ReduceFunction",
    "RuntimeContext",
    "WindowFunction",
]


class MapFunction(Function):
    """Makes one element of each."""

    @abstractmethod
    def map(self, value: Any) -> Any:
        """The element that takes the place of ``value``."""


class FlatMapFunction(Function):
    """Makes any number of elements of each."""

    @abstractmethod
    def flat_map(self, value: Any) -> Iterable[Any]:
        """The elements that take the place of ``value``; may be a generator."""


class FilterFunction(Function):
    """Keeps some elements."""

    @abstractmethod
    def filter(self, value: Any) -> bool:
        """Whether to keep ``value``."""


class KeySelector(Function):
    """Takes the key out of an element."""

    @abstractmethod
    def get_key(self, value: Any) -> Any:
        """The element's key; the same at each call for equal elements."""


class ReduceFunction(Function):
    """Makes one element of two of the same type."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """Both in one.

        Args:
            value1: what all elements before were reduced to.
            value2: the next element.
        """


class AggregateFunction(Function):
    """Adds elements up in an accumulator, from which it makes the result."""

    @abstractmethod
    def create_accumulator(self) -> Any:
        """A new accumulator, of no element."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """The accumulator with the element in it; may be the same object, changed."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """What the accumulator amounts to."""

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """Two accumulators in one; called only for windows that merge."""
        raise NotImplementedError(f"{type(self).__name__} must define merge(acc_a, acc_b) for windows that merge")


class Partitioner(Function):
    """Chooses the subtask that an element goes to."""

    @abstractmethod
    def partition(self, key: Any, num_partitions: int) -> int:
        """The subtask for a key, from 0 to ``num_partitions - 1``."""
