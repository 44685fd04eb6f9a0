"""Job: a job of this driver, and the client's handle to it."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.ids import CheckpointId
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.paths import JobPaths, names_checkpoint, restored_position
from holdfast.checkpoint.retention import Retention, verify_files
from holdfast.checkpoint.stores.log_settings import log_topics
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.completable_future import CompletableFuture
from holdfast.common.job_client import HeldCheckpoint, JobClient
from holdfast.common.job_execution_result import JobExecutionResult
from holdfast.common.job_id import JobID
from holdfast.common.job_status import JobStatus
from holdfast.common.secrets import concealed
from holdfast.common.system.json_log import add_log_fields, log_as_json
from holdfast.common.values.pickling import use_class_aliases
from holdfast.connectors.base import JobInfo
from holdfast.errors import ConfigurationError, Fenced, JobFailed, SparkGone
from holdfast.metrics.job import JobMetrics
from holdfast.metrics.stats import EpochStats, SparkTasks
from holdfast.metrics.traces import TraceReporter
from holdfast.runtime.driver.coordinator import ClosableExecutor, Coordinator
from holdfast.runtime.driver.ends import delete_checkpoints, end_anyway
from holdfast.runtime.driver.job_registry import died
from holdfast.runtime.driver.launch import launched
from holdfast.runtime.driver.leadership import Leadership
from holdfast.runtime.driver.presence import Presence
from holdfast.runtime.driver.queries import Answer, StateQueries
from holdfast.runtime.driver.savepoints import SavepointWriter, StartFromSavepoint, new_savepoint
from holdfast.runtime.driver.scaling_scope import scope_of
from holdfast.runtime.driver.sink_checks import check_exclusive, check_services
from holdfast.runtime.driver.standstills import StandstillReader
from holdfast.runtime.driver.watched_start import interruptibly
from holdfast.runtime.host.shipping import in_short
from holdfast.runtime.plan.autoscaling import Autoscaler
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.plan.task_messages import JobSetup
from holdfast.runtime.protocol.pacing import Pace
from holdfast.runtime.protocol.restart import restart_strategy
from holdfast.runtime.protocol.statistics import edge_between, plan_shape
from holdfast.runtime.records.samples import EdgeSample
from holdfast.runtime.spark.spark import SparkExecutor, begin_slots, epoch_tasks, restore_early
from holdfast.runtime.spark.spark_context import spark_context
from holdfast.runtime.task.changelogs import changelog_topics
from holdfast.state.stored.delta_files import verify_contents

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["Job", "running_job"]

log = logging.getLogger("holdfast")

_jobs: weakref.WeakValueDictionary[str, Job] = weakref.WeakValueDictionary()


def running_job(job_id: str) -> Job | None:
    """The job with this id in this driver; None if there is none, or it has ended."""
    return _jobs.get(job_id)


class Job(JobClient):
    """A job of this driver, and the client's handle to it."""

    def __init__(self, plan: JobPlan, session: Any, replan: Callable[[int], JobPlan]) -> None:
        self._plan = plan
        self._replan = replan
        self._id = JobID()
        self._metrics = JobMetrics(str(self._id), plan.name)
        self._metrics.plan(plan_shape(plan))
        self._result: Future[JobExecutionResult] = Future()
        self._status = JobStatus.CREATED
        self._interrupted = False
        self._ends, self._over = threading.Lock(), threading.Event()
        self._wanted_end: JobStatus | None = None
        """The state in which the job will end, if it was asked to."""
        self._temporary: weakref.finalize[..., Job] | None = None
        """Removes the temporary checkpoints of a job without checkpoint storage, at the latest when the process ends."""
        settings = plan.settings
        if settings.log_as_json:
            log_as_json(log, sys.stderr)
        self._traces: TraceReporter | None = None
        if settings.trace_endpoint:
            self._traces = TraceReporter(str(self._id), plan.name, settings.trace_endpoint, settings.trace_timeout_ms)
            self._metrics.report_traces(self._traces)
        try:
            strategy = restart_strategy(plan.config)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        uri = settings.checkpoint_uri
        if not uri:
            uri = tempfile.mkdtemp(prefix="holdfast-checkpoints-")
            self._temporary = weakref.finalize(self, shutil.rmtree, uri, ignore_errors=True)
        storage = Storage.open(uri, settings.storage_options)
        paths = JobPaths.of(plan.name)
        interruptibly(partial(storage.check, paths))
        self._storage, self._paths = storage, paths
        self._log = checkpoint_log = CheckpointLog(storage, paths, settings.retained_checkpoints)
        self._presence = self._new_presence()
        self._leadership = self._stands_by()
        restore_from = self._restore_from(settings.restore_path)
        self._warm = False
        """Whether the slots wait for the take-over before they restore state early."""
        check_exclusive(plan.sinks)
        check_services(plan, lambda: self._newest_in_log() is not None)
        self._begin(session, uri, restore_from is None)
        self._executors: list[ClosableExecutor] = []
        self._autoscaler: Autoscaler | None = None
        if settings.autoscaler is not None and not settings.batch:
            self._autoscaler = Autoscaler(settings.autoscaler, self._cores, partial(scope_of, replan))
        self.retention = Retention(storage, paths, checkpoint_log)
        self._queries = StateQueries(storage, self.retention, settings, checkpoint_log.locate)
        self._query_threads = ThreadPoolExecutor(1, thread_name_prefix="holdfast-query")
        self._savepoints = SavepointWriter(storage, settings)
        self.savepoint_progress = self._savepoints.progress
        self._coordinator = Coordinator(
            plan,
            lambda generation: JobInfo(
                str(self._id),
                plan.name,
                generation,
                uri,
                settings.storage_options,
                own_topics=changelog_topics(plan) | log_topics(settings.storage_options, paths.directory),
                inline_bytes=settings.state_backend.inline_bytes,
                sinks=len(plan.sinks),
            ),
            self._executor,
            checkpoint_log,
            self.retention,
            lambda checkpoint, deep: (verify_contents if deep else verify_files)(storage, checkpoint),
            strategy,
            self._metrics,
            Pace(settings.epoch_target_ms / 1000, settings.epoch_max_records),
            self._savepoints,
            storage.requests,
            restore_from,
            self._after_epoch,
            **self._clocks,
        )
        self._thread = threading.Thread(target=self._run, name=f"holdfast-{plan.name}", daemon=True)

    def _stands_by(self) -> Leadership | None:
        """This driver's part among the job's drivers; None if it takes the job over at once."""
        settings, launch = self._plan.settings, launched()
        wanted = settings.standby
        if wanted and self._temporary is not None:
            raise ConfigurationError(
                "standby drivers (high-availability.type) see in the checkpoint storage who owns the job: set "
                "execution.checkpointing.dir to a directory that all of them reach"
            )
        if not (launch is not None and launch.restarted and self._temporary is None if wanted is None else wanted):
            return None
        return Leadership(self._storage, self._paths, self._log, str(self._id), settings.heartbeat, died, launch)

    def _restore_from(self, path: str) -> CheckpointId | StartFromSavepoint | None:
        """What `execution.state-recovery.path` names; None if the job has already started from it, or it is not set."""
        if not path:
            return None
        if names_checkpoint(path):
            return restored_position(path, self._storage.locate(self._paths.log_prefix))
        settings = self._plan.settings
        return StartFromSavepoint.unless_started(
            self._log.started_from(), path, settings.storage_options, self._storage, self._paths, settings.claim_savepoint
        )

    def _begin(self, session: Any, uri: str, continues: bool) -> None:
        """Use the session's Spark, or start one."""
        self._spark = session.sparkContext if session is not None else self._start_spark(uri, continues)

    def _cores(self) -> int:
        """The number of tasks that Spark runs at the same time."""
        return int(self._spark.defaultParallelism)

    def _tasks(self) -> SparkTasks | None:
        return epoch_tasks(self._spark, str(self._id))

    def _start_spark(self, uri: str, continues: bool) -> SparkContext:
        """Start Spark. Its JVM may be starting already; independent work is done in the meantime.

        Args:
            uri: The checkpoint storage.
            continues: Whether the job probably continues its newest checkpoint.
        """
        begin_slots(self._plan, str(self._id))
        self._warm = continues and self._leadership is not None and not self._leadership.look()
        if continues and not self._warm:
            restore_early(self._plan, str(self._id), uri, self._newest_in_log)
        import holdfast.rest.server  # noqa: F401, which `_run` needs

        return spark_context(self._plan.name, self._plan.config)

    def _newest_in_log(self) -> CheckpointId | None:
        retained = self._log.read_retained()
        return retained[0].checkpoint_id if retained else None

    def _executor(self, job: JobInfo, plan: JobPlan) -> ClosableExecutor:
        """The executor for a generation; closes the previous one."""
        self._close_executors(plan)
        executor = self._new_executor(JobSetup(plan, job, uuid.uuid4().hex, self._log.owned.takeovers[-1]))
        self._executors.append(executor)
        return executor

    def _new_executor(self, setup: JobSetup) -> ClosableExecutor:
        return SparkExecutor(self._spark, setup)

    _clocks: Mapping[str, Callable[[], Any]] = {}
    """A test's own clocks, for the coordinator."""

    def _new_presence(self) -> Presence | None:
        return Presence(self._plan, str(self._id), None if self._temporary else self._storage, self._paths)

    def _after_epoch(self, stats: EpochStats, plan: JobPlan) -> None:
        if self._autoscaler is not None:
            parallelism = self._autoscaler.observe(stats, plan.settings.parallelism, time.monotonic())
            if parallelism is not None:
                log.info("job %r is rescaled to parallelism %d by its load", self._plan.name, parallelism)
                try:
                    self.begin_rescale(parallelism)
                except ConfigurationError as error:
                    log.warning("job %r keeps its parallelism: %s", self._plan.name, error)

    def _close_executors(self, successor: JobPlan | None = None) -> None:
        while self._executors:
            self._executors.pop().close(successor)

    def start(self) -> None:
        """Start in the background."""
        _jobs[str(self._id)] = self
        self._thread.start()

    def _run(self) -> None:
        add_log_fields(job=self._plan.name, job_id=str(self._id))
        began = time.monotonic()
        outcome: JobExecutionResult | BaseException
        owned = False
        try:
            status = self._await_leadership()
            if status is None:
                if self._presence is not None:
                    self._presence.show(self)
                owned = True
                with contextlib.closing(StandstillReader(self._storage, self._paths, self._metrics, self._tasks)):
                    self._coordinator.run()
                status = self._wanted_end or JobStatus.FINISHED
                if status is JobStatus.SUSPENDED and self._coordinator.over:
                    status = JobStatus.FINISHED
            outcome = JobExecutionResult(self._id, round((time.monotonic() - began) * 1000))
        except BaseException as error:
            log.debug("job %r failed", self._plan.name, exc_info=True)
            status = self._status_after(error, owned)
            outcome = concealed(in_short(error), self._plan.config)
        failure = str(outcome) if isinstance(outcome, BaseException) else ""
        deletes = status is JobStatus.CANCELED and self._plan.settings.delete_on_cancellation
        if not deletes:
            self._tell_standbys(status, failure)
        with contextlib.suppress(Exception):
            self._close_executors()
        if deletes:
            if self._presence is not None:
                self._presence.forget()
            delete_checkpoints(self._plan.name, self._coordinator, self._log, self._storage, self._paths)
            self._tell_standbys(status, failure)
        if self._temporary is not None:
            self._temporary()
        self._status = status
        self._metrics.status(status.name)
        if self._traces is not None:
            self._traces.close()
        if self._presence is not None:
            self._presence.store()
        self._end(status, outcome)
        self._over.set()

    def _leave(self) -> None:
        """End the job for its users, although its driver is still waiting for something."""
        self._status = self._wanted_end or JobStatus.CANCELED
        self._metrics.status(self._status.name)
        self._end(self._status, JobExecutionResult(self._id, 0))

    def _end(self, status: JobStatus, outcome: JobExecutionResult | BaseException) -> None:
        if not self._ends.acquire(blocking=False):
            return  # the job was abandoned
        failure = str(outcome) if isinstance(outcome, BaseException) else ""
        if self._presence is not None:
            self._presence.end(status.name, failure)
        if isinstance(outcome, BaseException):
            self._result.set_exception(outcome)
        else:
            self._result.set_result(outcome)

    def _status_after(self, error: BaseException, owned: bool) -> JobStatus:
        """How an error ends the job. With standby drivers, an error of this driver alone leaves the job to them."""
        of_the_job = isinstance(error, JobFailed) or (owned and not isinstance(error, (Fenced, SparkGone)))
        return JobStatus.FAILED if of_the_job or self._leadership is None else JobStatus.SUSPENDED

    def _await_leadership(self) -> JobStatus | None:
        """Stand by until this driver owns the job (None), or the job has ended without it (its status).

        Raises:
            JobFailed: the job has failed in another driver.
        """
        if self._leadership is None:
            return None
        if self._presence is not None and not self._leadership.look():
            self._presence.stand_by(self._leadership.owner)
            log.info("job %r: this driver stands by; the job is owned by one on %s", self._plan.name, self._leadership.owner)
        ended = self._leadership.stand_by(self._coordinator.fail)
        if self._leadership.leads:
            log.info("job %r: this driver takes the job over", self._plan.name)
            if self._warm:
                restore_early(self._plan, str(self._id), self._storage.uri, self._newest_in_log)
            return None
        if ended is None:
            return JobStatus.SUSPENDED
        if ended.state == JobStatus.FAILED.name:
            raise JobFailed(f"the job has failed in its driver on {ended.host}:\n{ended.failure}")
        return JobStatus[ended.state]

    def _tell_standbys(self, status: JobStatus, failure: str) -> None:
        """Tell the standby drivers how the job has ended, or that one of them may take it over."""
        if self._leadership is not None:
            self._leadership.end(status.name, failure)

    # for the client

    @property
    def metrics(self) -> JobMetrics:
        """The live metrics of the job."""
        return self._metrics

    def get_job_id(self) -> JobID:
        """The job's id."""
        return self._id

    def get_job_status(self) -> CompletableFuture[JobStatus]:
        """The job's status."""
        if not self._status.is_terminal_state():
            return CompletableFuture.completed(JobStatus[self._metrics.snapshot().status])
        return CompletableFuture.completed(self._status)

    def cancel(self, *, force: bool = False) -> CompletableFuture[None]:
        """Stop after the current epoch; the future completes when the job has stopped.

        Args:
            force: Do not wait for the running epoch, whose functions may not return. The next start computes it again.
        """
        return self._end_as(JobStatus.CANCELED, force=force)

    def _interrupt(self) -> CompletableFuture[None]:
        """End on Ctrl-C or SIGTERM: a standby driver takes the job over; without one, the job is cancelled.

        A second interrupt does not wait for the running epoch.
        """
        again, self._interrupted = self._interrupted, True
        return self._end_as(JobStatus.CANCELED if self._leadership is None else JobStatus.SUSPENDED, force=again)

    def _end_as(self, status: JobStatus, *, force: bool = False) -> CompletableFuture[None]:
        stopped: Future[None] = Future()
        if not self._status.is_terminal_state():
            self._wanted_end = self._wanted_end or status if status is JobStatus.SUSPENDED else status
            self._status = JobStatus.CANCELLING
            self._metrics.status("CANCELLING")
        if self._leadership is not None:
            self._leadership.stop()
        self._coordinator.cancel(force=force)
        if force:
            end_anyway(self._plan.name, self._over, self._leave)

        def done(result: Future[JobExecutionResult]) -> None:
            error = result.exception()
            if error is None:
                stopped.set_result(None)
            else:
                stopped.set_exception(error)

        self._result.add_done_callback(done)
        return CompletableFuture(stopped)

    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> CompletableFuture[str]:
        """Stop the job with a savepoint."""
        _, written = self.begin_savepoint(savepoint_directory, stop=True, drain=advance_to_end_of_event_time)
        stopped: Future[str] = Future()

        def done(savepoint: Future[str]) -> None:
            error = savepoint.exception()
            if error is not None:
                stopped.set_exception(error)
            else:
                self._result.add_done_callback(lambda _: stopped.set_result(savepoint.result()))

        written.add_done_callback(done)
        return CompletableFuture(stopped)

    def trigger_savepoint(self, savepoint_directory: str | None = None) -> CompletableFuture[str]:
        """Write a savepoint while the job continues."""
        return CompletableFuture(self.begin_savepoint(savepoint_directory, stop=False, drain=False)[1])

    def begin_savepoint(self, directory: str | None, *, stop: bool, drain: bool) -> tuple[str, Future[str]]:
        """The path of a new savepoint, and its completion.

        Raises:
            ConfigurationError: no savepoint can be written there.
        """
        if self._plan.settings.batch:
            raise ConfigurationError("a job in BATCH mode has no savepoints: it keeps no state beyond the end of its input")
        directory = directory or self._plan.settings.savepoint_directory
        if not directory:
            raise ConfigurationError(
                "there is no directory for savepoints: give one, or set execution.checkpointing.savepoint-dir"
            )
        uri = new_savepoint(directory, str(self._id), self._plan.settings.storage_options)
        return uri, self._coordinator.request_savepoint(uri, stop=stop, drain=drain)

    def rescale(self, parallelism: int) -> CompletableFuture[None]:
        """Run the job at another parallelism after the current epoch."""
        return CompletableFuture(self.begin_rescale(parallelism))

    def begin_rescale(self, parallelism: int) -> Future[None]:
        """Run the job at another parallelism after the current epoch.

        Raises:
            ConfigurationError: the job cannot run at this parallelism.
        """
        if self._plan.settings.batch:
            raise ConfigurationError("a job in BATCH mode keeps its parallelism: its whole input is one epoch")
        return self._coordinator.request_rescale(self._replan(parallelism))

    def change_pace(self, interval_ms: int | None, min_pause_ms: int | None) -> None:
        """Take checkpoints at another pace, until the job's next start.

        Args:
            interval_ms: The time between two checkpoints; None: unchanged; 0: as the budget allows.
            min_pause_ms: The shortest time between a checkpoint and the next epoch; None: unchanged.

        Raises:
            ConfigurationError: a time is negative.
        """
        if min(interval_ms or 0, min_pause_ms or 0) < 0:
            raise ConfigurationError("the interval of checkpoints and the pause between them must not be negative")
        self._coordinator.change_pace(interval_ms, min_pause_ms)

    def begin_sample(self, sender: str, receiver: str) -> Future[EdgeSample]:
        """Sample the records on an edge of the graph in the next epoch; the edge is named by the ids of its vertices.

        Raises:
            ConfigurationError: there is no such edge.
            HoldfastError: the job has ended.
        """
        return self._coordinator.samples.add(edge_between(self._coordinator.plan, sender, receiver))

    def query_state(self, uid: str, name: str, key: Any, window: int | None = None) -> CompletableFuture[Any]:
        """A future of a key's state in the newest completed checkpoint."""
        return CompletableFuture(self._query_threads.submit(lambda: self.query(uid, name, key, window).value))

    def query(self, uid: str, name: str, key: Any, window: int | None = None) -> Answer:
        """Read a key's state from the newest completed checkpoint. Blocks."""
        use_class_aliases(self._plan.class_aliases)
        return self._queries.query(uid, name, key, window)

    def hold_checkpoint(self) -> contextlib.AbstractContextManager[HeldCheckpoint]:
        """Keep the newest completed checkpoint from deletion while it is read."""
        return self._queries.held_checkpoint()

    def begin_largest_keys(self, uid: str) -> Future[Any]:
        """Find the largest keys of an operator in the newest completed checkpoint."""
        return self._query_threads.submit(self._queries.largest_keys, uid)

    def _ipython_display_(self) -> None:
        """Show the job in a notebook until it has ended."""
        from holdfast.notebook.widgets import show_job

        show_job(self, self._metrics)

    def get_job_execution_result(self) -> CompletableFuture[JobExecutionResult]:
        """A future that completes with the result when the job ends, or with its error."""
        return CompletableFuture(self._result)
