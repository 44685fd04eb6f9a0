"""Jobs that are not started: those before the job to restore, and all jobs during a restore check."""

from __future__ import annotations

import difflib
import logging
from contextlib import AbstractContextManager
from typing import Any

from holdfast.common.completable_future import CompletableFuture
from holdfast.common.config_options import StateRecoveryOptions
from holdfast.common.job_client import HeldCheckpoint, JobClient
from holdfast.common.job_execution_result import JobExecutionResult
from holdfast.common.job_id import JobID
from holdfast.common.job_status import JobStatus
from holdfast.errors import ConfigurationError
from holdfast.runtime.driver.restore_check import write_answer, write_check
from holdfast.runtime.plan.plan import JobPlan

__all__ = ["NotStarted", "check_in_place_of", "warn_of_another_name"]

log = logging.getLogger("holdfast")

_others: list[str] = []
"""Jobs of this program that were not checked, because the restore is for another job."""


def warn_of_another_name(plan: JobPlan) -> None:
    """Warn if `execution.state-recovery.job-name` names another job: a misspelt name would restore nothing."""
    if plan.settings.restores:
        return
    wanted = _restored_job(plan)
    misspelt = difflib.get_close_matches(wanted, [plan.name], cutoff=0.7)
    log.warning(
        "job %r does not start from the savepoint: %s (--restored-job) names the job %r%s",
        plan.name,
        StateRecoveryOptions.JOB_NAME.key,
        wanted,
        f". Is {plan.name!r} meant?" if misspelt else "",
    )


def _restored_job(plan: JobPlan) -> str:
    return str(plan.config[StateRecoveryOptions.JOB_NAME.key])


def check_in_place_of(plan: JobPlan, file: str) -> JobClient:
    """Check the job that restores, and end the program; earlier jobs are not started.

    Args:
        plan: The job that the program would start.
        file: For `write_check`. Until the job that restores comes, it says that the program has no such job.
    """
    if not plan.settings.restores:
        _others.append(plan.name)
        names = ", ".join(map(repr, dict.fromkeys(_others)))
        write_answer(f"The program has no job {_restored_job(plan)!r} to restore; its jobs: {names}.", file)
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
        """Return an empty result at once."""
        return CompletableFuture.completed(JobExecutionResult(self._id, 0))

    def cancel(self) -> CompletableFuture[None]:
        """Do nothing."""
        return CompletableFuture.completed(None)

    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> CompletableFuture[str]:
        """Refuse: there is no job."""
        raise _refusal()

    def trigger_savepoint(self, savepoint_directory: str | None = None) -> CompletableFuture[str]:
        """Refuse: there is no job."""
        raise _refusal()

    def rescale(self, parallelism: int) -> CompletableFuture[None]:
        """Refuse: there is no job."""
        raise _refusal()

    def query_state(self, uid: str, name: str, key: Any, window: int | None = None) -> CompletableFuture[Any]:
        """Refuse: there is no job."""
        raise _refusal()

    def hold_checkpoint(self) -> AbstractContextManager[HeldCheckpoint]:
        """Refuse: there is no job."""
        raise _refusal()


def _refusal() -> ConfigurationError:
    return ConfigurationError("this job was not started: the program is only asked whether a later job can restore")
