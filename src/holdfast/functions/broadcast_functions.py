"""Functions of a stream and a broadcast stream, whose elements (e.g. rules) reach every subtask."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic

from holdfast.common.output_tag import Tagged
from holdfast.common.time_domain import TimeDomain
from holdfast.common.values.type_variables import IN1, IN2, KEY, OUT, K, S, V
from holdfast.functions.function import Function
from holdfast.functions.timer_service import TimerService
from holdfast.state.api.descriptors import MapStateDescriptor, StateDescriptor
from holdfast.state.api.interfaces import BroadcastState, ReadOnlyBroadcastState

__all__ = ["BaseBroadcastProcessFunction", "BroadcastProcessFunction", "KeyedBroadcastProcessFunction"]


class BaseBroadcastProcessFunction(Function):
    """Base of the broadcast functions, with their contexts."""

    class BaseContext(ABC):
        """The context of an element."""

        @abstractmethod
        def timestamp(self) -> int:
            """The element's timestamp, in ms; ``-2**63`` if it has none."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """The machine's time, in ms since 1970."""

        @abstractmethod
        def current_watermark(self) -> int:
            """The watermark, in ms; ``-2**63`` before the first."""

    class Context(BaseContext):
        """The context of a broadcast element, with read and write access to broadcast state."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor[S, V]) -> BroadcastState[S, V]:
            """The broadcast state of a descriptor that was passed to ``broadcast``."""

    class ReadOnlyContext(BaseContext):
        """The context of an element of the other stream, with read-only access to broadcast state."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor[S, V]) -> ReadOnlyBroadcastState[S, V]:
            """The broadcast state of a descriptor that was passed to ``broadcast``."""


class BroadcastProcessFunction(BaseBroadcastProcessFunction, Generic[IN1, IN2, OUT]):
    """Processes a stream and a broadcast stream, whose elements reach every subtask."""

    class Context(BaseBroadcastProcessFunction.Context, ABC):
        """The context of an element of the broadcast stream."""

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext, ABC):
        """The context of an element of the other stream."""

    @abstractmethod
    def process_element(self, value: IN1, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterable[OUT | Tagged] | None:
        """Process an element of the stream that is not broadcast."""

    @abstractmethod
    def process_broadcast_element(self, value: IN2, ctx: BroadcastProcessFunction.Context) -> Iterable[OUT | Tagged] | None:
        """Process an element of the broadcast stream; must do the same in every subtask."""


class KeyedBroadcastProcessFunction(BaseBroadcastProcessFunction, Generic[KEY, IN1, IN2, OUT]):
    """Processes a keyed stream, with state and timers, and a broadcast stream, whose elements reach every subtask."""

    class Context(BaseBroadcastProcessFunction.Context, ABC):
        """The context of an element of the broadcast stream."""

        @abstractmethod
        def apply_to_keyed_state(self, state_descriptor: StateDescriptor, function: Callable[[Any, Any], object]) -> None:
            """Call a function with every key of this subtask that has the state, and with the state, in undefined order.

            Args:
                state_descriptor: The descriptor of a keyed state that ``open`` requested from the runtime context.
                function: A callable ``(key, state)``. It may read and change the state; its result is ignored.
            """

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext, ABC, Generic[K]):
        """The context of an element of the keyed stream.

        ``KeyedBroadcastProcessFunction.ReadOnlyContext[str]`` names the type of the key.
        """

        @abstractmethod
        def timer_service(self) -> TimerService:
            """The clocks and the timers."""

        @abstractmethod
        def get_current_key(self) -> K:
            """The key of the element or of the timer."""

    class OnTimerContext(ReadOnlyContext[K], ABC):
        """The context of a firing timer."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """The time domain of the timer."""

    @abstractmethod
    def process_element(
        self, value: IN1, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext[KEY]
    ) -> Iterable[OUT | Tagged] | None:
        """Process an element of the keyed stream."""

    @abstractmethod
    def process_broadcast_element(
        self, value: IN2, ctx: KeyedBroadcastProcessFunction.Context
    ) -> Iterable[OUT | Tagged] | None:
        """Process an element of the broadcast stream; must do the same in every subtask."""

    def on_timer(
        self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext[KEY]
    ) -> Iterable[OUT | Tagged] | None:
        """Handle a timer of the current key. Emitted elements get the timer's time as timestamp.

        Args:
            timestamp: the timer's time, in ms.
            ctx: the timer's context.
        """
        return None
