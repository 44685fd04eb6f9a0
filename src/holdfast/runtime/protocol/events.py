"""Events of the coordinator machine. Most of them answer one of its instructions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.connectors.base import Committable, EpochInput, JobInfo
from holdfast.metrics.requests import NONE, Requests
from holdfast.runtime.plan.task_messages import TaskReport
from holdfast.runtime.protocol import instructions
from holdfast.runtime.protocol.instructions import Instruction
from holdfast.runtime.protocol.rescale_request import RescaleRequest
from holdfast.runtime.protocol.savepoint_requests import SavepointRequest

__all__ = [
    "Acknowledged",
    "Answer",
    "Cancel",
    "Committed",
    "Completed",
    "Confirmed",
    "DelayOver",
    "Event",
    "Failed",
    "Instant",
    "Opened",
    "PaceChanged",
    "Planned",
    "PlannedInput",
    "Ran",
    "Recovered",
    "RescaleRequested",
    "SavepointRequested",
    "SavepointWritten",
    "Start",
    "TookOver",
    "Verified",
    "Woke",
]


class Instant(NamedTuple):
    """The time of an event."""

    wall_ms: int
    """Wall-clock time in ms since 1970; it may be set back."""
    seconds: float
    """Monotonic time in seconds."""
    virtual: float | None = None
    """A test's monotonic time for processing time and idleness; None: they use ``seconds``."""

    @property
    def steady(self) -> float:
        """The monotonic time for processing time and idleness, in seconds."""
        return self.seconds if self.virtual is None else self.virtual


class PlannedInput(NamedTuple):
    """One source's part of an epoch."""

    input: EpochInput
    snapshot: Any
    """The enumerator's state after this part."""
    held: frozenset[str] = frozenset()
    """The splits that got no input because they are too far ahead of their watermark group."""


class Event:
    """Something that happened."""


@dataclass(frozen=True)
class Start(Event):
    """The job starts."""


@dataclass(frozen=True)
class Cancel(Event):
    """The user cancels the job: it stops after the running epoch."""


@dataclass(frozen=True)
class SavepointRequested(Event):
    """The user wants a savepoint."""

    request: SavepointRequest


@dataclass(frozen=True)
class RescaleRequested(Event):
    """The job should run at another parallelism."""

    request: RescaleRequest


@dataclass(frozen=True)
class PaceChanged(Event):
    """Checkpoints should be taken at another pace; None: unchanged."""

    interval_ms: int | None
    """0: as the budget allows."""
    min_pause_ms: int | None


@dataclass(frozen=True)
class Failed(Event):
    """An instruction failed; it may have been carried out partly."""

    instruction: Instruction
    failure: Exception


class Answer(Event):
    """An instruction was carried out."""

    to: ClassVar[type[Instruction]]
    """The type of the instruction."""


@dataclass(frozen=True)
class TookOver(Answer):
    """The driver owns the job."""

    to = instructions.TakeOver
    job: JobInfo
    restored: CheckpointMetadata | None
    next_id: CheckpointId
    """The id of the first checkpoint to complete."""
    savepoint: str = ""
    """The savepoint of which ``restored`` is a copy, made just now; empty if it is the job's own checkpoint."""
    trial: bool = False
    """Whether the start is on trial (see `holdfast.checkpoint.takeover`): a sweep follows its first checkpoint."""
    passed_over: Sequence[Committable] = ()
    """The output of the job's newest checkpoint, if an older one is restored. That checkpoint is complete, so it becomes
    visible.
    """


@dataclass(frozen=True)
class Recovered(Answer):
    """The restored checkpoint's output is visible."""

    to = instructions.Recover


@dataclass(frozen=True)
class Opened(Answer):
    """Sources and executor are ready."""

    to = instructions.Open


@dataclass(frozen=True)
class Verified(Answer):
    """The checkpoint's files exist."""

    to = instructions.Verify
    checkpoint: CheckpointId


@dataclass(frozen=True)
class Planned(Answer):
    """The enumerators have assigned an epoch's input."""

    to = instructions.Plan
    inputs: Mapping[str, PlannedInput]
    """Inputs by the uid of the source."""


@dataclass(frozen=True)
class Ran(Answer):
    """All tasks of an epoch have ended; their reports include failures."""

    to = instructions.Run
    epoch: Epoch
    reports: Sequence[TaskReport]


@dataclass(frozen=True)
class Confirmed(Answer):
    """No other driver has taken the job over."""

    to = instructions.Confirm
    epoch: Epoch


@dataclass(frozen=True)
class Completed(Answer):
    """The checkpoint is in the log."""

    to = instructions.Complete
    epoch: Epoch
    requests: Requests = NONE
    """The driver's storage requests since the previous checkpoint."""


@dataclass(frozen=True)
class Committed(Answer):
    """The checkpoint's output is visible."""

    to = instructions.Commit
    epoch: Epoch


@dataclass(frozen=True)
class Acknowledged(Answer):
    """The enumerators have been told of the committed checkpoint."""

    to = instructions.Acknowledge
    epoch: Epoch


@dataclass(frozen=True)
class SavepointWritten(Answer):
    """The savepoint is complete."""

    to = instructions.WriteSavepoint
    number: int
    """The number of the request."""


@dataclass(frozen=True)
class Woke(Answer):
    """There may be new input, or the timeout has passed."""

    to = instructions.Sleep


@dataclass(frozen=True)
class DelayOver(Answer):
    """The delay before the next attempt has passed."""

    to = instructions.Delay
