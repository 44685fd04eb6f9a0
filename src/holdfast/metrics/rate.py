"""Rates over a sliding window, from amounts reported once per epoch."""

from __future__ import annotations

from collections import deque

__all__ = ["Rate"]


class Rate:
    """Recent rate per second. Each amount counts as spread evenly over its period.

    Without new amounts the rate falls to zero within the span. The span covers at least two of the latest periods, so that
    the rate of long epochs does not flicker.

    Args:
        started: Start of the measurement, in seconds of the caller's clock.
        span: Length of the window in seconds.

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
        """Add ``amount``, which arose between ``start`` and ``end``. Calls must come in the order of ``end``."""
        self._window = max(self._span, 2 * (end - start))
        self._parts.append((start, end, amount))
        while self._parts and self._parts[0][1] <= end - self._window:
            self._parts.popleft()

    def per_second(self, now: float) -> float:
        """Return the rate over the window that ends now."""
        begin = max(now - self._window, self._started)
        total = 0.0
        for start, end, amount in self._parts:
            if end > begin or (end == start == begin):
                inside = 1.0 if start >= begin else (end - begin) / (end - start)
                total += amount * inside
        return total / max(now - begin, 1e-3)
