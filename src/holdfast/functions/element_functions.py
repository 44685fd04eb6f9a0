"""Functions called element by element, and those that combine elements."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from holdfast.functions.function import Function

__all__ = [
    "AggregateFunction",
    "FilterFunction",
    "FlatMapFunction",
    "KeySelector",
    "MapFunction",
    "Partitioner",
    "ReduceFunction",
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
