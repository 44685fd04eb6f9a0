"""Rates over a sliding window, from amounts that arrive an epoch at a time."""

from __future__ import annotations

from collections import deque

__all__ = ["Rate"]


class Rate:
    """How much per second lately. Amounts count as spread evenly over the time in which they arose.

    With nothing new the rate falls to zero within the span. The span is stretched to two of the last periods, so that
    long epochs show their own speed instead of flickering.

    Args:
        started: When the measuring begins, in the seconds of the caller's clock.
        span: Seconds that the window covers.

    >>> rate = Rate(started=0.0, span=10.0)
    >>> rate.add(2000, start=0.0, end=2.0)
    >>> rate.per_second(now=2.0), rate.per_second(now=4.0), rate.per_second(now=11.0), rate.per_second(now=12.0)
    (1000.0, 500.0, 100.0, 0.0)
    """

    def __init__(self, started: float, span: float = 10.0) -> None:
        self._started = started
        self._span = span
        self._window = span
        self._parts: deque[tuple[float, float, float]] = deque()

    def add(self, amount: float, start: float, end: float) -> None:
        """``amount`` arose between ``start`` and ``end``; calls come in the order of ``end``."""
        self._window = max(self._span, 2 * (end - start))
        self._parts.append((start, end, amount))
        while self._parts and self._parts[0][1] <= end - self._window:
            self._parts.popleft()

    def per_second(self, now: float) -> float:
        """The rate over the window that ends now."""
        begin = max(now - self._window, self._started)
        total = 0.0
        for start, end, amount in self._parts:
            if end > begin or (end == start == begin):
                inside = 1.0 if start >= begin else (end - begin) / (end - start)
                total += amount * inside
        return total / max(now - begin, 1e-3)
