"""Names of jobs that their program does not name."""

from __future__ import annotations

from collections import Counter

from holdfast.runtime.plan.plan import JobPlan

__all__ = ["default_name", "started"]

_DEFAULT = "Holdfast Streaming Job"
_started: Counter[str] = Counter()
"""By checkpoint directory: the jobs without a name that this process has started."""


def default_name(checkpoint_directory: str | None) -> str:
    """The name of the next job without a name: numbered from the second on, which is not the first one started again.

    Without a checkpoint directory, no job resumes another, and all have one name.
    """
    before = _started[checkpoint_directory or ""]
    return f"{_DEFAULT} {before + 1}" if before else _DEFAULT


def started(plan: JobPlan) -> None:
    """Count a job that has been started."""
    if plan.settings.checkpoint_uri and plan.name == default_name(plan.settings.checkpoint_uri):
        _started[plan.settings.checkpoint_uri] += 1
