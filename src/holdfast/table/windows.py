"""Windows of tables: Kafka Streams' TimeWindows, SlidingWindows and SessionWindows, and the keys of windowed tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.common.time import Span, Time, to_milliseconds
from holdfast.common.windows import TimeWindow
from holdfast.errors import ConfigurationError

__all__ = ["SessionWindows", "SlidingWindows", "TimeWindows", "Windowed", "milliseconds"]


def milliseconds(span: Span, name: str, where: str, least: int = 0) -> int:
    """The length of a span in ms.

    Raises:
        TypeError: it is none.
        ConfigurationError: it is shorter than ``least``.
    """
    try:
        length = to_milliseconds(span)
    except TypeError:
        raise TypeError(f"the {name} of {where} is a Time or a Duration, not {span!r}.") from None
    if length < least:
        told = "may not be negative" if least == 0 else "must be positive"
        raise ConfigurationError(f"the {name} of {where} {told}: {span!r}.")
    return length


class Windowed(NamedTuple):
    """A key in a window. It equals the tuple of its fields."""

    key: Any
    """The key of the grouped stream."""
    start: int
    """The beginning of the window, in ms since 1970."""
    end: int
    """The end of a time window, which is not in it; the last moment of a sliding window; of a session, the timestamp of its
    last element. In ms since 1970.
    """

    def window(self) -> TimeWindow:
        """The window. Of a session, and of a sliding window, ``end`` is in it."""
        return TimeWindow(self.start, self.end)


@dataclass(frozen=True)
class TimeWindows:
    """Windows of a fixed size, at multiples of an advance; without ``advance_by``, of the size: tumbling windows.

    A window is closed, and takes no further elements, when the watermark has reached its end and the grace period is over.

    Examples:
        >>> hopping = TimeWindows.of_size_with_no_grace(Time.seconds(5)).advance_by(Time.seconds(2))
        >>> hopping.windows_of(2_500), hopping.closes_after
        ([(0, 5000), (2000, 7000)], -1)
    """

    size_ms: int
    grace_ms: int
    advance_ms: int

    @staticmethod
    def of_size_with_no_grace(size: Span) -> TimeWindows:
        """Windows that are closed at their end.

        Args:
            size: The size of a window; positive.
        """
        return TimeWindows.of_size_and_grace(size, Time.milliseconds(0))

    @staticmethod
    def of_size_and_grace(size: Span, after_window_end: Span) -> TimeWindows:
        """Windows that take late elements for a grace period.

        Args:
            size: The size of a window; positive.
            after_window_end: How far the watermark may pass the end of a window before it is closed.
        """
        length = milliseconds(size, "size", "TimeWindows", 1)
        return TimeWindows(length, milliseconds(after_window_end, "grace period", "TimeWindows"), length)

    def advance_by(self, advance: Span) -> TimeWindows:
        """Hopping windows: one begins at each multiple of the advance.

        Args:
            advance: The time between the beginnings of two windows; positive, and at most the size.
        """
        length = milliseconds(advance, "advance", "TimeWindows", 1)
        if length > self.size_ms:
            raise ConfigurationError(
                f"the advance of TimeWindows is {length} ms, but a window has {self.size_ms} ms: elements between "
                "two windows would be lost. Choose an advance that is at most the size."
            )
        return TimeWindows(self.size_ms, self.grace_ms, length)

    @property
    def closes_after(self) -> int:
        """How far from its end the watermark closes a window, in ms."""
        return self.grace_ms - 1

    def windows_of(self, timestamp: int) -> list[tuple[int, int]]:
        """The beginnings and ends of an element's windows. As in Kafka Streams, those of times since 1970 begin after it."""
        first = timestamp - self.size_ms + self.advance_ms
        if timestamp >= 0:
            first = max(first, 0)
        first -= first % self.advance_ms
        return [(start, start + self.size_ms) for start in range(first, timestamp + 1, self.advance_ms)]

    def deadline(self, timestamp: int) -> int:
        """The watermark from which an element is late for one of its windows."""
        return self.windows_of(timestamp)[0][1] + self.closes_after

    def definition(self) -> dict[str, Any]:
        """The windows as plain data."""
        return {"size": self.size_ms, "advance": self.advance_ms, "grace": self.grace_ms}


@dataclass(frozen=True)
class SlidingWindows:
    """Windows that slide over the elements of a key: of all that are at most a time difference from each other.

    For each element there is a window that ends at its timestamp, and one that begins a millisecond after it, if it has
    elements. Both ends belong to a window. Elements with a timestamp below the time difference have one window from 0 on in
    place of those that would end at them. A window is closed, and takes no further elements, when the watermark has passed
    its end by the grace period.
    """

    difference_ms: int
    grace_ms: int

    @staticmethod
    def of_time_difference_with_no_grace(time_difference: Span) -> SlidingWindows:
        """Windows that take no late elements.

        Args:
            time_difference: The longest time between two elements of a window.
        """
        return SlidingWindows.of_time_difference_and_grace(time_difference, Time.milliseconds(0))

    @staticmethod
    def of_time_difference_and_grace(time_difference: Span, after_window_end: Span) -> SlidingWindows:
        """Windows that take late elements for a grace period.

        Args:
            time_difference: The longest time between two elements of a window.
            after_window_end: How far the watermark may pass the end of a window before it is closed.
        """
        difference = milliseconds(time_difference, "time difference", "SlidingWindows")
        return SlidingWindows(difference, milliseconds(after_window_end, "grace period", "SlidingWindows"))

    @property
    def closes_after(self) -> int:
        """How far from its end the watermark closes a window, in ms."""
        return self.grace_ms

    def deadline(self, timestamp: int) -> int:
        """The watermark from which an element is late for the first of its windows."""
        return timestamp + self.grace_ms

    def definition(self) -> dict[str, Any]:
        """The windows as plain data."""
        return {"difference": self.difference_ms, "grace": self.grace_ms}


@dataclass(frozen=True)
class SessionWindows:
    """Windows of elements that follow each other within an inactivity gap.

    A session is from its first element to its last; an element at most the gap before or behind it belongs to it. It is
    closed, and takes no further elements, when the watermark has passed its end by the gap and the grace period.
    """

    gap_ms: int
    grace_ms: int

    @staticmethod
    def of_inactivity_gap_with_no_grace(inactivity_gap: Span) -> SessionWindows:
        """Sessions that take no late elements.

        Args:
            inactivity_gap: The longest time between two elements of a session; positive.
        """
        return SessionWindows.of_inactivity_gap_and_grace(inactivity_gap, Time.milliseconds(0))

    @staticmethod
    def of_inactivity_gap_and_grace(inactivity_gap: Span, after_window_end: Span) -> SessionWindows:
        """Sessions that take late elements for a grace period.

        Args:
            inactivity_gap: The longest time between two elements of a session; positive.
            after_window_end: How far the watermark may pass the end of the gap before the session is closed.
        """
        gap = milliseconds(inactivity_gap, "inactivity gap", "SessionWindows", 1)
        return SessionWindows(gap, milliseconds(after_window_end, "grace period", "SessionWindows"))

    @property
    def closes_after(self) -> int:
        """How far from its last element the watermark closes a session, in ms."""
        return self.gap_ms + self.grace_ms

    def deadline(self, timestamp: int) -> int:
        """The watermark from which an element may come too late for a session that it would belong to."""
        return timestamp + self.grace_ms

    def definition(self) -> dict[str, Any]:
        """The windows as plain data."""
        return {"gap": self.gap_ms, "grace": self.grace_ms}
