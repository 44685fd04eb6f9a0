"""Messages between the coordinator and the tasks of an epoch: assignments and reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.checkpoint.ids import NO_POSITION, CheckpointId, Epoch, LogPosition
from holdfast.checkpoint.layers import SubtaskChange
from holdfast.checkpoint.metadata import ListedState
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.connectors.base import Committable, JobInfo, SplitRange
from holdfast.metrics.requests import NONE, Requests
from holdfast.metrics.stats import LateRecord
from holdfast.runtime.plan.event_time import SplitTime
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.plan.redistribution import OperatorSnapshot
from holdfast.runtime.records.samples import Edge, EdgeSample
from holdfast.runtime.time.clock import EventTime

__all__ = [
    "SENDING",
    "Deadline",
    "EpochAssignment",
    "JobOutline",
    "JobSetup",
    "OperatorReport",
    "SourceAssignment",
    "StandbyStatus",
    "TaskId",
    "TaskReport",
    "task_name",
]

TaskId = tuple[int, int]
"""Vertex and subtask."""

SENDING = ""
"""Stands for a uid in the time spent by a chain's outputs: on key selectors, partitioning and frames."""


@dataclass(frozen=True)
class JobSetup:
    """The job as a task slot gets it, once per start of the job."""

    plan: JobPlan
    job: JobInfo
    started: str
    """Unique to this start of the job in this driver; a slot serves one start at a time."""
    takeover: LogPosition = NO_POSITION
    """The position of the driver's take-over in the checkpoint log. Tasks check that they see it; 0: no check."""


class JobOutline(NamedTuple):
    """What a process needs to know about the job's tasks if it runs none of its functions."""

    name: str
    storage_uri: str
    storage_config: Mapping[str, str]
    vertices: Mapping[int, str]
    """The names of the vertices, by id."""

    @classmethod
    def of(cls, setup: JobSetup) -> JobOutline:
        """The outline of a job."""
        job, names = setup.job, {vertex.id: vertex.name for vertex in setup.plan.vertices}
        return cls(job.job_name, job.storage_uri or "", job.storage_config, names)


@dataclass(frozen=True)
class SourceAssignment:
    """The input of one source subtask in an epoch."""

    ranges: tuple[SplitRange, ...]
    splits: dict[str, SplitTime]
    """The event time of all splits of the subtask that may still have records."""
    watermark: int
    """The last emitted watermark of the subtask."""
    finished: bool
    """Whether the source ends with this epoch."""

    def __reduce__(self) -> tuple[Any, ...]:
        """As rows: otherwise, with thousands of splits, the driver would pickle two objects for each."""
        rows = [
            (r.split, r.start, r.end, r.weight, r.payload, r.last, r.since) if type(r) is SplitRange else r
            for r in self.ranges
        ]
        return _source_assignment, (rows, _rows(self.splits), self.watermark, self.finished)


def _source_assignment(rows: list[Any], splits: list[Any], watermark: int, finished: bool) -> SourceAssignment:
    ranges = tuple([SplitRange(*row) if type(row) is tuple else row for row in rows])
    return SourceAssignment(ranges, _splits(splits), watermark, finished)


def _rows(splits: Mapping[str, SplitTime]) -> list[Any]:
    return [(name, time.max_timestamp, time.idle, time.heard, time.generated) for name, time in splits.items()]


def _splits(rows: list[Any]) -> dict[str, SplitTime]:
    return {name: SplitTime(latest, idle, heard, generated) for name, latest, idle, heard, generated in rows}


class Deadline(NamedTuple):
    """How long a subtask may process an epoch's input, in seconds."""

    seconds: float
    behind: float
    """The same for a subtask with channel state of earlier epochs."""


@dataclass(frozen=True)
class EpochAssignment:
    """One run of one epoch, as assigned to its tasks."""

    epoch: Epoch
    """The id of the checkpoint that completes it."""
    run: int
    """The number of earlier runs of this epoch."""
    base: CheckpointId
    """The completed checkpoint that the epoch continues; 0 for none."""
    committed: CheckpointId
    """The last checkpoint whose committables have been committed."""
    generation: int
    restarts: int
    processing_time: int
    tokens: dict[TaskId, str]
    """For each subtask, the token of the state that it continues; empty to start without state."""
    speed: float = 1.0
    """The speed of processing time during the epoch; less than 1 while the wall clock has to catch up."""
    asked: int | None = None
    """When the sources were last asked for input, in ms of the driver's monotonic clock; None: not since the job's start."""
    sources: dict[TaskId, SourceAssignment] = field(default_factory=dict)
    deadlines: dict[int, Deadline] = field(default_factory=dict)
    """By vertex, the time after which its subtasks leave the rest of the input to the next epoch."""
    later: Mapping[TaskId, str] = field(default_factory=dict)
    """Later tasks of the same slot, with their tokens; they may start on channel state before their frames arrive."""
    trace: bool = False
    """Whether the epoch is processed element by element with each record's origin, to explain a failure."""
    sampled: frozenset[Edge] = frozenset()
    """The edges to sample."""
    standbys: Mapping[int, Sequence[TaskId]] = field(default_factory=dict)
    """By slot, the subtasks of other hosts for which slots on the task's host stand by."""

    def early(self, tasks: Iterable[TaskId]) -> dict[TaskId, str]:
        """Which of the tasks may start early, with their tokens: those with a deadline and a state to continue."""
        return {task: self.tokens[task] for task in tasks if task[0] in self.deadlines and self.tokens.get(task)}


@dataclass(frozen=True)
class StandbyStatus:
    """A standby copy of a subtask's keyed state."""

    task: TaskId
    host: str
    lag: int | None = None
    """The number of changelog records that it lacks, as far as known; None before it has held all of them once."""
    whole_at: float | None = None
    """When it last held all records, by the host's monotonic clock."""
    lag_seconds: float | None = None
    """The seconds since then, as of the answer."""


@dataclass(frozen=True)
class OperatorReport:
    """The change of an operator's state in one subtask since the checkpoint that the epoch continues."""

    change: SubtaskChange | None = None
    """None: the state is unchanged, or there is none."""
    schemas: dict[str, Any] = field(default_factory=dict)
    """The schema of the keyed state, as plain data by fingerprint, if ``change`` replaces the state."""
    listed: dict[str, ListedState] = field(default_factory=dict)
    """The listed states by name."""
    generator: Any = None
    """The state of the watermark generator, as plain data; None for operators that generate no watermarks."""
    size: int = 0
    """The size of all files of the state, in bytes."""

    @staticmethod
    def whole(snapshot: OperatorSnapshot) -> OperatorReport:
        """The report of a complete state, for a driver that does not have the previous one."""
        return OperatorReport(SubtaskChange(snapshot.state), snapshot.schemas, snapshot.listed, snapshot.generator)


@dataclass
class TaskReport:
    """The report of a task at its barrier."""

    task: TaskId
    attempt: str
    """Unique to this attempt at the task."""
    error: BaseException | None = None
    seen: dict[int, bytes] = field(default_factory=dict)
    """By channel, the `seen_attempts` of the senders whose frames were read."""
    state: dict[str, OperatorReport] = field(default_factory=dict)
    """By uid, the reports of operators with keyed state, listed state or watermark generators."""
    event_times: dict[str, EventTime] = field(default_factory=dict)
    """By uid: the event times of the operators."""
    committables: list[Committable] = field(default_factory=list)
    splits: dict[str, SplitTime] = field(default_factory=dict)
    watermark: int = MIN_TIMESTAMP
    processing_time: int = 0
    """The subtask's processing time at the barrier, in ms."""
    next_timer: int | None = None
    """The processing time of the earliest timer or window, in ms."""
    records_in: int = 0
    records_out: int = 0
    records_written: int = 0
    """Records given to sinks."""
    busy_seconds: float = 0.0
    operator_seconds: dict[str, float] = field(default_factory=dict)
    """By uid, and for `SENDING`: the seconds that the operators themselves took."""
    late_dropped: int = 0
    late: list[LateRecord] = field(default_factory=list)
    """The first late records."""
    samples: dict[int, EdgeSample] = field(default_factory=dict)
    """The samples that the assignment asks for, by receiving vertex."""
    uploading: Epoch | None = None
    """The epoch in which a running background upload began."""
    delta_bytes: int = 0
    requests: Requests = NONE
    """The requests of the task's process to the checkpoint storage since the previous report."""
    found_state: bool | None = None
    """Whether the state was local (in the slot or on disk), or had to be fetched; None: there was no state."""
    input_waits: bool = False
    """Whether some input of this epoch or an earlier one is unprocessed."""
    channel_state: int = 0
    """The bytes of the unprocessed input."""
    input_seconds: float | None = None
    """The time that the deadline limits; None without a deadline."""
    phases: dict[str, float] = field(default_factory=dict)
    standbys: list[StandbyStatus] = field(default_factory=list)
    """The standby copies on the task's host that the assignment asks for."""
    stood_by: StandbyStatus | None = None
    """The standby copy that the subtask found on its new host in this epoch."""
    user_metrics: dict[str, Any] = field(default_factory=dict)
    warnings: dict[str, str] = field(default_factory=dict)
    """Warnings for the user, by subject: all since the operators were opened, since reports of failed attempts are lost."""

    def __getstate__(self) -> dict[str, Any]:
        """With the splits as rows, as in `SourceAssignment`."""
        return {**self.__dict__, "splits": _rows(self.splits)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, splits=_splits(state["splits"]))


def task_name(vertex_name: str, subtask: int, parallelism: int) -> str:
    """The name of a task in Flink's format: ``Map -> Sink (1/2)``."""
    return f"{vertex_name} ({subtask + 1}/{parallelism})"
