"""Timers: at most one per key, namespace and time, pending until time reaches it.

Pending timers are kept unsorted in buckets of about a minute. The bucket of the current time is in the timing wheel, by
ticks of about a second, of which only the current one is sorted. So registering a timer costs one set insertion, however
many timers exist. Under memory pressure, late buckets move to the local store. Before time reaches such a bucket, each epoch
loads a portion of it into the wheel, so that no epoch has to wait for all of it. An epoch's registrations and removals go
into its delta.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import Any, Protocol

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.state.timers.timer_ticks import TICK_BITS, Timer
from holdfast.state.timers.timing_wheel import TimingWheel

__all__ = ["BUCKET_BITS", "TIMER_BYTES", "UNBOUNDED", "Timer", "TimerQueue", "TimerStore"]

BUCKET_BITS = 16
"""A bucket is 2**16 ms, about a minute."""
TIMER_BYTES = 250
"""Estimated memory of a timer, in bytes."""
_AT_ONCE = 8192
"""Number of timers to move to the store, or load from it, at a time: more would be a pause, fewer would make small chunks.
"""
_MANY = 65_536
"""Number of timers from which a bucket is sorted tick by tick: sorting this many at once would be a pause."""
UNBOUNDED = 1 << 62
"""The bound of a queue that keeps all timers in memory."""
_END = 1 << (63 - BUCKET_BITS)
"""The bucket after the last."""
_TICKS_BITS = BUCKET_BITS - TICK_BITS
"""A bucket has two to the power of this many ticks."""

_time_of = operator.itemgetter(0)


class TimerStore(Protocol):
    """The timers of one queue in the local store, by bucket. Only checkpointed timers enter it."""

    def buckets(self) -> Iterable[int]:
        """The buckets with timers."""

    def load(self, bucket: int) -> set[Timer]:
        """Load all timers of a bucket."""

    def loading(self, bucket: int) -> Iterator[set[Timer]]:
        """Load all timers of a bucket in portions, each as of its step. Others may be written between two portions."""

    def write(self, bucket: int, added: Collection[Timer], removed: Collection[Timer]) -> None:
        """Add and remove timers. Adding an existing timer or removing a missing one has no effect."""

    def replacing(self, bucket: int, parts: Iterable[Collection[Timer]]) -> Iterator[int]:
        """Replace a bucket's timers in portions; yields the size of each. The old timers remain until the end."""

    def drop(self, bucket: int) -> None:
        """Remove a bucket."""


class _Bucket:
    """The pending timers of one bucket; some may be in the store only."""

    __slots__ = ("gone", "new", "removed", "stored", "timers")

    def __init__(self, stored: bool) -> None:
        self.stored = stored
        """Whether the store holds timers of this bucket. If not, all of them are in memory."""
        self.timers: set[Timer] = set()
        """Timers of completed epochs; if ``stored``, only those that are not in the store."""
        self.gone: set[Timer] = set()
        """If ``stored``: timers removed by completed epochs that may still be in the store."""
        self.new: set[Timer] = set()
        """Timers added in this epoch; if ``stored``, some may already be in the store; some may be in the wheel."""
        self.removed: set[Timer] = set()
        """Timers removed in this epoch; if ``stored``, some may never have existed."""

    def __len__(self) -> int:
        return len(self.timers) + len(self.gone) + len(self.new) + len(self.removed)


class TimerQueue:
    """The timers of one service in one time domain.

    >>> from holdfast.state.store.ordered import SortedMemory
    >>> from holdfast.state.timers.timer_family import TimerFamily
    >>> timers = TimerFamily(1, SortedMemory(), lambda keys: [0] * len(keys))
    >>> timers.register(20, "b"); timers.register(10, "a"); timers.register(10, "a")
    >>> list(timers.due(15)), list(timers.due(30))
    ([(10, 'a')], [(20, 'b')])
    """

    def __init__(self, store: TimerStore, bound: int = UNBOUNDED) -> None:
        """``bound``: approximate limit of timers in memory between epochs."""
        self._store = store
        self._bound = bound
        self._buckets: dict[int, _Bucket] = {}
        self._order: list[int] = []
        """Heap of bucket numbers; may contain numbers of removed buckets."""
        self._active = -(1 << 62)
        """Buckets up to this number are active: all their timers are in the wheel."""
        self._wheel = TimingWheel()
        """The timers of the active buckets, and some of the bucket being loaded."""
        self._reached = -(1 << 62)
        """The tick that time has reached."""
        self._loading: tuple[int, Iterator[None]] | None = None
        """The next bucket while it is loaded into the wheel, and the remaining steps."""
        self._active_stored: set[int] = set()
        """Active buckets with timers in the store, some of which may have fired."""

    def __bool__(self) -> bool:
        """Whether there are timers. A stored bucket counts even if all its timers may be deleted."""
        return bool(self._wheel) or any(b.timers or b.new or b.stored for b in self._buckets.values())

    @property
    def in_memory(self) -> int:
        """Approximate number of timers in memory."""
        return len(self._wheel) + sum(map(len, self._buckets.values()))

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
            _check_within(time)
            self._wheel.register(timer)
            return
        bucket = self._buckets.get(number)
        if bucket is None:
            _check_within(time)
            bucket = self._open(number)
        elif bucket.timers and timer in bucket.timers:  # even an empty set would hash the timer
            return
        if bucket.removed and timer in bucket.removed:
            bucket.removed.discard(timer)
            if not bucket.stored:  # in this case, the removed timer exists
                bucket.timers.add(timer)
                return
        bucket.new.add(timer)

    def _open(self, number: int, stored: bool = False) -> _Bucket:
        bucket = self._buckets[number] = _Bucket(stored)
        heappush(self._order, number)
        return bucket

    def delete(self, time: int, owner: Any) -> None:
        """Remove a timer; no error if it is missing."""
        timer = (time, owner)
        number = time >> BUCKET_BITS
        if number <= self._active:
            self._wheel.delete(timer)
            return
        bucket = self._buckets.get(number)
        if bucket is None:
            return
        was_in_wheel = self._is_loading(number) and self._wheel.discard(timer)
        existed = was_in_wheel or bucket.stored
        if timer in bucket.new:
            bucket.new.discard(timer)
            if not existed:
                return
        elif timer in bucket.timers:
            bucket.timers.discard(timer)
        elif not existed:
            return
        bucket.removed.add(timer)

    def _is_loading(self, bucket: int) -> bool:
        """Whether a bucket is being loaded into the wheel, which then has some of its timers before it is active."""
        return self._loading is not None and self._loading[0] == bucket

    def due(self, time: int, prefetch: Callable[[list[Any]], object] = lambda owners: None) -> Iterator[Timer]:
        """Take the timers up to and including ``time`` in order of time, including those registered during the iteration.

        ``prefetch`` receives the owners of many timers before they are yielded, so that one read can load their rows.
        """
        last = time >> BUCKET_BITS
        while True:
            yield from self._wheel.due(time, ((self._active + 1) << _TICKS_BITS) - 1, prefetch)
            number = self._earliest()
            if number is None or number > last:
                self._active = max(self._active, last)
                self._reached = max(self._reached, time >> TICK_BITS)
                self._wheel.tick = max(self._wheel.tick, self._reached)
                return
            self._activate(number)

    def _earliest(self) -> int | None:
        """The number of the earliest inactive bucket."""
        order = self._order
        while order and order[0] not in self._buckets:
            heappop(order)
        return order[0] if order else None

    def _activate(self, number: int) -> None:
        """Make the earliest bucket active."""
        bucket = self._buckets[number]
        new = bucket.new
        count = len(bucket.timers) + len(new)
        # `register` looks only at timers of the bucket in memory.
        surely_new = not (bucket.stored or self._is_loading(number))
        if not surely_new or count > _MANY or count < self._wheel.registered:
            for _ in self._loading_wheel(number) if self._loading is None else self._loading[1]:
                pass
            self._wheel.spread(new)
        else:
            self._wheel.sort([*bucket.timers, *new], ((number + 1) << _TICKS_BITS) - 1)
        self._wheel.record(new, bucket.removed, surely_new=surely_new)
        del self._buckets[number]
        self._loading = None
        self._active = number
        if bucket.stored:
            self._active_stored.add(number)

    def _loading_wheel(self, number: int) -> Iterator[None]:
        """Load a bucket into the wheel in portions, except timers added in the running epoch."""
        bucket = self._buckets[number]
        left = _AT_ONCE
        for stored in self._store.loading(number) if bucket.stored else ():
            stored -= bucket.gone
            stored -= bucket.removed
            self._wheel.spread(stored)
            left -= len(stored)
            if left <= 0:
                yield
                left = _AT_ONCE
        while timers := bucket.timers:
            some = [timers.pop() for _ in range(min(left, len(timers)))]
            self._wheel.spread(some)
            yield
            left = _AT_ONCE

    def _load_ahead(self) -> None:
        """Between epochs: load a portion of the next bucket, once time is in the second half of the current one."""
        number = self._active + 1
        if self._loading is None:
            bucket = self._buckets.get(number)
            middle = (number << _TICKS_BITS) - (1 << _TICKS_BITS >> 1)
            if bucket is None or not middle <= self._reached or not (bucket.stored or len(bucket.timers) > _MANY):
                return
            self._loading = number, self._loading_wheel(number)
        self._load_step(self._loading)

    def _load_step(self, loading: tuple[int, Iterator[None]]) -> None:
        """Load the next portion of a bucket; the last portion activates it."""
        number, steps = loading
        if next(steps, self) is self:
            self._activate(number)

    def _known(self, number: int, bucket: _Bucket) -> set[Timer]:
        """A bucket's timers from earlier epochs; some of those removed in this epoch may be missing."""
        if not bucket.stored:
            return bucket.timers
        timers = self._store.load(number)
        timers -= bucket.gone
        timers |= bucket.timers
        return timers

    def next_time(self) -> int | None:
        """The time of the earliest timer, or the start of its bucket if some of that is stored; None without timers."""
        if (first := self._wheel.earliest()) is not None:
            # Earlier timers of the bucket being loaded may not be in the wheel yet.
            return first if self._loading is None else min(first, self._loading[0] << BUCKET_BITS)
        while (number := self._earliest()) is not None:
            bucket = self._buckets[number]
            if bucket.stored:
                return number << BUCKET_BITS
            if bucket.timers or bucket.new:
                earliest: int = min(map(_time_of, bucket.timers | bucket.new))
                return earliest
            if bucket.removed:  # the delta must still record the removals
                break
            del self._buckets[number]
        held = [number for number, b in self._buckets.items() if b.timers or b.new or b.stored]
        return min(held) << BUCKET_BITS if held else None

    def last_time(self) -> int:
        """An upper limit of all timers' times; MIN_TIMESTAMP without timers."""
        latest = self._wheel.latest()
        for number, bucket in self._buckets.items():
            if bucket.stored:
                latest = max(latest, ((number + 1) << BUCKET_BITS) - 1)
            else:
                latest = max(latest, max(map(_time_of, bucket.timers | bucket.new), default=MIN_TIMESTAMP))
        return latest

    def later(self, time: int) -> Iterator[list[Timer]]:
        """The timers after ``time``, in portions; epochs may run between two portions.

        Timers set meanwhile may be missing, and those whose bucket time reaches meanwhile.
        """
        yield from map(list, _parts([timer for timer in self._wheel if timer[0] > time]))
        for number in sorted(number for number in self._buckets if number >= time >> BUCKET_BITS):
            bucket = self._buckets.get(number)
            if bucket is None:
                continue
            yield from map(list, _parts([timer for timer in (*bucket.timers, *bucket.new) if timer[0] > time]))
            for stored in self._store.loading(number) if bucket.stored else ():
                if self._buckets.get(number) is not bucket or self._is_loading(number):
                    break
                pending = stored - bucket.gone - bucket.removed - bucket.timers
                yield from map(list, _parts([timer for timer in pending if timer[0] > time]))

    # from epoch to epoch

    def drain(self) -> list[tuple[Collection[Timer], Collection[Timer]]]:
        """At the barrier: drain the timers that this epoch added and those it removed, by bucket.

        They may include timers that exist already, and removals of timers that never existed.

        The queue keeps the collections: use them before the next call.
        """
        changed = self._wheel.drain()
        drained = [changed] if changed[0] or changed[1] else []
        for bucket in self._buckets.values():
            if bucket.new or bucket.removed:
                drained.append((bucket.new, bucket.removed))
                if bucket.stored:
                    bucket.gone |= bucket.removed
                if bucket.timers:
                    bucket.timers |= bucket.new
                else:
                    bucket.timers = bucket.new
                bucket.new, bucket.removed = set(), set()
        return drained

    def replay(self, added: Iterable[Timer], removed: Iterable[Timer]) -> None:
        """Apply changes of a completed epoch (in a restore). `drain` must follow."""
        for time, owner in removed:
            self.delete(time, owner)
        for time, owner in added:
            self.register(time, owner)

    def all(self) -> Iterator[Timer]:
        """All timers, including those in the store."""
        yield from self._wheel
        for number, bucket in self._buckets.items():
            timers = self._known(number, bucket) - bucket.removed | bucket.new
            yield from timers.difference(self._wheel) if self._is_loading(number) else timers

    # the local store

    def opened(self) -> None:
        """Open the store with a checkpoint's timers; a bucket stays there until time reaches it."""
        for number in self._store.buckets():
            self.mark_stored(number)

    def holds(self, number: int) -> bool:
        """Whether a bucket after the active ones may have timers."""
        return number in self._buckets

    def mark_stored(self, number: int) -> None:
        """Record that the store holds timers of a bucket (in a restore)."""
        if number not in self._buckets:
            self._open(number, stored=True)

    def completed(self) -> None:
        """Complete the last drained epoch: late buckets may leave memory, fired ones the store; the next may be loaded.

        Called between epochs, before the next one registers timers.
        """
        self._drop_fired()
        self._load_ahead()
        excess = self.in_memory - self._bound
        if excess <= 0:
            return
        excess = max(excess, _AT_ONCE)
        for number in sorted(self._buckets, reverse=True):
            if self._is_loading(number):
                break
            bucket = self._buckets[number]
            held = len(bucket)
            self._move_out(number, bucket, set(islice(bucket.timers, excess)))
            excess -= held - len(bucket)
            if excess <= 0:
                break

    def flush(self) -> None:
        """Write the checkpointed timers to the store (between epochs)."""
        for _ in self.flushing():
            pass

    def flushing(self) -> Iterator[None]:
        """Write the timers that are checkpointed now to the store, in portions; epochs may run between two portions.

        The changes of those epochs are in their deltas, so at the end the store may have them or not.
        """
        while self._loading is not None:  # so that a bucket is in the wheel completely, or not at all
            self._load_step(self._loading)
            if self._loading is not None:
                yield
        self._drop_fired()
        active = {number: list[Timer]() for number in self._active_stored} | self._wheel.by_bucket(BUCKET_BITS)
        buckets = [(number, each, list(each.timers), each.gone - each.timers) for number, each in self._buckets.items()]
        left = _AT_ONCE
        for number, timers in active.items():
            for stored in self._store.replacing(number, _parts(timers)):
                self._active_stored.add(number)  # all of these timers may fire before the end
                left -= stored
                if left <= 0:
                    yield
                    left = _AT_ONCE
            if not timers:
                self._active_stored.discard(number)
        for number, bucket, timers, gone in buckets:
            for part in _parts(timers) if timers else [[]] if gone else []:
                if loading := self._is_loading(number):  # some of these timers may have moved to the wheel
                    part = [timer for timer in part if timer in self._wheel or timer in bucket.timers]
                if loading or self._buckets.get(number) is not bucket:
                    self._store.write(number, part, gone)
                    self._active_stored.add(number)
                else:
                    self._move_out(number, bucket, bucket.timers.intersection(part))
                left -= len(part)
                if left <= 0:
                    yield
                    left = _AT_ONCE

    def _move_out(self, number: int, bucket: _Bucket, leaving: set[Timer]) -> None:
        """Move some of a bucket's timers to the store."""
        gone = bucket.gone - bucket.timers
        if leaving or gone:
            self._store.write(number, leaving, gone)
            bucket.stored = True
            bucket.timers -= leaving
        bucket.gone = set()

    def _drop_fired(self) -> None:
        """Remove stored buckets whose timers have all fired."""
        if not self._active_stored:
            return
        earliest = self._wheel.earliest()
        first = self._active + 1 if earliest is None else earliest >> BUCKET_BITS
        fired = {number for number in self._active_stored if number < first}
        for number in fired:
            self._store.drop(number)
        self._active_stored -= fired


def _parts(timers: Sequence[Timer]) -> Iterator[Sequence[Timer]]:
    """Split timers into the portions that are written together."""
    return (timers[at : at + _AT_ONCE] for at in range(0, len(timers), _AT_ONCE))


def _whole(time: Any) -> int:
    try:
        return operator.index(time)
    except TypeError:
        raise TypeError(f"a timer's time must be an integer, in ms since the epoch; got {time!r:.80}") from None


def _check_within(time: int) -> None:
    if not -_END <= time >> BUCKET_BITS < _END:
        raise ValueError(f"a timer's time, in ms since the epoch, must fit into 64 bits; got {time}")
