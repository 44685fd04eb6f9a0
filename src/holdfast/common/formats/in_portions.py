"""Items, a portion at a time: bounded by their bytes, since single ones may be large."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["in_portions"]

T = TypeVar("T")


def in_portions(
    items: Iterable[T], size_of: Callable[[T], int], most_bytes: int, most: int = sys.maxsize
) -> Iterator[list[T]]:
    """Cut items into lists that end as soon as they have ``most_bytes`` or ``most`` items.

    >>> list(in_portions(["a", "bb", "c", "d", "e"], len, 3, most=2))
    [['a', 'bb'], ['c', 'd'], ['e']]
    """
    portion: list[T] = []
    size = 0
    for item in items:
        portion.append(item)
        size += size_of(item)
        if size >= most_bytes or len(portion) >= most:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
