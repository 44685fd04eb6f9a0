"""Alarm: when a job without input must wake up, for a timer or an idle split. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.runtime.sources import SourceProgress

__all__ = ["Alarm"]

_LONGEST_SLEEP = 0.5
_SLEEP_BESIDE_A_COMMIT = 0.01
"""Seconds between a commit and telling the enumerators, which commit group offsets."""


class Alarm:
    """The next timer of processing time, the next split to become idle, and the next epoch for channel state.

    Times are in ms since 1970; but that of the epoch, which must come even if the wall clock is set back, is in seconds of
    the monotonic clock.
    """

    def __init__(self) -> None:
        self._timer: int | None = None
        self._idle_at: int | None = None
        self._next_epoch: float | None = None

    def set(self, timers: Iterable[int | None], next_epoch: float | None = None) -> None:
        """Set the next timer to the earliest of these, and the next epoch for channel state; None stands for none."""
        self._timer = min((timer for timer in timers if timer is not None), default=None)
        self._next_epoch = next_epoch

    def due(self, now: int, seconds: float) -> bool:
        """Whether a timer or an epoch is due, or a split has become idle and no longer holds the watermark back."""
        idle = self._idle_at is not None and self._idle_at <= now
        if idle:
            self._idle_at = None
        epoch = self._next_epoch is not None and self._next_epoch <= seconds
        return idle or epoch or (self._timer is not None and self._timer <= now)

    def sleep(self, sources: Sequence[SourceProgress], now: int, seconds: float, beside_a_commit: bool) -> float:
        """The seconds to wait for input."""
        self._idle_at = min((t for t in (source.next_idle(now) for source in sources) if t is not None), default=None)
        wake_at = min((t for t in (self._timer, self._idle_at) if t is not None), default=None)
        longest = _SLEEP_BESIDE_A_COMMIT if beside_a_commit else _LONGEST_SLEEP
        if self._next_epoch is not None:
            longest = min(longest, max(0.0, self._next_epoch - seconds))
        return longest if wake_at is None else min(longest, max(0.0, (wake_at - now) / 1000))
