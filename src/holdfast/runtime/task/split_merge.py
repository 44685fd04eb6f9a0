"""SplitMerge: reads a source's splits in event-time order and generates their watermarks."""

from __future__ import annotations

import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.common.formats.columns import latest
from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.connectors.base import Batch, SourceReader, SplitRange
from holdfast.errors import UserCodeError
from holdfast.runtime.plan.event_time import (
    CombinedTime,
    Deadline,
    GeneratorState,
    LateRecords,
    Run,
    SplitTime,
    watermark_behind,
)
from holdfast.runtime.plan.task_messages import SourceAssignment
from holdfast.runtime.records.getters import getter
from holdfast.runtime.records.records import read_timestamps, whole_timestamps
from holdfast.runtime.records.user_code import OperatorName, user_error
from holdfast.runtime.task.generated_watermarks import GeneratedWatermarks

__all__ = ["SplitMerge"]


@dataclass
class _OpenRange:
    part: SplitRange
    batches: Iterator[Batch]
    order: int
    """The number of this range, in order of opening."""


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
        watermark_interval: int = 0,
    ) -> None:
        """``deadlines``: those of downstream operators. ``watermark_interval``: in ms; 0 for no periodic watermarks."""
        self._reader = reader
        self._assignment = assignment
        self._assign = strategy.timestamp_assigner
        self._read = getter(self._assign, 2)
        self._delay: int | None = strategy.max_out_of_orderness_ms
        self._late = LateRecords(self._delay, deadlines)
        self._now = now
        self._max_batch = max_batch
        self._source = source
        self._interval = watermark_interval
        self.splits = {name: SplitTime(s.max_timestamp, s.idle) for name, s in assignment.splits.items()}
        self._generators: _Generators | None = None
        if strategy.generator_supplier is not None:
            self._generators = _Generators(strategy.generator_supplier, assignment.splits, source, deadlines)
        self.watermark = assignment.watermark
        self.read_seconds = 0.0

    def batches(self) -> Iterator[tuple[Batch, list[int] | None, list[Run], int]]:
        """Yield each batch with its timestamps, its late records, and the watermark after it."""
        waiting: dict[str, deque[SplitRange]] = {}
        for part in self._assignment.ranges:
            self.splits.setdefault(part.split, SplitTime(part.since))
            waiting.setdefault(part.split, deque()).append(part)
        times = CombinedTime()
        for name in self.splits:
            times.put(name, *self._time(name))
        clock = time.perf_counter
        opened = itertools.count()
        # A split's event time changes only when it is read. Of several equal ones, the range opened first comes first.
        ranges: list[tuple[tuple[int, int], int, _OpenRange]] = []
        for name in waiting:
            self._next_range(name, waiting[name], ranges, opened, times)
        while ranges:
            current = ranges[0][2]
            split = current.part.split
            started = clock()
            batch = next(current.batches, None)
            self.read_seconds += clock() - started
            if batch is None:
                heapq.heappop(ranges)
                if current.part.last:
                    self._end(split, times)
                self._next_range(split, waiting[split], ranges, opened, times)
                continue
            if not batch.values:
                continue
            timestamps = self._timestamps(batch)
            late = self._observe(split, batch, timestamps)
            heapq.heapreplace(ranges, (self._event_time(split), current.order, current))
            times.put(split, *self._time(split))
            yield batch, timestamps, late, self._advance(times)
            batch = timestamps = None  # free the memory for the next batch
        if self._generators is not None:
            self._generators.end_epoch(self.splits, periodic=self._interval > 0)
            for name in self.splits:
                times.put(name, *self._time(name))
        if self._assignment.finished:
            self.watermark = MAX_TIMESTAMP
        else:
            self._advance(times)

    def _observe(self, name: str, batch: Batch, timestamps: list[int] | None) -> list[Run]:
        """Update a split's time from a batch; returns the late records."""
        split = self.splits[name]
        split.idle, split.heard = False, True
        late: list[Run] = []
        if self._generators is not None:
            late = self._generators.observe(name, batch, timestamps, periodic=self._interval > 0)
        elif timestamps is not None:
            late = self._late.find(timestamps, split.max_timestamp)
        if timestamps is not None:
            split.max_timestamp = max(split.max_timestamp, latest(timestamps))
        return late

    def _event_time(self, name: str) -> tuple[int, int]:
        """A split's position in event time, which determines the order of reading."""
        watermark = 0 if self._generators is None else self._generators[name].watermark
        return watermark, self.splits[name].max_timestamp

    def _next_range(
        self, name: str, queue: deque[SplitRange], ranges: list[Any], opened: Iterator[int], times: CombinedTime
    ) -> None:
        while queue:
            part = queue.popleft()
            if part.start != part.end:
                current = _OpenRange(part, self._reader.read(part, self._max_batch), next(opened))
                heapq.heappush(ranges, (self._event_time(name), current.order, current))
                return
            if part.last:
                self._end(name, times)

    def _end(self, name: str, times: CombinedTime) -> None:
        """The split has ended."""
        self.splits.pop(name, None)
        times.remove(name)

    def _timestamps(self, batch: Batch) -> list[int] | None:
        assign = self._assign
        if assign is None:
            return batch.timestamps
        read = read_timestamps(assign, batch.values, self._read)
        if read is not None:
            return read
        try:
            if batch.timestamps is None:
                return whole_timestamps([assign(value, MIN_TIMESTAMP) for value in batch.values])
            return whole_timestamps([assign(value, stamp) for value, stamp in zip(batch.values, batch.timestamps)])
        except Exception:
            self._blame(batch)
            raise

    def _blame(self, batch: Batch) -> None:
        """Find the record on which the timestamp assigner fails."""
        stamps = batch.timestamps or [MIN_TIMESTAMP] * len(batch.values)
        for position, (value, stamp) in enumerate(zip(batch.values, stamps)):
            try:
                whole_timestamps([self._assign(value, stamp)])
            except Exception as error:
                failure = user_error(error, *self._source, value)
                raise with_location(failure, batch.locate(position)) from error

    def _advance(self, times: CombinedTime) -> int:
        """The watermark: the minimum over the splits that are not idle; it never goes back."""
        if self.watermark == MAX_TIMESTAMP:
            return self.watermark
        if self._generators is not None:
            self.watermark = max(self.watermark, times.combined())
        elif self._delay is not None:
            lowest = times.combined()
            if lowest > MIN_TIMESTAMP:
                self.watermark = max(self.watermark, watermark_behind(lowest, self._delay))
        return self.watermark

    def _time(self, name: str) -> tuple[int, bool]:
        """A split's contribution to the watermark, and whether it is idle."""
        if self._generators is None:
            return self.splits[name].max_timestamp, self.splits[name].idle
        return self._generators[name].watermark, self._is_idle(name)

    def _is_idle(self, name: str) -> bool:
        if self._generators is not None and self._generators[name].idle:
            return True
        return self.splits[name].idle

    @property
    def idle(self) -> bool:
        """Whether all splits are idle, or there are none."""
        if self.watermark == MAX_TIMESTAMP:
            return False
        return all(self._is_idle(name) for name in self.splits)

    @property
    def next_processing_time(self) -> int | None:
        """The processing time, in ms, at which to call a user's generator without input; None: never."""
        if self._generators is None or self._assignment.finished:
            return None
        times = [self._generators[name].next_call(self._now, self._interval) for name in self.splits]
        return min((time for time in times if time is not None), default=None)


class _Generators:
    """A user's generators, one for each split."""

    def __init__(
        self,
        supplier: Callable[[], Any],
        splits: Mapping[str, SplitTime],
        source: OperatorName,
        deadlines: Sequence[Deadline],
    ) -> None:
        self._arguments = supplier, source, deadlines
        self._by_split = {name: self._make(time.generated) for name, time in splits.items()}

    def _make(self, stored: GeneratorState | None) -> GeneratedWatermarks:
        supplier, source, deadlines = self._arguments
        return GeneratedWatermarks(supplier, stored, source, deadlines)

    def __getitem__(self, name: str) -> GeneratedWatermarks:
        if name not in self._by_split:
            self._by_split[name] = self._make(None)
        return self._by_split[name]

    def observe(self, name: str, batch: Batch, timestamps: list[int] | None, *, periodic: bool) -> list[Run]:
        """Pass a batch of a split to its generator; returns the late records."""
        generator = self[name]
        try:
            late = generator.observe(batch.values, timestamps or [MIN_TIMESTAMP] * len(batch.values))
        except UserCodeError as error:
            raise with_location(error, batch.locate(generator.failed_at)) from error.__cause__
        if periodic:
            generator.emit_periodically()
        return late

    def end_epoch(self, splits: Mapping[str, SplitTime], *, periodic: bool) -> None:
        """Call the generators for the last time in the epoch, and store their states in ``splits``."""
        for name, split in splits.items():
            if periodic:
                self[name].emit_periodically()
            split.generated = self[name].state()


def with_location(error: Any, location: str) -> Any:
    """Add the origin of its record to a user's error."""
    if error.record:
        return error
    error.record = location
    error.args = (f"{error.args[0]}\n  record: {location}",)
    return error
