"""Positions in parallel lists: found by value, and picked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import itemgetter
from typing import Any, TypeVar

__all__ = ["picker", "positions_by"]

V = TypeVar("V", bound=Hashable)


def positions_by(values: Iterable[V]) -> dict[V, list[int]]:
    """The positions of each value.

    >>> dict(positions_by("abca"))
    {'a': [0, 3], 'b': [1], 'c': [2]}
    """
    positions: defaultdict[V, list[int]] = defaultdict(list)
    for position, value in enumerate(values):
        positions[value].append(position)
    return positions


def picker(positions: list[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that picks the elements at these positions, in this order.

    >>> picker([2, 0])("abc"), picker([1])("abc")
    (('c', 'a'), ['b'])
    """
    if len(positions) == 1:
        at = positions[0]
        return lambda elements: [elements[at]]
    return itemgetter(*positions)
