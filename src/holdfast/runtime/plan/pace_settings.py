"""PaceSettings: how often to take checkpoints, as configured. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.metrics.requests import MONTH_S

__all__ = ["PaceSettings"]

_LONGEST_S = 60.0
"""The longest interval that a budget sets, in seconds; longer waits for results must be configured."""


@dataclass(frozen=True)
class PaceSettings:
    """The time between two checkpoints; if it is not set, the monthly budget for storage requests determines it."""

    interval_ms: int | None
    """The time from the start of an epoch to that of the next one; None: as the budget allows."""
    min_pause_ms: int
    """The shortest time from the end of a checkpoint to the next epoch."""
    dollars_per_second: float
    """What requests may cost if no interval is set."""
    first_cost: float
    """The assumed cost of a checkpoint, in dollars, until it is known."""
    target_ms: int
    """The longest duration of an epoch if no interval is set."""
    target_given: bool = False
    """Whether the user has set it, so that it limits epochs even if an interval is set."""

    def interval(self, cost: float) -> float:
        """The seconds between two checkpoints that cost this many dollars; 0: without a pause."""
        return min(cost / self.dollars_per_second, _LONGEST_S) if self.interval_ms is None else self.interval_ms / 1000

    def target(self, cost: float) -> float:
        """The seconds that an epoch should not exceed; the input of a whole interval fits into it."""
        own, interval = self.target_ms / 1000, self.interval(cost)
        if self.interval_ms is None:
            return own if self.target_given else max(own, interval)
        return min(own, interval) if self.target_given else interval

    def described(self, interval: float) -> str:
        """The pace in words: ``checkpoints are taken ...``."""
        pause = f", at the earliest {self.min_pause_ms / 1000:g} s after the one before" if self.min_pause_ms else ""
        if self.interval_ms is not None:
            return f"every {interval:g} s{pause}"
        if not interval:
            return f"as soon as there is input{pause}"
        budget = f"{self.dollars_per_second * MONTH_S:g} dollars a month (holdfast.storage.monthly-budget)"
        cost = f"cost more than {budget} even so" if interval >= _LONGEST_S else f"then cost at most {budget}"
        other = "execution.checkpointing.interval sets another pace"
        return f"every {interval:.1f} s{pause}: requests to the storage {cost}. {other}"
