"""Processing time in a task: it begins where the driver says and moves while the task works."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["ProcessingTime"]


class ProcessingTime:
    """Processing time of a subtask in one epoch, in ms since 1970.

    The driver gives the start; from there it moves by the host's monotonic clock, so hosts whose wall clocks differ
    agree, and it never falls.
    """

    def __init__(self, start: int, advance: Callable[[int], None]) -> None:
        """``advance`` is called with the time whenever `tick` finds that it has moved, for the first time with the start."""
        self._start = start
        self._began = time.monotonic()
        self._advance = advance
        self.reached = start
        """The time that was told last."""
        self._told = False

    def tick(self) -> None:
        """Tell the time if it has moved."""
        now = self._start + int(1000 * (time.monotonic() - self._began))
        if now > self.reached or not self._told:
            self._told = True
            self.reached = now
            self._advance(now)
