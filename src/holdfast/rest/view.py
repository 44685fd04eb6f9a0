"""The dashboard's view of a job, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.metrics.diagnosis import findings, stands_still
from holdfast.metrics.job import JobSnapshot, VertexSnapshot
from holdfast.metrics.profile import EPOCHS_KEPT, EpochRecord, VertexProfile
from holdfast.metrics.requests import KINDS
from holdfast.metrics.stats import RestoredCheckpoint

__all__ = ["job_view"]

Json = dict[str, Any]

_PHASES = ("plan", "job", "commit", "metadata")
_TASK = "task."


def job_view(job: JobSnapshot, since: int = 0) -> Json:
    """``/jobs/<id>/view``: all that the dashboard shows of a job.

    Args:
        job: A snapshot of the job.
        since: The sequence number of the newest epoch that the asker knows; only later ones are in the answer.
    """
    values = job.values
    watermark = _watermark(job)
    return {
        "id": job.job_id,
        "name": job.name,
        "state": job.status,
        "now": job.now_ms,
        "started": job.started_ms,
        "ended": job.ended_ms,
        "rates": {"in": values["numRecordsInPerSecond"], "out": values["numRecordsOutPerSecond"]},
        "records": {"in": values["numRecordsIn"], "out": values["numRecordsOut"]},
        "backlog": values["pendingRecords"],
        "watermark": _time(watermark),
        "lag": _lag(job, watermark),
        "late": values["numLateRecordsDropped"],
        "restarts": values["numRestarts"],
        "checkpoint": _checkpoint(job),
        "counts": {"completed": job.counts.completed, "failed": job.counts.failed},
        "restored": None if job.restored is None else _restored(job.restored),
        "vertices": [_vertex(job, vertex) for vertex in job.vertices] or _planned(job),
        "edges": [
            {"from": origin["id"], "to": node["id"], "how": origin["ship_strategy"]}
            for node in job.plan.get("nodes", [])
            for origin in node["inputs"]
        ],
        "epochs": [_epoch(epoch) for epoch in job.profile.epochs if epoch.sequence > since],
        "epochs_kept": EPOCHS_KEPT,
        "failures": [
            {"time": f.timestamp_ms, "name": f.exception_name, "task": f.task_name, "text": f.text} for f in job.failures
        ],
        "failures_total": job.failures_total,
        "events": [{"time": each.timestamp_ms, "kind": each.kind, "text": each.text} for each in job.events],
        "late_records": [
            {
                "operator": each.operator,
                "timestamp": each.timestamp,
                "watermark": _time(each.watermark),
                "value": each.value,
            }
            for each in job.late
        ],
        "findings": [
            {
                "kind": finding.kind,
                "title": finding.title,
                "detail": finding.detail,
                "remedy": finding.remedy,
                "share": finding.share,
                "vertex": finding.vertex or None,
            }
            for finding in findings(job)
        ],
        "storage": _storage(values),
        "stands_still": stands_still(job),
        "activities": [{"what": what, "seconds": seconds} for what, seconds in job.activities.items()],
        "metrics": dict(values),
        "user_metrics": dict(job.user_values),
    }


def _watermark(job: JobSnapshot) -> int:
    """The watermark that all vertices have reached, those left out whose sources leave watermarks to later operators."""
    later = [profile.watermark for profile in job.profile.vertices.values() if not profile.source_uid]
    return max(int(job.values["currentInputWatermark"]), min(later, default=MIN_TIMESTAMP))


def _time(watermark: int) -> int | None:
    """A watermark that JavaScript can read: None before the first one, and at the end of event time."""
    return watermark if MIN_TIMESTAMP < watermark < 1 << 53 else None


def _lag(job: JobSnapshot, watermark: int) -> int | None:
    return None if _time(watermark) is None else max(0, job.now_ms - watermark)


def _checkpoint(job: JobSnapshot) -> Json | None:
    if not job.completed:
        return None
    latest = job.completed[-1]
    at = latest.trigger_ms + round(latest.duration_ms)
    return {"id": latest.id, "at": at, "state_size": latest.full_bytes, "path": latest.path}


def _storage(values: Mapping[str, float]) -> Json:
    """The requests to the checkpoint storage, and what they cost in dollars."""
    return {
        "requests": {kind: values[f"storageRequests.{kind}"] for kind in KINDS},
        "per_second": values["storageRequestsPerSecond"],
        "retries": values["storageRetries"],
        "throttled": values["storageThrottles"],
        "written": values["storageBytesWritten"],
        "read": values["storageBytesRead"],
        "cost": values["storageCost"],
        "cost_per_month": values["storageCostPerMonth"],
        "interval": values.get("checkpointIntervalMs", 0),
        "min_pause": values["checkpointMinPauseMs"],
    }


def _restored(restored: RestoredCheckpoint) -> Json:
    return {"id": restored.id, "path": restored.path, "savepoint": restored.is_savepoint}


def _vertex(job: JobSnapshot, vertex: VertexSnapshot) -> Json:
    profile = job.profile.vertices.get(vertex.id) or VertexProfile(0, "", 0.0, MIN_TIMESTAMP, {}, (), ())
    return {
        "id": vertex.id,
        "name": vertex.name,
        "parallelism": vertex.parallelism,
        "busy": profile.busy,
        "skew": profile.skew,
        "in_rate": vertex.values["numRecordsInPerSecond"],
        "out_rate": vertex.values["numRecordsOutPerSecond"],
        "records_in": vertex.values["numRecordsIn"],
        "records_out": vertex.values["numRecordsOut"],
        "late": vertex.values["numLateRecordsDropped"],
        "watermark": _time(profile.watermark),
        "lag": _lag(job, profile.watermark),
        "backlog": job.backlog.get(profile.source_uid, 0) if profile.source_uid else None,
        "state_bytes": sum(operator.state_bytes for operator in profile.operators),
        "phases": {name: 1000 * seconds for name, seconds in profile.phases.items()},
        "subtasks": [
            {"busy": subtask.busy, "records": subtask.records, "watermark": _time(subtask.watermark)}
            for subtask in profile.subtasks
        ],
        "operators": [
            {
                "uid": operator.uid,
                "name": operator.name,
                "share": operator.share,
                "us_per_record": operator.us_per_record,
                "state_bytes": operator.state_bytes,
                "largest_subtask": operator.largest_subtask,
            }
            for operator in profile.operators
        ],
    }


def _planned(job: JobSnapshot) -> list[Json]:
    """The vertices of a job that has completed no epoch yet."""
    return [
        _vertex(job, VertexSnapshot(node["id"], node["description"], node["parallelism"], dict.fromkeys(_VALUES, 0.0)))
        for node in job.plan.get("nodes", [])
    ]


_VALUES = (
    "numRecordsIn",
    "numRecordsOut",
    "numRecordsInPerSecond",
    "numRecordsOutPerSecond",
    "numLateRecordsDropped",
)


def _epoch(epoch: EpochRecord) -> Json:
    slow = epoch.straggler
    return {
        "sequence": epoch.sequence,
        "number": epoch.number,
        "started": epoch.started_ms,
        "failed": epoch.failure,
        "duration": epoch.duration_ms,
        "in": epoch.records_in,
        "out": epoch.records_out,
        "backlog": epoch.backlog,
        "written": epoch.delta_bytes,
        "state_size": epoch.full_bytes,
        "phases": {phase: 1000 * epoch.phases.get(phase, 0.0) for phase in _PHASES},
        "tasks": {
            name.removeprefix(_TASK): 1000 * seconds for name, seconds in epoch.phases.items() if name.startswith(_TASK)
        },
        "straggler": None
        if slow is None
        else {"vertex": slow.vertex, "subtask": slow.subtask, "busy": slow.busy_ms, "typical": slow.typical_ms},
    }
