"""The enumerations that a job is configured with."""

from __future__ import annotations

from enum import Enum

__all__ = ["CheckpointingMode", "ExternalizedCheckpointRetention", "RuntimeExecutionMode"]


class CheckpointingMode(Enum):
    """What a restored job may show: each record's effect once, or perhaps more than once."""

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1


class ExternalizedCheckpointRetention(Enum):
    """What becomes of the checkpoints of a job that is cancelled."""

    DELETE_ON_CANCELLATION = 0
    RETAIN_ON_CANCELLATION = 1
    NO_EXTERNALIZED_CHECKPOINTS = 2


class RuntimeExecutionMode(Enum):
    """Whether a program's results are updated record by record or given once, at the end of bounded input."""

    STREAMING = 0
    BATCH = 1
    AUTOMATIC = 2
