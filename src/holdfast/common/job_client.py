"""JobClient, the handle of a job that runs in the background."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from holdfast.common.completable_future import CompletableFuture
from holdfast.common.job_execution_result import JobExecutionResult
from holdfast.common.job_id import JobID
from holdfast.common.job_status import JobStatus

__all__ = ["HeldCheckpoint", "JobClient"]


class HeldCheckpoint(NamedTuple):
    """A completed checkpoint of a running job, which the job keeps while it is held."""

    checkpoint_id: int
    path: str
    """Its path, for `holdfast.state_api`."""
    options: Mapping[str, str]
    """The settings of its storage (``s3.*`` and others), if they are known here."""


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

    def _interrupt(self) -> CompletableFuture[None]:
        """End this driver's part of the job, at Ctrl-C or SIGTERM; the future completes when it has ended."""
        return self.cancel()

    def _await_result(self) -> JobExecutionResult:
        """Wait for the job to end. The first Ctrl-C ends it after its epoch, a second one without it."""
        try:
            return self.get_job_execution_result().result()
        except KeyboardInterrupt:
            try:
                self._interrupt().result()
            except KeyboardInterrupt:
                self._interrupt().result()
            raise

    @abstractmethod
    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> CompletableFuture[str]:
        """Stop the job with a savepoint: it reads no more input, and all its output becomes visible.

        Args:
            advance_to_end_of_event_time: End event time first, so that all event-time timers and windows fire (Flink's
                ``--drain``). A job that starts from such a savepoint starts event time over.
            savepoint_directory: The target directory; None: ``execution.checkpointing.savepoint-dir``.

        Returns:
            The savepoint's path, once the job has stopped. If the savepoint cannot be written, the future fails and the job
            continues; after ``advance_to_end_of_event_time`` it ends.
        """

    @abstractmethod
    def trigger_savepoint(self, savepoint_directory: str | None = None) -> CompletableFuture[str]:
        """Write a savepoint while the job runs.

        It contains the state after all input read so far. Holdfast never deletes it, unless a job that starts
        from it claims it.

        Args:
            savepoint_directory: The target directory; None: ``execution.checkpointing.savepoint-dir``.

        Returns:
            The savepoint's path, for ``execution.state-recovery.path``. If it cannot be written, the future fails and the
            job continues.
        """

    @abstractmethod
    def rescale(self, parallelism: int) -> CompletableFuture[None]:
        """Run the job at another parallelism after its current epoch, without a restart of the driver.

        Operators with a parallelism of their own (``set_parallelism``) keep it. State, timers and source splits are
        redistributed from the last checkpoint, as when a program is started again at another parallelism. A later start
        of the program has the parallelism of the program again.

        Args:
            parallelism: At least 1, and at most the operators' maximum parallelism.

        Returns:
            Done as soon as the job runs at that parallelism; fails if the job ends first, or is being rescaled already.

        Raises:
            ConfigurationError: the program cannot run at this parallelism.
        """

    @abstractmethod
    def query_state(self, uid: str, name: str, key: Any, window: int | None = None) -> CompletableFuture[Any]:
        """Read a key's state from the newest completed checkpoint, while the job runs.

        Args:
            uid: The uid of the operator.
            name: The name of the state.
            key: The key.
            window: The start of a tumbling or sliding window in ms, for the state ``window-contents`` of that window.

        Returns:
            A future of the state's content: the value, a list or a dict; None if the key has none. Changes of the running
            epoch are not part of it. Expired content may be, until it is cleaned up.
        """

    @abstractmethod
    def hold_checkpoint(self) -> AbstractContextManager[HeldCheckpoint]:
        """Keep the newest completed checkpoint while it is read: ``with client.hold_checkpoint() as held: ...``.

        The job goes on, completes checkpoints and deletes old ones, but not this one.
        `holdfast.state_api.SavepointReader.scan` reads its state as DataFrames.

        Raises:
            CheckpointError: no checkpoint has been completed yet.
        """

    def get_accumulators(self) -> CompletableFuture[dict[str, Any]]:
        """Always empty: Holdfast has no accumulators."""
        return CompletableFuture.completed({})

    @abstractmethod
    def get_job_execution_result(self) -> CompletableFuture[JobExecutionResult]:
        """The result of the job once it has ended; raises the job's error if it failed."""
