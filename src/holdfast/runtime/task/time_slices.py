"""TimeSlices: cuts the work before a deadline into parts, so that it ends soon after the deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["InterruptedSlices", "Slices", "TimeSlices"]

_SHORT, _LONG = 0.002, 0.008
"""Shortest and longest duration of a slice, in seconds. Short, because the next records may take ten times as long."""
_OPENING = 0.5
"""The most seconds of the first slice that do not count against the deadline."""


class Slices(Protocol):
    """Tells how many records a subtask may process before it asks again."""

    def take(self, count: int) -> int:
        """How many of ``count`` available records to process now; 0 after the deadline."""

    def begin_small(self) -> None:
        """Start over with one record, because the next ones may be slower."""

    @property
    def spent(self) -> float:
        """The seconds that count against the deadline."""


class TimeSlices:
    """Slices of a few milliseconds. The first one is always granted, so that every epoch makes progress.

    Time counts from the end of the first slice, because a sink opens its transaction in that slice, and a subtask that waits
    for this is not behind the others.

    >>> times = iter([0.0, 0.5, 0.501, 0.55, 0.6])
    >>> slices = TimeSlices(0.1, lambda: next(times))
    >>> [slices.take(100) for _ in range(5)]
    [1, 1, 2, 1, 0]

    Args:
        seconds: The time until the deadline.
        clock: Returns the time in seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = seconds
        self._began: float | None = None
        self._size = 1
        self._taken = 0
        self._asked: float | None = None

    def take(self, count: int) -> int:
        """The records to process now; see `Slices`."""
        now = self._clock()
        if self._asked is not None:
            if self._began is None:
                self._began = min(now, self._asked + _OPENING)
            if now >= self._began + self._seconds:
                return 0
            spent = now - self._asked
            if spent > _LONG:
                self._size = max(1, self._taken // 2)
            elif spent < _SHORT and self._taken == self._size:
                self._size *= 2
        self._asked = now
        self._taken = min(self._size, count)
        return self._taken

    def begin_small(self) -> None:
        """Start over with one record; see `Slices`."""
        self._size, self._taken = 1, 0

    @property
    def spent(self) -> float:
        """The seconds since the end of the first slice; see `Slices`."""
        return 0.0 if self._began is None else self._clock() - self._began


class InterruptedSlices:
    """Slices that may end early.

    Args:
        slices: The slices.
        stop: Returns whether to end.
    """

    def __init__(self, slices: Slices, stop: Callable[[], bool]) -> None:
        self._slices = slices
        self._stop = stop

    def take(self, count: int) -> int:
        """The records to process now; see `Slices`."""
        return 0 if self._stop() else self._slices.take(count)

    def begin_small(self) -> None:
        """Start over with one record; see `Slices`."""
        self._slices.begin_small()

    @property
    def spent(self) -> float:
        """The seconds since the end of the first slice; see `Slices`."""
        return self._slices.spent
