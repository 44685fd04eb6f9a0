"""Functions that see time: one element in, any number out, with timers and keyed state on a keyed stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic

from holdfast.common.output_tag import Tagged
from holdfast.common.time_domain import TimeDomain
from holdfast.common.values.type_variables import IN, KEY, OUT, K
from holdfast.functions.function import Function
from holdfast.functions.timer_service import TimerService

__all__ = ["KeyedContext", "KeyedOnTimerContext", "KeyedProcessFunction", "ProcessFunction", "TimedContext"]


class TimedContext(ABC):
    """The context of an element or a timer: timestamp and timer service."""

    @abstractmethod
    def timer_service(self) -> TimerService:
        """The clocks and, on a keyed stream, the timers."""

    @abstractmethod
    def timestamp(self) -> int:
        """The element's timestamp, or the firing timer's time, in ms; ``-2**63`` if the element has no timestamp."""


class KeyedContext(TimedContext, Generic[K]):
    """The context on a keyed stream, with the current key."""

    @abstractmethod
    def get_current_key(self) -> K:
        """The key of the element or of the timer."""


class KeyedOnTimerContext(KeyedContext[K]):
    """The context of a firing timer."""

    @abstractmethod
    def time_domain(self) -> TimeDomain:
        """The time domain of the timer."""


class ProcessFunction(Function, Generic[IN, OUT]):
    """Processes elements one by one and emits any number for each. Without keys it has neither keyed state nor timers.

    Its methods may be generators, return any iterable of elements, or return None to emit nothing. ``(tag, value)``
    with an OutputTag goes to that side output.
    """

    class Context(TimedContext):
        """The context of an element."""

    @abstractmethod
    def process_element(self, value: IN, ctx: ProcessFunction.Context) -> Iterable[OUT | Tagged] | None:
        """Process an element."""


class KeyedProcessFunction(Function, Generic[KEY, IN, OUT]):
    """Processes elements of a keyed stream one by one, with state and timers of the element's key.

    Its methods may be generators, return any iterable of elements, or return None to emit nothing. ``(tag, value)``
    with an OutputTag goes to that side output.
    """

    class Context(KeyedContext[K]):
        """The context of an element. ``KeyedProcessFunction.Context[str]`` names the type of the key."""

    class OnTimerContext(KeyedOnTimerContext[K], Context[K]):
        """The context of a firing timer."""

    @abstractmethod
    def process_element(self, value: IN, ctx: KeyedProcessFunction.Context[KEY]) -> Iterable[OUT | Tagged] | None:
        """Process an element."""

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext[KEY]) -> Iterable[OUT | Tagged] | None:
        """Handle a timer of the current key. Emitted elements get the timer's time as timestamp.

        Args:
            timestamp: the timer's time, in ms.
            ctx: the timer's context.
        """
        return None
