"""Status and metrics of one running job: updated by the coordinator once per epoch, read by the REST server on request."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.metrics.profile import Profile, ProfileSnapshot
from holdfast.metrics.rate import Rate
from holdfast.metrics.requests import RequestRates
from holdfast.metrics.stats import (
    CheckpointStats,
    EpochStats,
    FailedCheckpoint,
    Failure,
    HoldingSplit,
    JobEvent,
    LateRecord,
    Observed,
    RestoredCheckpoint,
    VertexStats,
)
from holdfast.metrics.traces import TraceReporter
from holdfast.metrics.user import Sample, merge

__all__ = ["RUNNING_EPOCH", "TERMINAL", "CheckpointCounts", "JobMetrics", "JobSnapshot", "VertexSnapshot"]

TERMINAL = frozenset({"FINISHED", "CANCELED", "FAILED", "SUSPENDED"})
"""The states in which a job has ended in its driver; a suspended one goes on in another driver."""

HIDDEN = "shown to requests with the token (`holdfast token`)"
"""In place of texts that may show data of records."""
RUNNING_EPOCH = "running epoch "
"""Begins the name of an activity; the epoch's number follows."""
_CHECKPOINTS_KEPT = 100
_FAILURES_KEPT = 16
_DURATIONS_KEPT = 1000
_EVENTS_KEPT = 50
_TOLD_WITH_ERRORS = ("restart", "rescale", "savepoint")
"""Kinds of events whose texts may hold that of an error."""
_LATE_KEPT = 20


@dataclass(frozen=True)
class CheckpointCounts:
    """Numbers of checkpoints since this driver started the job."""

    restored: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        """All attempted checkpoints."""
        return self.completed + self.failed


@dataclass(frozen=True)
class VertexSnapshot:
    """Snapshot of one vertex."""

    id: str
    name: str
    parallelism: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class JobSnapshot:
    """Immutable snapshot of a job."""

    job_id: str
    name: str
    status: str
    now_ms: int
    started_ms: int
    ended_ms: int
    """-1 until the job has ended."""
    status_ms: Mapping[str, int]
    """The time of the last entry into each state."""
    values: Mapping[str, float]
    """The job's metrics, by Flink's names."""
    user_values: Mapping[str, float]
    """The metrics of user functions, by operator, groups and name."""
    backlog: Mapping[str, int]
    vertices: tuple[VertexSnapshot, ...]
    counts: CheckpointCounts
    checkpoints: tuple[CheckpointStats | FailedCheckpoint, ...]
    """The latest entries, newest first."""
    completed: tuple[CheckpointStats, ...]
    """Completed checkpoints that the summary covers, oldest first."""
    restored: RestoredCheckpoint | None
    failures: tuple[Failure, ...]
    """The latest entries, newest first."""
    failures_total: int
    events: tuple[JobEvent, ...]
    """The latest, newest first."""
    late: tuple[LateRecord, ...]
    """The latest late records that were dropped, newest first."""
    plan: Mapping[str, Any]
    profile: ProfileSnapshot
    activities: Mapping[str, float]
    """What the driver does just now, e.g. ``running epoch 7``, with its age in seconds."""
    observed: Observed
    """What the driver has found out about something that lasts."""
    holding: tuple[HoldingSplit, ...]
    """The splits that hold event time back, after the last epoch."""
    silent: Mapping[str, tuple[float, str]]
    """The sources whose systems do not answer: by uid, for how many seconds, and what is known of it."""

    def without_records(self) -> JobSnapshot:
        """The snapshot without what may show data of records: late ones, and the texts of errors, which name theirs."""
        return replace(
            self,
            checkpoints=tuple(
                replace(each, reason=HIDDEN) if isinstance(each, FailedCheckpoint) else each for each in self.checkpoints
            ),
            failures=tuple(replace(each, text=f"{each.exception_name}: {HIDDEN}") for each in self.failures),
            events=tuple(each._replace(text=HIDDEN) if each.kind in _TOLD_WITH_ERRORS else each for each in self.events),
            late=(),
            observed=self.observed.without_text(),
            profile=replace(
                self.profile,
                epochs=tuple(replace(each, failure=HIDDEN) if each.failure else each for each in self.profile.epochs),
            ),
        )


@dataclass
class _Vertex:
    stats: VertexStats
    in_rate: Rate
    out_rate: Rate
    busy_rate: Rate
    records_in: int = 0
    records_out: int = 0
    late: int = 0


@dataclass
class _UserMetric:
    sample: Sample
    rate: Rate | None = None


@dataclass
class _Sums:
    records_in: int = 0
    records_out: int = 0
    late: int = 0
    states_needed: int = 0
    states_found: int = 0
    takeovers: int = 0
    restarts: int = 0
    epochs: int = 0
    completed: int = 0
    failed: int = 0
    restored: int = 0
    failures: int = 0


@dataclass
class _Last:
    epoch: EpochStats | None = None
    checkpoint: CheckpointStats | None = None
    restored: RestoredCheckpoint | None = None
    watermark: int = MIN_TIMESTAMP
    plan: Mapping[str, Any] = field(default_factory=dict)


class JobMetrics:
    """Status and metrics of a job. Thread-safe; its size stays bounded however long the job runs.

    Args:
        job_id: Flink's 32 hexadecimal digits.
        name: The name passed to ``env.execute``.
        clock: Monotonic seconds, for rates.
        wall_clock: Seconds since 1970.
    """

    def __init__(
        self,
        job_id: str,
        name: str,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.job_id = job_id
        self.name = name
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._began = clock()
        self._status = "CREATED"
        self._status_ms = {"CREATED": self._now_ms()}
        self._ended: tuple[float, int] | None = None
        self._sums = _Sums()
        self._last = _Last()
        self._in_rate = Rate(self._began)
        self._out_rate = Rate(self._began)
        self._requests = RequestRates(self._began)
        self._min_pause_ms = 0
        self._vertices: dict[tuple[str, str], _Vertex] = {}
        """By id and name: those of the latest epoch."""
        self._user: dict[str, _UserMetric] = {}
        self._history: deque[CheckpointStats | FailedCheckpoint] = deque(maxlen=_CHECKPOINTS_KEPT)
        self._completed: deque[CheckpointStats] = deque(maxlen=_DURATIONS_KEPT)
        self._failures: deque[Failure] = deque(maxlen=_FAILURES_KEPT)
        self._events: deque[JobEvent] = deque(maxlen=_EVENTS_KEPT)
        self._late: deque[LateRecord] = deque(maxlen=_LATE_KEPT)
        self._profile = Profile()
        self._activities: dict[str, tuple[float, int]] = {}
        """Since when, and in which thread."""
        self._observed = Observed()
        self._silent: dict[str, tuple[float, str]] = {}
        self._last_checkpoint = self._began
        self._traces: TraceReporter | None = None

    def report_traces(self, reporter: TraceReporter) -> None:
        """Report traces from now on."""
        self._traces = reporter

    def status(self, status: str) -> None:
        """Enter a state (a name of Flink's JobStatus); RESTARTING counts a restart."""
        with self._lock:
            if status == self._status:
                return
            self._status = status
            self._status_ms[status] = self._now_ms()
            if self._traces is not None:
                self._traces.status(status)
            if status == "RESTARTING":
                self._sums.restarts += 1
            if status in TERMINAL:
                self._ended = (self._clock(), self._now_ms())

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Something that the driver does in the block, and that may last."""
        with self._lock:
            self._activities[what] = self._clock(), threading.get_ident()
        try:
            yield
        finally:
            with self._lock:
                self._activities.pop(what, None)

    def source_answers(self, uid: str, silence: str | None) -> None:
        """Set whether the system of a source answers; ``silence``: what is known of why it does not."""
        with self._lock:
            if silence is None:
                self._silent.pop(uid, None)
            else:
                self._silent[uid] = self._silent.get(uid, (self._clock(), ""))[0], silence

    def pace(self, min_pause_ms: int) -> None:
        """Set the shortest time between a checkpoint and the next epoch."""
        with self._lock:
            self._min_pause_ms = min_pause_ms

    def threads(self) -> Mapping[str, int]:
        """The threads that do what the driver does just now, by activity."""
        with self._lock:
            return {what: thread for what, (_, thread) in self._activities.items()}

    def observe(self, observed: Observed) -> None:
        """Set what the driver has found out about something that lasts."""
        with self._lock:
            self._observed = observed

    def plan(self, plan: Mapping[str, Any]) -> None:
        """Set the job's plan, ``{"nodes": [...]}`` in the shape of Flink's REST API."""
        with self._lock:
            self._last.plan = dict(plan)

    def epoch_finished(self, stats: EpochStats, delta_bytes: int = 0, full_bytes: int = 0) -> None:
        """Record a completed epoch; the bytes are those of its `CheckpointStats`."""
        with self._lock:
            end = self._clock()
            self._profile.epoch_finished(stats, delta_bytes, full_bytes, 1000 * end)
            if self._traces is not None:
                self._traces.epoch_finished(stats, delta_bytes, full_bytes)
            start = end - stats.duration_ms / 1000
            sums, last = self._sums, self._last
            sums.epochs += 1
            sums.records_in += stats.records_in
            sums.records_out += stats.records_out
            sums.states_needed += stats.states_needed
            sums.states_found += stats.states_found
            self._in_rate.add(stats.records_in, start, end)
            self._out_rate.add(stats.records_out, start, end)
            self._requests.add(stats.requests, stats.requests_cost, start, end)
            # A rescaling removes vertices, and those to or from one subtask chain other operators under the same id.
            self._vertices = {(each.id, each.name): self._vertex_finished(each, start, end) for each in stats.vertices}
            for name, sample in stats.user_metrics.items():
                self._user_metric(name, sample, start, end)
            self._late.extend(stats.late)
            last.watermark = max(last.watermark, stats.watermark)
            last.epoch = stats

    def _vertex_finished(self, stats: VertexStats, start: float, end: float) -> _Vertex:
        vertex = self._vertices.get((stats.id, stats.name))
        if vertex is None:
            vertex = _Vertex(stats, Rate(self._began), Rate(self._began), Rate(self._began))
        vertex.stats = stats
        vertex.records_in += stats.records_in
        vertex.records_out += stats.records_out
        vertex.late += stats.late_dropped
        vertex.in_rate.add(stats.records_in, start, end)
        vertex.out_rate.add(stats.records_out, start, end)
        vertex.busy_rate.add(stats.busy_ms / max(stats.parallelism, 1), start, end)
        self._sums.late += stats.late_dropped
        return vertex

    def _user_metric(self, name: str, sample: Sample, start: float, end: float) -> None:
        metric = self._user.get(name)
        if metric is None or metric.sample[0] != sample[0]:
            metric = self._user[name] = _UserMetric(tuple(sample))
            if sample[0] == "meter":
                metric.rate = Rate(self._began, float(sample[2]))
        elif sample[0] == "gauge":
            metric.sample = tuple(sample)
        else:
            metric.sample = merge([{name: metric.sample}, {name: sample}])[name]
        if metric.rate is not None:
            metric.rate.add(sample[1], start, end)

    def checkpoint_completed(self, stats: CheckpointStats) -> None:
        """Record a completed checkpoint."""
        with self._lock:
            self._sums.completed += 1
            self._last_checkpoint = self._clock()
            self._last.checkpoint = stats
            self._history.append(stats)
            self._completed.append(stats)

    def checkpoint_failed(self, checkpoint_id: int, reason: str) -> None:
        """Record a failed checkpoint."""
        with self._lock:
            self._sums.failed += 1
            self._profile.epoch_failed(checkpoint_id, reason, self._now_ms())
            if self._traces is not None:
                self._traces.epoch_failed(checkpoint_id, reason)
            self._history.append(FailedCheckpoint(checkpoint_id, self._now_ms(), reason))

    def checkpoint_restored(self, checkpoint_id: int, path: str, *, is_savepoint: bool = False) -> None:
        """Record the checkpoint that the job resumed from."""
        with self._lock:
            self._sums.restored += 1
            self._last.restored = RestoredCheckpoint(checkpoint_id, self._now_ms(), path, is_savepoint)

    def standby_taken_over(self, text: str) -> None:
        """Record a subtask that goes on from a standby copy."""
        with self._lock:
            self._sums.takeovers += 1
        self.event("standby", text)

    def event(self, kind: str, text: str) -> None:
        """Record something that happened to the job as a whole; see `JobEvent`."""
        with self._lock:
            self._events.append(JobEvent(self._now_ms(), kind, text))

    def failure(self, timestamp_ms: int, text: str, task_name: str = "") -> None:
        """Record an error that stopped an epoch."""
        with self._lock:
            self._sums.failures += 1
            self._failures.append(Failure(timestamp_ms, text, task_name))

    def snapshot(self) -> JobSnapshot:
        """Return a snapshot of the job."""
        with self._lock:
            now, now_ms = self._clock(), self._now_ms()
            vertices = tuple(self._vertex_snapshot(vertex, now) for vertex in self._vertices.values())
            epoch = self._last.epoch
            return JobSnapshot(
                job_id=self.job_id,
                name=self.name,
                status=self._status,
                now_ms=now_ms,
                started_ms=self._status_ms["CREATED"],
                ended_ms=self._ended[1] if self._ended else -1,
                status_ms=dict(self._status_ms),
                values=self._values(now, vertices),
                user_values=self._user_values(now),
                backlog=dict(epoch.backlog) if epoch else {},
                vertices=vertices,
                counts=CheckpointCounts(self._sums.restored, self._sums.completed, self._sums.failed),
                checkpoints=tuple(reversed(self._history)),
                completed=tuple(self._completed),
                restored=self._last.restored,
                failures=tuple(reversed(self._failures)),
                failures_total=self._sums.failures,
                events=tuple(reversed(self._events)),
                late=tuple(reversed(self._late)),
                plan=self._last.plan,
                profile=self._profile.snapshot(1000 * now),
                activities={what: now - since for what, (since, _) in self._activities.items()},
                observed=self._observed,
                holding=epoch.holding if epoch else (),
                silent={uid: (now - since, why) for uid, (since, why) in self._silent.items()},
            )

    def _vertex_snapshot(self, vertex: _Vertex, now: float) -> VertexSnapshot:
        values = {
            "numRecordsIn": vertex.records_in,
            "numRecordsOut": vertex.records_out,
            "numRecordsInPerSecond": vertex.in_rate.per_second(now),
            "numRecordsOutPerSecond": vertex.out_rate.per_second(now),
            "busyTimeMsPerSecond": min(vertex.busy_rate.per_second(now), 1000.0),
            "numLateRecordsDropped": vertex.late,
        }
        return VertexSnapshot(vertex.stats.id, vertex.stats.name, vertex.stats.parallelism, values)

    def _values(self, now: float, vertices: tuple[VertexSnapshot, ...]) -> dict[str, float]:
        sums, last, ended = self._sums, self._last, self._ended
        values: dict[str, float] = {
            "uptime": int(((ended[0] if ended else now) - self._began) * 1000),
            "numRestarts": sums.restarts,
            "numRecordsIn": sums.records_in,
            "numRecordsOut": sums.records_out,
            "numRecordsInPerSecond": self._in_rate.per_second(now),
            "numRecordsOutPerSecond": self._out_rate.per_second(now),
            "numLateRecordsDropped": sums.late,
            "busyTimeMsPerSecond": max((v.values["busyTimeMsPerSecond"] for v in vertices), default=0.0),
            "currentInputWatermark": last.watermark,
            "pendingRecords": sum(last.epoch.backlog.values()) if last.epoch else 0,
            "numEpochs": sums.epochs,
            "numberOfCompletedCheckpoints": sums.completed,
            "numberOfFailedCheckpoints": sums.failed,
            "totalNumberOfCheckpoints": sums.completed + sums.failed,
            "numStateFetches": sums.states_needed - sums.states_found,
            "numStandbyTakeovers": sums.takeovers,
            "currentActivityMs": 0 if ended else round(1000 * (now - min(self._activities.values(), default=(now, 0))[0])),
            "numUnreachableSources": len(self._silent),
            "checkpointMinPauseMs": self._min_pause_ms,
            "timeSinceLastCheckpointMs": round(1000 * ((ended[0] if ended else now) - self._last_checkpoint)),
        }
        values |= self._requests.values(now)
        if sums.states_needed:
            values["localStateShare"] = sums.states_found / sums.states_needed
        if last.epoch is not None:
            values |= _epoch_values(last.epoch)
        if last.checkpoint is not None:
            values |= _checkpoint_values(last.checkpoint)
        return values

    def _user_values(self, now: float) -> dict[str, float]:
        values: dict[str, float] = {}
        for name, metric in self._user.items():
            kind, *numbers = metric.sample
            if kind == "distribution":
                count, total, low, high = numbers
                values |= {f"{name}.count": count, f"{name}.min": low, f"{name}.max": high}
                values[f"{name}.mean"] = total / count
            elif metric.rate is not None:
                values |= {f"{name}.count": numbers[0], f"{name}.rate": metric.rate.per_second(now)}
            else:
                values[name] = numbers[0]
        return values

    def _now_ms(self) -> int:
        return int(self._wall_clock() * 1000)


def _epoch_values(epoch: EpochStats) -> dict[str, float]:
    values: dict[str, float] = {"currentEpoch": epoch.epoch, "epochDuration": epoch.duration_ms}
    values["checkpointIntervalMs"] = epoch.interval_ms
    values |= {f"epochDuration.{phase}": seconds * 1000 for phase, seconds in epoch.phases.items()}
    values |= {f"{uid}.pendingRecords": pending for uid, pending in epoch.backlog.items()}
    whole = [copy for copy in epoch.standbys if copy.lag_records is not None]
    values["numStandbyCopies"] = len(whole)
    if whole:
        values["standbyLagRecords"] = max(copy.lag_records or 0 for copy in whole)
        values["standbyLagMs"] = round(max(copy.lag_ms or 0 for copy in whole))
    return values


def _checkpoint_values(checkpoint: CheckpointStats) -> dict[str, float]:
    return {
        "lastCompletedCheckpointId": checkpoint.id,
        "checkpointDuration": round(checkpoint.duration_ms),
        "lastCheckpointDuration": round(checkpoint.duration_ms),
        "lastCheckpointSyncDuration": round(checkpoint.sync_ms),
        "lastCheckpointSize": checkpoint.delta_bytes,
        "lastCheckpointFullSize": checkpoint.full_bytes,
        "stateSizeBytes": checkpoint.full_bytes,
    }
