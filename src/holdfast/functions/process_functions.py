"""Functions that see time: one element in, any number out, with timers and keyed state on a keyed stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from holdfast.common.time_domain import TimeDomain
from holdfast.functions.function import Function
from holdfast.functions.timer_service import TimerService

__all__ = ["KeyedContext", "KeyedOnTimerContext", "KeyedProcessFunction", "ProcessFunction", "TimedContext"]


class TimedContext(ABC):
    """What a function may ask about the element it is called with."""

    @abstractmethod
    def timer_service(self) -> TimerService:
        """The clocks and, on a keyed stream, the timers."""

    @abstractmethod
    def timestamp(self) -> int:
        """The element's timestamp, or the firing timer's time, in ms; ``-2**63`` if there is none."""


class KeyedContext(TimedContext):
    """The same on a keyed stream."""

    @abstractmethod
    def get_current_key(self) -> Any:
        """The key of the element or of the timer."""


class KeyedOnTimerContext(KeyedContext):
    """The same when a timer fires."""

    @abstractmethod
    def time_domain(self) -> TimeDomain:
        """By which clock the timer fires."""


class ProcessFunction(Function):
    """Takes element by element and emits any number for each; no keys, hence neither keyed state nor timers.

    Its methods may be generators, return any iterable of elements, or return None for no element. ``(tag, value)``
    with an OutputTag goes to that side output.
    """

    class Context(TimedContext):
        """What the function may ask about the element."""

    @abstractmethod
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any] | None:
        """Take an element."""


class KeyedProcessFunction(Function):
    """Takes element by element of a keyed stream, with state and timers of the element's key.

    Its methods may be generators, return any iterable of elements, or return None for no element. ``(tag, value)``
    with an OutputTag goes to that side output.
    """

    class Context(KeyedContext):
        """What the function may ask about the element."""

    class OnTimerContext(KeyedOnTimerContext, Context):
        """What the function may ask about the timer."""

    @abstractmethod
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """Take an element."""

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """A timer of the current key has fired; what is emitted carries its time as timestamp.

        Args:
            timestamp: the timer's time, in ms.
            ctx: what may be asked about it.
        """
        return None
