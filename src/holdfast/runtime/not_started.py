"""What a program gets in place of its jobs while it is only asked whether it can restore."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from holdfast.common.completable_future import CompletableFuture
from holdfast.common.job_client import HeldCheckpoint, JobClient
from holdfast.common.job_execution_result import JobExecutionResult
from holdfast.common.job_id import JobID
from holdfast.common.job_status import JobStatus
from holdfast.errors import ConfigurationError
from holdfast.runtime.plan import JobPlan
from holdfast.runtime.restore_check import write_check

__all__ = ["NotStarted", "check_in_place_of"]


def check_in_place_of(plan: JobPlan, file: str) -> JobClient:
    """Check the job that restores, and end the program; the jobs before it are not started.

    Args:
        plan: The job that the program would start.
        file: For `write_check`.
    """
    if not plan.settings.restores:
        return NotStarted()
    write_check(plan, file)
    raise SystemExit(0)


class NotStarted(JobClient):
    """A job that was not started: it is finished, without results."""

    def __init__(self) -> None:
        self._id = JobID()

    def get_job_id(self) -> JobID:
        """A new id."""
        return self._id

    def get_job_status(self) -> CompletableFuture[JobStatus]:
        """Finished."""
        return CompletableFuture.completed(JobStatus.FINISHED)

    def get_job_execution_result(self) -> CompletableFuture[JobExecutionResult]:
        """At once."""
        return CompletableFuture.completed(JobExecutionResult(self._id, 0))

    def cancel(self) -> CompletableFuture[None]:
        """Do nothing."""
        return CompletableFuture.completed(None)

    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> CompletableFuture[str]:
        """Refuse."""
        raise _refusal()

    def trigger_savepoint(self, savepoint_directory: str | None = None) -> CompletableFuture[str]:
        """Refuse."""
        raise _refusal()

    def rescale(self, parallelism: int) -> CompletableFuture[None]:
        """Refuse."""
        raise _refusal()

    def query_state(self, uid: str, name: str, key: Any, window: int | None = None) -> CompletableFuture[Any]:
        """Refuse."""
        raise _refusal()

    def hold_checkpoint(self) -> AbstractContextManager[HeldCheckpoint]:
        """Refuse."""
        raise _refusal()


def _refusal() -> ConfigurationError:
    return ConfigurationError("this job was not started: the program is only asked whether a later job can restore")
