"""ProcessingTime: the processing time of a task, which advances during an epoch."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["ProcessingTime"]


class ProcessingTime:
    """Processing time of a subtask in one epoch, in ms since 1970.

    It starts at the driver's time and advances by the host's monotonic clock. So hosts with different wall clocks agree, and
    it never goes back.
    """

    def __init__(
        self,
        start: int,
        advance: Callable[[int], None],
        seconds: Callable[[], float] = time.monotonic,
        speed: float = 1.0,
    ) -> None:
        """``advance``: called by `tick` with the new time if that changed, and by the first. ``seconds``: the clock."""
        self._speed = speed
        self._start = start
        self._seconds = seconds
        self._began = seconds()
        self._advance = advance
        self.reached = start
        """The last time passed to ``advance``, in ms."""
        self._told = False

    def tick(self) -> None:
        """Advance the time to now."""
        now = self._start + int(1000 * self._speed * (self._seconds() - self._began))
        if now > self.reached or not self._told:
            self._told = True
            self.reached = now
            self._advance(now)
