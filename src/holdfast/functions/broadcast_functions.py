"""Functions of a stream and a broadcast stream, whose elements (rules, say) every subtask keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from holdfast.common.time_domain import TimeDomain
from holdfast.functions.function import Function
from holdfast.functions.timer_service import TimerService
from holdfast.state.descriptors import MapStateDescriptor
from holdfast.state.interfaces import BroadcastState, ReadOnlyBroadcastState

__all__ = ["BaseBroadcastProcessFunction", "BroadcastProcessFunction", "KeyedBroadcastProcessFunction"]

IN1 = TypeVar("IN1")
IN2 = TypeVar("IN2")
OUT = TypeVar("OUT")
KEY = TypeVar("KEY")


class BaseBroadcastProcessFunction(Function):
    """What both functions of a broadcast stream have in common: their contexts."""

    class BaseContext(ABC):
        """What the function may ask about the element."""

        @abstractmethod
        def timestamp(self) -> int:
            """The element's timestamp, in ms; ``-2**63`` if there is none."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """The machine's time, in ms since 1970."""

        @abstractmethod
        def current_watermark(self) -> int:
            """The watermark, in ms; ``-2**63`` before the first."""

    class Context(BaseContext):
        """The same for an element of the broadcast stream, which may write broadcast state."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
            """The broadcast state of this descriptor, one of those the stream was broadcast with."""

    class ReadOnlyContext(BaseContext):
        """The same for an element of the other stream, which only reads broadcast state."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
            """The broadcast state of this descriptor, one of those the stream was broadcast with."""


class BroadcastProcessFunction(BaseBroadcastProcessFunction, Generic[IN1, IN2, OUT]):
    """Takes a stream, and a broadcast stream, each of whose elements every subtask gets."""

    class Context(BaseBroadcastProcessFunction.Context, ABC):
        """What the function may ask about an element of the broadcast stream."""

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext, ABC):
        """What the function may ask about an element of the other stream."""

    @abstractmethod
    def process_element(self, value: IN1, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterable[OUT] | None:
        """Take an element of the stream that is not broadcast."""

    @abstractmethod
    def process_broadcast_element(self, value: IN2, ctx: BroadcastProcessFunction.Context) -> Iterable[OUT] | None:
        """Take an element of the broadcast stream; must do the same in every subtask."""


class KeyedBroadcastProcessFunction(BaseBroadcastProcessFunction, Generic[KEY, IN1, IN2, OUT]):
    """Takes a keyed stream, with state and timers, and a broadcast stream, whose elements every subtask gets."""

    class Context(BaseBroadcastProcessFunction.Context, ABC):
        """What the function may ask about an element of the broadcast stream."""

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext, ABC):
        """What the function may ask about an element of the keyed stream."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """The clocks and the timers."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """The key of the element or of the timer."""

    class OnTimerContext(ReadOnlyContext, ABC):
        """What the function may ask about a timer."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """By which clock the timer fires."""

    @abstractmethod
    def process_element(self, value: IN1, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Iterable[OUT] | None:
        """Take an element of the keyed stream."""

    @abstractmethod
    def process_broadcast_element(self, value: IN2, ctx: KeyedBroadcastProcessFunction.Context) -> Iterable[OUT] | None:
        """Take an element of the broadcast stream; must do the same in every subtask."""

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterable[OUT] | None:
        """A timer of the current key has fired; what is emitted carries its time as timestamp.

        Args:
            timestamp: the timer's time, in ms.
            ctx: what may be asked about it.
        """
        return None
