"""EpochInFlight: the input, assignments, reports and checkpoint of one epoch, and its life cycle. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum

from holdfast.checkpoint.ids import NO_CHECKPOINT, CheckpointId, Epoch, checkpoint_of
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.references import StateFiles
from holdfast.connectors.base import JobInfo
from holdfast.errors import UserCodeError
from holdfast.metrics.stats import HoldingSplit
from holdfast.runtime.plan.lifecycle import Lifecycle
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.plan.task_messages import Deadline, EpochAssignment, TaskReport
from holdfast.runtime.protocol.completion import operator_states, tokens_of
from holdfast.runtime.protocol.events import PlannedInput
from holdfast.runtime.protocol.sources import SourceProgress

__all__ = ["EpochInFlight", "EpochState"]


class EpochState(Enum):
    """The state of an epoch."""

    PLANNED = "planned"
    """Its input is fixed."""
    RUNNING = "running"
    FAILED = "failed"
    """It waits for the running commit to end."""
    CONFIRMING = "confirming"
    """The driver checks that it still owns the job."""
    BACKING_OFF = "backing off"
    """It waits for the delay before its next run."""
    REPORTED = "reported"
    """Its tasks have succeeded."""
    COMPLETING = "completing"
    """Its checkpoint is being appended to the log."""
    COMMITTING = "committing"
    """Its checkpoint is complete: the epoch is never computed again."""
    ACKNOWLEDGING = "acknowledging"
    """Its output is visible."""


_E = EpochState
_TRANSITIONS: Mapping[EpochState, frozenset[EpochState]] = {
    _E.PLANNED: frozenset({_E.RUNNING}),
    _E.RUNNING: frozenset({_E.REPORTED, _E.FAILED}),
    _E.FAILED: frozenset({_E.CONFIRMING}),
    _E.CONFIRMING: frozenset({_E.BACKING_OFF}),
    _E.BACKING_OFF: frozenset({_E.RUNNING}),
    _E.REPORTED: frozenset({_E.COMPLETING}),
    _E.COMPLETING: frozenset({_E.COMMITTING}),
    _E.COMMITTING: frozenset({_E.ACKNOWLEDGING}),
    _E.ACKNOWLEDGING: frozenset(),
}


class EpochInFlight:
    """An epoch from its plan to the commit of its output.

    Args:
        number: The epoch's number, which is the id of its checkpoint.
        inputs: The input from each source, by uid.
        planned_ms: The processing time at which its input was fixed.
        started: The start of its planning, in seconds of the monotonic clock.
        now: The end of its planning, by the same clock.
        drains: Whether it ends event time before a savepoint, but not the input.
        story: Returns the recent events, for the message of an illegal transition.
    """

    def __init__(
        self,
        number: Epoch,
        inputs: Mapping[str, PlannedInput],
        planned_ms: int,
        started: float,
        now: float,
        drains: bool,
        story: Callable[[], str],
    ) -> None:
        self.number = number
        self._drains = drains
        self.inputs = inputs
        self.planned_ms = planned_ms
        self.processing_ms = planned_ms
        """Processing time at the start of the latest run; at its end, once the tasks have reported."""
        self.started = started
        self.phases: dict[str, float] = {}
        """The duration of each phase, in seconds."""
        self.failure: BaseException | None = None
        self.task = ""
        """The failed task; empty if the failure was outside of tasks."""
        self.reports: Sequence[TaskReport] = ()
        self.holding: Sequence[HoldingSplit] = ()
        self.traced = False
        """Whether the next run processes single elements with their records' origins, to explain a failure."""
        self._life = Lifecycle(f"epoch {number}", EpochState.PLANNED, _TRANSITIONS, story)
        self._run = -1
        self._phase_began = started
        self._continued: tuple[JobPlan, JobInfo, CheckpointMetadata | None] | None = None
        """The plan, the job, and the continued checkpoint of the latest run."""
        self._checkpoint: CheckpointMetadata | None = None
        self._end_phase("plan", now)

    @property
    def state(self) -> EpochState:
        """The epoch's state."""
        return self._life.state

    @property
    def is_idle(self) -> bool:
        """Whether it is neither running nor reported."""
        return self.state in (EpochState.PLANNED, EpochState.FAILED, EpochState.BACKING_OFF, EpochState.CONFIRMING)

    @property
    def is_complete(self) -> bool:
        """Whether its checkpoint is in the log."""
        return self.state in (EpochState.COMMITTING, EpochState.ACKNOWLEDGING)

    @property
    def checkpoint(self) -> CheckpointMetadata:
        """Its checkpoint; exists from `complete` on."""
        assert self._checkpoint is not None
        return self._checkpoint

    def _end_phase(self, name: str, now: float) -> None:
        self.phases[name] = now - self._phase_began
        self._phase_began = now

    def run(
        self,
        plan: JobPlan,
        job: JobInfo,
        base: CheckpointMetadata | None,
        committed: CheckpointId,
        restarts: int,
        sources: Iterable[SourceProgress],
        time: tuple[int, float],
        now: float,
        deadlines: Mapping[int, Deadline],
        asked: int | None,
    ) -> EpochAssignment:
        """Start the first run or a rerun; returns its assignment.

        Args:
            plan: The plan of the job.
            job: The job.
            base: The completed checkpoint that the epoch continues.
            committed: The last checkpoint whose output is known to be committed.
            restarts: The number of restarts of the job.
            sources: The progress of the sources in ``base``.
            time: The processing time, and its speed.
            now: The monotonic time, in seconds.
            deadlines: How long the subtasks process their input, by vertex. An epoch that ends the input or is traced has
                none.
            asked: When the sources were last asked for input; see `EpochAssignment`.
        """
        self._life.to(EpochState.RUNNING)
        self._continued = plan, job, base
        self._run += 1
        self.traced = isinstance(self.failure, UserCodeError)
        self._phase_began = now
        self.processing_ms = time[0]
        return EpochAssignment(
            epoch=self.number,
            run=self._run,
            base=NO_CHECKPOINT if base is None else base.checkpoint_id,
            committed=committed,
            generation=job.generation,
            restarts=restarts,
            processing_time=time[0],
            speed=time[1],
            asked=asked,
            tokens=tokens_of(plan, base),
            sources={task: assignment for s in sources for task, assignment in s.assignments(self.inputs[s.uid]).items()},
            deadlines={} if self.traced or self._ends_input else dict(deadlines),
            trace=self.traced,
        )

    @property
    def _ends_input(self) -> bool:
        return all(planned.input.finished for planned in self.inputs.values())

    def failed(self, failure: BaseException, task: str) -> None:
        """Its run failed."""
        self._life.to(EpochState.FAILED)
        self.failure, self.task = failure, task

    def confirm(self) -> None:
        """The driver checks that it still owns the job."""
        self._life.to(EpochState.CONFIRMING)

    def back_off(self) -> None:
        """It will be run again after a delay."""
        self._life.to(EpochState.BACKING_OFF)

    def reported(self, reports: Sequence[TaskReport], now: float) -> None:
        """All tasks have succeeded."""
        self._life.to(EpochState.REPORTED)
        self.reports = reports
        self.processing_ms = max([self.processing_ms, *(report.processing_time for report in reports)])
        self._end_phase("job", now)

    def complete(self, sources: Sequence[SourceProgress], files: StateFiles, now: float) -> CheckpointMetadata:
        """Build the checkpoint from the reports of the latest run, and update ``sources`` and ``files``."""
        assert self._continued is not None
        plan, job, base = self._continued
        self._life.to(EpochState.COMPLETING)
        self._end_phase("commit", now)
        for source in sources:
            source.read(self.reports)
        self.holding = [HoldingSplit(s.uid, *silent) for s in sources for silent in s.holding().items()]
        operators = operator_states(plan, self.reports, base)
        self._checkpoint = CheckpointMetadata(
            checkpoint_id=checkpoint_of(self.number),
            generation=job.generation,
            job_id=job.job_id,
            job_name=job.job_name,
            created_at=self.processing_ms,
            duration_ms=round((now - self.started) * 1000),
            sources={source.uid: source.state(self.inputs[source.uid]) for source in sources},
            operators=operators,
            committables=[(c.uid, c.subtask, c.data) for report in self.reports for c in report.committables],
            full_size=files.become(operators),
            delta_size=sum(report.delta_bytes for report in self.reports),
        )
        if self._drains:
            self._checkpoint = self._checkpoint.without_event_time()
        return self._checkpoint

    def completed(self, now: float) -> None:
        """Its checkpoint is in the log: the epoch is never computed again."""
        self._life.to(EpochState.COMMITTING)
        self._end_phase("metadata", now)

    def committed(self) -> None:
        """Its output is visible."""
        self._life.to(EpochState.ACKNOWLEDGING)
