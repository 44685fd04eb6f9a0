"""A changelog in memory that keeps Kafka's promises: transactions, read_committed, compaction, lost transactions.

A job writes an epoch while a thread of its own commits the one before, so each method of `Topic` is atomic.
"""

from __future__ import annotations

import functools
import itertools
import random
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from holdfast.checkpoint.changelog import (
    ChangelogSettings,
    Delivered,
    LogRecord,
    LogTruncated,
    Marker,
    MarkerKey,
    Row,
    writer_of,
)
from holdfast.connectors.base import Committable, JobInfo
from holdfast.errors import HoldfastError
from holdfast.state.keys.key_groups import KeyGroupRange

P = ParamSpec("P")
R = TypeVar("R")


def atomic(method: Callable[Concatenate[Topic, P], R]) -> Callable[Concatenate[Topic, P], R]:
    """Run a method of the topic while no other thread runs one."""

    @functools.wraps(method)
    def run(self: Topic, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock:
            return method(self, *args, **kwargs)

    return run


@dataclass
class Entry:
    offset: int
    transaction: int
    key: Any
    content: Any


@dataclass
class Topic:
    """One operator's topic."""

    partitions: int
    random: random.Random
    loses: float
    """The chance that a transaction is gone before it is committed."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    log: dict[int, list[Entry]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    jobs: dict[int, str] = field(default_factory=dict)
    """By transaction: the identity of its job."""
    read: int = 0
    """Records read from it."""
    written: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def __post_init__(self) -> None:
        self.log = {partition: [] for partition in range(self.partitions)}
        self.ends = dict.fromkeys(self.log, 0)

    @atomic
    def begin(self, transaction: int, job: str = "") -> None:
        self.states[transaction] = "open"
        self.jobs[transaction] = job

    @atomic
    def append(self, partition: int, transaction: int, key: Any, content: Any) -> int:
        """Append to an open transaction; returns the record's offset."""
        self.written += 1
        offset = self.ends[partition]
        self.log[partition].append(Entry(offset, transaction, key, content))
        self.ends[partition] = offset + 1
        return offset

    @atomic
    def records(self, partition: int, start: int) -> tuple[list[LogRecord], int]:
        """The committed records from an offset on, and the offset at which a reader goes on."""
        end = self.stable_end(partition)
        if start > end:
            raise LogTruncated
        records = [
            LogRecord(partition, entry.offset, entry.content)
            for entry in self.log[partition]
            if start <= entry.offset < end and self.states[entry.transaction] == "committed"
        ]
        self.read += len(records)
        return records, end

    @atomic
    def settled(self, partition: int) -> bool:
        """Whether no transaction is open."""
        return self.stable_end(partition) == self.ends[partition]

    @atomic
    def abort_all(self, job: str) -> None:
        """Abort the open transactions of a job."""
        for transaction, of in self.jobs.items():
            if of == job:
                self.end(transaction, "aborted")

    @atomic
    def time_out(self) -> None:
        """Abort the open transactions of jobs that have ended."""
        for transaction in self.jobs:
            self.end(transaction, "aborted")

    @atomic
    def stable_end(self, partition: int) -> int:
        open_ = [entry.offset for entry in self.log[partition] if self.states[entry.transaction] == "open"]
        return min(open_, default=self.ends[partition])

    @atomic
    def end(self, transaction: int, outcome: str) -> bool:
        if self.states[transaction] == "open":
            self.states[transaction] = outcome
            for partition in self.log:  # the marker of the transaction's end takes an offset, too
                if any(entry.transaction == transaction for entry in self.log[partition]):
                    self.ends[partition] += 1
        return self.states[transaction] == outcome

    @atomic
    def compact(self) -> None:
        for partition, entries in self.log.items():
            end = self.stable_end(partition)
            latest = {e.key: e.offset for e in entries if e.offset < end and self.states[e.transaction] == "committed"}
            self.log[partition] = [e for e in entries if e.offset >= end or latest.get(e.key) == e.offset]

    @atomic
    def committed(self, groups: KeyGroupRange = KeyGroupRange(0, 1 << 16)) -> dict[bytes, bytes]:  # noqa: B008
        """The rows that a reader of all of it ends with."""
        rows = {each.key: each.value for each in self._contents() if isinstance(each, Row) and each.group in groups}
        return {key: value for key, value in rows.items() if value is not None}

    @atomic
    def markers(self, groups: KeyGroupRange) -> dict[MarkerKey, Marker]:
        """The markers that concern these key groups."""
        markers = dict(each for each in self._contents() if not isinstance(each, Row))
        return {
            key: marker
            for key, marker in markers.items()
            if marker is not None and key.first <= groups.last and groups.first <= key.last
        }

    def _contents(self) -> Iterator[Any]:
        for entries in self.log.values():
            for entry in entries:
                if self.states[entry.transaction] == "committed":
                    yield entry.content


class Broker:
    """All topics."""

    def __init__(self, seed: int = 0, loses: float = 0.0, partitions: int = 3) -> None:
        self.topics: dict[str, Topic] = {}
        self.random = random.Random(seed)
        self.loses = loses
        self.partitions = partitions
        self.numbers = itertools.count()
        self.watch: Callable[[], None] = lambda: None
        """Called when a transaction is prepared, and before and after each commit."""

    def changelog(self, settings: ChangelogSettings, job_name: str, uid: str, max_parallelism: int) -> ModelChangelog:
        """Replaces `holdfast.runtime.task.changelogs.new_changelog`."""
        if uid not in self.topics:
            self.topics[uid] = Topic(self.partitions, self.random, self.loses)
        return ModelChangelog(self, uid, max_parallelism)


@dataclass
class ModelChangelog:
    broker: Broker
    uid: str
    max_parallelism: int

    def validate(self) -> None:
        pass

    def create_committer(self, job: JobInfo, uid: str) -> ModelCommitter:
        return ModelCommitter(self.broker.topics[self.uid], self.broker.watch, job.identity)

    def open(self, job: JobInfo | None, uid: str, subtask: int) -> ModelLog:
        return ModelLog(self.broker, self.broker.topics[self.uid], self.max_parallelism, job)

    def follow(self) -> ModelLog:
        return ModelLog(self.broker, self.broker.topics[self.uid], self.max_parallelism)


class ModelCommitter:
    def __init__(self, topic: Topic, watch: Callable[[], None], job: str) -> None:
        self.topic = topic
        self.job = job
        self.watch = watch

    def recover(self, committables: Sequence[Committable]) -> None:
        for committable in committables:
            if committable.data in self.topic.states:
                self._commit(committable.data)
        self.topic.abort_all(self.job)

    def commit(self, committables: Sequence[Committable]) -> None:
        for committable in committables:
            self.watch()
            if not self._commit(committable.data):
                raise HoldfastError("the transaction is gone")
        self.watch()
        if self.topic.random.random() < 0.5:
            self.topic.compact()

    def _commit(self, transaction: int) -> bool:
        if self.topic.random.random() < self.topic.loses:
            self.topic.end(transaction, "aborted")
        return self.topic.end(transaction, "committed")

    def close(self) -> None:
        pass


class ModelLog:
    tombstone_ms = 86_400_000

    def __init__(self, broker: Broker, topic: Topic, max_parallelism: int, job: JobInfo | None = None) -> None:
        self.topic = topic
        self.id = topic.id
        self._job = "" if job is None else job.identity
        self.writer = "" if job is None else writer_of(job.identity, job.storage_uri)
        self.partitions = topic.partitions
        self._max_parallelism = max_parallelism
        self._numbers = broker.numbers
        self._watch = broker.watch
        self._open: int | None = None
        self._delivered = Delivered({}, {})

    def begin(self, epoch: int, completed: int) -> None:
        assert completed < epoch
        self._abort()

    def _abort(self) -> None:
        if self._open is not None:
            self.topic.end(self._open, "aborted")
            self._open = None

    def _write(self, partition: int, key: Any, content: Any) -> None:
        if self._open is None:
            self._open = next(self._numbers)
            self.topic.begin(self._open, self._job)
            self._delivered = Delivered({}, {})
        offset = self.topic.append(partition, self._open, key, content)
        self._delivered.first.setdefault(partition, offset)  # type: ignore[attr-defined]
        self._delivered.end[partition] = offset + 1  # type: ignore[index]

    def append(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._write(row.group * self.partitions // self._max_parallelism, row.key, row)

    def mark(self, markers: Mapping[MarkerKey, Marker | None]) -> None:
        for key, marker in markers.items():
            self._write(key.partition, key, (key, marker))

    def prepare(self) -> tuple[list[Any], Delivered]:
        if self._open is None:
            return [], Delivered({}, {})
        transaction, self._open = self._open, None
        self._watch()
        return [transaction], self._delivered

    def commit(self, committables: Sequence[Any]) -> None:
        for transaction in committables:
            if transaction in self.topic.states:
                self.topic.end(transaction, "committed")

    def read(self, starts: Mapping[int, int]) -> Iterator[list[LogRecord]]:
        for partition, start in dict(starts).items():
            records, end = self.topic.records(partition, start)
            for at in range(0, len(records), 7):
                yield records[at : at + 7]
            yield [LogRecord(partition, end - 1, None)]

    def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        return {partition: self.topic.stable_end(partition) for partition in partitions}

    def settled(self, partitions: Iterable[int]) -> bool:
        return all(map(self.topic.settled, partitions))

    def close(self) -> None:
        self._abort()
