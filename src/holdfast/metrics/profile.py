"""Profile: where the time of a job goes, by epoch, vertex, subtask and operator. Bounded, however long the job runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.metrics.stats import EpochStats, Straggler, VertexStats

__all__ = ["EPOCHS_KEPT", "EpochRecord", "OperatorProfile", "Profile", "ProfileSnapshot", "SubtaskProfile", "VertexProfile"]

EPOCHS_KEPT = 120
_MEMORY = 0.9
"""The weight of the past in the averages: about ten epochs count."""


@dataclass(frozen=True)
class EpochRecord:
    """An epoch in the timeline."""

    sequence: int
    """1 for the first epoch of this driver, and so on; failed runs count."""
    number: int
    started_ms: int
    duration_ms: float = 0.0
    records_in: int = 0
    records_out: int = 0
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds; those of tasks begin with ``task.`` and are those of the slowest one."""
    backlog: int = 0
    straggler: Straggler | None = None
    critical_ms: float = 0.0
    """The time that the busiest subtask of each level took, in total."""
    delta_bytes: int = 0
    full_bytes: int = 0
    failure: str = ""
    """Why the epoch failed; empty for a completed one."""


@dataclass(frozen=True)
class SubtaskProfile:
    """One subtask, over the latest epochs."""

    busy: float
    """Its share of the time, from 0 to 1."""
    records: float
    """Its share of the records of its vertex."""
    watermark: int


@dataclass(frozen=True)
class OperatorProfile:
    """One operator of a vertex, over the latest epochs."""

    uid: str
    name: str
    share: float
    """Its own share of the time of its vertex's operators."""
    us_per_record: float | None
    """Its own time for each record that the vertex reads, in microseconds."""
    state_bytes: int
    largest_subtask: int


@dataclass(frozen=True)
class VertexProfile:
    """One vertex, over the latest epochs."""

    level: int
    source_uid: str
    busy: float
    """The share of the time in which its busiest subtask worked, from 0 to 1."""
    watermark: int
    phases: Mapping[str, float]
    """The seconds of its slowest subtask in the latest epoch."""
    subtasks: tuple[SubtaskProfile, ...]
    operators: tuple[OperatorProfile, ...]

    @property
    def skew(self) -> float:
        """How many times as long as the average the busiest subtask works."""
        times = [subtask.busy for subtask in self.subtasks]
        mean = sum(times) / len(times) if times else 0.0
        return max(times) / mean if mean > 0 else 1.0


@dataclass(frozen=True)
class ProfileSnapshot:
    """The profile at one moment."""

    vertices: Mapping[str, VertexProfile]
    """By vertex id."""
    epochs: tuple[EpochRecord, ...]
    """The latest epochs, oldest first."""
    idle: float
    """The share of the time in which no epoch ran."""


class _Vertex:
    """Sums that fade."""

    def __init__(self) -> None:
        self.busy: list[float] = []
        self.records: list[float] = []
        self.operators: dict[str, float] = {}
        self.stats: VertexStats | None = None

    def add(self, stats: VertexStats) -> None:
        busy = [subtask.busy_ms for subtask in stats.subtasks]
        records = [float(subtask.records_in) for subtask in stats.subtasks]
        self.busy = _faded(self.busy, busy)
        self.records = _faded(self.records, records)
        for operator in stats.operators:
            self.operators[operator.uid] = self.operators.get(operator.uid, 0.0) * _MEMORY + operator.busy_ms
        self.stats = stats

    def profile(self, wall_ms: float) -> VertexProfile | None:
        stats = self.stats
        if stats is None:
            return None
        records, time = sum(self.records), sum(self.operators.values())
        busy = [min(1.0, each / wall_ms) if wall_ms > 0 else 0.0 for each in self.busy]
        return VertexProfile(
            stats.level,
            stats.source_uid,
            max(busy, default=0.0),
            min((subtask.watermark for subtask in stats.subtasks), default=MIN_TIMESTAMP),
            stats.phases,
            tuple(
                SubtaskProfile(share, count / records if records else 0.0, subtask.watermark)
                for share, count, subtask in zip(busy, self.records, stats.subtasks)
            ),
            tuple(
                OperatorProfile(
                    operator.uid,
                    operator.name,
                    self.operators[operator.uid] / time if time else 0.0,
                    1000 * self.operators[operator.uid] / records if records >= 1 else None,
                    operator.state_bytes,
                    operator.largest_subtask,
                )
                for operator in stats.operators
            ),
        )


class Profile:
    """The profile of one job, fed with its epochs. Not thread-safe."""

    def __init__(self) -> None:
        self._vertices: dict[tuple[str, str], _Vertex] = {}
        """By id and name: those of the latest epoch."""
        self._epochs: deque[EpochRecord] = deque(maxlen=EPOCHS_KEPT)
        self._wall_ms = 0.0
        self._working_ms = 0.0
        self._ended: float | None = None

    def epoch_finished(self, stats: EpochStats, delta_bytes: int, full_bytes: int, now_ms: float) -> None:
        """Add a completed epoch.

        Args:
            stats: Its figures.
            delta_bytes: The bytes written for its checkpoint.
            full_bytes: The bytes of all files that the checkpoint refers to.
            now_ms: The time of its end, on any steady clock.
        """
        since = now_ms - self._ended if self._ended is not None else stats.duration_ms
        self._ended = now_ms
        self._wall_ms = self._wall_ms * _MEMORY + max(since, 1.0)
        self._working_ms = self._working_ms * _MEMORY + min(stats.duration_ms, max(since, 1.0))
        critical: dict[int, float] = {}
        self._vertices = {
            (each.id, each.name): self._vertices.get((each.id, each.name), _Vertex()) for each in stats.vertices
        }
        for vertex in stats.vertices:
            self._vertices[vertex.id, vertex.name].add(vertex)
            longest = max((subtask.busy_ms for subtask in vertex.subtasks), default=0.0)
            critical[vertex.level] = max(critical.get(vertex.level, 0.0), longest)
        self._epochs.append(
            EpochRecord(
                sequence=self._next(),
                number=stats.epoch,
                started_ms=stats.started_ms,
                duration_ms=stats.duration_ms,
                records_in=stats.records_in,
                records_out=stats.records_out,
                phases=stats.phases,
                backlog=sum(stats.backlog.values()),
                straggler=stats.straggler,
                critical_ms=sum(critical.values()),
                delta_bytes=delta_bytes,
                full_bytes=full_bytes,
            )
        )

    def epoch_failed(self, number: int, reason: str, failed_ms: int) -> None:
        """Add a failed epoch; ``failed_ms``: ms since 1970."""
        self._epochs.append(EpochRecord(self._next(), number, failed_ms, failure=reason))

    def _next(self) -> int:
        return self._epochs[-1].sequence + 1 if self._epochs else 1

    def snapshot(self, now_ms: float) -> ProfileSnapshot:
        """The profile now. Time since the last epoch counts as idle."""
        waiting = 0.0 if self._ended is None else max(0.0, now_ms - self._ended)
        wall = self._wall_ms + waiting
        found = {
            key: profile for (key, _), vertex in self._vertices.items() if (profile := vertex.profile(wall)) is not None
        }
        return ProfileSnapshot(found, tuple(self._epochs), 1 - self._working_ms / wall if wall > 0 else 1.0)


def _faded(sums: list[float], new: list[float]) -> list[float]:
    if len(sums) != len(new):
        return new
    return [old * _MEMORY + each for old, each in zip(sums, new)]
