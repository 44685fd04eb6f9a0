"""Enums of job configuration."""

from __future__ import annotations

from enum import Enum

__all__ = [
    "CheckpointingMode",
    "ExternalizedCheckpointRetention",
    "HighAvailabilityMode",
    "LogFormat",
    "RuntimeExecutionMode",
]


class CheckpointingMode(Enum):
    """Whether each record affects the state of a restored job exactly once, or at least once."""

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1


class ExternalizedCheckpointRetention(Enum):
    """What to do with the checkpoints of a cancelled job."""

    DELETE_ON_CANCELLATION = 0
    RETAIN_ON_CANCELLATION = 1
    NO_EXTERNALIZED_CHECKPOINTS = 2


class HighAvailabilityMode(Enum):
    """Whether drivers of one job stand by for each other."""

    NONE = 0
    """A driver takes the job over at once."""
    STORAGE = 1
    """A driver waits while another one owns the job, which it sees in the checkpoint storage."""


class RuntimeExecutionMode(Enum):
    """Whether a program emits results record by record (STREAMING) or once at the end of bounded input (BATCH)."""

    STREAMING = 0
    BATCH = 1
    AUTOMATIC = 2


class LogFormat(Enum):
    """Formats of the log."""

    TEXT = 0
    JSON = 1
