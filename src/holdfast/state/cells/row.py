"""A row in memory: a list of its flags and its states' cells. An empty cell is None."""

from __future__ import annotations

from typing import Any

__all__ = ["CHANGED", "DIRTY", "PERSISTED", "TOUCHED", "UNFLUSHED", "Row", "filled"]

Row = list[Any]

PERSISTED = 1
"""A completed checkpoint holds the row."""
DIRTY = 2
"""Changed in this epoch."""
UNFLUSHED = 4
"""Newer than the local store's row."""
TOUCHED = 8
"""Loaded in this epoch, and listed for the barrier."""
CHANGED = tuple(flags | DIRTY for flags in range(2 * TOUCHED))
"""The flags of a row after a change, by its flags before: a lookup takes half the time of ``|=``."""


def filled(row: Row) -> bool:
    """Whether any cell of the row has content."""
    # Compare by identity, not with list.count: values may define their own equality (NumPy arrays do).
    return (len(row) > 1 and row[1] is not None) or any(cell is not None for cell in row[2:])
