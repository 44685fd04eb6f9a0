"""Decides when the next epoch starts, by the target checkpoint interval, and how much input it takes. Pure.

Every epoch ends with a checkpoint, so both have one pace. Input accumulates until the next epoch starts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.metrics.stats import EpochStats
from holdfast.runtime.plan.pace_settings import PaceSettings
from holdfast.runtime.protocol.events import Instant
from holdfast.runtime.protocol.instructions import PaceOfCheckpoints

__all__ = ["CheckpointPace", "Pace"]

_FIRST = 10_000
"""Number of records in the first epoch: few, for early results."""
_SMALLEST = 5_000
_COLD_SECONDS = 1.0
"""Approximate extra duration of the first epoch, in seconds: processes start, and Java has not compiled anything yet."""
_LATEST_COST = 0.1
"""The weight of the latest checkpoint in the average cost: bases and merges cost more, but are rare."""


@dataclass(frozen=True)
class Pace:
    """The measured speed of a job, and the budget of its next epoch.

    An epoch takes a fixed time (scheduling, the barrier) plus a time per record. Nearly empty epochs show the fixed time,
    the others the time per record. The budget is the number of records that fits the target duration.
    """

    target_seconds: float
    most_records: int
    fixed_seconds: float = 0.15
    seconds_per_record: float = 0.0
    """0 before the first epoch with records."""
    warm: bool = False
    """Whether any epoch after the first was measured."""

    def budget(self) -> int:
        """The maximum number of records of the next epoch."""
        if not self.seconds_per_record:
            return min(_FIRST, self.most_records)
        spare = max(self.target_seconds - self.fixed_seconds, self.target_seconds / 2)
        return int(min(max(spare / self.seconds_per_record, _SMALLEST), self.most_records))

    def after(self, records: int, seconds: float) -> Pace:
        """The pace after an epoch with this number of records and duration."""
        if records < 1_000:
            fixed = self.fixed_seconds + 0.4 * (seconds - self.fixed_seconds)
            return replace(self, fixed_seconds=min(fixed, self.target_seconds))
        known = self.seconds_per_record
        if not known:
            measured = max(seconds - _COLD_SECONDS, seconds / 10) / records
            return replace(self, seconds_per_record=measured)
        measured = max(seconds - self.fixed_seconds, seconds / 4) / records
        if measured < known:
            # One fast epoch must not cause a huge next one; but a slow first epoch says little.
            most = 4 if self.warm else 40
            return replace(self, seconds_per_record=max(measured, known / most), warm=True)
        # A short epoch says little about the speed of a long one.
        weight = 0.5 * min(1.0, seconds / self.target_seconds)
        return replace(self, seconds_per_record=known + weight * (measured - known), warm=True)


class CheckpointPace:
    """When the next epoch may start, and how many records it takes.

    Args:
        settings: The user's settings.
        pace: The job's speed, if known.
    """

    def __init__(self, settings: PaceSettings, pace: Pace) -> None:
        self._settings = settings
        self._pace = pace
        self._cost = settings.first_cost
        """The average cost of a checkpoint, in dollars."""
        self._checkpoints = 0
        self._began = self._completed = float("-inf")
        self._behind = False
        """Whether more input is waiting than the last epoch took."""
        self._told = -1.0 if settings.min_pause_ms else 0.0
        """The interval last reported to the user; below 0: report the next one in any case."""

    @property
    def interval(self) -> float:
        """The target interval between two checkpoints, in seconds."""
        return self._settings.interval(self._cost)

    def change(self, interval_ms: int | None, min_pause_ms: int | None) -> list[PaceOfCheckpoints]:
        """Change the given settings (an interval of 0: as the budget allows); returns the news for the user."""
        if interval_ms is not None:
            self._settings = replace(self._settings, interval_ms=interval_ms or None)
        if min_pause_ms is not None:
            self._settings = replace(self._settings, min_pause_ms=min_pause_ms)
        self._told = -1.0
        return self.news()

    def news(self) -> list[PaceOfCheckpoints]:
        """The news for the user: the interval, if it was configured, or has halved or doubled since the last news."""
        now, before = self.interval, self._told
        if now == before or (self._settings.interval_ms is None and before / 2 < now < before * 2):
            return []
        self._told = now
        return [PaceOfCheckpoints(self._settings, now)]

    def wait(self, instant: Instant) -> float:
        """The seconds until the next epoch may start. A test with its own clock does not wait."""
        if instant.virtual is not None:
            return 0.0
        pause, interval = self._completed + self._settings.min_pause_ms / 1000, self._began + self.interval
        return max(0.0, pause - instant.seconds, 0.0 if self._behind else interval - instant.seconds)

    def budget(self) -> int:
        """The maximum number of records of the next epoch."""
        return replace(self._pace, target_seconds=self._settings.target(self._cost)).budget()

    def began(self, now: float, backlog: int) -> None:
        """An epoch starts; ``backlog``: the records it leaves behind. If there are any, the next epoch follows at once."""
        self._began, self._behind = now, backlog > 0

    def completed(self, now: float, epoch: EpochStats, *, left: bool) -> list[PaceOfCheckpoints]:
        """An epoch's checkpoint is complete; ``left``: it has unprocessed input. Returns the news for the user."""
        self._completed = now
        if self._checkpoints:  # not the first one, which includes the requests of the start
            self._cost += max(_LATEST_COST, 1 / self._checkpoints) * (epoch.requests_cost - self._cost)
        self._checkpoints += 1
        self._pace = self._pace.after(epoch.records_in, epoch.duration_ms / 1000)
        self._behind |= left
        return self.news()
