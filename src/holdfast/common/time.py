"""Spans and points of time: Time (a span in ms), Duration (a span in ns) and Instant (a point on the time line)."""

from __future__ import annotations

import datetime
import operator
from dataclasses import dataclass

__all__ = ["MAX_TIMESTAMP", "MIN_TIMESTAMP", "Duration", "Instant", "Span", "Time", "to_milliseconds"]

MIN_TIMESTAMP = -(2**63)
"""The timestamp of a record without one, and the watermark before the first (Java's Long.MIN_VALUE)."""
MAX_TIMESTAMP = 2**63 - 1
"""The watermark at the end of bounded input (Java's Long.MAX_VALUE)."""

_MS = 1_000_000


def _whole(amount: int, unit: str) -> int:
    try:
        return operator.index(amount)
    except TypeError:
        raise TypeError(f"a span of time is a whole number of {unit}, got {amount!r:.80}") from None


@dataclass(frozen=True, order=True)
class Duration:
    """A span of time.

    Examples:
        >>> Duration.of_seconds(5).to_millis()
        5000
        >>> Duration.of_minutes(1) == Duration.of_seconds(60)
        True
    """

    nanos: int
    """Length in nanoseconds."""

    def __post_init__(self) -> None:
        _whole(self.nanos, "nanoseconds")

    @staticmethod
    def of_days(days: int) -> Duration:
        """Create a span of days of 24 hours."""
        return Duration(_whole(days, "days") * 86_400_000 * _MS)

    @staticmethod
    def of_hours(hours: int) -> Duration:
        """Create a span of hours."""
        return Duration(_whole(hours, "hours") * 3_600_000 * _MS)

    @staticmethod
    def of_minutes(minutes: int) -> Duration:
        """Create a span of minutes."""
        return Duration(_whole(minutes, "minutes") * 60_000 * _MS)

    @staticmethod
    def of_seconds(seconds: int) -> Duration:
        """Create a span of seconds."""
        return Duration(_whole(seconds, "seconds") * 1000 * _MS)

    @staticmethod
    def of_millis(millis: int) -> Duration:
        """Create a span of milliseconds."""
        return Duration(_whole(millis, "milliseconds") * _MS)

    @staticmethod
    def of_nanos(nanos: int) -> Duration:
        """Create a span of nanoseconds."""
        return Duration(nanos)

    def to_millis(self) -> int:
        """Return the length in whole milliseconds, rounded down."""
        return self.nanos // _MS

    def to_seconds(self) -> int:
        """Return the length in whole seconds, rounded down."""
        return self.nanos // (1000 * _MS)

    def to_nanos(self) -> int:
        """Length in nanoseconds."""
        return self.nanos


class Time:
    """A span of time in milliseconds, for windows and time-to-live."""

    __slots__ = ("_milliseconds",)

    def __init__(self, milliseconds: int) -> None:
        self._milliseconds = _whole(milliseconds, "milliseconds")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Time):
            return NotImplemented
        return self._milliseconds == other._milliseconds

    def __hash__(self) -> int:
        return hash(self._milliseconds)

    def __repr__(self) -> str:
        return f"Time({self._milliseconds})"

    def to_milliseconds(self) -> int:
        """Return the length in milliseconds."""
        return self._milliseconds

    @staticmethod
    def milliseconds(milliseconds: int) -> Time:
        """Create a span of milliseconds."""
        return Time(milliseconds)

    @staticmethod
    def seconds(seconds: int) -> Time:
        """Create a span of seconds."""
        return Time(_whole(seconds, "seconds") * 1000)

    @staticmethod
    def minutes(minutes: int) -> Time:
        """Create a span of minutes."""
        return Time(_whole(minutes, "minutes") * 60_000)

    @staticmethod
    def hours(hours: int) -> Time:
        """Create a span of hours."""
        return Time(_whole(hours, "hours") * 3_600_000)

    @staticmethod
    def days(days: int) -> Time:
        """Create a span of days of 24 hours."""
        return Time(_whole(days, "days") * 86_400_000)


@dataclass(frozen=True, order=True)
class Instant:
    """A point on the time line: seconds since 1970-01-01T00:00:00Z and nanoseconds within the second."""

    seconds: int
    nanos: int

    def __post_init__(self) -> None:
        if not 0 <= self.nanos < 1_000_000_000:
            raise ValueError(f"nanos must be in [0, 1000000000), got {self.nanos}")

    def to_epoch_milli(self) -> int:
        """Return whole milliseconds since 1970-01-01T00:00:00Z, rounded down."""
        return self.seconds * 1000 + self.nanos // _MS

    @staticmethod
    def of_epoch_milli(epoch_milli: int) -> Instant:
        """Create an instant from milliseconds since 1970-01-01T00:00:00Z."""
        seconds, millis = divmod(epoch_milli, 1000)
        return Instant(seconds, millis * _MS)


Span = Time | Duration | datetime.timedelta
"""A length of time."""


def to_milliseconds(span: Span) -> int:
    """Return the length of a span in whole milliseconds.

    Raises:
        TypeError: the span is not a Time, a Duration or a timedelta.
    """
    if isinstance(span, Time):
        return span.to_milliseconds()
    if isinstance(span, Duration):
        return span.to_millis()
    if isinstance(span, datetime.timedelta):
        return span // datetime.timedelta(milliseconds=1)
    raise TypeError(f"expected a Time, a Duration or a datetime.timedelta, got {span!r}")
