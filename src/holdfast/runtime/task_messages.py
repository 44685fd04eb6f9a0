"""What the coordinator tells the tasks of an epoch, and what they report back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoint.ids import NO_POSITION, CheckpointId, Epoch, LogPosition
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.connectors.base import Committable, JobInfo, SplitRange
from holdfast.runtime.event_time import SplitTime
from holdfast.runtime.plan import JobPlan
from holdfast.runtime.redistribution import OperatorSnapshot

__all__ = ["EpochAssignment", "JobSetup", "SourceAssignment", "TaskId", "TaskReport", "task_name"]

TaskId = tuple[int, int]
"""Vertex and subtask."""


@dataclass(frozen=True)
class JobSetup:
    """What a task slot needs once per job and generation."""

    plan: JobPlan
    job: JobInfo
    started: str
    """Unique to this start of the job in this driver: a slot serves one start at a time."""
    takeover: LogPosition = NO_POSITION
    """The position in the checkpoint log of the driver's take-over, which tasks must see; 0: they do not look."""


@dataclass(frozen=True)
class SourceAssignment:
    """What one subtask of a source reads in this epoch."""

    ranges: tuple[SplitRange, ...]
    splits: dict[str, SplitTime]
    """All splits that the subtask has and that may still give records, with their event time so far."""
    watermark: int
    """What the subtask has emitted so far."""
    finished: bool
    """Whether the source ends with this epoch."""


@dataclass(frozen=True)
class EpochAssignment:
    """One run of one epoch."""

    epoch: Epoch
    """The id of the checkpoint that completes it."""
    run: int
    """Counts the tries at this epoch, from 0."""
    base: CheckpointId
    """The completed checkpoint that it continues; 0 for none."""
    committed: CheckpointId
    """The last checkpoint whose committables have been committed."""
    generation: int
    restarts: int
    processing_time: int
    tokens: dict[TaskId, str]
    """Which state each keyed subtask must have: the token in the base checkpoint; empty for none."""
    sources: dict[TaskId, SourceAssignment] = field(default_factory=dict)
    trace: bool = False
    """Whether records carry their origin, element by element, to explain a failure."""


@dataclass
class TaskReport:
    """What a task says at its barrier."""

    task: TaskId
    attempt: str
    """Unique to this run of this task."""
    error: BaseException | None = None
    seen: dict[tuple[int, int], str] = field(default_factory=dict)
    """By channel and sending subtask: the attempt whose frames were read."""
    state: dict[str, OperatorSnapshot] = field(default_factory=dict)
    """By uid, of every operator of the chain that has some: keyed, listed, or that of a watermark generator."""
    event_time: int = MIN_TIMESTAMP
    """The watermark that the chain has come to."""
    committables: list[Committable] = field(default_factory=list)
    splits: dict[str, SplitTime] = field(default_factory=dict)
    watermark: int = MIN_TIMESTAMP
    processing_time: int = 0
    """What the subtask's clock showed at the barrier, in ms."""
    next_timer: int | None = None
    """Processing time of the earliest timer or window, in ms."""
    records_in: int = 0
    records_out: int = 0
    records_written: int = 0
    """Given to sinks."""
    busy_seconds: float = 0.0
    late_dropped: int = 0
    uploading: Epoch | None = None
    """The epoch in which the background upload of a new base began that is still under way."""
    delta_bytes: int = 0
    found_state: bool | None = None
    """Whether the state was in the slot or on its host's disk (True) or had to be fetched (False); None: there was none."""
    phases: dict[str, float] = field(default_factory=dict)
    user_metrics: dict[str, Any] = field(default_factory=dict)
    warnings: dict[str, str] = field(default_factory=dict)
    """For the user, by subject: all since the operators were opened, so that none is lost with an attempt."""


def task_name(vertex_name: str, subtask: int, parallelism: int) -> str:
    """A task in messages, as Flink writes it: ``Map -> Sink (1/2)``."""
    return f"{vertex_name} ({subtask + 1}/{parallelism})"
