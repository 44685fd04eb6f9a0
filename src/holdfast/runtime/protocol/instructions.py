"""Instructions of the coordinator machine to the driver that carries them out.

The driver answers an instruction with the event that it names, or with `holdfast.runtime.protocol.events.Failed`. A *notice*
is an instruction without an answer, for the log and the metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.checkpoint.ids import CheckpointId, Epoch, epoch_of
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.connectors.base import Committable
from holdfast.metrics.stats import EpochStats
from holdfast.runtime.plan.pace_settings import PaceSettings
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.plan.task_messages import EpochAssignment
from holdfast.runtime.protocol.rescale_request import RescaleRequest
from holdfast.runtime.protocol.savepoint_requests import SavepointRequest
from holdfast.runtime.time.job_clock import Step

__all__ = [
    "Acknowledge",
    "CancelledAfterFailure",
    "ClockStepped",
    "Commit",
    "Complete",
    "Confirm",
    "Delay",
    "End",
    "EpochFailed",
    "EpochFinished",
    "Held",
    "InputEnded",
    "Instruction",
    "JobFailure",
    "Notice",
    "Open",
    "PaceOfCheckpoints",
    "Plan",
    "Recover",
    "RescaleRefused",
    "Rescaled",
    "Restarting",
    "Restored",
    "Run",
    "Running",
    "Sleep",
    "SavepointFailed",
    "SavepointRefused",
    "TakeOver",
    "Verify",
    "WriteSavepoint",
]


class Instruction:
    """Something for the driver to do."""


@dataclass(frozen=True)
class TakeOver(Instruction):
    """Close resources of an earlier start, and append a take-over to the checkpoint log. Answer: `TookOver`."""

    deep: bool
    """Whether to check the content of the checkpoint's files, not only that they exist."""
    plan: JobPlan
    """The plan from now on; its parallelism may differ from that of the checkpoint."""


@dataclass(frozen=True)
class Recover(Instruction):
    """Let the committers take over earlier output, and delete orphans. Answer: `Recovered`."""

    plan: JobPlan
    """The plan from now on, with the key groups of the restored checkpoint."""
    committables: Sequence[Committable]
    """The committables of the restored checkpoint; they may be committed already."""
    passed_over: Sequence[Committable] = ()
    """The committables of the job's newest checkpoint, if an older one is restored. If they are lost, the job starts
    nevertheless.
    """


@dataclass(frozen=True)
class Open(Instruction):
    """Start the enumerators and the executor. Answer: `Opened`."""

    sources: Mapping[str, Any]
    """The state of each enumerator by uid; None to start without one. Finished sources are left out."""


@dataclass(frozen=True)
class Verify(Instruction):
    """Check before a rescaling that the completed checkpoint's files exist. Answer: `Verified`."""

    checkpoint: CheckpointMetadata


class Held(NamedTuple):
    """Splits of a source that get no input in an epoch."""

    splits: frozenset[str]
    whole: bool
    """Whether these are all splits of the source except idle ones."""


@dataclass(frozen=True)
class Plan(Instruction):
    """Ask the enumerators for the next epoch's input. Answer: `Planned`."""

    sources: Sequence[str]
    """The uids of the sources to ask."""
    max_records: int
    held: Mapping[str, Held] = field(default_factory=dict)
    """By uid: the splits that are too far ahead of their watermark group."""


@dataclass(frozen=True)
class Run(Instruction):
    """Run the tasks of an epoch. Answer: `Ran`."""

    assignment: EpochAssignment

    @property
    def epoch(self) -> Epoch:
        """The epoch."""
        return self.assignment.epoch


@dataclass(frozen=True)
class Confirm(Instruction):
    """Check that the job still belongs to this driver: a successor may have deleted files that a failed epoch needed.

    Answer: `Confirmed`.
    """

    epoch: Epoch


@dataclass(frozen=True)
class Complete(Instruction):
    """Put a checkpoint into the log: the commit point. Answer: `Completed`."""

    checkpoint: CheckpointMetadata

    @property
    def epoch(self) -> Epoch:
        """The epoch."""
        return epoch_of(self.checkpoint.checkpoint_id)


@dataclass(frozen=True)
class Commit(Instruction):
    """Make a checkpoint's output visible in the background, then clean up. Answer, before the clean-up: `Committed`."""

    epoch: Epoch
    committables: Sequence[Committable]
    sweep_from: Epoch | None
    """Also delete orphans of epochs before this one; None: delete only the files of displaced checkpoints."""


@dataclass(frozen=True)
class Acknowledge(Instruction):
    """Tell the enumerators that a checkpoint is complete and its output committed. Answer: `Acknowledged`."""

    epoch: Epoch
    sources: Mapping[str, Any]
    """The state of each enumerator in the checkpoint, by uid."""


@dataclass(frozen=True)
class Sleep(Instruction):
    """Wait for new input. Answer: `Woke`."""

    sources: Sequence[str]
    """The uids of sources to wait for; empty: wait for the timeout only."""
    seconds: float
    """The maximum wait."""


@dataclass(frozen=True)
class Delay(Instruction):
    """Wait before the next attempt; events are still handled. Answer: `DelayOver`."""

    seconds: float


@dataclass(frozen=True)
class WriteSavepoint(Instruction):
    """Write a savepoint of a checkpoint whose output is committed, in the background. Answer: `SavepointWritten`."""

    checkpoint_id: CheckpointId
    request: SavepointRequest
    drained: bool
    """Whether event time has ended."""


@dataclass(frozen=True)
class End(Instruction):
    """The job is over."""

    failure: BaseException | None


class Notice(Instruction):
    """News for the log and the metrics, without an answer."""


@dataclass(frozen=True)
class Running(Notice):
    """Epochs run (again)."""


@dataclass(frozen=True)
class Restored(Notice):
    """The job resumes from a checkpoint."""

    checkpoint_id: CheckpointId
    savepoint: str
    """The savepoint of which the checkpoint is a copy, made just now; empty if it is the job's own."""


@dataclass(frozen=True)
class ClockStepped(Notice):
    """The wall clock was set, or differs from that of the previous driver."""

    step: Step
    milliseconds: int
    """How far the wall clock is from processing time."""


@dataclass(frozen=True)
class EpochFailed(Notice):
    """An attempt at an epoch failed."""

    epoch: Epoch
    failure: BaseException


@dataclass(frozen=True)
class JobFailure(Notice):
    """A failure, before the decision about it."""

    failure: BaseException
    task: str
    """The failed task; empty if the failure was outside of tasks."""


@dataclass(frozen=True)
class Restarting(Notice):
    """The job restarts, or the epoch is run again, after a delay."""

    failure: BaseException
    task: str
    delay_ms: int


@dataclass(frozen=True)
class CancelledAfterFailure(Notice):
    """The job failed during its cancellation; it does not restart."""

    failure: BaseException
    task: str
    uncommitted: bool
    """Whether the job's next start has output to commit."""


@dataclass(frozen=True)
class EpochFinished(Notice):
    """An epoch's checkpoint is complete."""

    stats: EpochStats
    checkpoint: CheckpointMetadata
    sync_ms: float
    """The longest time that a task took to write its state."""
    subtasks: int


@dataclass(frozen=True)
class SavepointFailed(Notice):
    """A savepoint could not be written; the job continues."""

    request: SavepointRequest
    failure: Exception


@dataclass(frozen=True)
class SavepointRefused(Notice):
    """A savepoint was requested when the job was about to end."""

    request: SavepointRequest


@dataclass(frozen=True)
class PaceOfCheckpoints(Notice):
    """How often checkpoints will be taken."""

    settings: PaceSettings
    interval: float
    """In seconds; if not configured, derived from the cost of checkpoints."""


@dataclass(frozen=True)
class Rescaled(Notice):
    """The job runs at the requested parallelism."""

    request: RescaleRequest


@dataclass(frozen=True)
class RescaleRefused(Notice):
    """The job keeps its parallelism."""

    request: RescaleRequest
    why: str


@dataclass(frozen=True)
class InputEnded(Notice):
    """All sources have ended, and all output is committed."""
