"""A row in memory: a list of its flags and the slots of its states. An empty slot is None.

The first element holds the flags in its low bits and the key group above them, computed once when the row first comes
into memory.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DIRTY", "GROUP_SHIFT", "PERSISTED", "UNFLUSHED", "Row", "filled"]

Row = list[Any]

PERSISTED = 1
"""Some completed checkpoint holds the row."""
DIRTY = 2
"""Changed in this epoch."""
UNFLUSHED = 4
"""Newer than what the local store holds."""
GROUP_SHIFT = 8
"""``row[0] >> GROUP_SHIFT`` is the key group."""


def filled(row: Row) -> bool:
    """Whether any state of the row holds something."""
    # By identity, not by list.count: values may have an equality of their own (NumPy's arrays).
    return any(slot is not None for slot in row[1:])
