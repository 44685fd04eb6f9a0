"""Windows: finite slices of a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import total_ordering

from holdfast.common.time import MAX_TIMESTAMP

__all__ = ["Bounds", "CountWindow", "GlobalWindow", "TimeWindow", "Window", "covers"]

Bounds = tuple[int, int]
"""Start (inclusive) and end (exclusive) of a window, in ms since 1970."""


class Window(ABC):
    """A finite slice of a stream."""

    @abstractmethod
    def max_timestamp(self) -> int:
        """The largest timestamp of the window, in ms."""


@total_ordering
class TimeWindow(Window):
    """The time range from ``start`` (inclusive) to ``end`` (exclusive), in ms since 1970.

    Examples:
        >>> TimeWindow(0, 60_000).max_timestamp()
        59999
    """

    __slots__ = ("end", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end

    def max_timestamp(self) -> int:
        """The last millisecond of the window: ``end - 1``."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Whether the windows overlap or touch."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """The smallest window that contains both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        """Return the start of the window that contains the timestamp; windows are aligned to ``offset``.

        Examples:
            >>> TimeWindow.get_window_start_with_offset(-1, 0, 10)
            -10
        """
        return timestamp - (timestamp - offset) % window_size

    @staticmethod
    def merge_windows(windows: Iterable[TimeWindow], callback: Callable[[list[TimeWindow], TimeWindow], object]) -> None:
        """Merge windows that overlap or touch: call ``callback.merge(merged, cover)`` for each group of several windows.

        Args:
            windows: the windows, in any order.
            callback: a `MergingWindowAssigner.MergeCallback`.
        """
        merge = getattr(callback, "merge", callback)
        for members, cover in covers(windows):
            if len(members) > 1:
                merge(members, cover)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TimeWindow):
            return NotImplemented
        return self.start == other.start and self.end == other.end

    def __lt__(self, other: TimeWindow) -> bool:
        return (self.start, self.end) < (other.start, other.end)

    def __hash__(self) -> int:
        return hash((self.start, self.end))

    def __repr__(self) -> str:
        return f"TimeWindow(start={self.start}, end={self.end})"


@total_ordering
class CountWindow(Window):
    """A fixed number of successive elements of a key. A key's windows are numbered from 0.

    Examples:
        >>> CountWindow(3)
        CountWindow(id=3)
    """

    __slots__ = ("id",)

    def __init__(self, id: int) -> None:
        self.id = id

    def max_timestamp(self) -> int:
        """The end of time: timestamps do not matter."""
        return MAX_TIMESTAMP

    def __eq__(self, other: object) -> bool:
        return self.id == other.id if isinstance(other, CountWindow) else NotImplemented

    def __lt__(self, other: CountWindow) -> bool:
        return self.id < other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"CountWindow(id={self.id})"


class GlobalWindow(Window):
    """The single window of all elements of a key."""

    __slots__ = ()

    @staticmethod
    def get() -> GlobalWindow:
        """The window."""
        return _GLOBAL

    def max_timestamp(self) -> int:
        """The end of time."""
        return MAX_TIMESTAMP

    def __eq__(self, other: object) -> bool:
        return True if isinstance(other, GlobalWindow) else NotImplemented

    def __lt__(self, other: GlobalWindow) -> bool:
        return False

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "GlobalWindow"


_GLOBAL = GlobalWindow()


def covers(windows: Iterable[TimeWindow]) -> list[tuple[list[TimeWindow], TimeWindow]]:
    """Group windows that overlap or touch, each group with its covering window, in order of time.

    >>> covers([TimeWindow(5, 8), TimeWindow(0, 5), TimeWindow(9, 10)])[0][1]
    TimeWindow(start=0, end=8)
    """
    groups: list[tuple[list[TimeWindow], TimeWindow]] = []
    for window in sorted(windows):
        if groups and groups[-1][1].intersects(window):
            members, cover = groups[-1]
            groups[-1] = ([*members, window], cover.cover(window))
        else:
            groups.append(([window], window))
    return groups
