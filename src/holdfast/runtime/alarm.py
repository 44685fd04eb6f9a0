"""Alarm: when a job without input must wake up, for a timer or an idle split. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.runtime.sources import SourceProgress

__all__ = ["Alarm"]

_LONGEST_SLEEP = 0.5
_SLEEP_BESIDE_A_COMMIT = 0.01
"""Seconds between a commit and telling the enumerators, which commit group offsets."""


class Alarm:
    """The next timer of processing time, and the next split to become idle. Times are in ms since 1970."""

    def __init__(self) -> None:
        self._timer: int | None = None
        self._idle_at: int | None = None

    def set(self, timers: Iterable[int | None]) -> None:
        """Set the next timer to the earliest of these; None stands for no timer."""
        self._timer = min((timer for timer in timers if timer is not None), default=None)

    def due(self, now: int) -> bool:
        """Whether a timer is due, or a split has become idle and no longer holds the watermark back."""
        idle = self._idle_at is not None and self._idle_at <= now
        if idle:
            self._idle_at = None
        return idle or (self._timer is not None and self._timer <= now)

    def sleep(self, sources: Sequence[SourceProgress], now: int, *, beside_a_commit: bool) -> float:
        """The seconds to wait for input."""
        self._idle_at = min((t for t in (source.next_idle(now) for source in sources) if t is not None), default=None)
        wake_at = min((t for t in (self._timer, self._idle_at) if t is not None), default=None)
        longest = _SLEEP_BESIDE_A_COMMIT if beside_a_commit else _LONGEST_SLEEP
        return longest if wake_at is None else min(longest, max(0.0, (wake_at - now) / 1000))
