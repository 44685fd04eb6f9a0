"""Divides an epoch's records among partitions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

__all__ = ["share"]

K = TypeVar("K")


def share(available: Mapping[K, int], limit: int) -> dict[K, int]:
    """Divide ``limit`` evenly over the available amounts: no share exceeds another one that is not used up.

    >>> share({"a": 10, "b": 2, "c": 0}, 8)
    {'a': 6, 'b': 2}

    Args:
        available: The available amount of each.
        limit: The total to take. Every non-empty one gets at least 1, so that none starves.
    """
    wanting = sorted(((n, i, key) for i, (key, n) in enumerate(available.items()) if n > 0), key=lambda w: w[:2])
    result: dict[K, int] = {}
    left = limit
    for served, (n, _, key) in enumerate(wanting):
        result[key] = min(n, max(1, left // (len(wanting) - served)))
        left -= result[key]
    return {key: result[key] for key in available if key in result}
