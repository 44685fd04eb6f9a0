"""TimingWheel: the timers that time reaches first, and an epoch's changes of them.

Timers of later ticks are unsorted. Those of the current tick are sorted once, into the run; timers registered for it
afterwards are in a heap.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import heappop, heappush
from itertools import chain
from typing import Any

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.state.timers.timer_ticks import TICK_BITS, Timer, TimerTicks

__all__ = ["TimingWheel"]

_AT_ONCE = 8192
"""Number of timers, from several ticks, to sort together, so that one read loads the rows of their owners."""

_time_of = operator.itemgetter(0)


class TimingWheel:
    """The pending timers of the active buckets, by tick."""

    def __init__(self) -> None:
        self._ticks = TimerTicks()
        """Timers of later ticks."""
        self.tick = -(1 << 62)
        """Number of the current tick."""
        self._run: list[Timer] = []
        """Timers up to the current tick, sorted by time, earliest last."""
        self._deleted: set[Timer] = set()
        """Deleted timers of the run; the run keeps them until time passes."""
        self._pending: set[Timer] | None = None
        """The pending timers of the run; built on first use."""
        self._heap: list[tuple[int, int, Any]] = []
        """Timers registered for the current tick or earlier; deleted ones stay until time passes."""
        self._registered: set[Timer] = set()
        """The timers of the heap that are not deleted."""
        self._sequence = 0
        self.registered = 0
        """Timers registered here since a bucket became active."""
        self._added: set[Timer] = set()
        """Timers added in this epoch and not removed."""
        self._removed: list[Timer] = []
        """Timers, possibly of earlier epochs, removed in this one; some may have been added again."""

    def __len__(self) -> int:
        """Approximate number of timers in memory."""
        return len(self._run) + len(self._registered) + len(self._ticks)

    def __bool__(self) -> bool:
        return len(self._run) > len(self._deleted) or bool(self._registered) or bool(self._ticks)

    def __iter__(self) -> Iterator[Timer]:
        return chain(self._current(), self._ticks)

    def _current(self) -> Iterator[Timer]:
        """The timers up to the current tick."""
        deleted = self._deleted
        return chain((timer for timer in self._run if timer not in deleted), self._registered)

    def __contains__(self, timer: Timer) -> bool:
        """Whether a timer of a later tick is pending."""
        return timer in self._ticks

    def by_bucket(self, bits: int) -> dict[int, list[Timer]]:
        """All timers, by bucket of ``2**bits`` ms."""
        found = self._ticks.by_bucket(bits)
        for timer in self._current():
            found[timer[0] >> bits].append(timer)
        return found

    def spread(self, timers: Iterable[Timer]) -> None:
        """Add timers of later ticks, without recording them as changes of the epoch."""
        self._ticks.spread(timers)

    def sort(self, timers: list[Timer], until: int) -> None:
        """Add timers up to the tick ``until``, which becomes the current one. All earlier timers have been taken."""
        timers.sort(key=_time_of, reverse=True)
        self._run, self.tick, self._pending = timers, until, None

    def record(self, new: set[Timer], removed: Iterable[Timer], *, surely_new: bool) -> None:
        """Record the timers that this epoch added to and removed from a bucket that becomes active. Keeps ``new`` itself.

        ``surely_new``: no earlier epoch has added any of ``new``.
        """
        self.registered = 0
        if not surely_new:
            self._removed += new
        if self._added:
            self._added |= new
        else:
            self._added = new
        self._removed += removed

    def register(self, timer: Timer) -> None:
        """Add a timer; no effect if it exists."""
        time, owner = timer
        if time >> TICK_BITS > self.tick:
            if not self._ticks.add(timer):
                return
        else:
            if timer in self._registered or timer in self._pending_in_run(time):
                return
            self._registered.add(timer)
            self._sequence += 1
            heappush(self._heap, (time, self._sequence, owner))
        self.registered += 1
        self._added.add(timer)

    def _pending_in_run(self, time: int) -> set[Timer]:
        """The pending timers of the run; empty if all its timers of this time have fired."""
        if not self._run or time < self._run[-1][0]:
            return set()
        if self._pending is None:
            self._pending = set(self._run) - self._deleted
        return self._pending

    def delete(self, timer: Timer) -> None:
        """Remove a timer; no error if it is missing."""
        if timer[0] >> TICK_BITS > self.tick:
            if not self._ticks.discard(timer):
                return
        elif timer in self._registered:
            self._registered.discard(timer)
        elif timer in (pending := self._pending_in_run(timer[0])):
            pending.discard(timer)
            self._deleted.add(timer)
        else:
            return
        if timer in self._added:
            self._added.discard(timer)
        else:
            self._removed.append(timer)

    def discard(self, timer: Timer) -> bool:
        """Remove a timer of a later tick, without recording a change; returns whether it existed."""
        return self._ticks.discard(timer)

    def due(self, time: int, last: int, prefetch: Callable[[list[Any]], object]) -> Iterator[Timer]:
        """Take the timers up to ``time``, and up to the tick ``last``, in order of time; see `TimerQueue.due`."""
        last = min(last, time >> TICK_BITS)
        while True:
            run, heap, added, removed = self._run, self._heap, self._added, self._removed
            deleted, registered = self._deleted, self._registered
            known = owners_until(heap, time)
            known.extend([owner for _, owner in run[bisect_left(run, -time, key=_earliest_last) :]])
            if known:
                prefetch(known)
            while True:
                if run and run[-1][0] <= time and not (heap and heap[0][0] < run[-1][0]):
                    timer = run.pop()
                    if deleted and timer in deleted:
                        deleted.discard(timer)
                        continue
                    if self._pending is not None:
                        self._pending.discard(timer)
                elif heap and heap[0][0] <= time:
                    when, _, owner = heappop(heap)
                    timer = (when, owner)
                    if timer not in registered:  # it was deleted
                        continue
                    registered.discard(timer)
                else:
                    break
                if added and timer in added:
                    added.discard(timer)
                else:
                    removed.append(timer)
                yield timer
            taken, number = self._ticks.take(last, _AT_ONCE)
            if not taken:
                return
            self._run, self.tick, self._pending = taken, number, None  # the former run is used up

    def earliest(self) -> int | None:
        """The earliest time."""
        run, heap, deleted = self._run, self._heap, self._deleted
        while heap and (heap[0][0], heap[0][2]) not in self._registered:
            heappop(heap)
        while run and run[-1] in deleted:
            deleted.discard(run.pop())
        times: list[int] = [entry[0] for entry in heap[:1]] + [entry[0] for entry in run[-1:]]
        return min(times) if times else self._ticks.earliest()

    def latest(self) -> int:
        """The latest time; MIN_TIMESTAMP without timers."""
        latest = self._ticks.latest()
        if latest is not None:
            return latest
        return max((time for time, _ in (*self._run[:1], *self._registered)), default=MIN_TIMESTAMP)

    def drain(self) -> tuple[Collection[Timer], Collection[Timer]]:
        """At the barrier: drain the timers that were added in this epoch, and the removed ones."""
        added, removed = self._added, self._removed
        if again := added.intersection(removed):  # an earlier epoch may have added some of them
            removed = [timer for timer in removed if timer not in again]
        self._added, self._removed = set(), []
        return added, removed


def owners_until(heap: list[tuple[int, int, Any]], time: int) -> list[Any]:
    """The owners of the heap's timers up to ``time``, without visiting later ones.

    >>> owners_until([(1, 0, "a"), (7, 1, "b"), (3, 2, "c"), (8, 3, "d")], 3)
    ['a', 'c']
    """
    found = []
    waiting = [0]
    while waiting:
        at = waiting.pop()
        if at < len(heap) and heap[at][0] <= time:
            found.append(heap[at][2])
            waiting += (2 * at + 2, 2 * at + 1)
    return found


def _earliest_last(timer: Timer) -> int:
    return -timer[0]
