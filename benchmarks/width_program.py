"""The program of `benchmarks.width`; a module of its own, as a user's would be: task slots import it and what it needs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from benchmarks import jobs
from benchmarks.lone import Count
from holdfast.common import TimestampAssigner, WatermarkStrategy
from holdfast.connectors.base import Batch, EpochInput, JobInfo, ReaderContext, SplitRange
from holdfast.datastream import StreamExecutionEnvironment

RECORDS = 10
"""Records of a subtask in an epoch, or one of each of its splits if there are more of these."""
PARALLELISM = 1024
"""The max parallelism of the job: more than any width."""


class Splits:
    """A source with some splits for each subtask, and a few records in each of them in every epoch.

    What it stores is as large as what `KafkaSource` stores of as many partitions.
    """

    bounded = True

    def __init__(self, width: int, epochs: int, each: int) -> None:
        self.splits = width * each
        self.records = max(RECORDS // each, 1)
        self.epochs = epochs

    def create_enumerator(self, job: JobInfo, uid: str) -> _SplitsEnumerator:
        return _SplitsEnumerator(self)

    def create_reader(self, context: ReaderContext) -> _SplitsReader:
        return _SplitsReader(self)


class _SplitsEnumerator:
    def __init__(self, source: Splits) -> None:
        self._records = source.records
        self._epochs = source.epochs
        self._names = [f"payments-{n}" for n in range(source.splits)]
        self._next = 0

    def start(self, state: Any | None) -> None:
        self._next = 0 if state is None else state["partitions"][0][2]

    def plan(self, max_records: int) -> EpochInput:
        epoch, self._next = self._next, self._next + 1
        ranges = [SplitRange(name, epoch, epoch + 1, self._records) for name in self._names]
        return EpochInput(tuple(ranges), finished=self._next >= self._epochs)

    def snapshot(self) -> Any:
        return {
            "version": 1,
            "partitions": [["payments", n, self._next, -1, True, False, 7] for n in range(len(self._names))],
        }

    def checkpoint_completed(self, checkpoint_id: int, state: Any) -> None:
        pass

    def wait(self, timeout: float) -> None:
        time.sleep(timeout)

    def close(self) -> None:
        pass


class _SplitsReader:
    def __init__(self, source: Splits) -> None:
        self._splits, self._records = source.splits, source.records

    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch]:
        first = (part.start * self._splits + int(part.split.removeprefix("payments-"))) * self._records
        yield Batch([first + n for n in range(self._records)])

    def close(self) -> None:
        pass


class _Number(TimestampAssigner):
    def extract_timestamp(self, value: int, record_timestamp: int) -> int:
        return value


def declare(env: StreamExecutionEnvironment, width: int, epochs: int, splits: int = 1) -> None:
    """Declare the job: a source with event time, ``splits`` for each subtask, and a keyed count; both ``width`` wide."""
    env.set_parallelism(width)
    env.set_max_parallelism(PARALLELISM)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(_Number())
    records = env.from_source(Splits(width, epochs, splits), strategy, "splits")
    records.key_by(lambda n: n % (RECORDS * width)).process(Count()).sink_to(jobs.Discard())
