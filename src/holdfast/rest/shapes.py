"""Conversion of job snapshots to the JSON of Flink's REST API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.common.config_options import PipelineOptions
from holdfast.common.configuration import Configuration
from holdfast.common.secrets import masked_settings
from holdfast.metrics.job import JobSnapshot, VertexSnapshot
from holdfast.metrics.stats import CheckpointStats, FailedCheckpoint

__all__ = [
    "checkpoint_config",
    "checkpoints",
    "config",
    "exceptions",
    "job_details",
    "job_overview",
    "metric_list",
    "metric_values",
    "plan",
]

Json = dict[str, Any]

_TASK_STATES = (
    "canceled canceling created deploying failed finished initializing reconciling running scheduled".upper().split()
)
_TASK_STATE_OF_JOB = {
    "RUNNING": "RUNNING",
    "FINISHED": "FINISHED",
    "CANCELED": "CANCELED",
    "CANCELLING": "CANCELING",
    "FAILED": "FAILED",
    "FAILING": "FAILED",
    "INITIALIZING": "INITIALIZING",
}


def metric_list(values: Mapping[str, float]) -> list[Json]:
    """The names of all metrics: Flink's answer without ``get``."""
    return [{"id": name} for name in sorted(values)]


def metric_values(values: Mapping[str, float], wanted: Iterable[str]) -> list[Json]:
    """The requested values as text; unknown names are left out, as in Flink."""
    return [{"id": name, "value": str(values[name])} for name in dict.fromkeys(wanted) if name in values]


def job_overview(job: JobSnapshot) -> Json:
    """An entry of ``/jobs/overview``: Flink's fields, then Holdfast's."""
    counts = _tasks(job.status, sum(vertex.parallelism for vertex in job.vertices))
    return {
        "jid": job.job_id,
        "name": job.name,
        "start-time": job.started_ms,
        "end-time": job.ended_ms,
        "duration": _duration(job),
        "state": job.status,
        "last-modification": max(job.status_ms.values()),
        "tasks": {"total": sum(counts.values()), **{state.lower(): count for state, count in counts.items()}},
        "records-per-second": job.values["numRecordsInPerSecond"],
        "pending-records": job.values["pendingRecords"],
        "restarts": job.values["numRestarts"],
    }


def job_details(job: JobSnapshot) -> Json:
    """``/jobs/<id>``."""
    statuses = [_TASK_STATE_OF_JOB.get(job.status, "CREATED")] * len(job.vertices)
    return {
        "jid": job.job_id,
        "name": job.name,
        "isStoppable": False,
        "state": job.status,
        "start-time": job.started_ms,
        "end-time": job.ended_ms,
        "duration": _duration(job),
        "now": job.now_ms,
        "timestamps": dict(job.status_ms),
        "vertices": [_vertex(job, vertex) for vertex in job.vertices],
        "status-counts": {state: statuses.count(state) for state in _TASK_STATES},
        "plan": plan(job)["plan"],
    }


def _vertex(job: JobSnapshot, vertex: VertexSnapshot) -> Json:
    return {
        "id": vertex.id,
        "name": vertex.name,
        "parallelism": vertex.parallelism,
        "status": _TASK_STATE_OF_JOB.get(job.status, "CREATED"),
        "start-time": job.started_ms,
        "end-time": job.ended_ms,
        "duration": _duration(job),
        "tasks": _tasks(job.status, vertex.parallelism),
        "metrics": {
            "read-records": vertex.values["numRecordsIn"],
            "read-records-complete": True,
            "write-records": vertex.values["numRecordsOut"],
            "write-records-complete": True,
        },
    }


def _tasks(status: str, number: int) -> dict[str, int]:
    state = _TASK_STATE_OF_JOB.get(status, "CREATED")
    return {name: number if name == state else 0 for name in _TASK_STATES}


def _duration(job: JobSnapshot) -> int:
    return (job.now_ms if job.ended_ms < 0 else job.ended_ms) - job.started_ms


def plan(job: JobSnapshot) -> Json:
    """``/jobs/<id>/plan``."""
    return {"plan": {"jid": job.job_id, "name": job.name, "type": "STREAMING", "nodes": [], **job.plan}}


def config(job: JobSnapshot, settings: Mapping[str, str]) -> Json:
    """``/jobs/<id>/config``; probable secrets are hidden."""
    return {
        "jid": job.job_id,
        "name": job.name,
        "execution-config": {
            "execution-mode": "PIPELINED",
            "restart-strategy": settings.get("restart-strategy.type", "default"),
            "job-parallelism": max((vertex.parallelism for vertex in job.vertices), default=-1),
            "object-reuse-mode": Configuration.from_dict(dict(settings)).get(PipelineOptions.OBJECT_REUSE),
            "user-config": masked_settings(settings),
        },
    }


def checkpoints(job: JobSnapshot) -> Json:
    """``/jobs/<id>/checkpoints``."""
    done = job.completed
    failed = next((c for c in job.checkpoints if isinstance(c, FailedCheckpoint)), None)
    savepoint = next((c for c in reversed(done) if c.is_savepoint), None)
    latest = next((c for c in reversed(done) if not c.is_savepoint), None)
    restored = job.restored
    return {
        "counts": {
            "restored": job.counts.restored,
            "total": job.counts.total,
            "in_progress": 0,
            "completed": job.counts.completed,
            "failed": job.counts.failed,
        },
        "summary": {
            "checkpointed_size": _summary([c.delta_bytes for c in done]),
            "state_size": _summary([c.full_bytes for c in done]),
            "end_to_end_duration": _summary([c.duration_ms for c in done]),
            "persisted_data": _summary([c.persisted_bytes for c in done]),
        },
        "latest": {
            "completed": None if latest is None else _checkpoint(latest),
            "savepoint": None if savepoint is None else _checkpoint(savepoint),
            "failed": None if failed is None else _checkpoint(failed),
            "restored": None
            if restored is None
            else {
                "id": restored.id,
                "restore_timestamp": restored.restored_ms,
                "is_savepoint": restored.is_savepoint,
                "external_path": restored.path,
            },
        },
        "history": [_checkpoint(checkpoint) for checkpoint in job.checkpoints],
    }


def _checkpoint(checkpoint: CheckpointStats | FailedCheckpoint) -> Json:
    if isinstance(checkpoint, FailedCheckpoint):
        return {
            "className": "failed",
            "id": checkpoint.id,
            "status": "FAILED",
            "is_savepoint": False,
            "trigger_timestamp": checkpoint.failed_ms,
            "failure_timestamp": checkpoint.failed_ms,
            "failure_message": checkpoint.reason,
        }
    return {
        "className": "completed",
        "id": checkpoint.id,
        "status": "COMPLETED",
        "is_savepoint": checkpoint.is_savepoint,
        "checkpoint_type": "SAVEPOINT" if checkpoint.is_savepoint else "CHECKPOINT",
        "trigger_timestamp": checkpoint.trigger_ms,
        "latest_ack_timestamp": checkpoint.trigger_ms + round(checkpoint.duration_ms),
        "checkpointed_size": checkpoint.delta_bytes,
        "state_size": checkpoint.full_bytes,
        "end_to_end_duration": round(checkpoint.duration_ms),
        "sync_duration": round(checkpoint.sync_ms),
        "persisted_data": checkpoint.persisted_bytes,
        "num_subtasks": checkpoint.subtasks,
        "num_acknowledged_subtasks": checkpoint.subtasks,
        "external_path": checkpoint.path,
    }


def _summary(numbers: Sequence[float]) -> Json:
    """Minimum, maximum, mean and quantiles; zeros without values, as in Flink."""
    ordered = sorted(numbers) or [0]
    shown = {"min": ordered[0], "max": ordered[-1], "avg": sum(ordered) / len(ordered)}
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999)):
        shown[name] = ordered[min(int(share * len(ordered)), len(ordered) - 1)]
    return {name: round(number) for name, number in shown.items()}


def checkpoint_config(job: JobSnapshot) -> Json:
    """``/jobs/<id>/checkpoints/config``: times in ms."""
    return {
        "mode": "exactly_once",
        "interval": round(job.values.get("checkpointIntervalMs", 0)),
        "min_pause": job.values["checkpointMinPauseMs"],
        "max_concurrent": 1,
    }


def exceptions(job: JobSnapshot) -> Json:
    """``/jobs/<id>/exceptions``: with the fields of Flink 1.x (``root-exception``) and of 2.x."""
    entries: list[Json] = [
        {
            "exceptionName": failure.exception_name,
            "stacktrace": failure.text,
            "timestamp": failure.timestamp_ms,
            "taskName": failure.task_name or None,
            "failureLabels": {},
            "concurrentExceptions": [],
        }
        for failure in job.failures
    ]
    truncated = job.failures_total > len(entries)
    return {
        "root-exception": entries[0]["stacktrace"] if entries else None,
        "timestamp": entries[0]["timestamp"] if entries else None,
        "all-exceptions": [],
        "truncated": truncated,
        "exceptionHistory": {"entries": entries, "truncated": truncated},
    }
