"""SplitMerge: reads a source's splits in event-time order and generates their watermarks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.connectors.base import Batch, SourceReader, SplitRange
from holdfast.runtime.event_time import Deadline, LateRecords, Run, SplitTime, combined, watermark_behind
from holdfast.runtime.records import whole_timestamps
from holdfast.runtime.task_messages import SourceAssignment
from holdfast.runtime.user_code import OperatorName, user_error

__all__ = ["SplitMerge"]


@dataclass
class _OpenRange:
    part: SplitRange
    batches: Iterator[Batch]


class SplitMerge:
    """Reads the epoch of a source subtask, always from the split with the lowest event time.

    So no split runs ahead of the others, and an hour of backlog in one epoch gives the same results as a live hour.
    """

    def __init__(
        self,
        reader: SourceReader,
        assignment: SourceAssignment,
        strategy: Any,
        deadlines: Sequence[Deadline],
        now: int,
        max_batch: int,
        source: OperatorName,
    ) -> None:
        """``deadlines``: those of the operators downstream."""
        self._reader = reader
        self._assignment = assignment
        self._assign = strategy.timestamp_assigner
        self._delay: int | None = strategy.max_out_of_orderness_ms
        self._late = LateRecords(self._delay, deadlines)
        self._idle_timeout: int | None = strategy.idle_timeout_ms
        self._now = now
        self._max_batch = max_batch
        self._source = source
        self.splits = {name: SplitTime(s.max_timestamp, s.last_active) for name, s in assignment.splits.items()}
        self.watermark = assignment.watermark
        self.read_seconds = 0.0

    def batches(self) -> Iterator[tuple[Batch, list[int] | None, list[Run], int]]:
        """Yield each batch with its timestamps, its late records, and the watermark behind it."""
        waiting: dict[str, list[SplitRange]] = {}
        for part in self._assignment.ranges:
            self.splits.setdefault(part.split, SplitTime(last_active=self._now))
            waiting.setdefault(part.split, []).append(part)
        clock = time.perf_counter
        open_ranges: list[_OpenRange] = []
        for name in waiting:
            self._next_range(name, waiting, open_ranges)
        while open_ranges:
            current = open_ranges[0]
            if len(open_ranges) > 1:
                current = min(open_ranges, key=lambda each: self.splits[each.part.split].max_timestamp)
            started = clock()
            batch = next(current.batches, None)
            self.read_seconds += clock() - started
            if batch is None:
                open_ranges.remove(current)
                if current.part.last:
                    self.splits.pop(current.part.split, None)
                self._next_range(current.part.split, waiting, open_ranges)
                continue
            if not batch.values:
                continue
            timestamps = self._timestamps(batch)
            split = self.splits[current.part.split]
            split.last_active = self._now
            late: list[Run] = []
            if timestamps is not None:
                late = self._late.find(timestamps, split.max_timestamp)
                split.max_timestamp = max(split.max_timestamp, max(timestamps))
            yield batch, timestamps, late, self._advance()
        if self._assignment.finished:
            self.watermark = MAX_TIMESTAMP
        else:
            self._advance()

    def _next_range(self, name: str, waiting: dict[str, list[SplitRange]], open_ranges: list[_OpenRange]) -> None:
        queue = waiting[name]
        while queue:
            part = queue.pop(0)
            if part.start != part.end:
                open_ranges.append(_OpenRange(part, self._reader.read(part, self._max_batch)))
                return
            if part.last:
                self.splits.pop(part.split, None)

    def _timestamps(self, batch: Batch) -> list[int] | None:
        assign = self._assign
        if assign is None:
            return batch.timestamps
        try:
            if batch.timestamps is None:
                return whole_timestamps([assign(value, MIN_TIMESTAMP) for value in batch.values])
            return whole_timestamps([assign(value, stamp) for value, stamp in zip(batch.values, batch.timestamps)])
        except Exception:
            self._blame(batch)
            raise

    def _blame(self, batch: Batch) -> None:
        """Find the record that the timestamp assigner fails on."""
        stamps = batch.timestamps or [MIN_TIMESTAMP] * len(batch.values)
        for position, (value, stamp) in enumerate(zip(batch.values, stamps)):
            try:
                whole_timestamps([self._assign(value, stamp)])
            except Exception as error:
                failure = user_error(error, *self._source, value)
                raise with_location(failure, batch.locate(position)) from error

    def _advance(self) -> int:
        """The watermark: the minimum over the splits, idle ones left out; it never goes back."""
        if self._delay is None or self.watermark == MAX_TIMESTAMP:
            return self.watermark
        lowest = combined((split.max_timestamp, self._is_idle(split)) for split in self.splits.values())
        if lowest > MIN_TIMESTAMP:
            self.watermark = max(self.watermark, watermark_behind(lowest, self._delay))
        return self.watermark

    def _is_idle(self, split: SplitTime) -> bool:
        return split.idle_from(self._idle_timeout) <= self._now

    @property
    def idle(self) -> bool:
        """Whether all splits are idle, or there are none."""
        if self.watermark == MAX_TIMESTAMP:
            return False
        return all(self._is_idle(split) for split in self.splits.values())


def with_location(error: Any, location: str) -> Any:
    """Add the origin of its record to a user's error."""
    if error.record:
        return error
    error.record = location
    error.args = (f"{error.args[0]}\n  record: {location}",)
    return error
