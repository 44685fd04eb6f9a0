"""Rows of a table in memory by key. Compiled (`holdfast.compiled`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.state.row import Row

__all__ = ["rows_of"]


def rows_of(rows: dict[Any, Row], keys: Iterable[Any], fresh: Row) -> list[Row]:
    """The rows of these keys; a key without one gets a copy of the fresh one.

    >>> rows = {"a": [1, "x"]}
    >>> rows_of(rows, ["b", "a", "b"], [0, None]), rows
    ([[0, None], [1, 'x'], [0, None]], {'a': [1, 'x'], 'b': [0, None]})
    """
    loaded = []
    for key in keys:
        row = rows.get(key)
        if row is None:
            row = rows[key] = fresh.copy()
        loaded.append(row)
    return loaded
