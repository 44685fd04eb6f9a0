"""Alarm: when a job without input must wake up for a timer, an idle split or channel state. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.runtime.protocol.events import Instant
from holdfast.runtime.protocol.sources import SourceProgress

__all__ = ["LONGEST_SLEEP", "Alarm"]

LONGEST_SLEEP = 0.5
"""The longest sleep of a waiting job, in seconds, after which it handles requests."""
_SLEEP_BESIDE_A_COMMIT = 0.01
"""Sleep while a commit runs, in seconds: its end is reported to the enumerators, which commit group offsets."""


class Alarm:
    """The next processing-time timer, the next split to become idle, and the next epoch for channel state.

    Timers are in ms since 1970; the other times are by the driver's monotonic clock.
    """

    def __init__(self) -> None:
        self._timer: int | None = None
        self._idle_at: int | None = None
        """When the next split becomes idle, in ms."""
        self._next_epoch: float | None = None

    def set(self, timers: Iterable[int | None], next_epoch: float | None = None) -> None:
        """Set the next timer to the earliest of these, and the time of the next epoch for channel state; None: none."""
        self._timer = min((timer for timer in timers if timer is not None), default=None)
        self._next_epoch = next_epoch

    def due(self, now: int, instant: Instant) -> bool:
        """Whether a timer or an epoch is due, or a split has become idle and so no longer holds the watermark back."""
        idle = self._idle_at is not None and self._idle_at <= 1000 * instant.steady
        if idle:
            self._idle_at = None
        epoch = self._next_epoch is not None and self._next_epoch <= instant.seconds
        return idle or epoch or (self._timer is not None and self._timer <= now)

    def sleep(self, sources: Sequence[SourceProgress], now: int, instant: Instant, beside_a_commit: bool) -> float:
        """The seconds to wait for input."""
        self._idle_at = min((at for source in sources if (at := source.next_idle()) is not None), default=None)
        longest = _SLEEP_BESIDE_A_COMMIT if beside_a_commit else LONGEST_SLEEP
        if self._next_epoch is not None:
            longest = min(longest, max(0.0, self._next_epoch - instant.seconds))
        if self._idle_at is not None:
            longest = min(longest, max(0.0, self._idle_at / 1000 - instant.steady))
        return longest if self._timer is None else min(longest, max(0.0, (self._timer - now) / 1000))
