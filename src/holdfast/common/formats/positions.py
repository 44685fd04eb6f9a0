"""Positions in parallel lists: found by value, and picked. Compiled (`holdfast.compiled`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import itemgetter
from typing import Any, TypeVar

__all__ = ["part_by", "picker", "positions_by"]

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


def part_by(targets: list[int], lists: list[list[Any]]) -> dict[int, list[list[Any]]]:
    """Part parallel lists by the target of each position, in order.

    In plain Python, `positions_by` with `picker` takes less time.

    >>> part_by([1, 0, 1], [["a", "b", "c"], [5, 6, 7]])
    {1: [['a', 'c'], [5, 7]], 0: [['b'], [6]]}
    """
    parts: dict[int, list[list[Any]]] = {}
    width = len(lists)
    latest, part = None, []
    for position in range(len(targets)):
        target = targets[position]
        if target is not latest:
            if target not in parts:
                parts[target] = [[] for _ in lists]
            latest, part = target, parts[target]
        for place in range(width):
            each = lists[place]
            to = part[place]
            to.append(each[position])
    return parts
