"""EpochInFlight: the input, the orders, the reports and the checkpoint of one epoch, and its life. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum

from holdfast.checkpoint.ids import NO_CHECKPOINT, CheckpointId, Epoch, checkpoint_of
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.connectors.base import JobInfo
from holdfast.errors import UserCodeError
from holdfast.runtime.completion import operator_states, tokens_of
from holdfast.runtime.events import PlannedInput
from holdfast.runtime.lifecycle import Lifecycle
from holdfast.runtime.plan import JobPlan
from holdfast.runtime.sources import SourceProgress
from holdfast.runtime.task_messages import EpochAssignment, TaskReport

__all__ = ["EpochInFlight", "EpochState"]


class EpochState(Enum):
    """Where an epoch is in its life."""

    PLANNED = "planned"
    """Its input is fixed."""
    RUNNING = "running"
    FAILED = "failed"
    """It waits for the commit that is under way."""
    CONFIRMING = "confirming"
    """It is asked whether the job still belongs to this driver."""
    BACKING_OFF = "backing off"
    """It will be run again after a delay."""
    REPORTED = "reported"
    """Its tasks have ended well."""
    COMPLETING = "completing"
    """Its checkpoint is being put into the log."""
    COMMITTING = "committing"
    """Its checkpoint is complete: nothing of it is ever computed again."""
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
        number: Its number, which is the id of its checkpoint.
        inputs: By the uid of every source what the epoch reads.
        planned_ms: Processing time at which its input was fixed.
        started: When its planning began, in seconds of the clock that never goes back.
        now: When its planning was done, by the same clock.
        story: Tells the recent events, for the message of an illegal transition.
    """

    def __init__(
        self,
        number: Epoch,
        inputs: Mapping[str, PlannedInput],
        planned_ms: int,
        started: float,
        now: float,
        story: Callable[[], str],
    ) -> None:
        self.number = number
        self.inputs = inputs
        self.planned_ms = planned_ms
        self.processing_ms = planned_ms
        """Processing time at which its latest run began; from its reports on, that at which it ended."""
        self.started = started
        self.phases: dict[str, float] = {}
        """The duration of each phase, in seconds."""
        self.failure: BaseException | None = None
        self.task = ""
        """Where it failed; empty if in no task."""
        self.reports: Sequence[TaskReport] = ()
        self.traced = False
        """Whether records carry their origin, element by element, to explain a failure."""
        self._life = Lifecycle(f"epoch {number}", EpochState.PLANNED, _TRANSITIONS, story)
        self._run = -1
        self._phase_began = started
        self._checkpoint: CheckpointMetadata | None = None
        self._end_phase("plan", now)

    @property
    def state(self) -> EpochState:
        """Where it is in its life."""
        return self._life.state

    @property
    def is_idle(self) -> bool:
        """Whether no task works on it, and none has ended well."""
        return self.state in (EpochState.PLANNED, EpochState.FAILED, EpochState.BACKING_OFF, EpochState.CONFIRMING)

    @property
    def is_complete(self) -> bool:
        """Whether its checkpoint is in the log."""
        return self.state in (EpochState.COMMITTING, EpochState.ACKNOWLEDGING)

    @property
    def checkpoint(self) -> CheckpointMetadata:
        """Its checkpoint, from `complete` on."""
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
        now_ms: int,
        now: float,
    ) -> EpochAssignment:
        """Begin a run, the first or another one.

        Args:
            plan: The job's.
            job: The job's.
            base: The completed checkpoint that the epoch continues.
            committed: The last checkpoint whose output is known to be committed.
            restarts: How often the job has started again.
            sources: How far they were read in ``base``.
            now_ms: Processing time.
            now: The clock that never goes back.
        """
        self._life.to(EpochState.RUNNING)
        self._run += 1
        self.traced = isinstance(self.failure, UserCodeError)
        self._phase_began = now
        self.processing_ms = now_ms
        return EpochAssignment(
            epoch=self.number,
            run=self._run,
            base=NO_CHECKPOINT if base is None else base.checkpoint_id,
            committed=committed,
            generation=job.generation,
            restarts=restarts,
            processing_time=now_ms,
            tokens=tokens_of(plan, base),
            sources={
                task: assignment
                for s in sources
                for task, assignment in s.assignments(self.inputs[s.uid], self.planned_ms).items()
            },
            trace=self.traced,
        )

    def failed(self, failure: BaseException, task: str) -> None:
        """A run failed."""
        self._life.to(EpochState.FAILED)
        self.failure, self.task = failure, task

    def confirm(self) -> None:
        """It is asked whether the job still belongs to this driver."""
        self._life.to(EpochState.CONFIRMING)

    def back_off(self) -> None:
        """It will be run again after a delay."""
        self._life.to(EpochState.BACKING_OFF)

    def reported(self, reports: Sequence[TaskReport], now: float) -> None:
        """All tasks have ended well."""
        self._life.to(EpochState.REPORTED)
        self.reports = reports
        self.processing_ms = max([self.processing_ms, *(report.processing_time for report in reports)])
        self._end_phase("job", now)

    def complete(self, plan: JobPlan, job: JobInfo, sources: Sequence[SourceProgress], now: float) -> CheckpointMetadata:
        """The checkpoint to put into the log; ``sources`` take the reports."""
        self._life.to(EpochState.COMPLETING)
        self._end_phase("commit", now)
        for source in sources:
            for report in self.reports:
                if report.task[0] == source.vertex.id:
                    source.read(report.task[1], report.splits, report.watermark)
        operators = operator_states(plan, self.reports)
        sizes = {h.path: h.size for o in operators.values() for s in o.subtasks for h in s.files()}
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
            full_size=sum(sizes.values()),
            delta_size=sum(report.delta_bytes for report in self.reports),
        )
        return self._checkpoint

    def completed(self, now: float) -> None:
        """Its checkpoint is in the log: nothing of it is ever computed again."""
        self._life.to(EpochState.COMMITTING)
        self._end_phase("metadata", now)

    def committed(self) -> None:
        """Its output is visible."""
        self._life.to(EpochState.ACKNOWLEDGING)
