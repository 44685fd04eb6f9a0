"""RescaleRequest: a request to run a job at another parallelism."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.runtime.plan.plan import JobPlan

__all__ = ["RescaleRequest"]


@dataclass(frozen=True)
class RescaleRequest:
    """A user's request, or the autoscaler's."""

    number: int
    """Identifies the request within the job."""
    plan: JobPlan
    """The job at the new parallelism."""

    @property
    def parallelism(self) -> int:
        """The parallelism of all operators that do not set one."""
        return self.plan.settings.parallelism
