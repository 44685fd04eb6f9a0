"""CoordinatorMachine: the protocol of a job's driver as a pure state machine: events in, instructions out.

    TakeOver   this driver becomes the owner of the job and restores the latest completed checkpoint
    Recover    the output of that checkpoint becomes visible
    Open       sources and executor start
    Plan       every source fixes its part of the next epoch's input
    Run        one Spark job runs the epoch; every task reports
    Complete   the checkpoint is appended to the log if its position is free: the commit point
    Commit     the output becomes visible, during the next epoch; repeated after a crash

A failed epoch is run again with the same input, from the same checkpoint, until it completes or the restart strategy gives
up. Checkpoint n+1 is completed only after the output of n has been committed.

The machine has no clock, threads, storage or connectors. `holdfast.runtime.driver.coordinator` carries out its instructions;
so does tests/simulator, on a simulated storage and broker.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.checkpoint.ids import NO_CHECKPOINT, Epoch, checkpoint_of, epoch_of
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.references import StateFiles
from holdfast.connectors.base import EpochInput, JobInfo
from holdfast.errors import CorruptFile, HoldfastError, StaleRange, StorageError
from holdfast.metrics.requests import Requests
from holdfast.runtime.plan.lifecycle import IllegalTransition, Lifecycle
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.protocol import alignment, events, instructions, resumption
from holdfast.runtime.protocol.alarm import LONGEST_SLEEP, Alarm
from holdfast.runtime.protocol.completion import committables_of, failure_of
from holdfast.runtime.protocol.epoch import EpochInFlight, EpochState
from holdfast.runtime.protocol.events import Event, Failed, Instant, PlannedInput
from holdfast.runtime.protocol.exchange import Exchange, named
from holdfast.runtime.protocol.failures import FailurePolicy, Hopeless, Trace
from holdfast.runtime.protocol.instructions import Instruction
from holdfast.runtime.protocol.job_state import KNOWN_EVENTS, TRANSITIONS, JobState
from holdfast.runtime.protocol.pacing import CheckpointPace, Pace
from holdfast.runtime.protocol.rescaling import Next, Rescaling
from holdfast.runtime.protocol.restart import RestartStrategy, is_bug
from holdfast.runtime.protocol.savepoint_requests import SavepointRequest, SavepointRequests
from holdfast.runtime.protocol.sources import SourceProgress, source_progress
from holdfast.runtime.protocol.statistics import epoch_finished
from holdfast.runtime.protocol.unaligned import UnalignedCheckpoints
from holdfast.runtime.time.job_clock import JobClock

__all__ = ["CoordinatorMachine"]

_SWEEP_EVERY = 1000
"""Epochs between two sweeps for orphans."""
_BESIDE = instructions.Delay, instructions.WriteSavepoint
"""Instructions for which the end of the job does not wait."""
_ENDING = JobState.CANCELLING, JobState.STOPPING, JobState.FINISHED, JobState.CANCELED, JobState.FAILED


class CoordinatorMachine:
    """The decisions of one driver for one job. ``pace`` is the initial speed."""

    def __init__(self, plan: JobPlan, strategy: RestartStrategy, pace: Pace) -> None:
        self._plan = plan
        self._policy = FailurePolicy(strategy, chosen="restart-strategy.type" in plan.config)
        self._exchange = Exchange(self._tell)
        self._give = self._exchange.give
        self._awaits = self._exchange.awaits
        self._life = Lifecycle("the job", JobState.CREATED, TRANSITIONS, self._tell)
        self._now = Instant(0, 0.0)
        self._clock = JobClock()
        self._planning_since = 0.0
        self._cancelled = False
        self._has_opened = self._on_trial = False
        self._failure: BaseException | None = None
        self._damaged = False  # whether a task has found a damaged file of the checkpoint
        self._restarts = 0
        self._job: JobInfo | None = None
        self._next_epoch = Epoch(0)
        self._completed: CheckpointMetadata | None = None
        self._committed = NO_CHECKPOINT
        self._files = StateFiles()
        self._sources: list[SourceProgress] = []
        self._asked: int | None = None  # when, in ms of the monotonic clock
        self._epochs: dict[Epoch, EpochInFlight] = {}
        """The epochs in flight, in order."""
        self._alarm = Alarm()
        self._pace = CheckpointPace(plan.settings.pace, pace)
        self._unaligned = UnalignedCheckpoints()
        self._savepoints = SavepointRequests()
        self._rescaling = Rescaling(self._give)

    @property
    def state(self) -> JobState:
        """The state of the job."""
        return self._life.state

    @property
    def completed(self) -> CheckpointMetadata | None:
        """The last completed checkpoint."""
        return self._completed

    @property
    def uncommitted(self) -> bool:
        """Whether the last completed checkpoint has output that may not be visible yet."""
        return self._completed is not None and self._committed < self._completed.checkpoint_id

    def handle(self, event: Event, now: Instant) -> list[Instruction]:
        """Handle an event; returns the resulting instructions, in the order in which to start them.

        An event that the job's state does not accept raises IllegalTransition, with the latest events.
        """
        self._now = now
        self._exchange.received(event, now.seconds)
        if type(event) not in KNOWN_EVENTS[self.state]:
            raise IllegalTransition(
                f"{named(event)} came to a job that is {self.state.value}. This is a bug in Holdfast{self._tell()}"
            )
        self._exchange.settle(event)
        if (step := self._clock.tick(now.wall_ms, now.steady)) is not None:
            self._give(instructions.ClockStepped(step, abs(self._clock.ahead_ms)))
        self._take(event)
        self._advance()
        return self._exchange.taken()

    def _take(self, event: Event) -> None:
        match event:
            case events.Start():
                self._take_over()
            case events.Cancel():
                self._cancel()
            case events.TookOver():
                self._took_over(event)
            case events.Recovered():
                self._recovered()
            case events.Opened():
                self._opened()
            case events.Committed():
                self._committed_epoch(event.epoch)
            case events.SavepointRequested():
                self._savepoint_requested(event.request)
            case events.PaceChanged():
                self._give(*self._pace.change(event.interval_ms, event.min_pause_ms))
            case events.RescaleRequested():
                self._rescaling.requested(event.request, ends=self._cancelled or self.state in _ENDING)
            case events.SavepointWritten():
                self._savepoint_written(event.number)
            case Failed(instructions.WriteSavepoint(_, request), failure):
                self._savepoint_failed(request, failure)
            case events.Verified(checkpoint):
                self._rescaling.verified(checkpoint)
            case Failed(instructions.Verify(), failure):
                self._rescaling.refuse(str(failure))
            case _ if self.state in (JobState.RESTARTING, JobState.STOPPING):
                pass  # running instructions end, and none follow
            case events.Planned():
                self._planned(event.inputs)
            case events.Confirmed() if event.epoch not in self._epochs:
                pass  # cancelled in the meantime
            case events.Confirmed():
                self._answer_failed_epoch(self._epochs[event.epoch])
            case events.Ran():
                self._ran(self._epochs[event.epoch], event)
            case events.Completed():
                self._completed_epoch(self._epochs[event.epoch], event.requests)
            case events.Acknowledged():
                del self._epochs[event.epoch]
            case Failed(instructions.Run(assignment), failure):
                self._epoch_failed(self._epochs[assignment.epoch], failure, "")
            case Failed(instructions.Confirm(number), StorageError()) if number in self._epochs:
                self._answer_failed_epoch(self._epochs[number])  # repeated after the next failure
            case Failed(_, failure):
                self._job_failed(failure)
            case _:
                pass  # the next step is due

    def _advance(self) -> None:
        """Give the instructions that are due. Everything about overlap is decided here."""
        self._advance_epochs()
        match self.state:
            case JobState.RUNNING:
                self._write_savepoint()
                self._plan_or_finish()
            case JobState.RESTARTING if self._exchange.awaits_only(instructions.WriteSavepoint):
                self._take_over()
            case JobState.CANCELLING | JobState.STOPPING if self._exchange.awaits_only(*_BESIDE):
                self._end(JobState.CANCELED if self._failure is None else JobState.FAILED)
            case _:
                pass

    def _advance_epochs(self) -> None:
        for epoch in list(self._epochs.values()):
            if self.state in (JobState.RUNNING, JobState.CANCELLING):
                self._advance_epoch(epoch)

    def _advance_epoch(self, epoch: EpochInFlight) -> None:
        match epoch.state:
            case EpochState.PLANNED:
                self._run(epoch)
            case EpochState.FAILED if not self._commit_under_way:
                epoch.confirm()
                self._give(instructions.Confirm(epoch.number))
            case EpochState.BACKING_OFF if not self._awaits(instructions.Delay):
                self._give(instructions.Running())
                self._run(epoch)
            case EpochState.REPORTED if not self._commit_under_way:
                self._give(instructions.Complete(epoch.complete(self._sources, self._files, self._now.seconds)))

    def _plan_or_finish(self) -> None:
        if not all(epoch.is_complete for epoch in self._epochs.values()):
            return  # one epoch is planned and run at a time
        unfinished = tuple(source.uid for source in self._sources if not source.finished)
        if self._reads_no_more:
            if self._savepoints.drain and self._is_idle:
                self._savepoints.draining(self._next_epoch)
                self._begin_without_input(ends=True)
                self._advance_epochs()
        elif unfinished and self._rescaling.waits and not self._savepoints:
            self._rescale()
        elif unfinished:
            if not self._awaits(instructions.Plan) and not self._awaits(instructions.Sleep):
                if not self._savepoints and (wait := self._pace.wait(self._now)):
                    return self._give(instructions.Sleep((), min(wait, LONGEST_SLEEP)))
                budget = self._unaligned.budget(self._plan, self._pace.budget())
                if not budget:
                    self._begin_without_input(ends=False)
                    return self._advance_epochs()
                self._planning_since = self._now.seconds
                self._give(instructions.Plan(unfinished, budget, alignment.held_back(self._sources)))
        elif self._exchange.awaits_only():
            if self._completed is not None:
                self._give(instructions.InputEnded())
            self._end(JobState.FINISHED)

    @property
    def _is_idle(self) -> bool:
        """Whether no epoch is in flight or being planned."""
        return not (self._epochs or self._awaits(instructions.Plan) or self._awaits(instructions.Sleep))

    @property
    def _reads_no_more(self) -> bool:
        """Whether the job reads no more: it stops with a savepoint of the completed checkpoint, or of one that drains it."""
        completed, left = self._completed, self._unaligned.waiting
        return completed is not None and not left and self._savepoints.stop_planning(completed.checkpoint_id)

    @property
    def _commit_under_way(self) -> bool:
        return any(epoch.is_complete for epoch in self._epochs.values())

    def _end(self, state: JobState) -> None:
        self._life.to(state)
        self._exchange.end(instructions.End(self._failure))

    def _tell(self) -> str:
        epochs = "".join(f"; epoch {e.number} is {e.state.value}" for e in self._epochs.values())
        return f". The job is {self.state.value}{epochs}{self._exchange.told()}"

    # from the log to a running job

    def _take_over(self) -> None:
        self._life.to(JobState.TAKING_OVER)
        self._epochs.clear()
        deep, self._damaged = self._damaged, False
        self._give(instructions.TakeOver(deep, self._plan))

    def _took_over(self, event: events.TookOver) -> None:
        restored = event.restored
        self._job, self._completed, self._committed, self._on_trial = event.job, restored, NO_CHECKPOINT, event.trial
        self._next_epoch = epoch_of(event.next_id)
        self._unaligned.restored(restored)
        if restored is not None:
            self._clock.reached(restored.created_at)  # otherwise, windows that have fired could fill again
            self._savepoints.restored(restored.checkpoint_id)
            try:
                self._plan = resumption.check_resumable(self._plan, restored, event.savepoint)
            except HoldfastError as error:
                self._job_failed(error)
                return
            self._give(instructions.Restored(restored.checkpoint_id, event.savepoint))
        self._life.to(JobState.RECOVERING)
        self._give(instructions.Recover(self._plan, committables_of(restored), event.passed_over))

    def _recovered(self) -> None:
        restored = self._completed
        self._committed = NO_CHECKPOINT if restored is None else restored.checkpoint_id
        if self._cancelled:
            self._life.to(JobState.STOPPING)
            return
        self._sources, self._asked = source_progress(self._plan, restored), None
        self._alarm.set([None if restored is None else self._clock.now])
        self._life.to(JobState.OPENING)
        self._give(instructions.Open({source.uid: source.enumerator for source in self._sources if not source.finished}))

    def _opened(self) -> None:
        if self._cancelled:
            self._life.to(JobState.STOPPING)
            return
        self._life.to(JobState.RUNNING)
        self._give(instructions.Running())
        self._rescaling.restarted()
        self._give(*self._pace.news())
        if self._completed is not None and not self._has_opened and not all(source.finished for source in self._sources):
            # An epoch without input opens the tasks, so that a program that does not fit its state reads none.
            self._begin_without_input(ends=False)

    # epochs

    def _planned(self, inputs: Mapping[str, PlannedInput]) -> None:
        """Start an epoch if there is a reason for one."""
        if self._cancelled:
            return
        self._asked = int(1000 * self._now.steady)
        for source in self._sources:
            source.asked(inputs.get(source.uid), self._asked)
        due = any(p.input.ranges or p.input.finished for p in inputs.values()) or (self._savepoints and not self._completed)
        if not due and not self._alarm.due(self._clock.now, self._now):
            return None if self._reads_no_more else self._sleep()
        self._pace.began(self._now.seconds, sum(planned.input.backlog for planned in inputs.values()))
        ended = {s.uid: PlannedInput(EpochInput(finished=True), s.enumerator) for s in self._sources if s.finished}
        self._begin({**inputs, **ended})

    def _begin_without_input(self, *, ends: bool) -> None:
        self._has_opened, self._planning_since = True, self._now.seconds
        inputs = {s.uid: PlannedInput(EpochInput(finished=ends or s.finished), s.enumerator) for s in self._sources}
        self._begin(inputs, drains=ends)

    def _begin(self, inputs: Mapping[str, PlannedInput], *, drains: bool = False) -> None:
        number, self._next_epoch = self._next_epoch, Epoch(self._next_epoch + 1)
        planning = self._planning_since, self._now.seconds
        self._epochs[number] = EpochInFlight(number, inputs, self._clock.now, *planning, drains, self._tell)

    def _run(self, epoch: EpochInFlight) -> None:
        job, now = self._job, self._now.seconds
        assert job is not None
        time, base, committed = (self._clock.now, self._clock.speed), self._completed, self._committed
        aligned, longest = bool(self._savepoints), self._rescaling.aligning
        deadlines = self._unaligned.deadlines(self._plan, aligned=aligned, longest=longest)
        run = epoch.run(self._plan, job, base, committed, self._restarts, self._sources, time, now, deadlines, self._asked)
        self._give(instructions.Run(run))

    def _ran(self, epoch: EpochInFlight, event: events.Ran) -> None:
        found = failure_of(self._plan, event.reports)
        if found is not None:
            self._epoch_failed(epoch, *found)
        else:
            epoch.reported(event.reports, self._now.seconds)
            self._clock.reached(epoch.processing_ms)

    def _completed_epoch(self, epoch: EpochInFlight, asked: Requests) -> None:
        epoch.completed(self._now.seconds)
        self._policy.epoch_completed()
        self._rescaling.completed()
        for source in self._sources:
            source.completed(epoch.inputs[source.uid])
        reports, epoch.reports = epoch.reports, ()
        sweep_from = None
        if epoch.number % _SWEEP_EVERY == 0 or self._on_trial:
            # Background uploads may last many epochs; the file names of those that start now have this epoch's number.
            sweep_from = Epoch(min([epoch.number, *(r.uploading for r in reports if r.uploading is not None)]))
        self._has_opened, self._completed, self._on_trial = True, epoch.checkpoint, False
        self._give(instructions.Commit(epoch.number, committables_of(epoch.checkpoint), sweep_from))
        finished, seconds = epoch_finished(self._plan, epoch, reports, self._now.seconds, asked, self._pace.interval)
        self._give(finished)
        self._unaligned.completed(reports, seconds)
        self._alarm.set((report.next_timer for report in reports), self._unaligned.next_epoch(self._now.seconds))
        self._give(*self._pace.completed(self._now.seconds, finished.stats, left=self._unaligned.waiting))

    def _committed_epoch(self, number: Epoch) -> None:
        self._committed = checkpoint_of(number)
        if self.state in (JobState.RUNNING, JobState.CANCELLING):
            epoch = self._epochs[number]
            epoch.committed()
            self._give(instructions.Acknowledge(number, {u: s.enumerator for u, s in epoch.checkpoint.sources.items()}))

    # savepoints

    def _savepoint_requested(self, request: SavepointRequest) -> None:
        if self._cancelled or self.state in _ENDING:
            self._give(instructions.SavepointRefused(request))
        else:
            self._savepoints.add(request, max(self._epochs, default=Epoch(0)))

    def _write_savepoint(self) -> None:
        """Start the next savepoint if the latest checkpoint qualifies and its output is visible."""
        completed = self._completed
        if self._unaligned.waiting or self._awaits(instructions.WriteSavepoint):
            return  # savepoints are aligned: they have no channel state
        completing = any(epoch.state is EpochState.COMPLETING for epoch in self._epochs.values())
        if completing or completed is None or self._committed != completed.checkpoint_id:
            return  # completion may displace the latest checkpoint before the savepoint holds it
        if (request := self._savepoints.next(completed.checkpoint_id, self._is_idle)) is not None:
            self._give(instructions.WriteSavepoint(completed.checkpoint_id, request, self._savepoints.drained))

    def _savepoint_failed(self, request: SavepointRequest, failure: Exception) -> None:
        self._give(instructions.SavepointFailed(request, failure))
        if self._savepoints.answered(request.number).drain and self.state is JobState.RUNNING:
            self._life.to(JobState.RESTARTING)  # event time has ended in the tasks, and must start over

    def _savepoint_written(self, number: int) -> None:
        stops = self._savepoints.answered(number).stop
        if stops and self.state is JobState.RUNNING:
            self._end(JobState.FINISHED)
        elif stops:  # the job failed later; the savepoint is complete nevertheless
            self._cancel()

    # rescaling

    def _rescale(self) -> None:
        """Bring the job to a point where its plan can change, then change it."""
        left, alone = self._unaligned.waiting, self._exchange.awaits_only()
        match self._rescaling.next(self._plan, self._completed, left=left, alone=alone):
            case Next.ALIGN:
                self._begin_without_input(ends=False)
                self._advance_epochs()
            case Next.GO_ON:
                self._plan_or_finish()
            case JobPlan() as plan:
                self._plan, self._has_opened = plan, False
                self._take_over()

    # time

    def _sleep(self) -> None:
        """Wait for input, a timer or the end of a commit."""
        seconds = self._alarm.sleep(self._sources, self._clock.now, self._now, bool(self._epochs))
        self._give(instructions.Sleep(tuple(source.uid for source in self._sources if not source.finished), seconds))

    # failures and the end

    def _cancel(self) -> None:
        """Let running instructions end, and start no others."""
        self._cancelled = True
        match self.state:
            case JobState.CREATED:
                self._end(JobState.CANCELED)
            case JobState.RUNNING:
                self._life.to(JobState.CANCELLING)
                self._drop_idle_epochs()
            case JobState.RESTARTING:
                self._life.to(JobState.STOPPING)
            case _:
                pass  # a driver in take-over or recovery first makes earlier output visible

    def _drop_idle_epochs(self) -> None:
        self._epochs = {number: epoch for number, epoch in self._epochs.items() if not epoch.is_idle}

    def _epoch_failed(self, epoch: EpochInFlight, failure: BaseException, task: str) -> None:
        epoch.failed(failure, task)
        self._give(instructions.EpochFailed(epoch.number, failure))
        if self._cancelled:
            self._drop_idle_epochs()

    def _answer_failed_epoch(self, epoch: EpochInFlight) -> None:
        """Decide whether to run the epoch again."""
        assert epoch.failure is not None
        if isinstance(epoch.failure, (CorruptFile, StaleRange)):
            self._damaged |= isinstance(epoch.failure, CorruptFile)  # an older checkpoint is used if that is safe
            self._job_failed(epoch.failure)
        elif self._starts_again(epoch.failure, epoch.task, epoch.traced):
            epoch.back_off()

    def _job_failed(self, failure: Exception) -> None:
        """Go back to the log, or end the job."""
        if is_bug(failure) or (isinstance(failure, CorruptFile) and not self._damaged):
            self._stop(failure)  # in case of a damaged file, the log has already looked for an intact checkpoint
        elif self._starts_again(failure, "", traced=True):
            self._life.to(JobState.RESTARTING)

    def _starts_again(self, failure: BaseException, task: str, traced: bool) -> bool:
        """Whether to try again after a delay; if not, stop the job. ``traced``: a rerun would add nothing."""
        self._give(instructions.JobFailure(failure, task))
        if self._goes_back(failure, final=False):
            return False
        answer = self._policy.answer(failure, traced, round(self._now.seconds * 1000))
        if isinstance(answer, Hopeless):
            self._stop(answer.failure)
            return False
        if isinstance(answer, Trace):
            self._give(instructions.Delay(0.0))
            return True
        if self._cancelled:
            self._give(instructions.CancelledAfterFailure(failure, task, self.uncommitted))
            self._stop(None)
            return False
        self._restarts += 1
        self._give(instructions.Restarting(failure, task, answer.delay_ms))
        self._give(instructions.Delay(answer.delay_ms / 1000))
        return True

    def _goes_back(self, failure: BaseException, *, final: bool) -> bool:
        """Return to the previous plan if the first epoch with a new one has failed."""
        before = None if self._cancelled else self._rescaling.undone(failure, final=final)
        if before is not None:
            self._plan = before
            self._life.to(JobState.RESTARTING)
        return before is not None

    def _stop(self, failure: BaseException | None) -> None:
        if failure is not None and self._goes_back(failure, final=True):
            return
        self._failure = failure
        self._epochs.clear()
        self._life.to(JobState.STOPPING)
