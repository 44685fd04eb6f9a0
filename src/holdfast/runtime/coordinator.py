"""The coordinator: drives a job epoch by epoch, from the plan of its input to the commit of its output.

    plan        every source fixes its ranges
    run         one Spark job; every task reports
    complete    the metadata of the checkpoint is put into the log, if no one else has put anything there: the commit point
    commit      the sinks' committables are committed, while the next epoch runs; repeated after a crash

What was planned stays planned: an epoch that fails is run again with the same input, from the same checkpoint, until it is
complete or the restart strategy gives up. Checkpoint n+1 is completed only after the output of n has been committed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.metadata import CheckpointMetadata, SourceState
from holdfast.checkpoint.retention import Retention
from holdfast.connectors.base import Committable, Committer, JobInfo
from holdfast.errors import CorruptFile, Fenced, HoldfastError, JobFailed, StorageError, UserCodeError
from holdfast.metrics.job import JobMetrics
from holdfast.metrics.stats import CheckpointStats
from holdfast.runtime.completion import check_resumable, failure_of, operator_states, tokens_of
from holdfast.runtime.order import EpochOrder, TaskReport
from holdfast.runtime.pacing import Pace
from holdfast.runtime.plan import JobPlan
from holdfast.runtime.restart import GiveUp, RestartState, RestartStrategy, decide, is_bug
from holdfast.runtime.sources import SourceDriver
from holdfast.runtime.statistics import epoch_stats

__all__ = ["Coordinator", "EpochExecutor"]

log = logging.getLogger("holdfast")

_CLOCK_TOLERANCE_MS = 60_000
"""Clocks of drivers that differ by less are not worth a warning."""
_SWEEP_EVERY = 1000
"""Epochs between two searches for what dead attempts left behind."""


class _GivenUp(Exception):
    """Carries the failure that ends the job out of all loops."""

    def __init__(self, failure: BaseException) -> None:
        super().__init__(str(failure))
        self.failure = failure


class EpochExecutor(Protocol):
    """Runs the tasks of an epoch."""

    def run(self, order: EpochOrder) -> list[TaskReport]:
        """Run them all; returns their reports."""


class Coordinator:
    """One job in one driver."""

    def __init__(
        self,
        plan: JobPlan,
        job: Callable[[int], JobInfo],
        executor: Callable[[JobInfo], EpochExecutor],
        checkpoint_log: CheckpointLog,
        retention: Retention,
        verify: Callable[[CheckpointMetadata, bool], None],
        strategy: RestartStrategy,
        metrics: JobMetrics,
        pace: Pace,
        restore_from: int | None = None,
    ) -> None:
        """``job`` and ``executor`` are made when the generation is known.

        ``verify`` raises CorruptFile for a checkpoint that cannot be restored; its second argument asks for every byte.
        """
        self._plan = plan
        self._make_job = job
        self._make_executor = executor
        self._log = checkpoint_log
        self._retention = retention
        self._verify = verify
        self._strategy = strategy
        self._restarts = RestartState()
        self._metrics = metrics
        self._pace = pace
        self._restore_from = restore_from
        self._cancelled = threading.Event()
        self._background = ThreadPoolExecutor(1, thread_name_prefix="holdfast-commit")
        self._sources: list[SourceDriver] = []
        self._committers: dict[str, Committer] = {}
        self._completed: CheckpointMetadata | None = None
        self._committing: Future[None] | None = None
        self._committed = 0
        self._notify: tuple[int, list[SourceState]] | None = None
        self._processing_time = 0
        self._next_timer: int | None = None
        self._attempt = 0
        self._last_record = ""
        self._damaged = False
        """Whether a task has found a file of the checkpoint damaged."""

    def cancel(self) -> None:
        """Stop after the epoch that is running."""
        self._cancelled.set()

    @property
    def uncommitted(self) -> bool:
        """Whether the last completed checkpoint has output that may not be visible yet."""
        return self._completed is not None and self._committed < self._completed.checkpoint_id

    def run(self) -> None:
        """Run the job to its end; returns when it has finished or was cancelled.

        Raises:
            HoldfastError: the job cannot go on; the error says why.
        """
        try:
            self._run()
        except _GivenUp as end:
            raise end.failure from end.failure.__cause__
        finally:
            self._close()

    def _run(self) -> None:
        started = False
        while not self._cancelled.is_set():
            try:
                if not started:
                    self._start()
                    started = True
                    self._metrics.status("RUNNING")
                if self._loop():
                    return
            except _GivenUp:
                raise
            except Exception as error:
                if is_bug(error):
                    raise
                if isinstance(error, CorruptFile) and not self._damaged:
                    raise  # the log has looked for an intact checkpoint and says what to do
                started = False
                self._give_up_or_wait(error, "", traced=True)

    # from the log to a running job

    def _start(self) -> None:
        """Take the job over and go back to its latest completed checkpoint."""
        self._close_parts()
        damaged, self._damaged = self._damaged, False
        owned = self._log.take_over(lambda checkpoint: self._verify(checkpoint, damaged), self._restore_from)
        restored = owned.restored
        job = self._make_job(owned.generation)
        if restored is not None:
            self._resume_time(restored)
        now = self._now()
        if restored is not None:
            check_resumable(self._plan, restored)
            log.info("job %r resumes from checkpoint %d", job.job_name, restored.checkpoint_id)
            self._metrics.checkpoint_restored(restored.checkpoint_id, self._log.locate(restored.checkpoint_id))
        self._completed = restored
        self._committed = 0
        self._create_committers(job)
        for uid, committer in self._committers.items():
            prepared = [] if restored is None else _committables(restored, uid)
            committer.recover(prepared)
        self._committed = 0 if restored is None else restored.checkpoint_id
        self._retention.sweep()
        self._sources = [SourceDriver(v, job) for v in self._plan.vertices if v.source is not None]
        for source in self._sources:
            source.start(None if restored is None else restored.sources.get(source.uid), now)
        self._executor = self._make_executor(job)
        self._job = job
        self._next_timer = now if restored is not None else None

    def _create_committers(self, job: JobInfo) -> None:
        for vertex in self._plan.vertices:
            for chained in vertex.chain:
                sink = chained.factory.written_sink
                if sink is not None:
                    committer = sink.create_committer(job, chained.uid)
                    if committer is not None:
                        self._committers[chained.uid] = committer

    # epochs

    def _loop(self) -> bool:
        """Run epochs until the input has ended (True) or the job is cancelled (False)."""
        while not self._cancelled.is_set():
            if all(source.finished for source in self._sources):
                self._finish_commit()
                if self._completed is not None:
                    log.info("the input of job %r has ended", self._job.job_name)
                return True
            started = time.monotonic()
            planned_at = time.perf_counter()
            now = self._now()
            inputs = [source.plan(self._pace.budget(), now) for source in self._sources]
            quiet = not any(part.ranges for part in inputs)
            ending = any(p.finished and not s.finished for p, s in zip(inputs, self._sources))
            if quiet and not ending and not self._timer_due(now):
                self._sleep(now)
                continue
            self._epoch(now, started, time.perf_counter() - planned_at, [part.backlog for part in inputs])
        self._finish_commit()
        return False

    def _epoch(self, now: int, started: float, plan_seconds: float, backlog: Sequence[int]) -> None:
        """Run one epoch until it is complete."""
        epoch = self._log.owned.next_id
        trigger_ms = now
        run = 0
        trace = False
        while True:
            order = EpochOrder(
                epoch=epoch,
                run=run,
                base=0 if self._completed is None else self._completed.checkpoint_id,
                committed=self._committed,
                generation=self._log.owned.generation,
                restarts=self._attempt,
                processing_time=now,
                tokens=tokens_of(self._plan, self._completed),
                sources={k: v for source in self._sources for k, v in source.orders().items()},
                trace=trace,
            )
            at = time.perf_counter()
            failure: BaseException
            try:
                reports = self._executor.run(order)
                found = failure_of(self._plan, reports)
                if found is None:
                    break
                failure, task = found
            except Exception as error:
                failure, task = error, ""
            self._metrics.checkpoint_failed(epoch, str(failure).splitlines()[0] if str(failure) else repr(failure))
            if self._cancelled.is_set():
                return
            self._finish_commit()
            if isinstance(failure, CorruptFile):
                self._damaged = True
                raise failure  # an older checkpoint is used, if that is safe
            self._give_up_or_wait(failure, task, traced=trace)
            if self._cancelled.is_set():
                return
            self._metrics.status("RUNNING")
            run += 1
            trace = isinstance(failure, UserCodeError)
            now = self._now()
        job_seconds = time.perf_counter() - at
        at = time.perf_counter()
        self._finish_commit()
        waited = time.perf_counter() - at
        at = time.perf_counter()
        self._processing_time = max([self._processing_time, *(report.processing_time for report in reports)])
        checkpoint = self._complete(epoch, self._processing_time, started, reports)
        phases = {
            "plan": plan_seconds,
            "job": job_seconds,
            "commit": waited,
            "metadata": time.perf_counter() - at,
        }
        self._begin_commit(checkpoint, min([epoch, *(r.uploading for r in reports if r.uploading is not None)]))
        self._account(epoch, trigger_ms, started, reports, phases, backlog, checkpoint)

    def _complete(self, epoch: int, now: int, started: float, reports: Sequence[TaskReport]) -> CheckpointMetadata:
        """Complete the epoch's checkpoint: from here on nothing of it is ever computed again."""
        for source in self._sources:
            for report in reports:
                if report.task[0] == source.vertex.id:
                    source.read(report.task[1], report.splits, report.watermark)
        operators = operator_states(self._plan, reports)
        sizes = {h.path: h.size for o in operators.values() for s in o.subtasks for h in s.files()}
        checkpoint = CheckpointMetadata(
            checkpoint_id=epoch,
            generation=self._log.owned.generation,
            job_id=self._job.job_id,
            job_name=self._job.job_name,
            created_at=now,
            duration_ms=round((time.monotonic() - started) * 1000),
            sources={source.uid: source.state() for source in self._sources},
            operators=operators,
            committables=[(c.uid, c.subtask, c.data) for report in reports for c in report.committables],
            full_size=sum(sizes.values()),
            delta_size=sum(report.delta_bytes for report in reports),
        )
        self._log.complete(checkpoint)
        self._completed = checkpoint
        for source in self._sources:
            source.epoch_completed()
        timers = [r.next_timer for r in reports if r.next_timer is not None]
        self._next_timer = min(timers, default=None)
        self._last_record = ""
        return checkpoint

    # the second phase, beside the next epoch

    def _begin_commit(self, checkpoint: CheckpointMetadata, oldest_upload: int) -> None:
        """Commit in the background, and clean up.

        Args:
            checkpoint: What is to be committed.
            oldest_upload: The earliest epoch whose background uploads may be under way: they may last any number of
                epochs, and those that this checkpoint lets begin bear its number.
        """

        def commit() -> None:
            for uid, committer in self._committers.items():
                committer.commit(_committables(checkpoint, uid))
            self._retention.collect()
            if checkpoint.checkpoint_id % _SWEEP_EVERY == 0:
                try:
                    self._retention.sweep(oldest_upload)
                except StorageError as error:  # the next one finds what this one would have found
                    log.warning("nobody looked for what dead attempts left in the storage: %s", error)

        self._notify = (checkpoint.checkpoint_id, [source.state() for source in self._sources])
        self._committing = self._background.submit(commit)

    def _finish_commit(self) -> None:
        """Wait for the commit of the last checkpoint, and tell the sources of it."""
        committing, self._committing = self._committing, None
        if committing is None:
            return
        committing.result()
        assert self._notify is not None
        self._committed, states = self._notify
        for source, state in zip(self._sources, states):
            source.committed(self._committed, state)

    # time

    def _now(self) -> int:
        """Processing time: the driver's wall clock, which may be set back, but job time does not go back with it."""
        self._processing_time = max(self._processing_time, time.time_ns() // 1_000_000)
        return self._processing_time

    def _resume_time(self, restored: CheckpointMetadata) -> None:
        """Go on from the processing time of the restored checkpoint: what has fired by then must not fill up again."""
        self._processing_time = max(self._processing_time, restored.created_at)
        ahead = restored.created_at - time.time_ns() // 1_000_000
        if ahead > _CLOCK_TOLERANCE_MS:
            log.warning(
                "processing time stands still for %d s: the driver that completed checkpoint %d had a clock that was so far "
                "ahead of this one. Correct the clock of this host if it is wrong",
                ahead // 1000,
                restored.checkpoint_id,
            )

    def _wake_at(self, now: int) -> int | None:
        times = [self._next_timer, *(source.next_idle(now) for source in self._sources)]
        return min((t for t in times if t is not None), default=None)

    def _timer_due(self, now: int) -> bool:
        return (self._next_timer is not None and self._next_timer <= now) or self._idle_due(now)

    def _idle_due(self, now: int) -> bool:
        """Whether a split has become idle since the last epoch, so that the watermark may go on without it."""
        due = self._idle_at is not None and self._idle_at <= now
        if due:
            self._idle_at = None
        return due

    _idle_at: int | None = None

    def _sleep(self, now: int) -> None:
        """Wait for input, a timer or the end; without ticking where one source can be waited for."""
        if self._committing is not None and self._committing.done():
            self._finish_commit()
        idle_times = [t for t in (source.next_idle(now) for source in self._sources) if t is not None]
        self._idle_at = min(idle_times, default=None)
        wake = self._wake_at(now)
        patience = 0.5 if wake is None else min(0.5, max(0.0, (wake - now) / 1000))
        waiting = [source for source in self._sources if not source.finished]
        if self._committing is not None:
            patience = min(patience, 0.01)  # its end is awaited, too: group offsets follow it
        for source in waiting:
            source.enumerator.wait(patience if len(waiting) == 1 else min(patience, 0.01))
        if not waiting:
            self._cancelled.wait(patience)

    # failures

    def _give_up_or_wait(self, failure: BaseException, task: str, traced: bool) -> None:
        """Ask the restart strategy; wait as it says, or raise what ends the job.

        Args:
            failure: What happened.
            task: Where.
            traced: Whether another run could not tell more about it.

        Raises:
            _GivenUp: the job ends.
        """
        failure = self._cause(failure)
        now = round(time.monotonic() * 1000)
        text = str(failure) or repr(failure)
        self._metrics.failure(time.time_ns() // 1_000_000, text, task)
        if isinstance(failure, Fenced) or self._repeats(failure, traced):
            raise _GivenUp(failure)
        decision, self._restarts = decide(self._strategy, self._restarts, now, failure)
        if isinstance(decision, GiveUp):
            if isinstance(failure, UserCodeError) and not traced and not failure.record:
                return  # one more run tells which record it is
            if isinstance(failure, HoldfastError):
                raise _GivenUp(failure)
            end = JobFailed(f"{decision.reason}. The last failure: {text}")
            end.__cause__ = failure
            raise _GivenUp(end)
        text = f"\n{text}" if "\n" in text else f" {text}"
        if self._cancelled.is_set():
            kept = "; its output is committed when the job is started again" if self.uncommitted else ""
            log.warning("%s has failed while it was being cancelled%s:%s", task or "the job", kept, text)
            return
        self._attempt += 1
        self._metrics.status("RESTARTING")
        log.warning("%s has failed and starts again in %.1f s:%s", task or "the job", decision.delay_ms / 1000, text)
        self._cancelled.wait(decision.delay_ms / 1000)

    def _cause(self, failure: BaseException) -> BaseException:
        """The failure, or Fenced if another driver has the job: a restart would only fail again, for want of files."""
        try:
            self._log.check_ownership()
        except Fenced as fenced:
            return fenced
        except StorageError:
            pass  # the next restart asks again
        return failure

    def _repeats(self, failure: BaseException, traced: bool) -> bool:
        """Whether the same record fails the same function again: then no restart will help.

        A strategy that the user has chosen counts such failures like any other.
        """
        if not isinstance(failure, UserCodeError) or "restart-strategy.type" in self._plan.config:
            return False
        same = traced or (bool(failure.record) and failure.record == self._last_record)
        self._last_record = failure.record
        return same

    # telling

    def _account(
        self,
        epoch: int,
        trigger_ms: int,
        started: float,
        reports: Sequence[TaskReport],
        phases: dict[str, float],
        backlog: Sequence[int],
        checkpoint: CheckpointMetadata,
    ) -> None:
        seconds = time.monotonic() - started
        behind = {source.uid: n for source, n in zip(self._sources, backlog)}
        stats = epoch_stats(self._plan, epoch, trigger_ms, seconds, reports, phases, behind)
        self._metrics.epoch_finished(stats)
        self._metrics.checkpoint_completed(
            CheckpointStats(
                id=epoch,
                trigger_ms=trigger_ms,
                duration_ms=1000 * (seconds - phases["plan"]),
                sync_ms=1000 * max((r.phases.get("state", 0.0) for r in reports), default=0.0),
                delta_bytes=checkpoint.delta_size,
                full_bytes=checkpoint.full_size,
                path=self._log.locate(epoch),
                subtasks=len(reports),
            )
        )
        self._pace = self._pace.after(stats.records_in, seconds)
        log.debug("epoch %d: %d records in %.3f s, %s", epoch, stats.records_in, seconds, phases)

    # the end

    def _close_parts(self) -> None:
        if self._committing is not None:
            wait([self._committing])  # whatever comes of it, recovery repeats it; but not beside it
        for source in self._sources:
            source.close()
        self._sources = []
        for committer in self._committers.values():
            committer.close()
        self._committers = {}
        self._committing = None

    def _close(self) -> None:
        self._background.shutdown(wait=True)
        self._close_parts()


def _committables(checkpoint: CheckpointMetadata, uid: str) -> list[Committable]:
    return [Committable(*entry) for entry in checkpoint.committables if entry[0] == uid]
