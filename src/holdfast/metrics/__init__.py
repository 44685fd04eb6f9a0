"""What a job tells about itself, under Flink's names. Fed once an epoch: a record costs nothing."""

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
