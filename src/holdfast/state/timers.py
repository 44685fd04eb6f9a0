"""Timers: one per key and time, kept until time reaches them.

Pending timers lie unsorted in coarse buckets of time; only the bucket that time is in is sorted. So registering costs
a set insertion whatever their number. What was added and removed in an epoch goes into its delta.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any

import msgspec

from holdfast.state.key_codec import decode_keys, encode_keys

__all__ = ["TimerQueue"]

Timer = tuple[int, Any]

_SHIFT = 16
"""A bucket holds 2**16 ms: about a minute."""
_END = 1 << (63 - _SHIFT)
"""The bucket after the last."""

_time_of = operator.itemgetter(0)

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


def _earliest_last(timer: Timer) -> int:
    return -timer[0]


def _whole(time: Any) -> int:
    try:
        return operator.index(time)
    except TypeError:
        raise TypeError(f"a timer's time must be a whole number, in ms since the epoch; got {time!r:.80}") from None


def _beyond(time: int) -> ValueError:
    return ValueError(f"a timer's time is in ms since the epoch, in 64 bits; got {time}")


class TimerQueue:
    """The timers of one operator in one time domain.

    >>> timers = TimerQueue()
    >>> timers.register(20, "b"); timers.register(10, "a"); timers.register(10, "a")
    >>> list(timers.due(15)), list(timers.due(30))
    ([(10, 'a')], [(20, 'b')])
    """

    def __init__(self) -> None:
        self._buckets: dict[int, set[Timer]] = {}
        self._active = -(1 << 62)
        """Buckets up to this one are in the run and the heap."""
        self._run: list[Timer] = []
        """Timers of these buckets, sorted once by time, the earliest last."""
        self._heap: list[tuple[int, int, Any]] = []
        """Timers that were registered in these buckets later."""
        self._live: set[Timer] = set()
        """The timers of both that still count (a deleted one stays until time passes it)."""
        self._count = 0
        self._added: set[Timer] = set()
        self._removed: set[Timer] = set()

    def __len__(self) -> int:
        return len(self._live) + sum(map(len, self._buckets.values()))

    def register(self, time: int, key: Any) -> None:
        """Set a timer; setting it again changes nothing.

        Raises:
            TypeError: the time is not a whole number.
            ValueError: it does not fit into 64 bits.
        """
        if type(time) is not int:
            time = _whole(time)
        timer = (time, key)
        bucket = time >> _SHIFT
        if bucket <= self._active:
            if timer in self._live:
                return
            if bucket < -_END:
                raise _beyond(time)
            self._live.add(timer)
            self._count += 1
            heappush(self._heap, (time, self._count, key))
        else:
            pending = self._buckets.get(bucket)
            if pending is None:
                if not -_END <= bucket < _END:
                    raise _beyond(time)
                pending = self._buckets[bucket] = set()
            elif timer in pending:
                return
            pending.add(timer)
        if timer in self._removed:
            self._removed.discard(timer)
        else:
            self._added.add(timer)

    def delete(self, time: int, key: Any) -> None:
        """Remove a timer; no error if there is none."""
        timer = (time, key)
        bucket = time >> _SHIFT
        pending = self._live if bucket <= self._active else self._buckets.get(bucket)
        if pending is not None and timer in pending:
            pending.discard(timer)
            self._forget(timer)

    def _forget(self, timer: Timer) -> None:
        if timer in self._added:
            self._added.discard(timer)
        else:
            self._removed.add(timer)

    def due(self, time: int, prefetch: Callable[[list[Any]], object] = lambda keys: None) -> Iterator[Timer]:
        """Take the timers up to and including ``time``, in order of time; also those registered meanwhile.

        ``prefetch`` is called once with the keys of those known at the start, so that their rows come in one read.
        """
        self._activate(time >> _SHIFT)
        run, heap, live = self._run, self._heap, self._live
        known = [entry[2] for entry in heap if entry[0] <= time]
        first = bisect_left(run, -time, key=_earliest_last)
        known.extend([key for _, key in run[first:]])
        if not known:
            return
        prefetch(known)
        while True:
            if run and run[-1][0] <= time and not (heap and heap[0][0] < run[-1][0]):
                timer = run.pop()
            elif heap and heap[0][0] <= time:
                when, _, key = heappop(heap)
                timer = (when, key)
            else:
                return
            if timer in live:
                live.discard(timer)
                self._forget(timer)
                yield timer

    def _activate(self, bucket: int) -> None:
        if bucket <= self._active:
            return
        self._active = bucket
        ready = [b for b in self._buckets if b <= bucket]
        if not ready:
            return
        run = self._run
        for b in ready:
            timers = self._buckets.pop(b)
            run.extend(timers)
            if self._live:
                self._live |= timers
            else:
                self._live = timers
        run.sort(key=_time_of, reverse=True)

    def next_time(self) -> int | None:
        """The time of the earliest timer, None without timers."""
        run, heap, live = self._run, self._heap, self._live
        while heap and (heap[0][0], heap[0][2]) not in live:
            heappop(heap)
        while run and run[-1] not in live:
            run.pop()
        if heap or run:
            return min([entry[0] for entry in heap[:1]] + [entry[0] for entry in run[-1:]])
        if not self._buckets:
            return None
        for bucket in sorted(self._buckets):
            if self._buckets[bucket]:
                return min(when for when, _ in self._buckets[bucket])
            del self._buckets[bucket]
        return None

    def last_time(self) -> int:
        """The time of the latest timer; the least possible without timers."""
        latest = max((when for pending in self._buckets.values() for when, _ in pending), default=-(1 << 63))
        return max(latest, max((when for when, _ in self._live), default=-(1 << 63)))

    def collect(self) -> bytes | None:
        """The barrier: what was added and removed in this epoch, in stored form; None if nothing."""
        if not self._added and not self._removed:
            return None
        parts = []
        for timers in (self._removed, self._added):
            listed = list(timers)
            parts.append(([when for when, _ in listed], encode_keys([key for _, key in listed])))
        self._added, self._removed = set(), set()
        return _pack(parts)

    def apply(self, delta: bytes) -> None:
        """Take over the changes of a completed epoch (a restore)."""
        (removed_times, removed_keys), (added_times, added_keys) = _unpack(delta)
        for when, key in zip(removed_times, decode_keys(removed_keys)):
            self.delete(when, key)
        for when, key in zip(added_times, decode_keys(added_keys)):
            self.register(when, key)
        self._added, self._removed = set(), set()

    def dump(self) -> bytes:
        """All pending timers, in the form that `apply` takes."""
        listed = list(self._live)
        for pending in self._buckets.values():
            listed.extend(pending)
        return _pack([([], encode_keys([])), ([when for when, _ in listed], encode_keys([key for _, key in listed]))])
