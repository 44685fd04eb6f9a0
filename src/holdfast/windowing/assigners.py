"""Window assigners, which assign each element to windows."""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, Generic, TypeVar

from holdfast.common.time import MIN_TIMESTAMP, Duration, Time, to_milliseconds
from holdfast.common.windows import TimeWindow, Window
from holdfast.errors import ConfigurationError
from holdfast.functions.function import RuntimeContext
from holdfast.windowing.triggers import EventTimeTrigger, ProcessingTimeTrigger, Trigger

__all__ = ["TumblingEventTimeWindows", "TumblingProcessingTimeWindows", "TumblingWindows", "WindowAssigner"]

T = TypeVar("T")
W = TypeVar("W", bound=Window)


class WindowAssigner(ABC, Generic[T, W]):
    """Assigns each element to windows."""

    class WindowAssignerContext(ABC):
        """The context of an assigner."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """The machine's time, in ms since 1970."""

        @abstractmethod
        def get_runtime_context(self) -> RuntimeContext:
            """The context of the window operator."""

    @abstractmethod
    def assign_windows(self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext) -> Collection[W]:
        """Return the windows of an element.

        Args:
            element: the element.
            timestamp: its timestamp, in ms.
            context: the assigner's context.
        """

    @abstractmethod
    def get_default_trigger(self, env: Any) -> Trigger[T, W]:
        """The trigger used when the program sets none."""

    @abstractmethod
    def is_event_time(self) -> bool:
        """Whether windows are in event time rather than processing time."""


Span = Time | Duration | datetime.timedelta


class TumblingWindows(WindowAssigner[T, TimeWindow]):
    """Consecutive windows of one size."""

    def __init__(self, size: int, offset: int) -> None:
        if size <= 0:
            raise ConfigurationError(f"the windows' size must be positive, got {size} ms")
        if abs(offset) >= size:
            raise ConfigurationError(f"the offset must be smaller than the windows' size of {size} ms, got {offset} ms")
        self._size = size
        self._offset = offset

    @property
    def size(self) -> int:
        """The length of a window, in ms."""
        return self._size

    @property
    def offset(self) -> int:
        """The offset of window starts from multiples of the size, in ms."""
        return self._offset

    def _window(self, timestamp: int) -> TimeWindow:
        start = TimeWindow.get_window_start_with_offset(timestamp, self._offset, self._size)
        return TimeWindow(start, start + self._size)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._size}, {self._offset})"


def _span(span: Span | None) -> int:
    return 0 if span is None else to_milliseconds(span)


class TumblingEventTimeWindows(TumblingWindows[T]):
    """Consecutive windows of one size, by the elements' timestamps.

    Examples:
        >>> TumblingEventTimeWindows.of(Time.minutes(1)).size
        60000

    Raises:
        ConfigurationError: the size is not positive, or the offset is not smaller than the size.
    """

    @staticmethod
    def of(size: Span, offset: Span | None = None) -> TumblingEventTimeWindows[Any]:
        """Create an assigner; windows start at multiples of ``size`` (since 1970, UTC) plus ``offset``."""
        return TumblingEventTimeWindows(_span(size), _span(offset))

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        """Return the window that contains the timestamp.

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
        """Always True."""
        return True


class TumblingProcessingTimeWindows(TumblingWindows[T]):
    """Consecutive windows of one size, in processing time.

    Raises:
        ConfigurationError: the size is not positive, or the offset is not smaller than the size.
    """

    @staticmethod
    def of(size: Span, offset: Span | None = None) -> TumblingProcessingTimeWindows[Any]:
        """Create an assigner; windows start at multiples of ``size`` (since 1970, UTC) plus ``offset``."""
        return TumblingProcessingTimeWindows(_span(size), _span(offset))

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        """Return the window that contains the current processing time."""
        return [self._window(context.get_current_processing_time())]

    def get_default_trigger(self, env: Any) -> Trigger[T, TimeWindow]:
        """A `ProcessingTimeTrigger`."""
        return ProcessingTimeTrigger()

    def is_event_time(self) -> bool:
        """Always False."""
        return False
