"""The program of `benchmarks.width`; a module of its own, as a user's would be: task slots import it and what it needs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from benchmarks import jobs
from benchmarks.lone import Count
from holdfast.common import WatermarkStrategy
from holdfast.connectors.base import Batch, EpochInput, JobInfo, ReaderContext, SplitRange
from holdfast.datastream import StreamExecutionEnvironment

RECORDS = 10
"""Records of a subtask in an epoch."""
PARALLELISM = 1024
"""The max parallelism of the job: more than any width."""


class Splits:
    """A source with one split per subtask, and records in each of them in every epoch."""

    bounded = True

    def __init__(self, width: int, epochs: int) -> None:
        self.width = width
        self.epochs = epochs

    def create_enumerator(self, job: JobInfo, uid: str) -> _SplitsEnumerator:
        return _SplitsEnumerator(self.width, self.epochs)

    def create_reader(self, context: ReaderContext) -> _SplitsReader:
        return _SplitsReader(self.width)


class _SplitsEnumerator:
    def __init__(self, width: int, epochs: int) -> None:
        self._width = width
        self._epochs = epochs
        self._next = 0

    def start(self, state: Any | None) -> None:
        self._next = state or 0

    def plan(self, max_records: int) -> EpochInput:
        epoch, self._next = self._next, self._next + 1
        ranges = [SplitRange(f"split-{n}", epoch, epoch + 1, RECORDS) for n in range(self._width)]
        return EpochInput(tuple(ranges), finished=self._next >= self._epochs)

    def snapshot(self) -> int:
        return self._next

    def checkpoint_completed(self, checkpoint_id: int, state: Any) -> None:
        pass

    def wait(self, timeout: float) -> None:
        time.sleep(timeout)

    def close(self) -> None:
        pass


class _SplitsReader:
    def __init__(self, width: int) -> None:
        self._width = width

    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch]:
        first = (part.start * self._width + int(part.split.removeprefix("split-"))) * RECORDS
        yield Batch([first + n for n in range(RECORDS)])

    def close(self) -> None:
        pass


def declare(env: StreamExecutionEnvironment, width: int, epochs: int) -> None:
    """Declare the job: a source and a keyed count, with ``width`` subtasks each."""
    env.set_parallelism(width)
    env.set_max_parallelism(PARALLELISM)
    records = env.from_source(Splits(width, epochs), WatermarkStrategy.no_watermarks(), "splits")
    records.key_by(lambda n: n % (RECORDS * width)).process(Count()).sink_to(jobs.Discard())
