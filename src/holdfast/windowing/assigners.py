"""Window assigners, which assign elements to windows: the interface, and windows with the same boundaries for all keys."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from enum import Enum
from typing import Any, Generic, Literal, overload

from holdfast.common.time import MIN_TIMESTAMP, Span, to_milliseconds
from holdfast.common.typeinfo import Types
from holdfast.common.values.type_variables import WINDOW, WINDOWS, V
from holdfast.common.windows import GlobalWindow, TimeWindow
from holdfast.errors import ConfigurationError
from holdfast.functions.function import RuntimeContext
from holdfast.state.api.descriptors import ValueStateDescriptor
from holdfast.state.keys.key_groups import key_group
from holdfast.windowing.element_triggers import NeverTrigger
from holdfast.windowing.triggers import EventTimeTrigger, ProcessingTimeTrigger, Trigger

__all__ = [
    "GlobalWindows",
    "MergingWindowAssigner",
    "PeriodicWindows",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "StaggeredEventTimeWindows",
    "StaggeredProcessingTimeWindows",
    "StaggeredWindows",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "TumblingWindows",
    "WindowAssigner",
    "WindowStagger",
    "WindowsOfEventTime",
    "WindowsOfProcessingTime",
    "check_timestamp",
    "span",
]


class WindowAssigner(ABC, Generic[V, WINDOWS]):
    """Assigns each element to windows: to `TimeWindow`s, `CountWindow`s or the `GlobalWindow`."""

    class WindowAssignerContext(ABC):
        """The context of an assigner."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """The machine's time, in ms since 1970."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """The key of the element."""

        @abstractmethod
        def get_runtime_context(self) -> RuntimeContext:
            """The context of the window operator. Its state belongs to the assigner, by key."""

    @abstractmethod
    def assign_windows(
        self, element: V, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[WINDOWS]:
        """Return the windows of an element.

        Args:
            element: the element.
            timestamp: its timestamp, in ms.
            context: the assigner's context.
        """

    @abstractmethod
    def get_default_trigger(self, env: Any) -> Trigger[V, WINDOWS]:
        """The trigger used when the program sets none."""

    @abstractmethod
    def is_event_time(self) -> bool:
        """Whether windows are in event time rather than processing time."""


class MergingWindowAssigner(WindowAssigner[V, WINDOWS]):
    """Assigns each element to windows of its own, which are then merged with the key's other windows."""

    class MergeCallback(ABC, Generic[WINDOW]):
        """Receives the merges from ``merge_windows``."""

        @abstractmethod
        def merge(self, to_be_merged: Iterable[WINDOW], merge_result: WINDOW) -> None:
            """Merge these windows into one."""

    @abstractmethod
    def merge_windows(self, windows: Iterable[WINDOWS], callback: MergingWindowAssigner.MergeCallback[WINDOWS]) -> None:
        """Call ``callback.merge`` for each group of windows to merge.

        Args:
            windows: all windows of a key.
            callback: receives the merges.
        """


class WindowStagger(Enum):
    """How the windows of different keys lie to each other. Staggered windows do not all end, and fire, at one time."""

    ALIGNED = "aligned"
    """The windows of all keys have the same boundaries."""
    RANDOM = "random"
    """Each key has boundaries of its own, by its hash. They are always the same ones."""
    NATURAL = "natural"
    """The boundaries of each key are so that one of its windows begins at the processing time of its first element. They
    stay, with the key's state.
    """


def span(given: Span | None) -> int:
    """Convert a span of time to ms; None is 0."""
    return 0 if given is None else to_milliseconds(given)


def check_timestamp(timestamp: int) -> None:
    """Check that an element has a timestamp.

    Raises:
        ValueError: the element has no timestamp.
    """
    if timestamp == MIN_TIMESTAMP:
        raise ValueError(
            "Record has Java Long.MIN_VALUE timestamp (= no timestamp marker). Event-time windows need "
            "timestamps: call assign_timestamps_and_watermarks(...), or choose processing-time windows."
        )


class WindowsOfEventTime(WindowAssigner[V, TimeWindow]):
    """Windows of time by the elements' timestamps."""

    @abstractmethod
    def _assign(self, timestamp: int, context: WindowAssigner.WindowAssignerContext) -> list[TimeWindow]:
        """The windows that contain the time."""

    def assign_windows(
        self, element: V, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        """Return the windows that contain the timestamp.

        Raises:
            ValueError: the element has no timestamp.
        """
        check_timestamp(timestamp)
        return self._assign(timestamp, context)

    def get_default_trigger(self, env: Any) -> Trigger[V, TimeWindow]:
        """An `EventTimeTrigger`."""
        return EventTimeTrigger()

    def is_event_time(self) -> bool:
        """Always True."""
        return True


class WindowsOfProcessingTime(WindowAssigner[V, TimeWindow]):
    """Windows of time in processing time."""

    @abstractmethod
    def _assign(self, timestamp: int, context: WindowAssigner.WindowAssignerContext) -> list[TimeWindow]:
        """The windows that contain the time."""

    def assign_windows(
        self, element: V, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        """Return the windows that contain the current processing time."""
        return self._assign(context.get_current_processing_time(), context)

    def get_default_trigger(self, env: Any) -> Trigger[V, TimeWindow]:
        """A `ProcessingTimeTrigger`."""
        return ProcessingTimeTrigger()

    def is_event_time(self) -> bool:
        """Always False."""
        return False


class PeriodicWindows(WindowAssigner[V, TimeWindow]):
    """Windows with the same boundaries for all keys. They consist of *panes* of equal length.

    An element belongs to one pane, and a pane to one or several windows. ``pane`` is the length of a pane in ms; panes begin
    at its multiples plus the offset.
    """

    arguments: tuple[int, ...]
    """Those of the class."""
    ends: tuple[int, int]
    """The distance from one window's end to the next one's, and the end of one of them."""

    def __init__(self, size: int, pane: int, offset: int) -> None:
        self._size = size
        self._pane = pane
        self._offset = offset

    @property
    def size(self) -> int:
        """The length of the longest window, in ms."""
        return self._size

    @property
    def pane(self) -> int:
        """The length of a pane, in ms."""
        return self._pane

    @property
    def offset(self) -> int:
        """The offset of window starts from multiples of the size (or slide), in ms."""
        return self._offset

    @abstractmethod
    def windows(self, pane: int) -> list[tuple[int, int]]:
        """The windows that contain the pane with this start: their starts and ends, in order of their ends."""

    def pane_of(self, timestamp: int) -> int:
        """The start of the pane that contains the timestamp."""
        return timestamp - (timestamp - self._offset) % self._pane

    def _assign(self, timestamp: int, context: WindowAssigner.WindowAssignerContext) -> list[TimeWindow]:
        # Flink's order: the latest window first.
        return [TimeWindow(*window) for window in reversed(self.windows(self.pane_of(timestamp)))]


class TumblingWindows(PeriodicWindows[V]):
    """Consecutive windows of one size."""

    def __init__(self, size: int, offset: int) -> None:
        if size <= 0:
            raise ConfigurationError(f"the windows' size must be positive, got {size} ms")
        if abs(offset) >= size:
            raise ConfigurationError(f"the offset must be smaller than the windows' size of {size} ms, got {offset} ms")
        super().__init__(size, size, offset)
        self.arguments = size, offset
        self.ends = size, offset

    def windows(self, pane: int) -> list[tuple[int, int]]:
        """The single window, which is the pane."""
        return [(pane, pane + self._size)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.arguments}"


class TumblingEventTimeWindows(TumblingWindows[V], WindowsOfEventTime[V]):
    """Consecutive windows of one size, by the elements' timestamps.

    Examples:
        >>> from holdfast.common import Time
        >>> TumblingEventTimeWindows.of(Time.minutes(1)).size
        60000

    Raises:
        ConfigurationError: the size is not positive, or the offset is not smaller than the size.
    """

    @overload
    @staticmethod
    def of(
        size: Span, offset: Span | None = None, window_stagger: Literal[WindowStagger.ALIGNED] = WindowStagger.ALIGNED
    ) -> TumblingEventTimeWindows[Any]: ...

    @overload
    @staticmethod
    def of(size: Span, offset: Span | None, window_stagger: WindowStagger) -> WindowAssigner[Any, TimeWindow]: ...

    @overload
    @staticmethod
    def of(size: Span, offset: Span | None = None, *, window_stagger: WindowStagger) -> WindowAssigner[Any, TimeWindow]: ...

    @staticmethod
    def of(
        size: Span, offset: Span | None = None, window_stagger: WindowStagger = WindowStagger.ALIGNED
    ) -> WindowAssigner[Any, TimeWindow]:
        """Create an assigner; windows start at multiples of ``size`` (since 1970, UTC) plus ``offset``.

        Args:
            size: The size of a window.
            offset: Smaller than the size.
            window_stagger: How much later, by less than the size, the windows of a key start.
        """
        aligned = TumblingEventTimeWindows[Any](span(size), span(offset))
        if _is_aligned(window_stagger):
            return aligned
        return StaggeredEventTimeWindows(aligned.size, aligned.offset, window_stagger)


class TumblingProcessingTimeWindows(TumblingWindows[V], WindowsOfProcessingTime[V]):
    """Consecutive windows of one size, in processing time.

    Raises:
        ConfigurationError: the size is not positive, or the offset is not smaller than the size.
    """

    @overload
    @staticmethod
    def of(
        size: Span, offset: Span | None = None, window_stagger: Literal[WindowStagger.ALIGNED] = WindowStagger.ALIGNED
    ) -> TumblingProcessingTimeWindows[Any]: ...

    @overload
    @staticmethod
    def of(size: Span, offset: Span | None, window_stagger: WindowStagger) -> WindowAssigner[Any, TimeWindow]: ...

    @overload
    @staticmethod
    def of(size: Span, offset: Span | None = None, *, window_stagger: WindowStagger) -> WindowAssigner[Any, TimeWindow]: ...

    @staticmethod
    def of(
        size: Span, offset: Span | None = None, window_stagger: WindowStagger = WindowStagger.ALIGNED
    ) -> WindowAssigner[Any, TimeWindow]:
        """Create an assigner; windows start at multiples of ``size`` (since 1970, UTC) plus ``offset``.

        Args:
            size: The size of a window.
            offset: Smaller than the size.
            window_stagger: How much later, by less than the size, the windows of a key start.
        """
        aligned = TumblingProcessingTimeWindows[Any](span(size), span(offset))
        if _is_aligned(window_stagger):
            return aligned
        return StaggeredProcessingTimeWindows(aligned.size, aligned.offset, window_stagger)


def _is_aligned(stagger: Any) -> bool:
    if not isinstance(stagger, WindowStagger):
        raise TypeError(f"window_stagger is a WindowStagger, not {stagger!r}")
    return stagger is WindowStagger.ALIGNED


class StaggeredWindows(WindowAssigner[V, TimeWindow]):
    """Consecutive windows of one size whose boundaries differ from key to key."""

    def __init__(self, size: int, offset: int, stagger: WindowStagger) -> None:
        self._size = size
        self._offset = offset
        self._stagger = stagger
        self._began = ValueStateDescriptor("stagger", Types.LONG())

    @property
    def arguments(self) -> tuple[int, int, str]:
        """The size and offset in ms, and the stagger's name."""
        return self._size, self._offset, self._stagger.name

    def _assign(self, timestamp: int, context: WindowAssigner.WindowAssignerContext) -> list[TimeWindow]:
        later = self._later_by_key(context) if self._stagger is WindowStagger.RANDOM else self._later_by_start(context)
        start = TimeWindow.get_window_start_with_offset(timestamp, self._offset + later, self._size)
        return [TimeWindow(start, start + self._size)]

    def _later_by_key(self, context: WindowAssigner.WindowAssignerContext) -> int:
        return key_group(context.get_current_key(), self._size)

    def _later_by_start(self, context: WindowAssigner.WindowAssignerContext) -> int:
        """Where the processing time of the key's first element was in the window of no stagger."""
        began = context.get_runtime_context().get_state(self._began)
        later: int | None = began.value()
        if later is None:
            later = context.get_current_processing_time() % self._size
            began.update(later)
        return later

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._size}, {self._offset}, {self._stagger.name})"


class StaggeredEventTimeWindows(StaggeredWindows[V], WindowsOfEventTime[V]):
    """Staggered windows by the elements' timestamps, of ``TumblingEventTimeWindows.of(..., window_stagger=...)``."""


class StaggeredProcessingTimeWindows(StaggeredWindows[V], WindowsOfProcessingTime[V]):
    """Staggered windows in processing time, of ``TumblingProcessingTimeWindows.of(..., window_stagger=...)``."""


class _Sliding(PeriodicWindows[V]):
    """Windows of one size that begin at each multiple of the slide."""

    def __init__(self, size: int, slide: int, offset: int) -> None:
        if size <= 0 or slide <= 0:
            raise ConfigurationError(f"the windows' size and slide must be positive, got {size} ms and {slide} ms")
        if abs(offset) >= slide:
            raise ConfigurationError(f"the offset must be smaller than the slide of {slide} ms, got {offset} ms")
        super().__init__(size, math.gcd(size, slide), offset)
        self._slide = slide
        self.arguments = size, slide, offset
        self.ends = slide, offset + size

    @property
    def slide(self) -> int:
        """The distance from one window's start to the next one's, in ms."""
        return self._slide

    def windows(self, pane: int) -> list[tuple[int, int]]:
        """The windows that contain the pane."""
        last = pane - (pane - self._offset) % self._slide
        starts = range(last, pane + self._pane - self._size - 1, -self._slide)
        return [(start, start + self._size) for start in reversed(starts)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.arguments}"


class SlidingEventTimeWindows(_Sliding[V], WindowsOfEventTime[V]):
    """Windows of one size that overlap, by the elements' timestamps.

    Examples:
        >>> from holdfast.common import Time
        >>> windows = SlidingEventTimeWindows.of(Time.hours(1), Time.minutes(1))
        >>> len(windows.assign_windows("element", 0, None))
        60

    Raises:
        ConfigurationError: the size or slide is not positive, or the offset is not smaller than the slide.
    """

    @staticmethod
    def of(size: Span, slide: Span, offset: Span | None = None) -> SlidingEventTimeWindows[Any]:
        """Create an assigner; a window starts at each multiple of ``slide`` (since 1970, UTC) plus ``offset``."""
        return SlidingEventTimeWindows(span(size), span(slide), span(offset))


class SlidingProcessingTimeWindows(_Sliding[V], WindowsOfProcessingTime[V]):
    """Windows of one size that overlap, in processing time.

    Raises:
        ConfigurationError: the size or slide is not positive, or the offset is not smaller than the slide.
    """

    @staticmethod
    def of(size: Span, slide: Span, offset: Span | None = None) -> SlidingProcessingTimeWindows[Any]:
        """Create an assigner; a window starts at each multiple of ``slide`` (since 1970, UTC) plus ``offset``."""
        return SlidingProcessingTimeWindows(span(size), span(slide), span(offset))


class GlobalWindows(WindowAssigner[V, GlobalWindow]):
    """All elements of a key in one window, which fires only by the program's trigger."""

    @staticmethod
    def create() -> GlobalWindows[Any]:
        """Create an assigner."""
        return GlobalWindows()

    def assign_windows(
        self, element: V, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[GlobalWindow]:
        """Return the global window."""
        return [GlobalWindow.get()]

    def get_default_trigger(self, env: Any) -> Trigger[V, GlobalWindow]:
        """A `NeverTrigger`."""
        return NeverTrigger()

    def is_event_time(self) -> bool:
        """Always False: nothing is late."""
        return False

    def __repr__(self) -> str:
        return "GlobalWindows()"
