"""Pending timers of the near future, by slices of about a second."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

__all__ = ["SLICE_BITS", "Timer", "TimerSlices"]

Timer = tuple[int, Any]
"""Time in ms, and owner: the key, or ``(key, namespace)`` in a queue of namespaced timers."""

SLICE_BITS = 10
"""A slice holds 2**10 ms, about a second."""

_time_of = operator.itemgetter(0)


class TimerSlices:
    """Timers that are sorted only when time reaches their slice.

    >>> slices = TimerSlices()
    >>> slices.spread([(5, "a"), (3, "b"), (2000, "c")])
    >>> slices.take(0, 1), slices.earliest()
    (([(5, 'a'), (3, 'b')], 0), 2000)
    """

    def __init__(self) -> None:
        self._slices: defaultdict[int, set[Timer]] = defaultdict(set)
        """By number. Few, since only the next two minutes have slices."""

    def __len__(self) -> int:
        return sum(map(len, self._slices.values()))

    def __bool__(self) -> bool:
        return any(self._slices.values())

    def __iter__(self) -> Iterator[Timer]:
        return chain.from_iterable(self._slices.values())

    def __contains__(self, timer: Timer) -> bool:
        held = self._slices.get(timer[0] >> SLICE_BITS)
        return held is not None and timer in held

    def by_bucket(self, bits: int) -> defaultdict[int, list[Timer]]:
        """All timers, by bucket of ``2**bits`` ms; a bucket has whole slices."""
        found: defaultdict[int, list[Timer]] = defaultdict(list)
        for number, held in self._slices.items():
            found[number >> (bits - SLICE_BITS)] += held
        return found

    def add(self, timer: Timer) -> bool:
        """Add a timer; returns whether it was missing."""
        held = self._slices[timer[0] >> SLICE_BITS]
        if timer in held:
            return False
        held.add(timer)
        return True

    def spread(self, timers: Iterable[Timer]) -> None:
        """Add timers."""
        slices = self._slices
        for timer in timers:
            slices[timer[0] >> SLICE_BITS].add(timer)

    def discard(self, timer: Timer) -> bool:
        """Remove a timer; returns whether it was there."""
        held = self._slices.get(timer[0] >> SLICE_BITS)
        if held is None or timer not in held:
            return False
        held.discard(timer)
        return True

    def take(self, last: int, enough: int) -> tuple[list[Timer], int]:
        """Take the earliest slices, up to the one of number ``last`` or until there are ``enough`` timers.

        Returns:
            The timers sorted by time, the earliest last; and the number of the last slice that was taken, if any.
        """
        taken: list[Timer] = []
        number = last
        for number in sorted(number for number in self._slices if number <= last):
            taken += self._slices.pop(number)
            if len(taken) >= enough:
                break
        taken.sort(key=_time_of, reverse=True)
        return taken, number

    def earliest(self) -> int | None:
        """The time of the earliest timer."""
        number = self._first()
        return None if number is None else min(map(_time_of, self._slices[number]))

    def latest(self) -> int | None:
        """The time of the latest timer."""
        held = [number for number, timers in self._slices.items() if timers]
        return max(map(_time_of, self._slices[max(held)])) if held else None

    def _first(self) -> int | None:
        """The number of the first slice with timers."""
        return min((number for number, timers in self._slices.items() if timers), default=None)
