"""Functions of matches, and their contexts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Generic

from holdfast.cep.conditions import TimeContext
from holdfast.common.output_tag import Tagged
from holdfast.common.values.type_variables import IN, OUT
from holdfast.datastream.functions import Function

__all__ = [
    "PatternFlatSelectFunction",
    "PatternFlatTimeoutFunction",
    "PatternProcessFunction",
    "PatternSelectFunction",
    "PatternTimeoutFunction",
    "TimedOutPartialMatchHandler",
]


class PatternProcessFunction(Function, Generic[IN, OUT]):
    """Processes matches one by one.

    A match has the accepted events of each pattern by its name. The methods may be generators, return any iterable of
    results, or return None. ``(tag, value)`` with an OutputTag goes to that side output.
    """

    class Context(TimeContext, ABC):
        """The context of a match."""

    @abstractmethod
    def process_match(
        self, match: Mapping[str, list[IN]], ctx: PatternProcessFunction.Context
    ) -> Iterable[OUT | Tagged] | None:
        """Process a match."""


class TimedOutPartialMatchHandler(ABC, Generic[IN]):
    """Adds the handling of partial matches that time out to a PatternProcessFunction: derive the function from both."""

    @abstractmethod
    def process_timed_out_match(
        self, match: Mapping[str, list[IN]], ctx: PatternProcessFunction.Context
    ) -> Iterable[Tagged] | None:
        """Process a partial match whose time (``within``) is over.

        All results go to side outputs: ``(tag, value)``.
        """


class PatternSelectFunction(Function, Generic[IN, OUT]):
    """Makes one result of each match."""

    @abstractmethod
    def select(self, match: Mapping[str, list[IN]]) -> OUT:
        """Return the result of a match."""


class PatternFlatSelectFunction(Function, Generic[IN, OUT]):
    """Makes any number of results of each match."""

    @abstractmethod
    def flat_select(self, match: Mapping[str, list[IN]]) -> Iterable[OUT]:
        """Return the results of a match; may be a generator."""


class PatternTimeoutFunction(Function, Generic[IN, OUT]):
    """Makes one result of each partial match that times out."""

    @abstractmethod
    def timeout(self, match: Mapping[str, list[IN]], timeout_timestamp: int) -> OUT:
        """Return the result of a partial match whose time was over at ``timeout_timestamp`` (ms)."""


class PatternFlatTimeoutFunction(Function, Generic[IN, OUT]):
    """Makes any number of results of each partial match that times out."""

    @abstractmethod
    def timeout(self, match: Mapping[str, list[IN]], timeout_timestamp: int) -> Iterable[OUT]:
        """Return the results of a partial match whose time was over at ``timeout_timestamp`` (ms); may be a generator."""
