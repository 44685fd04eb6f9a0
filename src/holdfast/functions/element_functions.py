"""Functions of single elements, and functions that combine elements."""

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
    """Converts each element to one element."""

    @abstractmethod
    def map(self, value: Any) -> Any:
        """Convert ``value``."""


class FlatMapFunction(Function):
    """Converts each element to any number of elements."""

    @abstractmethod
    def flat_map(self, value: Any) -> Iterable[Any]:
        """Convert ``value`` to any number of elements; may be a generator."""


class FilterFunction(Function):
    """Decides which elements to keep."""

    @abstractmethod
    def filter(self, value: Any) -> bool:
        """Whether to keep ``value``."""


class KeySelector(Function):
    """Extracts the key of an element."""

    @abstractmethod
    def get_key(self, value: Any) -> Any:
        """Return the element's key, always the same for equal elements."""


class ReduceFunction(Function):
    """Combines two elements into one of the same type."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """Combine two elements.

        Args:
            value1: the result of all earlier elements.
            value2: the next element.
        """


class AggregateFunction(Function):
    """Aggregates elements in an accumulator, and computes the result from it."""

    @abstractmethod
    def create_accumulator(self) -> Any:
        """Create an empty accumulator."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """Add an element and return the accumulator; it may be the same object."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """Return the result of the accumulator."""

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """Merge two accumulators; called only for merging windows."""
        raise NotImplementedError(f"{type(self).__name__} must define merge(acc_a, acc_b) for windows that merge")


class Partitioner(Function):
    """Chooses the subtask of an element."""

    @abstractmethod
    def partition(self, key: Any, num_partitions: int) -> int:
        """Return the subtask of a key, from 0 to ``num_partitions - 1``."""
