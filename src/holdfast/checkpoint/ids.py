"""Epoch, CheckpointId and LogPosition: three meanings of one integer, each with its own type.

Epoch *n* ends with checkpoint *n*, which is the entry at position *n* of the checkpoint log. Not every position holds a
checkpoint: the others hold take-overs. Only the functions here convert between the types.
"""

from __future__ import annotations

from typing import NewType

__all__ = [
    "NO_CHECKPOINT",
    "NO_POSITION",
    "CheckpointId",
    "Epoch",
    "LogPosition",
    "checkpoint_at",
    "checkpoint_of",
    "epoch_of",
    "position_of",
]

Epoch = NewType("Epoch", int)
"""The number of an epoch."""
CheckpointId = NewType("CheckpointId", int)
"""The id of a checkpoint."""
NO_CHECKPOINT = CheckpointId(0)
LogPosition = NewType("LogPosition", int)
"""A position in the checkpoint log, from 1."""
NO_POSITION = LogPosition(0)
"""The end of an empty log."""


def checkpoint_of(epoch: Epoch) -> CheckpointId:
    """The checkpoint at the end of an epoch."""
    return CheckpointId(epoch)


def epoch_of(checkpoint_id: CheckpointId) -> Epoch:
    """The epoch that ended with a checkpoint."""
    return Epoch(checkpoint_id)


def position_of(checkpoint_id: CheckpointId) -> LogPosition:
    """The position of a checkpoint in the log."""
    return LogPosition(checkpoint_id)


def checkpoint_at(position: LogPosition) -> CheckpointId:
    """The id of a checkpoint at this position."""
    return CheckpointId(position)
