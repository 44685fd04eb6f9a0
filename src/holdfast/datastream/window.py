"""Windows: which ones an element belongs to, and when they give their results."""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Collection
from enum import Enum
from typing import Any, Generic, TypeVar

from holdfast.common.time import Duration, Time, to_milliseconds
from holdfast.common.windows import TimeWindow, Window
from holdfast.datastream.function_base import RuntimeContext
from holdfast.datastream.state import State, StateDescriptor
from holdfast.errors import ConfigurationError
from holdfast.metrics.user import MetricGroup

__all__ = [
    "EventTimeTrigger",
    "ProcessingTimeTrigger",
    "TimeWindow",
    "Trigger",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "Window",
    "WindowAssigner",
]

T = TypeVar("T")
W = TypeVar("W", bound=Window)
MIN_TIMESTAMP = -(2**63)


class TriggerResult(Enum):
    """What becomes of a window now: whether it gives its result, and whether its elements are deleted."""

    CONTINUE = (False, False)
    FIRE_AND_PURGE = (True, True)
    FIRE = (True, False)
    PURGE = (False, True)

    def is_fire(self) -> bool:
        """Whether the window gives its result."""
        return self.value[0]

    def is_purge(self) -> bool:
        """Whether the window's elements are deleted."""
        return self.value[1]


class Trigger(ABC, Generic[T, W]):
    """Decides when a window gives its result."""

    class TriggerContext(ABC):
        """What a trigger may ask and do."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """The machine's time, in ms since 1970."""

        @abstractmethod
        def get_metric_group(self) -> MetricGroup:
            """Where the trigger registers its metrics."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """The watermark, in ms; ``-2**63`` before the first."""

        @abstractmethod
        def register_processing_time_timer(self, time: int) -> None:
            """Have ``on_processing_time`` called at this time (ms)."""

        @abstractmethod
        def register_event_time_timer(self, time: int) -> None:
            """Have ``on_event_time`` called at this time (ms)."""

        @abstractmethod
        def delete_processing_time_timer(self, time: int) -> None:
            """Take back ``register_processing_time_timer``."""

        @abstractmethod
        def delete_event_time_timer(self, time: int) -> None:
            """Take back ``register_event_time_timer``."""

        @abstractmethod
        def get_partitioned_state(self, state_descriptor: StateDescriptor) -> State:
            """State of the key and the window."""

    class OnMergeContext(TriggerContext):
        """The same when windows merge."""

        @abstractmethod
        def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
            """Merge the state of the merged windows into that of the new one."""

    @abstractmethod
    def on_element(self, element: T, timestamp: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        """An element has come into the window."""

    @abstractmethod
    def on_processing_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        """A processing-time timer has fired."""

    @abstractmethod
    def on_event_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        """An event-time timer has fired."""

    def can_merge(self) -> bool:
        """Whether the trigger works with windows that merge."""
        return False

    @abstractmethod
    def on_merge(self, window: W, ctx: Trigger.OnMergeContext) -> None:
        """Windows have merged into this one."""

    @abstractmethod
    def clear(self, window: W, ctx: Trigger.TriggerContext) -> None:
        """The window is being deleted: delete its timers and state."""


class EventTimeTrigger(Trigger[T, TimeWindow]):
    """Fires when the watermark passes the window's end, and for each late element after that."""

    def on_element(self, element: T, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Fire at once if the watermark has passed the window's end, else set the timer."""
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Nothing to do."""
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Fire if it is the window's time."""
        return TriggerResult.FIRE if time >= window.max_timestamp() else TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        """It does."""
        return True

    def on_merge(self, window: TimeWindow, ctx: Trigger.OnMergeContext) -> None:
        """Set the timer of the new window, unless its time has come already."""
        if window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        """Delete the timer."""
        ctx.delete_event_time_timer(window.max_timestamp())

    @staticmethod
    def create() -> EventTimeTrigger[Any]:
        """A new trigger."""
        return EventTimeTrigger()


class ProcessingTimeTrigger(Trigger[T, TimeWindow]):
    """Fires when the machine's time passes the window's end."""

    def on_element(self, element: T, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Set the timer."""
        ctx.register_processing_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Fire."""
        return TriggerResult.FIRE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Nothing to do."""
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        """It does."""
        return True

    def on_merge(self, window: TimeWindow, ctx: Trigger.OnMergeContext) -> None:
        """Set the timer of the new window, unless its time has come already."""
        if window.max_timestamp() > ctx.get_current_processing_time():
            ctx.register_processing_time_timer(window.max_timestamp())

    def clear(self, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        """Delete the timer."""
        ctx.delete_processing_time_timer(window.max_timestamp())

    @staticmethod
    def create() -> ProcessingTimeTrigger[Any]:
        """A new trigger."""
        return ProcessingTimeTrigger()


class WindowAssigner(ABC, Generic[T, W]):
    """Decides which windows an element belongs to."""

    class WindowAssignerContext(ABC):
        """What an assigner may ask."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """The machine's time, in ms since 1970."""

        @abstractmethod
        def get_runtime_context(self) -> RuntimeContext:
            """The context of the window operator."""

    @abstractmethod
    def assign_windows(self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext) -> Collection[W]:
        """The windows of an element.

        Args:
            element: the element.
            timestamp: its timestamp, in ms.
            context: what may be asked besides.
        """

    @abstractmethod
    def get_default_trigger(self, env: Any) -> Trigger[T, W]:
        """The trigger that is used where none is chosen."""

    @abstractmethod
    def is_event_time(self) -> bool:
        """Whether windows are of event time, not of processing time."""


Span = Time | Duration | datetime.timedelta


class _TumblingWindows(WindowAssigner[T, TimeWindow]):
    """Windows of one size, one after the other."""

    def __init__(self, size: int, offset: int) -> None:
        if size <= 0:
            raise ConfigurationError(f"the windows' size must be positive, got {size} ms")
        if abs(offset) >= size:
            raise ConfigurationError(f"the offset must be smaller than the windows' size of {size} ms, got {offset} ms")
        self._size = size
        self._offset = offset

    @property
    def size(self) -> int:
        """The windows' length, in ms."""
        return self._size

    @property
    def offset(self) -> int:
        """By how much the windows' starts are moved from multiples of the size, in ms."""
        return self._offset

    def _window(self, timestamp: int) -> TimeWindow:
        start = TimeWindow.get_window_start_with_offset(timestamp, self._offset, self._size)
        return TimeWindow(start, start + self._size)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._size}, {self._offset})"


def _span(span: Span | None) -> int:
    return 0 if span is None else to_milliseconds(span)


class TumblingEventTimeWindows(_TumblingWindows[T]):
    """Windows of one size, one after the other, by the elements' timestamps.

    Examples:
        >>> TumblingEventTimeWindows.of(Time.minutes(1)).size
        60000

    Raises:
        ConfigurationError: the size is not positive, or the offset not smaller.
    """

    @staticmethod
    def of(size: Span, offset: Span | None = None) -> TumblingEventTimeWindows[Any]:
        """Windows of this size, their starts moved by ``offset`` from multiples of it (since 1970, UTC)."""
        return TumblingEventTimeWindows(_span(size), _span(offset))

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        """The window that the timestamp falls into.

        Raises:
            ValueError: the element has no timestamp.
        """
        if timestamp == MIN_TIMESTAMP:
            raise ValueError(
                "Record has Java Long.MIN_VALUE timestamp (= no timestamp marker). Event-time windows need "
                "timestamps: call assign_timestamps_and_watermarks(...), or choose processing-time windows."
            )
        return [self._window(timestamp)]

    def get_default_trigger(self, env: Any) -> Trigger[T, TimeWindow]:
        """An `EventTimeTrigger`."""
        return EventTimeTrigger()

    def is_event_time(self) -> bool:
        """It is."""
        return True


class TumblingProcessingTimeWindows(_TumblingWindows[T]):
    """Windows of one size, one after the other, by the machine's time.

    Raises:
        ConfigurationError: the size is not positive, or the offset not smaller.
    """

    @staticmethod
    def of(size: Span, offset: Span | None = None) -> TumblingProcessingTimeWindows[Any]:
        """Windows of this size, their starts moved by ``offset`` from multiples of it (since 1970, UTC)."""
        return TumblingProcessingTimeWindows(_span(size), _span(offset))

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        """The window that the machine's time falls into."""
        return [self._window(context.get_current_processing_time())]

    def get_default_trigger(self, env: Any) -> Trigger[T, TimeWindow]:
        """A `ProcessingTimeTrigger`."""
        return ProcessingTimeTrigger()

    def is_event_time(self) -> bool:
        """It is not."""
        return False
