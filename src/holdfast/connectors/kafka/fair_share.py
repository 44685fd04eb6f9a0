"""How an epoch's records are shared among partitions. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

__all__ = ["share"]

K = TypeVar("K")


def share(available: Mapping[K, int], limit: int) -> dict[K, int]:
    """Spread ``limit`` over what is available, evenly: nobody gets more than another who still has some left.

    >>> share({"a": 10, "b": 2, "c": 0}, 8)
    {'a': 6, 'b': 2}

    Args:
        available: How much each has.
        limit: How much to take in all; each that has any gets at least one, so that none ever waits for ever.
    """
    wanting = sorted(((n, i, key) for i, (key, n) in enumerate(available.items()) if n > 0), key=lambda w: w[:2])
    result: dict[K, int] = {}
    left = limit
    for served, (n, _, key) in enumerate(wanting):
        result[key] = min(n, max(1, left // (len(wanting) - served)))
        left -= result[key]
    return {key: result[key] for key in available if key in result}
