"""Drives sources and sinks as the runtime does: epochs, snapshots, crashes, restores; without Spark."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from holdfast.checkpoint.metadata import OperatorCheckpoint, SubtaskState
from holdfast.checkpoint.stores.storage import Storage
from holdfast.connectors.base import (
    Batch,
    Committable,
    EpochInput,
    JobInfo,
    ReaderContext,
    Sink,
    SinkWriter,
    Source,
    SplitRange,
    StatefulWriter,
    WriterContext,
)
from holdfast.connectors.file.files import InputFile, LocalFiles
from holdfast.metrics.user import MetricGroup
from holdfast.runtime.operators.writer_states import ListedWriterState
from holdfast.runtime.plan.context import OperatorContext
from holdfast.runtime.plan.listed_states import ListedStates
from holdfast.runtime.plan.redistribution import assigned
from holdfast.runtime.protocol.failures import FailurePolicy, Hopeless
from holdfast.runtime.protocol.restart import ExponentialDelay, Restart
from holdfast.runtime.time.clock import Clock
from holdfast.testing.memory_store import MemoryStore


def local_input(path: Path) -> InputFile:
    files = LocalFiles()
    return InputFile(str(path), files, files.look_up(str(path)).version)


def job_info(
    storage_uri: str | None = None, generation: int = 1, config: Mapping[str, str] = MappingProxyType({})
) -> JobInfo:
    return JobInfo("job-1", "payments", generation, storage_uri, config)


def attempts(failure: BaseException) -> int:
    """The attempts until the job ends, with the default strategy; 20: it goes on."""
    policy = FailurePolicy(ExponentialDelay(), chosen=False)
    for attempt in range(1, 20):
        answer = policy.answer(failure, False, attempt)
        if isinstance(answer, Hopeless):
            return attempt
        assert isinstance(answer, Restart)
    return 20


def stored(data: Any) -> Any:
    """What comes back after a stay in a checkpoint's metadata."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(data))


class SourceRun:
    """A source that runs epoch by epoch; `crash` forgets all but the last completed checkpoint."""

    def __init__(
        self,
        source: Source,
        storage_uri: str | None = None,
        uid: str = "source",
        max_batch: int = 7,
        config: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.source: Source = pickle.loads(pickle.dumps(source))
        self.uid = uid
        self.max_batch = max_batch
        self.config = config
        self.job = job_info(storage_uri, 1, config)
        self.checkpoint = 0
        self.state: Any = None
        self.finished = False
        self.enumerator = self.source.create_enumerator(self.job, uid)
        self.last_input = EpochInput()
        self.finished_splits: set[str] = set()

    def start(self) -> SourceRun:
        self.enumerator.start(self.state)
        return self

    def read(self, part: SplitRange) -> list[Batch]:
        reader = self.source.create_reader(ReaderContext(self.job, self.uid, 0, 1))
        try:
            return list(reader.read(pickle.loads(pickle.dumps(part)), self.max_batch))
        finally:
            reader.close()

    def plan(self, max_records: int) -> dict[str, list[Any]]:
        """Plan an epoch and read it, without completing it: the values by split."""
        self.last_input = self.enumerator.plan(max_records)
        values: dict[str, list[Any]] = {}
        for part in self.last_input.ranges:
            assert part.split not in values, "two ranges of a split in one epoch"
            batches = self.read(part)
            assert all(0 < len(batch.values) <= self.max_batch for batch in batches)
            again = self.read(part)
            # By their text: a damaged number may be a NaN.
            assert [repr(list(b.values)) for b in again] == [repr(list(b.values)) for b in batches], (
                "another reading, other values"
            )
            values[part.split] = [value for batch in batches for value in batch.values]
        return values

    def epoch(self, max_records: int = 10) -> dict[str, list[Any]]:
        """A whole epoch; its checkpoint completes."""
        values = self.plan(max_records)
        for part in self.last_input.ranges:
            assert part.split not in self.finished_splits, "a range after the split's last"
            if part.last:
                self.finished_splits.add(part.split)
        self.state = stored(self.enumerator.snapshot())
        self.checkpoint += 1
        self.finished = self.last_input.finished
        self.enumerator.checkpoint_completed(self.checkpoint, self.state)
        return values

    def crash(self) -> SourceRun:
        """The driver dies; another one goes on from the last completed checkpoint."""
        self.enumerator.close()
        self.job = job_info(self.job.storage_uri, self.job.generation + 1, self.config)
        self.enumerator = self.source.create_enumerator(self.job, self.uid)
        return self.start()

    def run(self, max_records: int = 10, most_epochs: int = 10_000) -> dict[str, list[Any]]:
        """Epochs until the source has finished: all values by split."""
        every: dict[str, list[Any]] = {}
        for _ in range(most_epochs):
            for split, values in self.epoch(max_records).items():
                every.setdefault(split, []).extend(values)
            if self.finished:
                return every
            self.enumerator.wait(1.0)
        raise AssertionError(f"not finished after {most_epochs} epochs")

    def close(self) -> None:
        self.enumerator.close()


def flat(values: dict[str, list[Any]]) -> list[Any]:
    return [value for split in sorted(values) for value in values[split]]


class Crash(Exception):
    """The process dies here."""


class SinkRun:
    """A sink that runs epoch by epoch with some subtasks; ``crash_at`` names where the process dies."""

    CRASH_POINTS = ("written", "prepared", "complete", "half committed", "committed")

    def __init__(
        self,
        sink: Sink,
        storage_uri: str | None = None,
        parallelism: int = 2,
        uid: str = "sink",
        config: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.sink: Sink = pickle.loads(pickle.dumps(sink))
        self.uid = uid
        self.parallelism = parallelism
        self.storage_uri = storage_uri
        self.config = config
        self.generation = 0
        self.attempts = 0
        self.completed = 0
        self.committables: list[Committable] = []
        """Of the last completed checkpoint."""
        self.writers: list[SinkWriter] = []
        self.committers: list[Any] = []
        self.now = 0
        """Processing time, in ms."""
        self.inline_bytes = 0
        self.state: OperatorCheckpoint | None = None
        """The writers' state in the last completed checkpoint."""
        self.store = MemoryStore()
        """Where it is."""
        self.lists: list[ListedStates] = []
        self._numbers = itertools.count()
        self.start()

    def start(self, sink: Sink | None = None) -> None:
        """A driver takes over; ``sink``: of a changed program."""
        if sink is not None:
            self.sink = pickle.loads(pickle.dumps(sink))
        self.generation += 1
        self.job = replace(job_info(self.storage_uri, self.generation, self.config), inline_bytes=self.inline_bytes)
        zombies: list[Any] = [*self.writers, *self.committers]
        self.lists = []
        self.writers = [self._writer(subtask) for subtask in range(self.parallelism)]
        committer = self.sink.create_committer(self.job, self.uid)
        assert committer is not None
        self.committer = committer
        self.committers = [committer]
        try:
            self.committer.recover([Committable(c.uid, c.subtask, stored(c.data)) for c in self.committables])
        finally:
            for zombie in zombies:  # they notice only now that they are dead
                zombie.close()

    def _writer(self, subtask: int) -> SinkWriter:
        stored = None if self.state is None else assigned(self.state, self.parallelism, subtask)
        lists = ListedStates(Storage(self.store), stored)
        self.lists.append(lists)
        names = (self.job, self.uid, self.uid, subtask, self.parallelism, 128)
        state = ListedWriterState(lists, OperatorContext(*names, Clock(), None, MetricGroup()))
        context = WriterContext(self.job, self.uid, subtask, self.parallelism, state=state, now=lambda: self.now)
        return self.sink.create_writer(context)

    def next_commit(self) -> int | None:
        """When output is due without further records."""
        times = [writer.next_commit() for writer in self.writers if isinstance(writer, StatefulWriter)]
        return min((time for time in times if time is not None), default=None)

    def epoch(self, values: Sequence[Sequence[Any]], crash_at: str | None = None, *, ends: bool = False) -> None:
        """Write the values of each subtask in one epoch; ``ends``: it is the last.

        Raises:
            Crash: at the point asked for.
        """
        epoch = self.completed + 1
        self.attempts += 1
        for subtask, writer in enumerate(self.writers):
            writer.begin_epoch(epoch, f"attempt-{self.attempts}-{subtask}", self.completed)
            for i in range(0, len(values[subtask]), 3):
                writer.write(values[subtask][i : i + 3], None)
            if ends and isinstance(writer, StatefulWriter):
                writer.end_input()
        self._point("written", crash_at)
        prepared = [
            Committable(self.uid, subtask, data)
            for subtask, writer in enumerate(self.writers)
            for data in writer.prepare_commit()
        ]
        snapshots = [lists.snapshot(lambda: f"list-{next(self._numbers)}") for lists in self.lists]
        self._point("prepared", crash_at)
        self.completed = epoch
        self.state = OperatorCheckpoint(
            self.uid,
            parallelism=self.parallelism,
            listed=snapshots[0][1],
            subtasks=[SubtaskState([], parts) for parts, _ in snapshots],
        )
        self.committables = [Committable(c.uid, c.subtask, stored(c.data)) for c in prepared]
        self._point("complete", crash_at)
        if crash_at == "half committed":
            self.committer.commit(self.committables[: len(self.committables) // 2])
        self._point("half committed", crash_at)
        self.committer.commit(self.committables)
        self.committer.commit(self.committables)  # an answer was lost
        self._point("committed", crash_at)

    def completes(self, values: Sequence[Sequence[Any]], crash_at: str | None) -> bool:
        """Write an epoch, and have another driver take over if this one dies; whether the checkpoint is complete."""
        before = self.completed
        try:
            self.epoch(values, crash_at)
        except Crash:
            self.start()
        return self.completed > before

    def recover_overtaken(self, values: Sequence[Sequence[Any]]) -> None:
        """A driver that was overtaken before it recovered does so when its successor has died before its first commit."""
        overtaken = self.sink.create_committer(self.job, self.uid)
        assert overtaken is not None
        self.start()
        with pytest.raises(Crash):
            self.epoch(values, crash_at="complete")
        overtaken.recover([])
        overtaken.close()
        self.start()

    @staticmethod
    def _point(point: str, crash_at: str | None) -> None:
        if point == crash_at:
            raise Crash(point)

    def close(self) -> None:
        for writer in self.writers:
            writer.close()
        self.committer.close()


def eventually(condition: Callable[[], Any], epoch: Callable[[], Any] = lambda: None, most: int = 100_000) -> None:
    """Do ``epoch`` again and again until the condition holds."""
    for _ in range(most):
        if condition():
            return
        epoch()
    raise AssertionError("it never came true")
