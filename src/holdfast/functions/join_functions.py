"""Functions that join the elements of two streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic

from holdfast.common.output_tag import Tagged
from holdfast.common.values.type_variables import IN1, IN2, OUT
from holdfast.functions.function import Function

__all__ = ["CoGroupFunction", "FlatJoinFunction", "JoinFunction", "ProcessJoinFunction"]


class JoinFunction(Function, Generic[IN1, IN2, OUT]):
    """Makes one result of each pair of elements with the same key in the same window."""

    @abstractmethod
    def join(self, first: IN1, second: IN2) -> OUT:
        """Return the result of a pair."""


class FlatJoinFunction(Function, Generic[IN1, IN2, OUT]):
    """Makes any number of results of each pair of elements with the same key in the same window."""

    @abstractmethod
    def join(self, first: IN1, second: IN2) -> Iterable[OUT]:
        """Return the results of a pair; may be a generator."""


class CoGroupFunction(Function, Generic[IN1, IN2, OUT]):
    """Makes results of all elements of two streams with the same key in the same window."""

    @abstractmethod
    def co_group(self, first: Iterable[IN1], second: Iterable[IN2]) -> Iterable[OUT]:
        """Return the results of a key and window; may be a generator.

        Args:
            first: the first stream's elements; empty if there are none.
            second: the second stream's elements; empty if there are none.
        """


class ProcessJoinFunction(Function, Generic[IN1, IN2, OUT]):
    """Makes results of each pair of elements with the same key whose timestamps are within an interval."""

    class Context(ABC):
        """The timestamps of a pair."""

        @abstractmethod
        def get_left_timestamp(self) -> int:
            """The timestamp of the left element, in ms; the least one if an outer join found none."""

        @abstractmethod
        def get_right_timestamp(self) -> int:
            """The timestamp of the right element, in ms; the least one if an outer join found none."""

        @abstractmethod
        def get_timestamp(self) -> int:
            """The timestamp of the results: the later one of the two; without a partner, the end of the interval."""

    @abstractmethod
    def process_element(self, left: IN1, right: IN2, ctx: ProcessJoinFunction.Context) -> Iterable[OUT | Tagged]:
        """Return the results of a pair; may be a generator. In an outer join, one of the two may be None."""
