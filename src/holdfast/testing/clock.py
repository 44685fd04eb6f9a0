"""VirtualClock: processing time that moves only when a test moves it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.common.time import Duration, Time, to_milliseconds

__all__ = ["VirtualClock"]


class VirtualClock:
    """Processing time under a test's control. It never goes back.

    Examples:
        >>> clock = VirtualClock()
        >>> clock.advance(Time.seconds(5))
        5000
        >>> clock.set(7_500)
        7500
    """

    def __init__(self, start: int = 0) -> None:
        """``start``: the first time, in ms since 1970."""
        self._now = start
        self._lock = threading.Lock()
        self._listeners: list[Callable[[int], None]] = []

    def now(self) -> int:
        """The time, in ms since 1970."""
        return self._now

    def advance(self, span: Time | Duration | int) -> int:
        """Move the time on, fire what is due, and return the new time.

        Args:
            span: A span of time, or a number of ms.
        """
        return self.set(self._now + (span if isinstance(span, int) else to_milliseconds(span)))

    def set(self, time: int) -> int:
        """Move the time to ``time`` (ms since 1970), fire what is due, and return it.

        Raises:
            ValueError: the time would go back.
        """
        with self._lock:
            if time < self._now:
                raise ValueError(f"the clock is at {self._now} ms and cannot go back to {time} ms")
            self._now = time
        for listener in list(self._listeners):
            listener(time)
        return time

    def call(self, listener: Callable[[int], None]) -> None:
        """Call ``listener`` with the new time whenever the time moves."""
        self._listeners.append(listener)
