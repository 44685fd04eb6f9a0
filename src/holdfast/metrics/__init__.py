"""Metrics and history of a job under Flink's names, updated once per epoch, at no cost per record.

Private: functions get their metrics from the runtime context.
"""

from __future__ import annotations

from holdfast.metrics.job import JobMetrics, JobSnapshot
from holdfast.metrics.stats import (
    CheckpointStats,
    EpochStats,
    FailedCheckpoint,
    Failure,
    RestoredCheckpoint,
    VertexStats,
)
from holdfast.metrics.user import Counter, Distribution, Meter, MetricGroup, merge

__all__ = [
    "CheckpointStats",
    "Counter",
    "Distribution",
    "EpochStats",
    "FailedCheckpoint",
    "Failure",
    "JobMetrics",
    "JobSnapshot",
    "Meter",
    "MetricGroup",
    "RestoredCheckpoint",
    "VertexStats",
    "merge",
]
