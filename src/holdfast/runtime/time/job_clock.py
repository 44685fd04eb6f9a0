"""JobClock: the processing time of a job in its driver. Pure."""

from __future__ import annotations

from enum import Enum

__all__ = ["JobClock", "Step"]

_TOLERANCE_MS = 60_000
"""Smaller steps of the wall clock, in ms, are followed at once, without a warning."""
_PATIENCE = 60.0
"""Seconds that a larger step forward must last before it is followed: most are mistakes that are soon corrected."""
_HALF = 0.5
"""The speed of processing time while it is ahead of the wall clock."""


class Step(Enum):
    """A large step of the wall clock against the monotonic one."""

    FORWARD = "forward"
    """It is not followed yet."""
    FOLLOWED = "followed"
    """Processing time has jumped to the wall clock, which stayed ahead."""
    BACK = "back"
    """Processing time is ahead of the wall clock, and runs at half speed until that has caught up."""


class JobClock:
    """Processing time, in ms since 1970. It never goes back and never stands still.

    It follows the wall clock; while the wall clock has been set, it advances by the monotonic clock. A step forward is
    followed once it has lasted; after a step back, processing time runs at half speed until the wall clock has caught up.

    >>> clock = JobClock()
    >>> for wall_ms, seconds in (1000, 0.0), (2000, 1.0), (3_602_500, 1.5), (3000, 2.0):
    ...     step = clock.tick(wall_ms, seconds)
    ...     print(clock.now, step)
    1000 None
    2000 None
    2500 Step.FORWARD
    3000 None
    """

    def __init__(self) -> None:
        self.now = 0
        self.speed = 1.0
        """The speed of processing time until the next tick."""
        self.ahead_ms = 0
        """How far the wall clock is ahead, in ms; negative if it is behind."""
        self._time = 0.0
        self._at: float | None = None
        """The last tick, in seconds of the monotonic clock."""
        self._forward_since: float | None = None
        self._told_back = False

    def tick(self, wall_ms: int, seconds: float) -> Step | None:
        """Advance time; returns a step of the wall clock that the user should know about, once.

        Args:
            wall_ms: The wall clock, in ms since 1970.
            seconds: The monotonic clock.
        """
        elapsed = 0.0 if self._at is None else max(0.0, 1000 * (seconds - self._at))
        if self._at is None:
            self._time = float(max(self.now, wall_ms))
        self._at = seconds
        self.ahead_ms = round(wall_ms - self._time - elapsed)
        ahead = self.ahead_ms > _TOLERANCE_MS
        step = self._forward(wall_ms, seconds, elapsed) if ahead else self._near(wall_ms, elapsed)
        self.now = int(self._time)
        return step

    def _forward(self, wall_ms: int, seconds: float, elapsed: float) -> Step | None:
        self.speed, self._told_back = 1.0, False
        if self._forward_since is None:
            self._forward_since = seconds
            self._time += elapsed
            return Step.FORWARD
        if seconds - self._forward_since < _PATIENCE:
            self._time += elapsed
            return None
        self._forward_since, self._time = None, float(wall_ms)
        return Step.FOLLOWED

    def _near(self, wall_ms: int, elapsed: float) -> Step | None:
        self._forward_since = None
        if self.ahead_ms >= 0:
            self._time, self.speed, self._told_back = float(wall_ms), 1.0, False
            return None
        self._time = max(self._time + _HALF * elapsed, min(wall_ms, self._time + elapsed))
        self.speed = _HALF if self._time > wall_ms + _TOLERANCE_MS else 1.0
        if self.speed == 1.0 or self._told_back:
            return None
        self._told_back = True
        return Step.BACK

    def reached(self, time: int) -> None:
        """Advance time to at least this, because a task or the checkpoint has reached it."""
        if time > self.now:
            self.now, self._time = time, float(time)
