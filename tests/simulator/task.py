"""The simulated tasks: processes that may fail, hang and wake up later, or run twice."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import msgspec

from holdfast.checkpoint.container import pack, unpack
from holdfast.checkpoint.files import read_file, write_file
from holdfast.checkpoint.handles import ContainedFile, InlineFile
from holdfast.checkpoint.layers import subtask_change
from holdfast.checkpoint.manifests import read_checkpoint
from holdfast.checkpoint.metadata import CheckpointMetadata, KeyedHandle, SubtaskState
from holdfast.checkpoint.paths import new_attempt
from holdfast.connectors.base import Committable, JobInfo, WriterContext
from holdfast.connectors.kafka.sink.writer import TransactionalWriter
from holdfast.errors import HoldfastError
from holdfast.runtime.channels.channels import seen_attempts
from holdfast.runtime.plan.redistribution import assigned
from holdfast.runtime.plan.task_messages import EpochAssignment, OperatorReport, TaskReport
from holdfast.state.keys.key_groups import key_group_range

from .job import CHANNEL, COUNT, READ, SUBTASKS, Input, mine, model
from .kafka import OUTPUT
from .world import Process, World

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode
Frames = tuple[str, list[int]]
"""The attempt that sent them, and the keys of the records."""
Stored = ContainedFile | InlineFile


def read_source(numbers: Input, assignment: EpochAssignment, subtask: int) -> tuple[TaskReport, Frames]:
    """One run of a source task."""
    told = assignment.sources[(READ.id, subtask)]
    report = TaskReport((READ.id, subtask), new_attempt(), watermark=told.watermark)
    report.splits = dict(told.splits)
    keys: list[int] = []
    for part in told.ranges:
        assert part.split in told.splits, "a range of a split whose event time is not known"
        keys += numbers[part.split][part.start : part.end]
        if part.last:
            del report.splits[part.split]
    report.records_in = len(keys)
    return report, (report.attempt, keys)


@dataclass
class Upload:
    """A base or a merged delta, stored in the background: it is in a checkpoint only some epochs after it began."""

    begun: int
    files: list[Stored]
    merged: list[Stored] = field(default_factory=list)
    """The deltas that the one file replaces; empty: the files are a base."""


@dataclass
class Slot:
    """A process that has the state of one keyed subtask, and its writer, from epoch to epoch."""

    world: World
    numbers: Input
    job: JobInfo
    subtask: int
    token: str = ""
    counts: dict[int, int] = field(default_factory=dict)
    stored: KeyedHandle | None = None
    reported: SubtaskState | None = None
    written: int = 0
    """The epoch that ended with this state."""
    upload: Upload | None = None
    writer: TransactionalWriter | None = None

    def run(self, assignment: EpochAssignment, frames: list[Frames], out: list[TaskReport]) -> Process:
        """Run the task; a failure is told in the report."""
        report = TaskReport((COUNT.id, self.subtask), new_attempt())
        try:
            yield from self._run(assignment, frames, report)
        except HoldfastError as error:
            report.error = error
            self.close()
        out.append(report)

    def _run(self, assignment: EpochAssignment, frames: list[Frames], report: TaskReport) -> Process:
        expected = assignment.tokens.get((COUNT.id, self.subtask), "")
        if self.writer is None or self.token != expected:
            self.close()
            self._restore(assignment, expected)
            self.writer = TransactionalWriter(OUTPUT, WriterContext(self.job, "out", self.subtask, SUBTASKS))
        elif expected and self.upload is None and self.world.random.random() < 0.2:
            self._begin_upload(assignment.generation)
        yield
        self.writer.begin_epoch(assignment.epoch, report.attempt, assignment.committed)
        report.seen = {CHANNEL: seen_attempts(attempt for attempt, _ in frames)}
        changed = {}
        for key in itertools.chain.from_iterable(mine(keys, self.subtask) for _, keys in frames):
            self.counts[key] = changed[key] = self.counts.get(key, 0) + 1
            self.writer.write([(key, self.counts[key])], None)
            report.records_in += 1
        yield
        report.committables = [Committable("out", self.subtask, data) for data in self.writer.prepare_commit()]
        yield
        delta = []
        if changed:
            path = self.world.paths.state_file(
                assignment.generation, assignment.epoch, "count", self.subtask, new_attempt(), "delta"
            )
            delta.append(self._write(path, changed))
        yield
        self._snapshot(assignment, delta, report)
        if self.world.random.random() < 0.2:
            report.next_timer = assignment.processing_time  # an epoch without input follows, unless there is some

    def _restore(self, assignment: EpochAssignment, expected: str) -> None:
        """Read the state from the checkpoint that the epoch continues."""
        self.counts, self.stored, self.reported = {}, None, None
        self.token = expected
        if not expected:
            return
        storage = self.world.storage()
        checkpoint = read_checkpoint(storage, self.world.paths, assignment.base)
        self.stored = keyed_state(checkpoint, self.subtask)
        for file in self.stored.handles():
            self.counts.update(self._read(file))
        positions = checkpoint.sources["numbers"].enumerator
        assert self.counts == model(self.numbers, self.subtask, positions), "the restored state is wrong"
        self.written = assignment.base

    def _snapshot(self, assignment: EpochAssignment, delta: list[Stored], report: TaskReport) -> None:
        groups = key_group_range(COUNT.max_parallelism, SUBTASKS, self.subtask)
        old = self.stored or KeyedHandle(groups.first, groups.last)
        deltas = [*old.deltas, *delta]
        base, base_epoch = old.base, old.base_epoch
        if self.upload is not None and self.world.random.random() < 0.5:
            if self.upload.merged:
                at = deltas.index(self.upload.merged[0])
                deltas[at : at + len(self.upload.merged)] = self.upload.files
            else:
                base, base_epoch = self.upload.files, self.upload.begun
                deltas = [d for d in deltas if self._epoch_of(d) > base_epoch]
            self.upload = None
        elif self.upload is not None:
            report.uploading = self.upload.begun
        self.stored = KeyedHandle(groups.first, groups.last, base=base, base_epoch=base_epoch, deltas=deltas)
        self.token, self.written = report.attempt, assignment.epoch
        state = SubtaskState([self.stored])
        report.state[COUNT.chain[0].uid] = OperatorReport(subtask_change(self.reported, state))
        self.reported = state
        self.world.states[report.attempt] = dict(self.counts)

    def _begin_upload(self, generation: int) -> None:
        """Merge some deltas, or materialise the state of the completed epoch."""
        assert self.stored is not None
        older = self.stored.deltas[:-1]
        if len(older) > 1 and self.world.random.random() < 0.7:
            self._begin_merge(generation, older)
        else:
            self._begin_base(generation)

    def _begin_merge(self, generation: int, deltas: list[Stored]) -> None:
        first, end = sorted(self.world.random.sample(range(len(deltas) + 1), 2))
        merged = deltas[first:end]
        counts: dict[int, int] = {}
        for delta in merged:
            counts.update(self._read(delta))
        path = self.world.paths.state_file(generation, self.written, "count", self.subtask, new_attempt(), "delta")
        self.upload = Upload(self.written, [self._write(path, counts)], merged)

    def _begin_base(self, generation: int) -> None:
        """Materialise the state of the completed epoch, sharing the half of the files that did not change."""
        assert self.stored is not None
        shared = [f for f in self.stored.base[:1] if self._read(f).items() <= self.counts.items()]
        known = self._read(shared[0]) if shared else {}
        rest = {key: count for key, count in self.counts.items() if known.get(key) != count}
        path = self.world.paths.state_file(generation, self.written, "count", self.subtask, new_attempt(), "base")
        files = [*shared, write_file(self.world.storage(), path, _encode(rest))]
        self.upload = Upload(self.written, files)

    def _write(self, path: str, counts: dict[int, int]) -> Stored:
        """Store a delta in a file, or in its handle."""
        if self.world.random.random() < 0.5:
            return InlineFile(path, pack(_encode(counts)), b"")
        return write_file(self.world.storage(), path, _encode(counts))

    def _read(self, file: Stored) -> dict[int, int]:
        data = unpack(file.data, file.path) if isinstance(file, InlineFile) else read_file(self.world.storage(), file)
        return _decode(data, type=dict[int, int])

    def _epoch_of(self, file: Stored) -> int:
        name = self.world.paths.parse_state_file(file.path)
        assert name is not None
        return name.epoch

    def close(self) -> None:
        """Forget everything; what was prepared stays prepared."""
        if self.writer is not None:
            self.writer.abort_epoch()
            self.writer.close()
        self.writer, self.upload, self.token = None, None, ""


def keyed_state(checkpoint: CheckpointMetadata, subtask: int) -> KeyedHandle:
    """The counts of a subtask."""
    (handle,) = assigned(checkpoint.operators[COUNT.chain[0].uid], SUBTASKS, subtask).state.keyed
    return handle
