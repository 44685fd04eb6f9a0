"""Functions of two connected streams."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Generic

from holdfast.common.output_tag import Tagged
from holdfast.common.values.type_variables import IN1, IN2, KEY, OUT, K
from holdfast.functions.function import Function
from holdfast.functions.process_functions import KeyedContext, KeyedOnTimerContext, TimedContext

__all__ = ["CoFlatMapFunction", "CoMapFunction", "CoProcessFunction", "KeyedCoProcessFunction"]


class CoMapFunction(Function, Generic[IN1, IN2, OUT]):
    """Converts each element of either stream to one element."""

    @abstractmethod
    def map1(self, value: IN1) -> OUT:
        """Convert an element of the first stream."""

    @abstractmethod
    def map2(self, value: IN2) -> OUT:
        """Convert an element of the second stream."""


class CoFlatMapFunction(Function, Generic[IN1, IN2, OUT]):
    """Converts each element of either stream to any number of elements."""

    @abstractmethod
    def flat_map1(self, value: IN1) -> Iterable[OUT | Tagged]:
        """Convert an element of the first stream to any number of elements."""

    @abstractmethod
    def flat_map2(self, value: IN2) -> Iterable[OUT | Tagged]:
        """Convert an element of the second stream to any number of elements."""


class CoProcessFunction(Function, Generic[IN1, IN2, OUT]):
    """Processes elements of either stream one by one. Without keys it has neither keyed state nor timers."""

    class Context(TimedContext):
        """The context of an element."""

    @abstractmethod
    def process_element1(self, value: IN1, ctx: CoProcessFunction.Context) -> Iterable[OUT | Tagged] | None:
        """Process an element of the first stream."""

    @abstractmethod
    def process_element2(self, value: IN2, ctx: CoProcessFunction.Context) -> Iterable[OUT | Tagged] | None:
        """Process an element of the second stream."""


class KeyedCoProcessFunction(Function, Generic[KEY, IN1, IN2, OUT]):
    """Processes elements of two keyed streams one by one; both share the key's state and timers."""

    class Context(KeyedContext[K]):
        """The context of an element. ``KeyedCoProcessFunction.Context[str]`` names the type of the key."""

    class OnTimerContext(KeyedOnTimerContext[K], Context[K]):
        """The context of a firing timer."""

    @abstractmethod
    def process_element1(self, value: IN1, ctx: KeyedCoProcessFunction.Context[KEY]) -> Iterable[OUT | Tagged] | None:
        """Process an element of the first stream."""

    @abstractmethod
    def process_element2(self, value: IN2, ctx: KeyedCoProcessFunction.Context[KEY]) -> Iterable[OUT | Tagged] | None:
        """Process an element of the second stream."""

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext[KEY]) -> Iterable[OUT | Tagged] | None:
        """Handle a timer of the current key. Emitted elements get the timer's time as timestamp.

        Args:
            timestamp: the timer's time, in ms.
            ctx: the timer's context.
        """
        return None
