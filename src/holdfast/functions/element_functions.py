"""Functions of single elements, and functions that combine elements."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Generic

from holdfast.common.output_tag import Tagged
from holdfast.common.values.type_variables import ACC, IN, KEY, OUT, V
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


class MapFunction(Function, Generic[IN, OUT]):
    """Converts each element to one element."""

    @abstractmethod
    def map(self, value: IN) -> OUT:
        """Convert ``value``."""


class FlatMapFunction(Function, Generic[IN, OUT]):
    """Converts each element to any number of elements."""

    @abstractmethod
    def flat_map(self, value: IN) -> Iterable[OUT | Tagged]:
        """Convert ``value`` to any number of elements; may be a generator."""


class FilterFunction(Function, Generic[IN]):
    """Decides which elements to keep."""

    @abstractmethod
    def filter(self, value: IN) -> bool:
        """Whether to keep ``value``."""


class KeySelector(Function, Generic[IN, OUT]):
    """Extracts the key of an element."""

    @abstractmethod
    def get_key(self, value: IN) -> OUT:
        """Return the element's key, always the same for equal elements."""


class ReduceFunction(Function, Generic[V]):
    """Combines two elements into one of the same type."""

    @abstractmethod
    def reduce(self, value1: V, value2: V) -> V:
        """Combine two elements.

        Args:
            value1: the result of all earlier elements.
            value2: the next element.
        """


class AggregateFunction(Function, Generic[IN, ACC, OUT]):
    """Aggregates elements in an accumulator, and computes the result from it."""

    @abstractmethod
    def create_accumulator(self) -> ACC:
        """Create an empty accumulator."""

    @abstractmethod
    def add(self, value: IN, accumulator: ACC) -> ACC:
        """Add an element and return the accumulator; it may be the same object."""

    @abstractmethod
    def get_result(self, accumulator: ACC) -> OUT:
        """Return the result of the accumulator."""

    def merge(self, acc_a: ACC, acc_b: ACC) -> ACC:
        """Merge two accumulators; called only for merging windows."""
        raise NotImplementedError(f"{type(self).__name__} must define merge(acc_a, acc_b) for windows that merge")


class Partitioner(Function, Generic[KEY]):
    """Chooses the subtask of an element."""

    @abstractmethod
    def partition(self, key: KEY, num_partitions: int) -> int:
        """Return the subtask of a key, from 0 to ``num_partitions - 1``."""
