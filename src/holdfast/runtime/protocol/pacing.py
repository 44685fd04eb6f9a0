"""Sizes the next epoch to meet the target duration at the measured rate. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Pace"]

_FIRST = 10_000
"""Records of the first epoch: few, so that its results come soon."""
_SMALLEST = 5_000
_COLD_SECONDS = 1.0
"""Approximate extra time of the first epoch, in which processes start and nothing is compiled yet, in seconds."""


@dataclass(frozen=True)
class Pace:
    """The measured speed of a job, and the budget of its next epoch.

    An epoch costs a fixed time (scheduling, the barrier) and a time per record. Nearly empty epochs show the fixed time,
    the others the time per record. The budget is the number of records that fits the target duration.
    """

    target_seconds: float
    most_records: int
    fixed_seconds: float = 0.15
    seconds_per_record: float = 0.0
    """0 before the first epoch with records."""
    warm: bool = False
    """Whether more than the first epoch was measured."""

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
            # One lucky epoch must not be followed by a huge one; but a slow first one says little.
            most = 4 if self.warm else 40
            return replace(self, seconds_per_record=max(measured, known / most), warm=True)
        # A short epoch says little about the speed of a long one.
        weight = 0.5 * min(1.0, seconds / self.target_seconds)
        return replace(self, seconds_per_record=known + weight * (measured - known), warm=True)
