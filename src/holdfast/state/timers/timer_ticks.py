"""The ticks of a timing wheel: pending timers of the near future, in steps of about a second."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

__all__ = ["TICK_BITS", "Timer", "TimerTicks"]

Timer = tuple[int, Any]
"""Time in ms, and owner: the key, or ``(key, namespace)`` in a queue of namespaced timers."""

TICK_BITS = 10
"""A tick is 2**10 ms, about a second."""

_time_of = operator.itemgetter(0)


class TimerTicks:
    """Timers by tick; sorted only when time reaches their tick.

    >>> ticks = TimerTicks()
    >>> ticks.spread([(5, "a"), (3, "b"), (2000, "c")])
    >>> ticks.take(0, 1), ticks.earliest()
    (([(5, 'a'), (3, 'b')], 0), 2000)
    """

    def __init__(self) -> None:
        self._ticks: defaultdict[int, set[Timer]] = defaultdict(set)
        """Timers by number of the tick; at most two minutes of them."""

    def __len__(self) -> int:
        return sum(map(len, self._ticks.values()))

    def __bool__(self) -> bool:
        return any(self._ticks.values())

    def __iter__(self) -> Iterator[Timer]:
        return chain.from_iterable(self._ticks.values())

    def __contains__(self, timer: Timer) -> bool:
        held = self._ticks.get(timer[0] >> TICK_BITS)
        return held is not None and timer in held

    def by_bucket(self, bits: int) -> defaultdict[int, list[Timer]]:
        """All timers, by bucket of ``2**bits`` ms, which is a whole number of ticks."""
        found: defaultdict[int, list[Timer]] = defaultdict(list)
        for number, held in self._ticks.items():
            found[number >> (bits - TICK_BITS)] += held
        return found

    def add(self, timer: Timer) -> bool:
        """Add a timer; returns whether it is new."""
        held = self._ticks[timer[0] >> TICK_BITS]
        if timer in held:
            return False
        held.add(timer)
        return True

    def spread(self, timers: Iterable[Timer]) -> None:
        """Add timers."""
        ticks = self._ticks
        for timer in timers:
            ticks[timer[0] >> TICK_BITS].add(timer)

    def discard(self, timer: Timer) -> bool:
        """Remove a timer; returns whether it existed."""
        held = self._ticks.get(timer[0] >> TICK_BITS)
        if held is None or timer not in held:
            return False
        held.discard(timer)
        return True

    def take(self, last: int, enough: int) -> tuple[list[Timer], int]:
        """Take the earliest ticks, up to number ``last`` or until there are ``enough`` timers.

        Returns:
            The timers sorted by time, the earliest last; and the number of the last tick taken, if any.
        """
        taken: list[Timer] = []
        number = last
        for number in sorted(number for number in self._ticks if number <= last):
            taken += self._ticks.pop(number)
            if len(taken) >= enough:
                break
        taken.sort(key=_time_of, reverse=True)
        return taken, number

    def earliest(self) -> int | None:
        """The time of the earliest timer."""
        number = self._first()
        return None if number is None else min(map(_time_of, self._ticks[number]))

    def latest(self) -> int | None:
        """The time of the latest timer."""
        held = [number for number, timers in self._ticks.items() if timers]
        return max(map(_time_of, self._ticks[max(held)])) if held else None

    def _first(self) -> int | None:
        """The number of the earliest tick with timers."""
        return min((number for number, timers in self._ticks.items() if timers), default=None)
