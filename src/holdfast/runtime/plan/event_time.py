"""Event time in a task: watermarks and late records.

A record is late for a window if its own split's watermark, just before the record, has passed the window. That depends on
the split alone, so the late records are the same however the input is cut into batches, frames and epochs. (A task's
watermark does depend on the cut.) The watermark generator finds late records; their lateness travels with them through
chains and frames.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.common.formats.columns import numpy, stamp_array
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.runtime.plan.plan import JobPlan, Vertex

__all__ = [
    "CombinedTime",
    "Deadline",
    "GeneratorState",
    "LateRecords",
    "Run",
    "SplitTime",
    "combined",
    "deadlines",
    "pieces",
    "steps",
    "watermark_behind",
]


@dataclass(frozen=True)
class GeneratorState:
    """The state of a user's watermark generator, and its last emitted watermark."""

    attributes: bytes
    """The pickled attributes."""
    watermark: int
    idle: bool


@dataclass
class SplitTime:
    """The state of a split's watermark generator."""

    max_timestamp: int = MIN_TIMESTAMP
    idle: bool = False
    """Whether it had no input for the idle timeout, although it was polled."""
    heard: bool = False
    """Whether it had records in the epoch."""
    generated: GeneratorState | None = None
    """The state of a user's generator; None without one, or before its first call."""

    def watermark(self, delay: int | None) -> int:
        """The split's watermark; ``delay``: the out-of-orderness in ms, None without a built-in generator."""
        if self.generated is not None:
            return self.generated.watermark
        if delay is None or self.max_timestamp == MIN_TIMESTAMP:
            return MIN_TIMESTAMP
        return watermark_behind(self.max_timestamp, delay)

    def plain(self) -> dict[str, Any]:
        """Event time as plain data, for the checkpoint."""
        plain: dict[str, Any] = {"max_timestamp": self.max_timestamp}
        if self.generated is not None:
            plain["generator"] = [self.generated.attributes, self.generated.watermark, self.generated.idle]
        return plain

    @staticmethod
    def of(plain: Mapping[str, Any]) -> SplitTime:
        """Restore `plain` data."""
        generator = plain.get("generator")
        generated = None if generator is None else GeneratorState(*generator)
        return SplitTime(plain["max_timestamp"], generated=generated)


def watermark_behind(max_timestamp: int, delay: int) -> int:
    """The watermark of a generator with bounded out-of-orderness.

    Args:
        max_timestamp: The highest timestamp so far.
        delay: The out-of-orderness, in ms.
    """
    return max_timestamp - delay - 1


def combined(inputs: Iterable[tuple[int, bool]]) -> int:
    """The event time of several inputs: the minimum over the active ones; if all are idle, their maximum.

    Args:
        inputs: The event time of each input, and whether it is idle.

    >>> combined([(70, False), (50, True), (60, False)]), combined([(70, True), (50, True)])
    (60, 70)
    """
    times = list(inputs)
    active = [time for time, idle in times if not idle]
    return min(active, default=max((time for time, _ in times), default=MIN_TIMESTAMP))


class CombinedTime:
    """The event time of all splits (`combined`). Updating one split is cheap, however many there are."""

    def __init__(self) -> None:
        self._splits: dict[str, tuple[int, bool]] = {}
        """Each split's event time, and whether it is idle."""
        self._active: list[tuple[int, str]] = []
        """A heap with each active split once, at one of its earlier or current times. Stale entries are removed at the top.
        """
        self._waiting: set[str] = set()
        """The splits in the heap of active ones."""
        self._idle: list[tuple[int, str]] = []
        """A heap of the idle splits, the latest first. Stale entries are removed at the top."""

    def put(self, name: str, time: int, idle: bool) -> None:
        """Set the time of a split, which never goes back."""
        if self._splits.get(name) == (time, idle):
            return
        self._splits[name] = time, idle
        if idle:
            heapq.heappush(self._idle, (-time, name))
        elif name not in self._waiting:
            self._waiting.add(name)
            heapq.heappush(self._active, (time, name))

    def remove(self, name: str) -> None:
        """Remove a split."""
        self._splits.pop(name, None)

    def combined(self) -> int:
        """See `combined`."""
        splits, active = self._splits, self._active
        while active:
            known, name = active[0]
            time, idle = splits.get(name, (known, True))
            if idle:
                heapq.heappop(active)
                self._waiting.discard(name)
            elif time == known:
                return time
            else:
                heapq.heapreplace(active, (time, name))
        while self._idle:
            negative, name = self._idle[0]
            if splits.get(name) == (-negative, True):
                return -negative
            heapq.heappop(self._idle)
        return MIN_TIMESTAMP


Deadline = Callable[[int], int]
"""Maps a record's timestamp to the first watermark that makes it late; monotonous, at least the timestamp - 1."""

Run = tuple[int, int, int]
"""Consecutive late records: first position, position after the last, and their split's watermark before them."""


def deadlines(plan: JobPlan, vertex: Vertex, positions: Sequence[int], channels: Sequence[int]) -> tuple[Deadline, ...]:
    """The deadlines of all downstream operators that drop late records.

    The search ends at watermark generators: operators downstream of one live in its event time.

    Args:
        plan: The job.
        vertex: The vertex of the chain.
        positions: Where the search begins in the chain.
        channels: The vertices where it begins as well.
    """
    found = []
    vertices = {each.id: each for each in plan.vertices}
    waiting = [(vertex, position) for position in positions] + [(vertices[target], 0) for target in channels]
    seen = set()
    while waiting:
        vertex, position = waiting.pop()
        if (vertex.id, position) in seen:
            continue
        seen.add((vertex.id, position))
        chained = vertex.chain[position]
        if chained.factory.makes_watermarks:
            continue
        deadline = chained.factory.deadline()
        if deadline is not None:
            found.append(deadline)
        waiting += [(vertex, edge.target) for edge in chained.edges]
        waiting += [(vertices[channel.target], 0) for channel in chained.channels]
    return tuple(found)


def steps(timestamps: Sequence[int]) -> Iterator[Run]:
    """Cut the results of advancing event time into runs of equal time; each run comes before the watermark of its time.

    >>> list(steps([9, 9, 19]))
    [(0, 2, 8), (2, 3, 18)]
    """
    first = 0
    for end in range(1, len(timestamps) + 1):
        if end == len(timestamps) or timestamps[end] != timestamps[first]:
            yield first, end, max(timestamps[first] - 1, MIN_TIMESTAMP)
            first = end


_PART = 256
"""Number of records that are compared with their latest one at once. Larger parts span more time, so more records look late.
"""


def _parts(timestamps: Any, highest: int, behind: int) -> Iterator[tuple[int, int, int, int]]:
    """Split timestamps into parts; for columns, only those that may have late records.

    Args:
        timestamps: The timestamps.
        highest: The highest timestamp before them.
        behind: How far the watermark is behind the highest timestamp.

    Returns:
        For each part: the first position, the lowest timestamp, and the highest timestamps before and after the part.
    """
    if isinstance(timestamps, array):  # those of columns
        starts, stamps = range(0, len(timestamps), _PART), stamp_array(timestamps)
        lowest, highs = (bound.reduceat(stamps, starts) for bound in (numpy().minimum, numpy().maximum))
        highs = numpy().maximum.accumulate(numpy().maximum(highs, highest))
        if highs[0] > MIN_TIMESTAMP + behind:
            for part in numpy().flatnonzero(lowest <= highs - behind + 1).tolist():
                yield starts[part], int(lowest[part]), int(highs[part - 1]) if part else highest, int(highs[part])
            return
    for first in range(0, len(timestamps), _PART):
        some = timestamps[first : first + _PART]
        after = max(highest, max(some))
        yield first, min(some), highest, after
        highest = after


class LateRecords:
    """Finds the records of a split that are late by the split's own watermark.

    >>> late = LateRecords(delay=10, deadlines=[lambda timestamp: timestamp - timestamp % 100 + 99])
    >>> late.find([150, 250, 160, 170, 260, 270, 199], highest=120)
    [(2, 4, 239), (6, 7, 259)]
    """

    def __init__(self, delay: int | None, deadlines: Sequence[Deadline]) -> None:
        self._behind = None if delay is None or not deadlines else delay + 1
        self._deadlines = deadlines

    def find(self, timestamps: list[int], highest: int) -> list[Run]:
        """The late ones among a split's next records; ``highest``: the highest timestamp so far."""
        if self._behind is None:
            return []
        behind = self._behind
        runs: list[Run] = []
        for first, lowest, before, after in _parts(timestamps, highest, behind):
            highest, last = before, after - behind
            if lowest > last + 1 or self._deadline(lowest) > last:  # the common case: no record is that far behind
                continue
            for position, timestamp in enumerate(timestamps[first : first + _PART], first):
                if timestamp > highest:
                    highest = timestamp
                elif timestamp <= highest - behind + 1 and self._deadline(timestamp) <= highest - behind:
                    watermark = highest - behind
                    if runs and runs[-1][1:] == (position, watermark):
                        runs[-1] = (runs[-1][0], position + 1, watermark)
                    else:
                        runs.append((position, position + 1, watermark))
        return runs

    def _deadline(self, timestamp: int) -> int:
        return min(deadline(timestamp) for deadline in self._deadlines)


def pieces(count: int, late: Sequence[Run]) -> Iterator[Run]:
    """Cut ``count`` records into runs, in order; runs of records that are in time get the minimum watermark.

    >>> list(pieces(5, [(1, 3, 70)])) == [(0, 1, MIN_TIMESTAMP), (1, 3, 70), (3, 5, MIN_TIMESTAMP)]
    True
    """
    at = 0
    for run in late:
        if at < run[0]:
            yield at, run[0], MIN_TIMESTAMP
        yield run
        at = run[1]
    if at < count:
        yield at, count, MIN_TIMESTAMP
