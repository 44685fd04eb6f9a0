"""Coordinator: a job's driver, which carries out the decisions of the coordinator machine.

The protocol is in `holdfast.runtime.protocol.machine`; this module has the I/O: threads, the clock, the checkpoint log, the
sources' enumerators, the executor and the sinks' committers.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from holdfast.checkpoint.ids import CheckpointId, Epoch, checkpoint_of
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.metadata import CheckpointMetadata, has_output
from holdfast.checkpoint.retention import Retention
from holdfast.common.system.json_log import add_log_fields
from holdfast.connectors.base import Committable, JobInfo
from holdfast.errors import CheckpointError, ConfigurationError, StorageError
from holdfast.metrics.job import JobMetrics
from holdfast.metrics.requests import RequestCounter
from holdfast.metrics.stats import EpochStats
from holdfast.runtime.driver.activities import doing
from holdfast.runtime.driver.committers import Committers
from holdfast.runtime.driver.inputs import Inputs
from holdfast.runtime.driver.notices import Notices
from holdfast.runtime.driver.savepoints import ClaimedSavepoint, SavepointWriter, StartFromSavepoint, savepoint_failure
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.plan.task_messages import EpochAssignment, TaskReport
from holdfast.runtime.protocol import events, instructions
from holdfast.runtime.protocol.events import Event, Failed, Instant
from holdfast.runtime.protocol.instructions import Instruction, Notice
from holdfast.runtime.protocol.job_state import JobState
from holdfast.runtime.protocol.machine import CoordinatorMachine
from holdfast.runtime.protocol.pacing import Pace
from holdfast.runtime.protocol.rescale_request import RescaleRequest
from holdfast.runtime.protocol.restart import RestartStrategy
from holdfast.runtime.protocol.resumption import check_resumable
from holdfast.runtime.protocol.savepoint_requests import SavepointRequest
from holdfast.runtime.protocol.statistics import takeovers
from holdfast.runtime.records.samples import SampleRequests

__all__ = ["ClosableExecutor", "Coordinator", "EpochExecutor"]

log = logging.getLogger("holdfast")

_ABORT_EVERY_S = 0.5
_YOUNG = 50_000
"""Number of new objects after which Python's garbage collector looks for cycles. An epoch of ten thousand splits creates
some hundred thousand objects without cycles; by default Python would search them some hundred times, each time further back.
"""


class EpochExecutor(Protocol):
    """Runs the tasks of an epoch."""

    def run(self, assignment: EpochAssignment) -> list[TaskReport]:
        """Run all tasks of the epoch; returns their reports."""

    def abort(self) -> None:
        """Make the running epoch fail soon."""

    def each(self, task: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Run a function for each item on the executors, while epochs run. Called in a separate thread."""

    def stop_each(self) -> None:
        """Make a running `each` fail soon."""


class ClosableExecutor(EpochExecutor, Protocol):
    """An executor of epochs that holds resources."""

    def close(self, successor: JobPlan | None = None) -> None:
        """Release the resources; ``successor``: the plan with which the job continues, if it does."""


class Coordinator:
    """One job in one driver."""

    def __init__(
        self,
        plan: JobPlan,
        job: Callable[[int], JobInfo],
        executor: Callable[[JobInfo, JobPlan], EpochExecutor],
        checkpoint_log: CheckpointLog,
        retention: Retention,
        verify: Callable[[CheckpointMetadata, bool], None],
        strategy: RestartStrategy,
        metrics: JobMetrics,
        pace: Pace,
        savepoints: SavepointWriter,
        requests: RequestCounter,
        restore_from: CheckpointId | StartFromSavepoint | None = None,
        after_epoch: Callable[[EpochStats, JobPlan], None] = lambda stats, plan: None,
        wall_clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        virtual_seconds: Callable[[], float | None] = lambda: None,
    ) -> None:
        """``job`` and ``executor`` are called with each new generation; the plan changes when the job is rescaled.

        ``verify`` raises CorruptFile for a checkpoint that cannot be restored; with True it also checks the content.
        ``requests`` counts this process's requests to the checkpoint storage. ``wall_clock`` returns the time in ms since
        1970, ``virtual_seconds`` the monotonic time of a test with its own clock.
        """
        self._wall_clock = wall_clock
        self._virtual_seconds = virtual_seconds
        self._plan = plan
        self._make_job = job
        self._make_executor = executor
        self._log = checkpoint_log
        self._retention = retention
        self._verify = verify
        self._savepoint_writer = savepoints
        self._requests = requests
        self._after_epoch = after_epoch
        self._restore_from = None if isinstance(restore_from, StartFromSavepoint) else restore_from
        self._savepoint = restore_from if isinstance(restore_from, StartFromSavepoint) else None
        self._machine = CoordinatorMachine(plan, strategy, pace)
        self._metrics = metrics
        self._notices = Notices(plan.name, metrics, checkpoint_log, plan.config)
        self._inbox: SimpleQueue[Event | BaseException] = SimpleQueue()
        """Events from other threads. An exception in it, fatal for the driver, is raised in the coordinator's thread."""
        self._commits = ThreadPoolExecutor(1, thread_name_prefix="holdfast-commit")
        self._clean_ups = ThreadPoolExecutor(1, thread_name_prefix="holdfast-clean-up")
        self._cleaning: Future[None] | None = None
        self._claimed = ClaimedSavepoint(checkpoint_log, plan.settings)
        self._writes = ThreadPoolExecutor(1, thread_name_prefix="holdfast-savepoint")
        self._requested: dict[int, tuple[SavepointRequest, Future[str]]] = {}
        """Unfinished savepoint requests."""
        self._rescales: dict[int, Future[None]] = {}
        """Unfinished requests to rescale."""
        self.samples = SampleRequests()
        """The requested samples of records."""
        self._ended = self._stopped = False
        self._delay_until: float | None = None
        self._inputs = Inputs(metrics)
        self._committers = Committers()
        self._job: JobInfo | None = None
        self._executor: EpochExecutor | None = None

    def cancel(self, *, force: bool = False) -> None:
        """Stop after the running epoch; in BATCH mode, where the epoch is the whole job, stop it. Thread-safe.

        Args:
            force: Do not wait for the running epoch, whose functions may never return. The job's next start computes it
                again.
        """
        self._inbox.put(events.Cancel())
        self._inputs.cancelled = True
        if self._plan.settings.batch and self._executor is not None:
            self._executor.abort()
        if force:
            threading.Thread(target=self._abort, name="holdfast-cancel", daemon=True).start()

    def _abort(self) -> None:
        """Abort the running epoch, repeatedly: it may be just beginning."""
        while not self._ended:
            if self._executor is not None:
                self._executor.abort()
            time.sleep(_ABORT_EVERY_S)

    def fail(self, error: Exception) -> None:
        """End the job's part in this driver with an error, after the running epoch. Thread-safe."""
        self._inbox.put(error)

    def request_savepoint(self, uri: str, *, stop: bool = False, drain: bool = False) -> Future[str]:
        """Write a savepoint of the input read so far. Thread-safe.

        Args:
            uri: Its directory, from `holdfast.runtime.driver.savepoints.new_savepoint`.
            stop: Whether the job ends with it.
            drain: Whether event time ends before the savepoint, so that all timers and windows fire.

        Returns:
            The directory, once the savepoint is complete.
        """
        written: Future[str] = Future()
        request = SavepointRequest(next(_numbers), uri, stop, drain)
        self._requested[request.number] = request, written
        self._inbox.put(events.SavepointRequested(request))
        if self._ended:
            self._fail_requests()
        return written

    def request_rescale(self, plan: JobPlan) -> Future[None]:
        """Run the job at another parallelism after the current epoch, if possible. Thread-safe.

        Args:
            plan: The job at that parallelism.

        Returns:
            Done as soon as the job has completed an epoch at that parallelism.
        """
        rescaled: Future[None] = Future()
        request = RescaleRequest(next(_numbers), plan)
        self._rescales[request.number] = rescaled
        self._inbox.put(events.RescaleRequested(request))
        if self._ended:
            self._fail_requests()
        return rescaled

    def change_pace(self, interval_ms: int | None, min_pause_ms: int | None) -> None:
        """Take checkpoints at another pace from now until the job's next start. Thread-safe."""
        self._inbox.put(events.PaceChanged(interval_ms, min_pause_ms))

    def _fail_requests(self) -> None:
        while self._rescales:
            _fail(self._rescales.popitem()[1], ConfigurationError("the job was not rescaled: it has ended"))
        while self._requested:
            _, (request, written) = self._requested.popitem()
            _fail(written, CheckpointError(f"the job has ended; the savepoint {request.uri} was not written"))

    @property
    def plan(self) -> JobPlan:
        """The plan, which changes when the job is rescaled."""
        return self._plan

    @property
    def completed(self) -> CheckpointMetadata | None:
        """The last completed checkpoint."""
        return self._machine.completed

    @property
    def uncommitted(self) -> bool:
        """Whether the last completed checkpoint has output that may not be visible yet."""
        return self._machine.uncommitted

    @property
    def over(self) -> bool:
        """Whether the job has ended by itself or by a savepoint, so that no other driver should continue it."""
        return self._stopped or self._machine.state is JobState.FINISHED

    def run(self) -> None:
        """Run the job; returns when it has finished or was cancelled.

        Raises:
            HoldfastError: the job failed.
        """
        collects = gc.get_threshold()
        if 0 < collects[0] < _YOUNG:  # 0: the program has switched it off
            gc.set_threshold(_YOUNG, *collects[1:])
        try:
            end = self._drive()
        finally:
            gc.set_threshold(*collects)
            self._close()
            self._ended = True
            self._fail_requests()
            self.samples.end()
        if end.failure is not None:
            raise end.failure from end.failure.__cause__

    def _drive(self) -> instructions.End:
        """Carry out the machine's instructions, one by one, until the job ends."""
        todo = deque(self._handle_inbox(block=False))
        if self._machine.state is JobState.CREATED:  # otherwise it was cancelled before its start
            todo.extend(self._handle(events.Start()))
        while True:
            if not todo:
                todo.extend(self._handle_inbox(block=True))
                continue
            instruction = todo.popleft()
            if isinstance(instruction, instructions.End):
                return instruction
            if isinstance(instruction, Notice):
                self._notices.show(instruction)
                self._answer_request(instruction)
                if isinstance(instruction, instructions.EpochFinished):
                    self._after_epoch(instruction.stats, self._plan)
                continue
            try:
                with doing(self._metrics, instruction):
                    answer = self._carry_out(instruction)
            except Exception as error:
                answer = Failed(instruction, error)
            todo.extend(self._handle_inbox(block=False))  # events from other threads came first
            if answer is not None:
                todo.extend(self._handle(answer))

    def _handle(self, event: Event) -> list[Instruction]:
        return self._machine.handle(event, Instant(self._wall_clock(), time.monotonic(), self._virtual_seconds()))

    def _handle_inbox(self, *, block: bool) -> list[Instruction]:
        """Pass other threads' events to the machine, until it ends; if ``block``, wait for one or for the delay's end."""
        given: list[Instruction] = []
        while True:
            try:
                event = self._inbox.get(block, self._delay_left())
            except Empty:
                if block:
                    self._delay_until = None
                    given += self._handle(events.DelayOver())
                return given
            if isinstance(event, BaseException):
                raise event
            given += self._handle(event)
            if isinstance(event, events.SavepointWritten):
                request, written = self._requested.pop(event.number)
                self._notices.savepoint_written(request)
                self._stopped = self._stopped or request.stop
                written.set_result(request.uri)
            if any(isinstance(each, instructions.End) for each in given):
                return given  # later events come too late
            block = False

    def _answer_request(self, notice: Notice) -> None:
        match notice:
            case instructions.SavepointFailed(request, failure):
                _fail(self._requested.pop(request.number)[1], savepoint_failure(request.uri, failure))
            case instructions.SavepointRefused(request):
                ending = CheckpointError(f"the job is about to end; the savepoint {request.uri} was not written")
                _fail(self._requested.pop(request.number)[1], ending)
            case instructions.Rescaled(rescale):
                self._rescales.pop(rescale.number).set_result(None)
            case instructions.RescaleRefused(rescale, why):
                _fail(self._rescales.pop(rescale.number), ConfigurationError(f"the job was not rescaled: {why}"))
            case _:
                pass

    def _delay_left(self) -> float | None:
        return None if self._delay_until is None else max(0.0, self._delay_until - time.monotonic())

    def _carry_out(self, instruction: Instruction) -> Event | None:
        """Carry out the instruction; returns its answer, or None if the answer arrives in the inbox."""
        match instruction:
            case instructions.Run(assignment):
                assert self._executor is not None
                add_log_fields(epoch=assignment.epoch)
                sampled = self.samples.wanted
                reports = self._executor.run(replace(assignment, sampled=sampled) if sampled else assignment)
                if sampled:
                    self.samples.take(reports)
                self._notices.warn(reports)
                self._notices.taken_over(takeovers(self._plan, reports))
                return events.Ran(assignment.epoch, reports)
            case instructions.Plan():
                return self._inputs.plan(instruction, self._plan)
            case instructions.Verify(checkpoint):
                self._verify(checkpoint, False)
                return events.Verified(checkpoint.checkpoint_id)
            case instructions.Confirm(epoch):
                self._log.check_ownership()
                return events.Confirmed(epoch)
            case instructions.Complete():
                self._log.complete(instruction.checkpoint)
                return events.Completed(instruction.epoch, self._requests.drain())
            case instructions.Commit():
                self._commits.submit(self._commit, instruction)
                return None
            case instructions.Acknowledge(epoch, sources):
                self._inputs.checkpoint_completed(checkpoint_of(epoch), sources)
                return events.Acknowledged(epoch)
            case instructions.Sleep():
                return self._inputs.sleep(instruction)
            case instructions.WriteSavepoint():
                self._write_savepoint(instruction)
                return None
            case instructions.Delay(seconds):
                self._delay_until = time.monotonic() + seconds
                return None
            case instructions.TakeOver(deep, plan):
                self._plan = plan
                return self._take_over(deep)
            case instructions.Recover():
                return self._recover(instruction)
            case instructions.Open():
                return self._open(instruction)
            case _:
                raise NotImplementedError(f"{instruction}")

    # from the log to a running job

    def _take_over(self, deep: bool) -> Event:
        self._close_parts()
        savepoint = self._savepoint
        if savepoint is not None and not self._log.begun:  # a refused start leaves the job to its driver
            check_resumable(self._plan, savepoint.source.savepoint.checkpoint, savepoint.source.uri)
        taken = self._log.take_over(
            lambda checkpoint: self._verify(checkpoint, deep),
            self._restore_from,
            None if savepoint is None else savepoint.request,
            lambda checkpoint: check_resumable(self._plan, checkpoint),
        )
        job = self._make_job(taken.generation)
        self._job = job if job.storage_uri is None else replace(job, identity=taken.job)
        restored, next_id, uri = taken.restored, taken.next_id, ""
        if savepoint is not None and taken.begins_from_savepoint:
            uri = savepoint.source.uri
            self._log.complete(savepoint.copy(next_id, taken.generation), savepoint.source.name)
            restored, next_id = self._log.owned.retained[0], self._log.owned.next_id
        passed_over = [] if taken.passed_over is None else [Committable(*each) for each in taken.passed_over.committables]
        return events.TookOver(self._job, restored, next_id, uri, taken.trial, passed_over)

    def _recover(self, instruction: instructions.Recover) -> Event:
        assert self._job is not None
        self._plan = instruction.plan
        self._committers.recover(self._plan, self._job, instruction.committables, instruction.passed_over)
        self._retention.adopt_holds()
        self._retention.sweep()
        return events.Recovered()

    def _open(self, instruction: instructions.Open) -> Event:
        assert self._job is not None
        for vertex in self._plan.vertices:
            spec = vertex.source
            if spec is not None and spec.uid in instruction.sources:
                self._inputs.open(spec, self._job, instruction.sources[spec.uid])
        self._executor = self._make_executor(self._job, self._plan)
        return events.Opened()

    # epochs

    def _commit(self, instruction: instructions.Commit) -> None:
        """Commit a checkpoint's output in the background, then clean up."""
        try:
            if any(has_output(each.uid) for each in instruction.committables):
                self._log.output_becomes_visible(checkpoint_of(instruction.epoch))
            self._committers.commit(instruction.committables, self._metrics.doing)
        except Exception as error:
            self._inbox.put(Failed(instruction, error))
        except BaseException as end:
            self._inbox.put(end)
        else:
            self._cleaning = self._clean_ups.submit(self._clean_up, instruction.sweep_from)
            self._inbox.put(events.Committed(instruction.epoch))

    def _clean_up(self, sweep_from: Epoch | None) -> None:
        try:
            self._retention.collect()
            if sweep_from is not None:
                self._retention.sweep(sweep_from)
            self._claimed.delete(again=sweep_from is not None)
        except (StorageError, ConfigurationError) as error:  # the next sweep finds the same orphans
            log.warning("Orphan sweep failed, retrying later: %s", error)
        except BaseException as end:
            self._inbox.put(end)

    # savepoints

    def _write_savepoint(self, instruction: instructions.WriteSavepoint) -> None:
        held = contextlib.ExitStack()
        checkpoint = held.enter_context(self._retention.hold(instruction.checkpoint_id))
        executor, request = self._executor, instruction.request
        assert executor is not None

        def write() -> None:
            try:
                with held:
                    self._savepoint_writer.write(checkpoint, request.uri, instruction.drained, executor.each)
                if request.stop:
                    with contextlib.suppress(StorageError):  # the savepoint is complete
                        self._log.check_ownership()  # otherwise another driver owns the job, which goes on
            except Exception as error:
                self._inbox.put(Failed(instruction, error))
            except BaseException as end:
                self._inbox.put(end)
            else:
                self._inbox.put(events.SavepointWritten(request.number))

        self._writes.submit(write)

    # the end

    def _close_parts(self, *, ends: bool = False) -> None:
        """Close the resources of an earlier start. No commit is running; waits for a running clean-up."""
        if self._cleaning is not None:
            wait([self._cleaning])
        self._inputs.close(ends=ends)
        self._committers.close()

    def _close(self) -> None:
        if self._executor is not None and self._requested:
            self._executor.stop_each()
        self._writes.shutdown(wait=True)
        self._commits.shutdown(wait=True)
        self._clean_ups.shutdown(wait=True)
        self._close_parts(ends=True)


def _fail(written: Future[Any], failure: Exception) -> None:
    if not written.done():
        written.set_exception(failure)


_numbers = itertools.count(1)
