"""A row in memory: a list of its flags and its states' slots. An empty slot is None.

The first element holds the flags in its low bits and the key group above them. The key group is computed once, when the
row first enters memory.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DIRTY", "GROUP_SHIFT", "PERSISTED", "UNFLUSHED", "Row", "filled"]

Row = list[Any]

PERSISTED = 1
"""A completed checkpoint holds the row."""
DIRTY = 2
"""Changed in this epoch."""
UNFLUSHED = 4
"""Newer than the local store's row."""
GROUP_SHIFT = 8
"""``row[0] >> GROUP_SHIFT`` is the key group."""


def filled(row: Row) -> bool:
    """Whether any slot of the row has content."""
    # Compare by identity, not with list.count: values may define their own equality (NumPy arrays do).
    return any(slot is not None for slot in row[1:])
