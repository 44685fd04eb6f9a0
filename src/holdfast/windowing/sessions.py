"""Session windows: successive elements of a key within a gap."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import Any

from holdfast.common.time import Span
from holdfast.common.values.type_variables import V
from holdfast.common.windows import TimeWindow
from holdfast.errors import ConfigurationError
from holdfast.windowing.assigners import MergingWindowAssigner, WindowAssigner, check_timestamp, span
from holdfast.windowing.triggers import EventTimeTrigger, ProcessingTimeTrigger, Trigger

__all__ = [
    "DynamicEventTimeSessionWindows",
    "DynamicProcessingTimeSessionWindows",
    "EventTimeSessionWindows",
    "ProcessingTimeSessionWindows",
    "SessionWindowTimeGapExtractor",
    "SessionWindows",
]


class SessionWindowTimeGapExtractor(ABC):
    """Returns the gap after an element."""

    @abstractmethod
    def extract(self, element: Any) -> int:
        """Return the gap in ms after which the session ends without another element; must be positive."""


class SessionWindows(MergingWindowAssigner[V, TimeWindow]):
    """Windows that end after a gap without elements. Sessions that overlap or touch are merged."""

    def _gap(self, element: V) -> int:
        raise NotImplementedError

    def assign_windows(
        self, element: V, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        """Return the window from the element to the end of its gap."""
        if self.is_event_time():
            check_timestamp(timestamp)
        else:
            timestamp = context.get_current_processing_time()
        return [TimeWindow(timestamp, timestamp + self._gap(element))]

    def merge_windows(
        self, windows: Iterable[TimeWindow], callback: MergingWindowAssigner.MergeCallback[TimeWindow]
    ) -> None:
        """Merge windows that overlap or touch."""
        TimeWindow.merge_windows(windows, callback.merge)

    def get_default_trigger(self, env: Any) -> Trigger[V, TimeWindow]:
        """An `EventTimeTrigger` or a `ProcessingTimeTrigger`."""
        return EventTimeTrigger() if self.is_event_time() else ProcessingTimeTrigger()


class _StaticSessions(SessionWindows[V]):
    def __init__(self, session_gap: int) -> None:
        if session_gap <= 0:
            raise ConfigurationError(f"the sessions' gap must be positive, got {session_gap} ms")
        self._session_gap = session_gap

    @property
    def gap_ms(self) -> int:
        """The gap after every element."""
        return self._session_gap

    def _gap(self, element: V) -> int:
        return self._session_gap

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._session_gap})"


class _DynamicSessions(SessionWindows[V]):
    def __init__(self, session_window_time_gap_extractor: SessionWindowTimeGapExtractor | Callable[[Any], int]) -> None:
        extract = getattr(session_window_time_gap_extractor, "extract", session_window_time_gap_extractor)
        if isinstance(session_window_time_gap_extractor, type) or not callable(extract):
            raise TypeError(
                "a dynamic gap needs a SessionWindowTimeGapExtractor or a function element -> gap in ms, not "
                f"{session_window_time_gap_extractor!r}"
            )
        self._extractor = session_window_time_gap_extractor
        self._extract: Callable[[Any], int] = extract

    def _gap(self, element: V) -> int:
        gap = self._extract(element)
        if isinstance(gap, bool) or not isinstance(gap, int) or gap <= 0:
            raise ValueError(f"the gap extractor returned {gap!r:.80}; a session's gap must be a positive number of ms")
        return gap

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._extractor!r})"


class EventTimeSessionWindows(_StaticSessions[V]):
    """Sessions by the elements' timestamps.

    Raises:
        ConfigurationError: the gap is not positive.
    """

    @staticmethod
    def with_gap(size: Span) -> EventTimeSessionWindows[Any]:
        """Create an assigner with the same gap after all elements."""
        return EventTimeSessionWindows(span(size))

    @staticmethod
    def with_dynamic_gap(
        extractor: SessionWindowTimeGapExtractor | Callable[[Any], int],
    ) -> DynamicEventTimeSessionWindows[Any]:
        """Create an assigner with a gap per element."""
        return DynamicEventTimeSessionWindows(extractor)

    def is_event_time(self) -> bool:
        """Always True."""
        return True


class ProcessingTimeSessionWindows(_StaticSessions[V]):
    """Sessions in processing time.

    Raises:
        ConfigurationError: the gap is not positive.
    """

    @staticmethod
    def with_gap(size: Span) -> ProcessingTimeSessionWindows[Any]:
        """Create an assigner with the same gap after all elements."""
        return ProcessingTimeSessionWindows(span(size))

    @staticmethod
    def with_dynamic_gap(
        extractor: SessionWindowTimeGapExtractor | Callable[[Any], int],
    ) -> DynamicProcessingTimeSessionWindows[Any]:
        """Create an assigner with a gap per element."""
        return DynamicProcessingTimeSessionWindows(extractor)

    def is_event_time(self) -> bool:
        """Always False."""
        return False


class DynamicEventTimeSessionWindows(_DynamicSessions[V]):
    """Sessions by the elements' timestamps, with a gap per element.

    Raises:
        TypeError: the extractor is neither an extractor nor a function.
    """

    @staticmethod
    def with_dynamic_gap(
        extractor: SessionWindowTimeGapExtractor | Callable[[Any], int],
    ) -> DynamicEventTimeSessionWindows[Any]:
        """Create an assigner with a gap per element."""
        return DynamicEventTimeSessionWindows(extractor)

    def is_event_time(self) -> bool:
        """Always True."""
        return True


class DynamicProcessingTimeSessionWindows(_DynamicSessions[V]):
    """Sessions in processing time, with a gap per element.

    Raises:
        TypeError: the extractor is neither an extractor nor a function.
    """

    @staticmethod
    def with_dynamic_gap(
        extractor: SessionWindowTimeGapExtractor | Callable[[Any], int],
    ) -> DynamicProcessingTimeSessionWindows[Any]:
        """Create an assigner with a gap per element."""
        return DynamicProcessingTimeSessionWindows(extractor)

    def is_event_time(self) -> bool:
        """Always False."""
        return False
