"""Which records are late: a rule that gives the same answer however the input is cut into batches, frames and epochs.

A record is late for a window when the watermark of its own split, as it stands before the record, has passed the window.
That depends on the split alone; the watermark that a task has reached depends on how the records of its splits fall into
epochs. The generator of watermarks finds these records, and their lateness travels with them through chains and frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.runtime.plan import JobPlan, Vertex

__all__ = ["Deadline", "LateRecords", "Run", "deadlines", "pieces"]

Deadline = Callable[[int], int]
"""Timestamp of a record -> the watermark from which on the record is late. Never falls as timestamps rise, and is not more
than 1 less than they are."""

Run = tuple[int, int, int]
"""The first of some successive late records, the end of them, and the watermark of their split before them."""


def deadlines(plan: JobPlan, vertex: Vertex, positions: Sequence[int], channels: Sequence[int]) -> tuple[Deadline, ...]:
    """Those of all operators that drop late records behind these positions of a chain and behind these vertices.

    Other generators of watermarks end the search: what comes behind them lives in their time.
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
        """The late records among the next ones of a split, whose highest timestamp so far is ``highest``."""
        if self._behind is None:
            return []
        behind = self._behind
        lowest, last = min(timestamps), max(highest, max(timestamps)) - behind
        if lowest > last + 1 or self._deadline(lowest) > last:  # none is so far behind the last of them: the usual case
            return []
        runs: list[Run] = []
        for position, timestamp in enumerate(timestamps):
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
    """All of ``count`` records in order: those between the late ones with the least watermark.

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
