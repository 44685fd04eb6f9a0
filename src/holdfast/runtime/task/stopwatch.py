"""Stopwatch: the time that each operator of a chain takes itself, without the operators it calls."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import ParamSpec, TypeVar

__all__ = ["Stopwatch"]

P = ParamSpec("P")
R = TypeVar("R")


class Stopwatch:
    """Measures nested calls in one thread. It reads the clock twice per call, so a call should process a batch.

    Args:
        positions: The number of things to measure.
    """

    def __init__(self, positions: int) -> None:
        self._seconds = [0.0] * (positions + 1)
        self._running = positions  # outside of all calls
        self._since = perf_counter()

    def timed(self, position: int, call: Callable[P, R]) -> Callable[P, R]:
        """Wrap a call such that its time counts for a position, except that of timed calls within it."""
        seconds = self._seconds

        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            outer, now = self._running, perf_counter()
            seconds[outer] += now - self._since
            self._running, self._since = position, now
            try:
                return call(*args, **kwargs)
            finally:
                now = perf_counter()
                seconds[position] += now - self._since
                self._running, self._since = outer, now

        return run

    @property
    def running(self) -> int:
        """The position of the running call; outside of all calls, one after the last position. Thread-safe."""
        return self._running

    def drain(self) -> list[float]:
        """The seconds since the last call, by position."""
        found = self._seconds[:-1]
        self._seconds[:] = [0.0] * len(self._seconds)
        return found
