"""Functions of two connected streams."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from holdfast.functions.function import Function
from holdfast.functions.process_functions import KeyedContext, KeyedOnTimerContext, TimedContext

__all__ = ["CoFlatMapFunction", "CoMapFunction", "CoProcessFunction", "KeyedCoProcessFunction"]


class CoMapFunction(Function):
    """Makes one element of each, of either stream."""

    @abstractmethod
    def map1(self, value: Any) -> Any:
        """The element that takes the place of one of the first stream."""

    @abstractmethod
    def map2(self, value: Any) -> Any:
        """The element that takes the place of one of the second stream."""


class CoFlatMapFunction(Function):
    """Makes any number of elements of each, of either stream."""

    @abstractmethod
    def flat_map1(self, value: Any) -> Iterable[Any]:
        """The elements that take the place of one of the first stream."""

    @abstractmethod
    def flat_map2(self, value: Any) -> Iterable[Any]:
        """The elements that take the place of one of the second stream."""


class CoProcessFunction(Function):
    """Takes element by element of either stream and emits any number; no keys, hence neither state nor timers."""

    class Context(TimedContext):
        """What the function may ask about the element."""

    @abstractmethod
    def process_element1(self, value: Any, ctx: CoProcessFunction.Context) -> Iterable[Any] | None:
        """Take an element of the first stream."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: CoProcessFunction.Context) -> Iterable[Any] | None:
        """Take an element of the second stream."""


class KeyedCoProcessFunction(Function):
    """Takes element by element of two keyed streams, which share state and timers of a key."""

    class Context(KeyedContext):
        """What the function may ask about the element."""

    class OnTimerContext(KeyedOnTimerContext, Context):
        """What the function may ask about the timer."""

    @abstractmethod
    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any] | None:
        """Take an element of the first stream."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any] | None:
        """Take an element of the second stream."""

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """A timer of the current key has fired; what is emitted carries its time as timestamp.

        Args:
            timestamp: the timer's time, in ms.
            ctx: what may be asked about it.
        """
        return None
