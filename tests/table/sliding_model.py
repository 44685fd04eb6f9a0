"""Sliding windows by definition, in plain Python, if no pair is late."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

Change = tuple[int, Any, int, Any, Any]
"""The number of the pair, key, start of the window, new aggregate, old aggregate."""


def windows_of(
    pairs: Iterable[tuple[Any, int, Any]], difference: int, combine: Callable[[list[Any]], Any]
) -> Iterator[Change]:
    """The changes of the windows with each pair (key, timestamp, value), by their starts.

    A window ends at each pair (those before the time difference have one from 0 on), and one begins behind it if it has
    pairs. Aggregates combine the values in the order of their arrival.
    """
    came: dict[Any, list[tuple[int, Any]]] = {}
    for number, (key, stamp, value) in enumerate(pairs):
        mine = came.setdefault(key, [])
        before = _windows(mine, difference, combine)
        mine.append((stamp, value))
        after = _windows(mine, difference, combine)
        for start in sorted(after):
            if start not in before or start <= stamp <= start + difference:
                yield number, key, start, after[start], before.get(start)


def _windows(pairs: list[tuple[int, Any]], difference: int, combine: Callable[[list[Any]], Any]) -> dict[int, Any]:
    starts = {max(stamp - difference, 0) for stamp, _ in pairs} | {stamp + 1 for stamp, _ in pairs}
    contents = {start: [value for stamp, value in pairs if start <= stamp <= start + difference] for start in starts}
    return {start: combine(values) for start, values in contents.items() if values}
