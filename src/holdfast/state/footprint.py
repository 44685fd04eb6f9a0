"""About how much memory rows take: how much larger Python's objects are than their stored form, samples tell."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from sys import getsizeof
from typing import Any

from holdfast.common.types import Row as RowValue

__all__ = ["Footprint", "deep_size"]

_SAMPLE = 24
_MOST_OBJECTS = 2_000
_ROW = 180
"""Bytes of a row beyond its content: its key, its entries in the table's dictionary and in the set of touched keys."""
_SAMPLE_EVERY = 2_048
"""Rows from one sample to the next."""
_MEMORY = 500_000
"""After so many rows older ones count half."""
_LEAVES = frozenset({str, bytes, float, type(None), bool})
_CONTAINERS = (list, tuple, set, frozenset, deque)


def deep_size(value: Any) -> int:
    """About how many bytes a value and all that it holds take in memory. Large ones are estimated from a part."""
    total = visited = 0
    waiting = [value]
    while waiting and visited < _MOST_OBJECTS:
        each = waiting.pop()
        visited += 1
        kind = type(each)
        if kind is int and -6 < each < 257:
            continue  # one object for all
        total += getsizeof(each)
        if kind in _LEAVES or kind is int:
            continue
        if isinstance(each, dict):
            waiting.extend(each)
            waiting.extend(each.values())
        elif isinstance(each, _CONTAINERS):
            waiting.extend(each)
        elif kind is RowValue:
            waiting.append(each._values)
        elif isinstance(getattr(each, "__dict__", None), dict):
            waiting.append(each.__dict__)
    return total * (visited + len(waiting)) // visited


class Footprint:
    """The mean size in memory of a space's rows, learnt from the rows that are written and read."""

    def __init__(self) -> None:
        self._rows = 0.0
        self._stored = 0.0
        self._unsampled = 0
        self._expansion = 4.0
        """Bytes in memory for a stored byte."""

    @property
    def row_bytes(self) -> float:
        """The mean of a row, in bytes of memory."""
        return _ROW + (self._stored / self._rows * self._expansion if self._rows else 100.0)

    def count(self, rows: int, stored: int) -> None:
        """So many rows took so many bytes in stored form."""
        if self._rows > _MEMORY:
            self._rows /= 2
            self._stored /= 2
        self._rows += rows
        self._stored += stored

    def sample(self, rows: Sequence[list[Any]], encode: Callable[[list[Any]], bytes]) -> None:
        """Compare some of these rows with their stored forms."""
        self._unsampled += len(rows)
        if self._rows and self._unsampled < _SAMPLE_EVERY:
            return
        self._unsampled = 0
        step = -(-len(rows) // _SAMPLE)
        some = rows[::step] if rows else []
        stored = sum(len(encode(row)) for row in some)
        if stored:
            ratio = sum(map(deep_size, some)) / stored
            self._expansion += (ratio - self._expansion) * (0.2 if self._rows else 1.0)
