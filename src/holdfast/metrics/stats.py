"""Reports of the coordinator to the metrics, one object per epoch or checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.metrics.requests import NONE, Requests
from holdfast.metrics.user import Sample

__all__ = [
    "CheckpointStats",
    "EpochStats",
    "FailedCheckpoint",
    "Failure",
    "HoldingSplit",
    "JobEvent",
    "LateRecord",
    "Observed",
    "OperatorStats",
    "RestoredCheckpoint",
    "SparkTasks",
    "StandbyStats",
    "StandingTask",
    "Straggler",
    "SubtaskStats",
    "VertexStats",
]


class LateRecord(NamedTuple):
    """A record that was dropped because it was late."""

    operator: str
    timestamp: int
    watermark: int
    """That of the operator when the record came."""
    value: str
    """The beginning of its text."""


class HoldingSplit(NamedTuple):
    """A split of a source that holds event time back: it has no records, and others have some."""

    source: str
    """The uid of the source."""
    split: str
    seconds: float
    """For how long."""


class StandingTask(NamedTuple):
    """A task that has run for seconds, as its slot tells."""

    epoch: int
    vertex: str
    """The name of its chain."""
    operator: str
    """The name of the operator that runs, or that of the chain."""
    subtask: int
    host: str
    process: int
    seconds: float
    """How long the task has run."""
    same_call_seconds: float
    """How long one call has not returned, of a function or of Holdfast's own; 0: calls return."""
    where: str
    """The line where it stands."""
    computes: bool = False
    """Whether it uses the processor; otherwise it waits."""
    waits_for: str = ""
    """The system for which Holdfast itself waits there, if that is known."""
    fault: str = ""
    """What keeps the process of the slot from telling this itself, e.g. that it is stopped."""


class SparkTasks(NamedTuple):
    """The tasks of the running epoch, as Spark's scheduler knows them."""

    running: int
    waiting: int


class Observed(NamedTuple):
    """What the driver has found out about something that lasts."""

    tasks: tuple[StandingTask, ...] = ()
    """What is told of the tasks of the running epoch, the longest standing call first."""
    spark: SparkTasks | None = None
    """None: not known."""
    unanswered: Mapping[str, float] = {}
    """The systems that were asked and do not answer, with seconds."""
    lines: Mapping[str, str] = {}
    """The lines at which the driver is, by activity."""

    def without_text(self) -> Observed:
        """The same without the text of lines."""
        return self._replace(
            tasks=tuple(task._replace(where=task.where.partition(": ")[0]) for task in self.tasks),
            lines={what: line.partition(": ")[0] for what, line in self.lines.items()},
        )


class JobEvent(NamedTuple):
    """Something that happened to the job as a whole."""

    timestamp_ms: int
    kind: str
    """``restart``, ``rescale``, ``resume``, ``savepoint``, ``pace``, ``standby`` or ``warning``."""
    text: str


class SubtaskStats(NamedTuple):
    """One subtask of a vertex in one epoch."""

    busy_ms: float
    records_in: int
    watermark: int
    channel_state: int = 0
    """Bytes of input that an unaligned checkpoint holds for the next epoch."""


@dataclass(frozen=True)
class OperatorStats:
    """One operator in one epoch, over all subtasks."""

    uid: str
    name: str
    busy_ms: float
    """Its own time, without that of the operators behind it."""
    state_bytes: int = 0
    """Bytes of all files of its state."""
    largest_subtask: int = 0
    """Those of the subtask with most of them."""


@dataclass(frozen=True)
class Straggler:
    """The subtask that worked longest in an epoch."""

    vertex: str
    subtask: int
    busy_ms: float
    typical_ms: float
    """The average of the other subtasks of its vertex."""


@dataclass(frozen=True)
class StandbyStats:
    """A standby copy of the keyed state of a subtask."""

    vertex: str
    subtask: int
    host: str
    lag_records: int | None
    """The records of the changelogs that it lacks; None: it has never held all of them."""
    lag_ms: float | None
    """The time since it held all of them."""


@dataclass(frozen=True)
class VertexStats:
    """Totals of one vertex (a chain of operators) in one epoch, over all its subtasks."""

    id: str
    name: str
    parallelism: int
    records_in: int = 0
    records_out: int = 0
    busy_ms: float = 0.0
    """Time that the subtasks spent working, in total."""
    late_dropped: int = 0
    """Late records dropped because their window was removed."""
    level: int = 0
    """0 for a source; otherwise one more than the highest level that feeds it."""
    source_uid: str = ""
    """Empty for a vertex without a source."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds spent in each phase by the slowest subtask, e.g. read, process, state."""
    subtasks: tuple[SubtaskStats, ...] = ()
    operators: tuple[OperatorStats, ...] = ()


@dataclass(frozen=True)
class EpochStats:
    """Totals of one epoch."""

    epoch: int
    started_ms: int
    """Wall clock, ms since 1970."""
    duration_ms: float
    records_in: int
    """Records read by the job's sources."""
    records_out: int
    """Records passed to the job's sinks."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds spent in each phase, e.g. plan, job, metadata, commit."""
    watermark: int = MIN_TIMESTAMP
    """The lowest watermark of the job's vertices, ms."""
    backlog: Mapping[str, int] = field(default_factory=dict)
    """Source uid -> approximate number of records ready beyond this epoch."""
    vertices: tuple[VertexStats, ...] = ()
    states_needed: int = 0
    """Keyed tasks that continued from the state of a checkpoint."""
    states_found: int = 0
    """Those of them that found the state in their slot's memory or in their host's local store."""
    user_metrics: Mapping[str, Sample] = field(default_factory=dict)
    """The merged snapshots of the tasks' metric groups (`holdfast.metrics.user.merge`)."""
    straggler: Straggler | None = None
    """None for an epoch whose vertices have one subtask each."""
    standbys: tuple[StandbyStats, ...] = ()
    late: tuple[LateRecord, ...] = ()
    """Some of the records that were dropped."""
    requests: Requests = NONE
    """What was asked of the checkpoint storage since the epoch before."""
    requests_cost: float = 0.0
    """What that cost, in dollars."""
    interval_ms: float = 0.0
    """The wanted time between two checkpoints."""
    holding: tuple[HoldingSplit, ...] = ()


@dataclass(frozen=True)
class CheckpointStats:
    """A completed checkpoint."""

    id: int
    trigger_ms: int
    """Wall clock, ms since 1970."""
    duration_ms: float
    """Time from trigger to completion, uploads included."""
    sync_ms: float = 0.0
    """The part of that time without record processing."""
    delta_bytes: int = 0
    """Bytes written for this checkpoint."""
    full_bytes: int = 0
    """Bytes of all files it refers to: the size of the state."""
    path: str = ""
    """The location of its metadata."""
    subtasks: int = 0
    is_savepoint: bool = False
    persisted_bytes: int = 0
    """Bytes of in-flight data: the channel state of all subtasks."""


@dataclass(frozen=True)
class FailedCheckpoint:
    """A failed checkpoint and its cause."""

    id: int
    failed_ms: int
    reason: str


@dataclass(frozen=True)
class RestoredCheckpoint:
    """The checkpoint that the job resumed from."""

    id: int
    restored_ms: int
    path: str
    is_savepoint: bool = False


@dataclass(frozen=True)
class Failure:
    """An error that stopped an epoch."""

    timestamp_ms: int
    text: str
    """The full message with its traceback."""
    task_name: str
    """The vertex where it occurred; empty for the coordinator."""

    @property
    def exception_name(self) -> str:
        r"""The class name of the final exception in the text, as its traceback prints it.

        >>> Failure(0, 'Traceback ...\n  File "job.py"\nValueError: no amount\n\noperator map', "").exception_name
        'ValueError'
        """
        for line in reversed(self.text.splitlines()):
            head = line.split(":", 1)[0]
            if head and all(part.isidentifier() for part in head.split(".")) and head.rsplit(".", 1)[-1][0].isupper():
                return head
        return "Exception"
