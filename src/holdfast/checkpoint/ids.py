"""Epoch, CheckpointId and LogPosition: three meanings of one integer, each a type of its own.

Epoch *n* ends in checkpoint *n*, which is the entry at position *n* of the checkpoint log. The reverse does not hold: at
other positions are the records of take-overs. The functions here are the only places where one becomes the other.
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
    """The checkpoint that an epoch ends in."""
    return CheckpointId(epoch)


def epoch_of(checkpoint_id: CheckpointId) -> Epoch:
    """The epoch that ended in a checkpoint."""
    return Epoch(checkpoint_id)


def position_of(checkpoint_id: CheckpointId) -> LogPosition:
    """Where a checkpoint is in the log."""
    return LogPosition(checkpoint_id)


def checkpoint_at(position: LogPosition) -> CheckpointId:
    """The checkpoint at a position, if there is one."""
    return CheckpointId(position)
