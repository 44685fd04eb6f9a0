"""JobClient, the hold on a job that runs in the background."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from holdfast.common.completable_future import CompletableFuture
from holdfast.common.job_execution_result import JobExecutionResult
from holdfast.common.job_id import JobID
from holdfast.common.job_status import JobStatus

__all__ = ["JobClient"]


class JobClient(ABC):
    """The hold on a job that ``execute_async`` has started."""

    @abstractmethod
    def get_job_id(self) -> JobID:
        """The job's id."""

    @abstractmethod
    def get_job_status(self) -> CompletableFuture[JobStatus]:
        """Where the job is in its life."""

    @abstractmethod
    def cancel(self) -> CompletableFuture[None]:
        """Stop the job after its current epoch; done when it has stopped."""

    @abstractmethod
    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> CompletableFuture[str]:
        """Stop the job with a savepoint; the result is its path.

        Args:
            advance_to_end_of_event_time: first fire all timers and windows of event time.
            savepoint_directory: where to write it; None: the configured directory.
        """

    @abstractmethod
    def trigger_savepoint(self, savepoint_directory: str | None = None) -> CompletableFuture[str]:
        """Write a savepoint while the job goes on; the result is its path."""

    def get_accumulators(self) -> CompletableFuture[dict[str, Any]]:
        """Empty: a program has no way to make accumulators."""
        return CompletableFuture.completed({})

    @abstractmethod
    def get_job_execution_result(self) -> CompletableFuture[JobExecutionResult]:
        """The outcome, when the job has ended; its error if it failed."""
