"""Windows: finite slices of a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod

__all__ = ["TimeWindow", "Window"]


class Window(ABC):
    """A finite slice of a stream."""

    @abstractmethod
    def max_timestamp(self) -> int:
        """The largest timestamp in the window, in ms."""


class TimeWindow(Window):
    """The time from ``start`` (included) to ``end`` (excluded), in ms since 1970.

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
        """Whether the two overlap or touch."""
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
