"""Timers: at most one per key, namespace and time, pending until time reaches it.

Pending timers lie unsorted in coarse buckets of time. Only the bucket of the current time is sorted, so registering a timer
costs one set insertion, however many timers exist. Under memory pressure, far buckets move to the local store; each
returns by one scan when time reaches it. An epoch's registrations and removals go into its delta.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Any, Protocol

from holdfast.common.time import MIN_TIMESTAMP

__all__ = ["BUCKET_BITS", "TIMER_BYTES", "Timer", "TimerQueue", "TimerStore"]

Timer = tuple[int, Any]
"""Time in ms, and owner: the key, or ``(key, namespace)`` in a queue of namespaced timers."""

BUCKET_BITS = 16
"""A bucket holds 2**16 ms, about a minute."""
TIMER_BYTES = 250
"""Estimated memory of a timer, in bytes."""
_END = 1 << (63 - BUCKET_BITS)
"""The bucket after the last."""

_time_of = operator.itemgetter(0)


class TimerStore(Protocol):
    """The timers of one queue in the local store, by bucket. Only committed timers enter it."""

    def buckets(self) -> Iterable[int]:
        """The buckets with timers."""

    def load(self, bucket: int) -> list[Timer]:
        """Load all timers of a bucket."""

    def write(self, added: Iterable[Timer], removed: Iterable[Timer]) -> None:
        """Add and remove timers. Adding an existing timer or removing a missing one has no effect."""

    def drop(self, bucket: int) -> None:
        """Remove a bucket."""


class _Bucket:
    """The pending timers of one bucket, completely or partly in memory."""

    __slots__ = ("fresh", "gone", "resident", "stored", "timers")

    def __init__(self, stored: bool = False) -> None:
        self.timers: set[Timer] = set()
        self.stored = stored
        """Whether the store holds timers of this bucket."""
        self.resident = not stored
        """Whether all of the bucket's timers are in memory."""
        self.fresh: set[Timer] = set()
        """If stored: timers in memory that are not in the store."""
        self.gone: set[Timer] = set()
        """If stored: removed timers that may still be in the store."""


class TimerQueue:
    """The timers of one service in one time domain.

    >>> from holdfast.state.ordered import SortedMemory
    >>> from holdfast.state.timer_family import TimerFamily
    >>> timers = TimerFamily(1, SortedMemory(), lambda keys: [0] * len(keys))
    >>> timers.register(20, "b"); timers.register(10, "a"); timers.register(10, "a")
    >>> list(timers.due(15)), list(timers.due(30))
    ([(10, 'a')], [(20, 'b')])
    """

    def __init__(self, store: TimerStore, bound: int = 1 << 62) -> None:
        """``bound``: approximate limit of timers in memory between epochs."""
        self._store = store
        self._bound = bound
        self._buckets: dict[int, _Bucket] = {}
        self._order: list[int] = []
        """Heap of bucket numbers; may contain numbers of former buckets."""
        self._active = -(1 << 62)
        """Buckets up to this number are active: their timers are in the run and the heap."""
        self._run: list[Timer] = []
        """Timers of the active buckets, sorted once by time, earliest last."""
        self._heap: list[tuple[int, int, Any]] = []
        """Timers registered in active buckets since."""
        self._live: set[Timer] = set()
        """The pending timers of run and heap; deleted timers stay in run or heap until time passes them."""
        self._active_stored: set[int] = set()
        """Active buckets with timers in the store."""
        self._active_fresh: set[Timer] = set()
        """Live timers that are not in the store."""
        self._active_gone: set[Timer] = set()
        """Removed or fired timers of active buckets in the store."""
        self._sequence = 0
        self._added: set[Timer] = set()
        self._removed: set[Timer] = set()
        self.in_memory = 0
        """Approximate number of timers in memory."""

    def __bool__(self) -> bool:
        """Whether there are timers. A stored bucket counts even if all its timers may have been deleted."""
        return bool(self._live) or any(b.timers or not b.resident for b in self._buckets.values())

    def register(self, time: int, owner: Any) -> None:
        """Set a timer; setting it again has no effect.

        Raises:
            TypeError: the time is not an integer.
            ValueError: the time does not fit into 64 bits.
        """
        if type(time) is not int:
            time = _whole(time)
        timer = (time, owner)
        number = time >> BUCKET_BITS
        if number <= self._active:
            if timer in self._live:
                return
            if number < -_END:
                raise _beyond(time)
            self._live.add(timer)
            self._sequence += 1
            heappush(self._heap, (time, self._sequence, owner))
            self._active_fresh.add(timer)
            self._active_gone.discard(timer)
        else:
            bucket = self._buckets.get(number)
            if bucket is None:
                if not -_END <= number < _END:
                    raise _beyond(time)
                bucket = self._open(number)
            elif timer in bucket.timers:
                return
            bucket.timers.add(timer)
            if bucket.stored:
                bucket.fresh.add(timer)
                bucket.gone.discard(timer)
                if not bucket.resident:  # the removal may have concerned a timer that did not exist
                    self._added.add(timer)
        self.in_memory += 1
        if timer in self._removed:
            self._removed.discard(timer)
        else:
            self._added.add(timer)

    def _open(self, number: int, stored: bool = False) -> _Bucket:
        bucket = self._buckets[number] = _Bucket(stored)
        heappush(self._order, number)
        return bucket

    def delete(self, time: int, owner: Any) -> None:
        """Remove a timer; no error if it is missing."""
        timer = (time, owner)
        number = time >> BUCKET_BITS
        if number <= self._active:
            if timer in self._live:
                self._take(timer)
            return
        bucket = self._buckets.get(number)
        if bucket is None:
            return
        if timer in bucket.timers:
            bucket.timers.discard(timer)
            self.in_memory -= 1
        elif bucket.resident:
            return
        if bucket.stored:
            bucket.fresh.discard(timer)
            bucket.gone.add(timer)
        self._forget(timer, bucket.resident)

    def _take(self, timer: Timer) -> None:
        """Remove a live timer, which fires or is deleted."""
        self._live.discard(timer)
        self.in_memory -= 1
        self._active_fresh.discard(timer)
        if self._active_stored and timer[0] >> BUCKET_BITS in self._active_stored:
            self._active_gone.add(timer)
        self._forget(timer, True)

    def _forget(self, timer: Timer, known: bool) -> None:
        """Record a removal for the delta. ``known``: this epoch's additions are new to the store."""
        if timer in self._added:
            self._added.discard(timer)
            if known:
                return
        self._removed.add(timer)

    def due(self, time: int, prefetch: Callable[[list[Any]], object] = lambda owners: None) -> Iterator[Timer]:
        """Take the timers up to and including ``time`` in order of time, including those registered during the iteration.

        ``prefetch`` receives the owners of many timers before they are yielded, so that one read can load their rows.
        """
        last = time >> BUCKET_BITS
        while True:
            yield from self._due_now(time, prefetch)
            number = self._earliest()
            if number is None or number > last:
                self._active = max(self._active, last)
                return
            self._activate(number)

    def _due_now(self, time: int, prefetch: Callable[[list[Any]], object]) -> Iterator[Timer]:
        """Take the due timers of the active buckets."""
        run, heap, live = self._run, self._heap, self._live
        known = [entry[2] for entry in heap if entry[0] <= time]
        first = bisect_left(run, -time, key=_earliest_last)
        known.extend([owner for _, owner in run[first:]])
        if not known:
            return
        prefetch(known)
        while True:
            if run and run[-1][0] <= time and not (heap and heap[0][0] < run[-1][0]):
                timer = run.pop()
            elif heap and heap[0][0] <= time:
                when, _, owner = heappop(heap)
                timer = (when, owner)
            else:
                return
            if timer in live:
                self._take(timer)
                yield timer

    def _earliest(self) -> int | None:
        """The number of the earliest inactive bucket."""
        order = self._order
        while order and order[0] not in self._buckets:
            heappop(order)
        return order[0] if order else None

    def _activate(self, number: int) -> None:
        """Move the earliest bucket into the run."""
        self._active = number
        bucket = self._buckets.pop(number)
        self._fill(number, bucket)
        if bucket.stored:
            self._active_stored.add(number)
            self._active_gone |= bucket.gone
            self._active_fresh |= bucket.fresh
        else:
            self._active_fresh |= bucket.timers
        self._run.extend(bucket.timers)
        self._run.sort(key=_time_of, reverse=True)
        if self._live:
            self._live |= bucket.timers
        else:
            self._live = bucket.timers

    def _fill(self, number: int, bucket: _Bucket) -> None:
        """Load all timers of a bucket into memory."""
        if bucket.resident:
            return
        before = len(bucket.timers)
        stored = set(self._store.load(number))
        self._added.difference_update(stored)  # setting a stored timer again does not add it
        bucket.timers |= stored - bucket.gone
        bucket.resident = True
        self.in_memory += len(bucket.timers) - before

    def next_time(self) -> int | None:
        """The time of the earliest timer, or its bucket's start while the bucket is in the store; None without timers."""
        live = self._first_live()
        if live is not None:
            return live
        while (number := self._earliest()) is not None:
            bucket = self._buckets[number]
            if not bucket.resident:
                return number << BUCKET_BITS
            if bucket.timers:
                earliest: int = min(map(_time_of, bucket.timers))
                return earliest
            if bucket.stored:  # all its timers are deleted; the store still has them
                break
            del self._buckets[number]
        held = [number for number, bucket in self._buckets.items() if bucket.timers or not bucket.resident]
        return min(held) << BUCKET_BITS if held else None

    def _first_live(self) -> int | None:
        """The earliest time in the active buckets."""
        run, heap, live = self._run, self._heap, self._live
        while heap and (heap[0][0], heap[0][2]) not in live:
            heappop(heap)
        while run and run[-1] not in live:
            run.pop()
        times: list[int] = [entry[0] for entry in heap[:1]] + [entry[0] for entry in run[-1:]]
        return min(times, default=None)

    def last_time(self) -> int:
        """An upper bound of all timers' times; MIN_TIMESTAMP without timers."""
        latest = MIN_TIMESTAMP
        for number, bucket in self._buckets.items():
            if not bucket.resident:
                latest = max(latest, ((number + 1) << BUCKET_BITS) - 1)
            elif bucket.timers:
                latest = max(latest, max(map(_time_of, bucket.timers)))
        return max(latest, max(map(_time_of, self._live), default=MIN_TIMESTAMP))

    # from epoch to epoch

    def drain(self) -> tuple[list[Timer], list[Timer]]:
        """At the barrier: drain the timers added and the timers removed in this epoch."""
        added, removed = list(self._added), list(self._removed)
        self._added, self._removed = set(), set()
        return added, removed

    def replay(self, added: Iterable[Timer], removed: Iterable[Timer]) -> None:
        """Apply the changes of a completed epoch (in a restore)."""
        for time, owner in removed:
            self.delete(time, owner)
        for time, owner in added:
            self.register(time, owner)
        self._added, self._removed = set(), set()

    def all(self) -> Iterator[Timer]:
        """All timers, including those in the store."""
        yield from self._live
        for number, bucket in self._buckets.items():
            yield from bucket.timers
            if not bucket.resident:
                yield from set(self._store.load(number)) - bucket.gone - bucket.timers

    # the local store

    def opened(self) -> None:
        """Open the store with a checkpoint's timers; its buckets stay there until time reaches them."""
        for number in self._store.buckets():
            if number not in self._buckets:
                self._open(number, stored=True)

    def committed(self) -> None:
        """Complete the last collected epoch: far buckets may leave memory, and fired buckets leave the store.

        Must be called between epochs, before the next one registers timers.
        """
        self._drop_fired()
        if self.in_memory <= self._bound:
            return
        leaving: list[_Bucket] = []
        for number in sorted(self._buckets, reverse=True):
            bucket = self._buckets[number]
            if bucket.timers:
                leaving.append(bucket)
                self.in_memory -= len(bucket.timers)
                if self.in_memory <= self._bound // 2:
                    break
        self._write(leaving)
        for bucket in leaving:
            bucket.timers = set()
            bucket.resident = False

    def flush(self) -> None:
        """Write the committed timers to the store (between epochs)."""
        self._drop_fired()
        self._write(self._buckets.values())
        self._store.write(self._active_fresh, self._active_gone)
        self._active_stored.update(time >> BUCKET_BITS for time, _ in self._active_fresh)
        self._active_fresh, self._active_gone = set(), set()

    def _write(self, buckets: Iterable[_Bucket]) -> None:
        """Write these buckets to the store."""
        added: list[Timer] = []
        removed: list[Timer] = []
        for bucket in buckets:
            fresh = bucket.fresh if bucket.stored else bucket.timers
            if fresh or bucket.gone:
                added += fresh
                removed += bucket.gone
                bucket.stored = True
                bucket.fresh, bucket.gone = set(), set()
        self._store.write(added, removed)

    def _drop_fired(self) -> None:
        """Remove stored buckets whose timers have all fired."""
        if not self._active_stored:
            return
        earliest = self._first_live()
        first = self._active + 1 if earliest is None else earliest >> BUCKET_BITS
        fired = {number for number in self._active_stored if number < first}
        for number in fired:
            self._store.drop(number)
        self._active_stored -= fired
        if fired:
            self._active_gone = {timer for timer in self._active_gone if timer[0] >> BUCKET_BITS in self._active_stored}


def _earliest_last(timer: Timer) -> int:
    return -timer[0]


def _whole(time: Any) -> int:
    try:
        return operator.index(time)
    except TypeError:
        raise TypeError(f"a timer's time must be an integer, in ms since the epoch; got {time!r:.80}") from None


def _beyond(time: int) -> ValueError:
    return ValueError(f"a timer's time, in ms since the epoch, must fit into 64 bits; got {time}")
