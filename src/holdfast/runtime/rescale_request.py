"""RescaleRequest: a request to run a job at another parallelism."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.runtime.plan import JobPlan

__all__ = ["RescaleRequest"]


@dataclass(frozen=True)
class RescaleRequest:
    """A user's request, or the autoscaler's."""

    number: int
    """Identifies the request within the job."""
    parallelism: int
    """Of all operators without a parallelism of their own."""
    plan: JobPlan
    """The job at this parallelism."""
