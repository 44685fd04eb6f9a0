"""How large the next epoch may be: as much as fits the target duration at the measured rate. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Pace"]

_SMALLEST = 5_000


@dataclass(frozen=True)
class Pace:
    """The measured speed of a job, and what follows for its epochs.

    An epoch costs a fixed time (scheduling, the barrier) and a time per record. Both are estimated from epochs of
    different sizes; the budget of the next is what fits the target.
    """

    target_seconds: float
    most_records: int
    fixed_seconds: float = 0.15
    seconds_per_record: float = 1e-5
    measured: bool = False

    def budget(self) -> int:
        """How many records the next epoch may have."""
        if not self.measured:
            return min(50_000, self.most_records)
        spare = max(self.target_seconds - self.fixed_seconds, self.target_seconds / 2)
        return int(min(max(spare / self.seconds_per_record, _SMALLEST), self.most_records))

    def after(self, records: int, seconds: float, weight: float = 0.4) -> Pace:
        """The pace after an epoch of so many records took so long."""
        if records < 1_000:
            fixed = self.fixed_seconds + weight * (seconds - self.fixed_seconds)
            return replace(self, fixed_seconds=min(fixed, self.target_seconds))
        per_record = max(seconds - self.fixed_seconds, seconds / 4) / records
        if not self.measured:
            return replace(self, seconds_per_record=per_record, measured=True)
        # Never more than double at once: one lucky epoch must not make a huge one.
        per_record = max(per_record, self.seconds_per_record / 2)
        return replace(self, seconds_per_record=self.seconds_per_record + weight * (per_record - self.seconds_per_record))
