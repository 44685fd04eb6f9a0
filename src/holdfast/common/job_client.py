"""JobClient, the handle of a job that runs in the background."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from holdfast.common.completable_future import CompletableFuture
from holdfast.common.job_execution_result import JobExecutionResult
from holdfast.common.job_id import JobID
from holdfast.common.job_status import JobStatus

__all__ = ["JobClient"]


class JobClient(ABC):
    """The handle of a job started by ``execute_async``."""

    @abstractmethod
    def get_job_id(self) -> JobID:
        """The job's id."""

    @abstractmethod
    def get_job_status(self) -> CompletableFuture[JobStatus]:
        """The status of the job."""

    @abstractmethod
    def cancel(self) -> CompletableFuture[None]:
        """Stop the job after its current epoch; the future completes when the job has stopped."""

    @abstractmethod
    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> CompletableFuture[str]:
        """Stop the job with a savepoint: it reads nothing more, and all its output is visible.

        Args:
            advance_to_end_of_event_time: First bring event time to its end, so that all event-time timers and windows
                fire (Flink's ``--drain``). A job that starts from such a savepoint begins event time anew.
            savepoint_directory: Where to write it; None: ``execution.checkpointing.savepoint-dir``.

        Returns:
            The savepoint's path, once the job has stopped. If the savepoint cannot be written, the result is the error
            and the job goes on; after ``advance_to_end_of_event_time`` it ends.
        """

    @abstractmethod
    def trigger_savepoint(self, savepoint_directory: str | None = None) -> CompletableFuture[str]:
        """Write a savepoint while the job goes on.

        It holds the state after all input that the job has read by now, and is never deleted by Holdfast, unless a job
        that starts from it claims it.

        Args:
            savepoint_directory: Where to write it; None: ``execution.checkpointing.savepoint-dir``.

        Returns:
            The savepoint's path, for ``execution.state-recovery.path``. If it cannot be written, the result is the error
            and the job goes on.
        """

    def get_accumulators(self) -> CompletableFuture[dict[str, Any]]:
        """Always empty: Holdfast has no accumulators."""
        return CompletableFuture.completed({})

    @abstractmethod
    def get_job_execution_result(self) -> CompletableFuture[JobExecutionResult]:
        """The result of the job once it has ended; raises the job's error if it failed."""
