"""Notices: writes the machine's notices to the log and the job's metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from holdfast.checkpoint.log import CheckpointLog
from holdfast.common.secrets import masked
from holdfast.metrics.job import JobMetrics
from holdfast.metrics.stats import CheckpointStats, StandbyStats
from holdfast.runtime.plan.task_messages import TaskReport
from holdfast.runtime.protocol import instructions
from holdfast.runtime.protocol.instructions import Notice
from holdfast.runtime.protocol.savepoint_requests import SavepointRequest
from holdfast.runtime.protocol.statistics import plan_shape
from holdfast.runtime.time.job_clock import Step

__all__ = ["Notices"]

log = logging.getLogger("holdfast")


_STEPS = {
    Step.FORWARD: "this host's clock was set forward by %.0f s. If it stays there for a minute, processing time follows",
    Step.FOLLOWED: "processing time jumps by %.0f s to the clock of this host, which has been ahead for a minute",
    Step.BACK: "processing time is %.0f s ahead of the clock of this host, which was set back, or is behind that of an "
    "earlier driver. It goes at half its speed until the clock has caught up. Correct the clock if it is wrong",
}


class Notices:
    """The log and metrics of a job."""

    def __init__(
        self, job_name: str, metrics: JobMetrics, checkpoint_log: CheckpointLog, settings: Mapping[str, str]
    ) -> None:
        self._settings = settings
        """The job's settings; secrets among them are masked in errors."""
        self._job_name = job_name
        self._metrics = metrics
        self._log = checkpoint_log
        self._warned: set[str] = set()

    def taken_over(self, copies: Sequence[StandbyStats]) -> None:
        """Log the subtasks that have moved to a host with a standby copy of their state."""
        for copy in copies:
            lag = (
                "before it held all of the changelog" if copy.lag_ms is None else f"{copy.lag_ms:.0f} ms after it was whole"
            )
            text = f"subtask {copy.subtask} of {copy.vertex!r} goes on at host {copy.host} from its standby copy, {lag}"
            log.info("job %r: %s", self._job_name, text)
            self._metrics.standby_taken_over(text)

    def warn(self, reports: Iterable[TaskReport]) -> None:
        """Log the warnings of tasks, once for each subject."""
        for report in reports:
            for subject, text in report.warnings.items():
                if subject not in self._warned:
                    self._warned.add(subject)
                    log.warning("%s", text)
                    self._metrics.event("warning", text)

    def savepoint_written(self, request: SavepointRequest) -> None:
        """Record a complete savepoint."""
        self._metrics.event("savepoint", f"The savepoint {request.uri} was written.")

    def show(self, notice: Notice) -> None:
        """Log the notice and count it."""
        match notice:
            case instructions.EpochFinished():
                self._show_epoch(notice)
            case instructions.Running():
                self._metrics.status("RUNNING")
            case instructions.Restored(checkpoint_id, ""):
                log.info("job %r resumes from checkpoint %d", self._job_name, checkpoint_id)
                self._metrics.checkpoint_restored(checkpoint_id, self._log.locate(checkpoint_id))
                self._metrics.event("resume", f"The job resumes from checkpoint {checkpoint_id}.")
            case instructions.Restored(checkpoint_id, savepoint):
                log.info("job %r starts from savepoint %s", self._job_name, savepoint)
                self._metrics.checkpoint_restored(checkpoint_id, savepoint, is_savepoint=True)
                self._metrics.event("resume", f"The job starts from savepoint {savepoint}.")
            case instructions.SavepointFailed(request, failure):
                log.warning("savepoint %s could not be written, the job goes on:%s", request.uri, self._indented(failure))
                self._metrics.event("savepoint", f"The savepoint {request.uri} could not be written: {self._text(failure)}")
            case instructions.SavepointRefused(request):
                log.info("savepoint %s was not written: the job is about to end", request.uri)
            case instructions.Rescaled(request):
                log.info("job %r runs at parallelism %d", self._job_name, request.parallelism)
                self._metrics.plan(plan_shape(request.plan))
                self._metrics.event("rescale", f"The job runs at parallelism {request.parallelism}.")
            case instructions.RescaleRefused(request, why):
                log.info("job %r was not rescaled to parallelism %d: %s", self._job_name, request.parallelism, why)
                self._metrics.event("rescale", f"The job keeps its parallelism, {request.parallelism} was asked for: {why}.")
            case instructions.PaceOfCheckpoints(settings, interval):
                text = f"checkpoints are taken {settings.described(interval)}"
                log.info("job %r: %s", self._job_name, text)
                self._metrics.pace(settings.min_pause_ms)
                self._metrics.event("pace", f"{text[0].upper()}{text[1:]}.")
            case instructions.ClockStepped(step, milliseconds):
                log.warning("job %r: %s", self._job_name, _STEPS[step] % (milliseconds / 1000))
            case instructions.EpochFailed(epoch, failure):
                self._metrics.checkpoint_failed(epoch, self._text(failure).splitlines()[0])
            case instructions.JobFailure(failure, task):
                self._metrics.failure(time.time_ns() // 1_000_000, self._text(failure), task)
            case instructions.Restarting(failure, task, delay_ms):
                self._metrics.status("RESTARTING")
                seconds = delay_ms / 1000
                log.warning("%s failed; restart in %.1f s:%s", task or "the job", seconds, self._indented(failure))
                said = self._text(failure).strip().splitlines()[-1]
                self._metrics.event("restart", f"{task or 'The job'} failed; restart after {seconds:.1f} s. {said}")
            case instructions.CancelledAfterFailure(failure, task, uncommitted):
                kept = "; its output will be committed when the job is started again" if uncommitted else ""
                log.warning("%s failed during its cancellation%s:%s", task or "the job", kept, self._indented(failure))
            case instructions.InputEnded():
                log.info("the input of job %r has ended", self._job_name)
            case _:
                raise NotImplementedError(f"{notice}")

    def _show_epoch(self, notice: instructions.EpochFinished) -> None:
        stats, checkpoint = notice.stats, notice.checkpoint
        self._metrics.epoch_finished(stats, checkpoint.delta_size, checkpoint.full_size)
        self._metrics.checkpoint_completed(
            CheckpointStats(
                id=checkpoint.checkpoint_id,
                trigger_ms=stats.started_ms,
                duration_ms=stats.duration_ms - 1000 * stats.phases["plan"],
                sync_ms=notice.sync_ms,
                delta_bytes=checkpoint.delta_size,
                full_bytes=checkpoint.full_size,
                path=self._log.locate(checkpoint.checkpoint_id),
                subtasks=notice.subtasks,
                persisted_bytes=sum(each.channel_state for vertex in stats.vertices for each in vertex.subtasks),
            )
        )
        log.debug(
            "epoch %d: %d records in %.3f s, %s", stats.epoch, stats.records_in, stats.duration_ms / 1000, stats.phases
        )

    def _text(self, failure: BaseException) -> str:
        return masked(str(failure) or repr(failure), self._settings)

    def _indented(self, failure: BaseException) -> str:
        text = self._text(failure)
        return f"\n{text}" if "\n" in text else f" {text}"
