"""Rows of a table in memory: loaded by key, and sorted by outcome at the barrier. Compiled (`holdfast.compiled`).

Few of many rows are in the processor's cache. A short loop that looks only at flags lets the processor fetch several rows at
the same time; a longer one waits for each in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.state.cells.row import DIRTY, PERSISTED, TOUCHED, UNFLUSHED, Row, filled

__all__ = ["part_rows", "rows_of", "unflushed_keys", "untouched_keys"]

_DIRTY, _PERSISTED, _TOUCHED, _UNFLUSHED = DIRTY, PERSISTED, TOUCHED, UNFLUSHED


def rows_of(
    rows: dict[Any, Row], keys: Sequence[Any], fresh: Row | None, touched_keys: list[Any], touched_rows: list[Row]
) -> list[Row] | None:
    """Look up the rows of these keys, and note those touched for the first time in the epoch.

    Args:
        rows: The rows in memory.
        keys: The keys.
        fresh: A key without a row gets a copy of it. None: return None if there is such a key.
        touched_keys: Gets the keys of the noted rows.
        touched_rows: Gets these rows.

    >>> rows, noted = {"a": [1, "x"]}, []
    >>> rows_of(rows, ["b", "a", "b"], [0, None], noted, []), noted
    ([[8, None], [9, 'x'], [8, None]], ['b', 'a'])
    >>> rows_of(rows, ["c"], None, noted, [])
    """
    loaded = []
    for key in keys:
        row = rows.get(key)
        if row is None:
            if fresh is None:
                return None
            row = rows[key] = fresh.copy()
        loaded.append(row)
    for at, key in enumerate(keys):
        row = loaded[at]
        flags = row[0]
        if not flags & _TOUCHED:
            row[0] = flags | _TOUCHED
            touched_keys.append(key)
            touched_rows.append(row)
    return loaded


def part_rows(
    keys: list[Any],
    rows: list[Row],
    first: int,
    end: int,
    several: bool,
    changed: list[Any],
    kept: list[Row],
    deleted: list[Any],
    idle: list[Any],
) -> None:
    """Sort the rows touched in an epoch by their outcome, and set their flags for the next one.

    Args:
        keys: The rows' keys.
        rows: The rows.
        first: Index of the first row to look at.
        end: Index after the last one.
        several: Whether rows have more than two cells.
        changed: Gets the keys of rows to store.
        kept: Gets these rows.
        deleted: Gets the keys of stored rows that are empty now.
        idle: Gets the keys of rows that were and are empty.
    """
    before = []
    for at in range(first, min(end, len(rows))):
        row = rows[at]
        before.append(row[0])
    for at in range(first, min(end, len(rows))):
        row = rows[at]
        flags = before[at - first]
        flags &= ~_TOUCHED
        if flags & _DIRTY:
            # The first and last cell usually suffice.
            if row[1] is not None or row[-1] is not None or (several and filled(row)):
                changed.append(keys[at])
                kept.append(row)
                flags = _PERSISTED | _UNFLUSHED
            elif flags & _PERSISTED:
                deleted.append(keys[at])
                flags = _UNFLUSHED
            elif flags & _UNFLUSHED:
                flags = _UNFLUSHED
            else:
                idle.append(keys[at])
        elif not flags:
            idle.append(keys[at])
        row[0] = flags


def unflushed_keys(rows: dict[Any, Row]) -> list[Any]:
    """The keys of the rows that are newer than the store's.

    >>> unflushed_keys({"a": [1, "x"], "b": [5, "y"], "c": [4, None]})
    ['b', 'c']
    """
    found = []
    for key, row in rows.items():
        if row[0] & _UNFLUSHED:
            found.append(key)
    return found


def untouched_keys(rows: dict[Any, Row], most: int) -> list[Any]:
    """The keys of the first ``most`` rows that were not loaded in this epoch.

    >>> untouched_keys({"a": [8, "x"], "b": [1, "y"], "c": [5, "z"], "d": [1, "z"]}, 2)
    ['b', 'c']
    """
    found: list[Any] = []
    for key, row in rows.items():
        if not row[0] & _TOUCHED:
            if len(found) >= most:
                break
            found.append(key)
    return found
