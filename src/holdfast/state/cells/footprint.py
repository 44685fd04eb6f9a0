"""Estimates the memory of rows by sampling their size in memory against their stored size."""

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
"""Bytes of a row beyond its content: the key, and its places in the table's dictionary and in the set of touched keys."""
_SAMPLE_EVERY = 2_048
"""Rows between two samples."""
_MEMORY = 100_000
"""Number of rows after which older rows count half: rows shrink when their large values leave them."""
_LEAVES = frozenset({str, bytes, float, type(None), bool})
_CONTAINERS = (list, tuple, set, frozenset, deque)


def deep_size(value: Any) -> int:
    """Estimate the memory of a value and its content, in bytes. A large value is extrapolated from a part."""
    total = visited = 0
    waiting = [value]
    while waiting and visited < _MOST_OBJECTS:
        each = waiting.pop()
        visited += 1
        kind = type(each)
        if kind is int and -6 < each < 257:
            continue  # small integers are shared
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
    """The mean size of a space's rows in memory, learnt from the rows written and read.

    It knows the stored size of all rows and the memory of a sample. Rows read and rows written may differ in size, so both
    are sampled, and each sample is weighted by the rows that it stands for.
    """

    def __init__(self) -> None:
        self._rows = 0.0
        self._stored = 0.0
        self._unsampled = 0
        self._sampled_memory = 0.0
        self._sampled_stored = 0.0

    @property
    def row_bytes(self) -> float:
        """The mean memory of a row, in bytes."""
        if not self._sampled_stored:
            return _ROW + 100.0
        return _ROW + self._stored / self._rows * self._sampled_memory / self._sampled_stored

    def count(self, rows: int, stored: int) -> None:
        """Record that this many rows took this many bytes in stored form."""
        if self._rows > _MEMORY:
            self._rows /= 2
            self._stored /= 2
            self._sampled_memory /= 2
            self._sampled_stored /= 2
        self._rows += rows
        self._stored += stored

    def sample(self, rows: Sequence[list[Any]], encode: Callable[[list[Any]], bytes]) -> None:
        """Compare the memory of some of these rows with their stored form. The caller also passes all of them to `count`."""
        self._unsampled += len(rows)
        if not rows or (self._sampled_stored and self._unsampled < _SAMPLE_EVERY):
            return
        some = rows[:: -(-len(rows) // _SAMPLE)]
        share = self._unsampled / len(some)
        self._unsampled = 0
        self._sampled_memory += share * sum(map(deep_size, some))
        self._sampled_stored += share * sum(len(encode(row)) for row in some)
