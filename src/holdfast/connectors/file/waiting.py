"""WaitingFile: what a part file will hold once it is rolled, as the checkpoints before have it; and when it is rolled."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from holdfast.checkpoint.metadata import ListPart
from holdfast.checkpoint.stores.object_store import leaves
from holdfast.common.values import pickling
from holdfast.connectors.base import WriterState
from holdfast.connectors.file.sink_settings import DefaultRollingPolicy, FileCompactStrategy, RollingPolicy
from holdfast.errors import CorruptFile, IncompatibleState

__all__ = ["Rolling", "WaitingFile", "restored_files"]

_LARGE = 16 << 20
"""Stored bytes from which a part of the state stays as it is."""
_IDLE_CHECKPOINT_MS = 1000
"""How soon the next checkpoint follows that a compaction waits for, although no records come."""


@dataclass
class WaitingFile:
    """Chunks of a bucket's next file. As state: a header, and parts with the chunks."""

    bucket: str
    since: int
    """When it was begun, in ms of processing time."""
    last: int
    """When records were added last."""
    size: int = 0
    """The bytes of its chunks."""
    checkpoints: int = 0
    """Those that have seen it; counted only if a compaction waits for their number."""
    parts: list[ListPart] = field(default_factory=list)

    def chunks(self, state: WriterState) -> Iterator[bytes]:
        """Read the chunks, in order."""
        for part in self.parts:
            yield from map(pickle.loads, state.read(part))

    def add(self, state: WriterState, chunk: bytes) -> None:
        """Append a chunk: little stays in the checkpoint's metadata, more goes to a file, with the small ones before it.

        As each part is more than twice as large as the next one, there are few, and each chunk is written a few times.
        """
        elements, parts = [pickling.dumps(chunk)], self.parts
        self.size += len(chunk)
        if parts and parts[-1].file is None:
            elements[:0] = parts.pop().elements
        size = sum(map(len, elements))
        if size > state.inline:
            joined: list[list[bytes]] = []
            while parts and parts[-1].file is not None and parts[-1].file.size <= min(2 * size, _LARGE):
                size += parts[-1].file.size
                joined.append(list(state.read(parts.pop())))
            elements = [element for each in (*reversed(joined), elements) for element in each]
        parts.append(state.write(elements))

    def stored(self, form: str) -> list[ListPart]:
        """The file as state."""
        header = {
            **{"version": 1, "form": form, "bucket": self.bucket, "since": self.since, "last": self.last},
            **{"size": self.size, "checkpoints": self.checkpoints, "chunks": sum(map(len, self.parts))},
        }
        return [ListPart([pickling.dumps(header)]), *self.parts]


def restored_files(parts: Iterable[ListPart], form: str) -> dict[str, WaitingFile]:
    """The files of a writer's state, by bucket; those of several former subtasks become one.

    Raises:
        IncompatibleState: the chunks have another form than the sink's.
        CorruptFile: a bucket is outside the directory of the sink.
    """
    files: dict[str, WaitingFile] = {}
    left = iter(parts)
    for part in left:
        header = pickle.loads(part.elements[0])
        if header["form"] != form:
            raise IncompatibleState(
                "records of files that have not been rolled are stored in the form of another format or schema of the "
                f"FileSink ({header['form']}; now {form}): set it back, stop the job with a savepoint and drain=True, "
                "which rolls all files, and start the changed program from that"
            )
        bucket, count = header["bucket"], header["chunks"]
        if not isinstance(bucket, str) or leaves(bucket):
            raise CorruptFile(str(bucket), "the checkpoint names a bucket outside the directory of the FileSink")
        own: list[ListPart] = []
        while sum(map(len, own)) < count:
            own.append(next(left))
        since, last = header["since"], header["last"]
        file = files.setdefault(bucket, WaitingFile(bucket, since, last))
        file.since, file.last = min(file.since, since), max(file.last, last)
        file.size += header["size"]
        file.checkpoints = max(file.checkpoints, header["checkpoints"])
        file.parts += own
    return files


@dataclass(frozen=True)
class Rolling:
    """When a file is rolled: as soon as the policy and, if there is one, the strategy of compaction say so. Pure."""

    policy: RollingPolicy
    compaction: FileCompactStrategy | None = None
    delimiter: bytes = b""
    """Between what two checkpoints have of a file in a row format."""

    @property
    def at_once(self) -> bool:
        """Whether no file waits for a later checkpoint."""
        return self.compaction is None and not isinstance(self.policy, DefaultRollingPolicy)

    def is_full(self, size: int, checkpoints: int) -> bool:
        """Whether a file of this size is rolled before the next checkpoint."""
        policy = self.policy
        return isinstance(policy, DefaultRollingPolicy) and size >= policy.part_size and self._compacts(size, checkpoints)

    @property
    def counts(self) -> bool:
        """Whether the checkpoints of a file matter."""
        return self.compaction is not None and self.compaction.num_checkpoints is not None

    def rolls(self, file: WaitingFile, size: int, now: int) -> bool:
        """Whether a file, which has this size now, is rolled at a checkpoint."""
        policy, aged = self.policy, self._policy_due(file)
        due = aged is None or aged <= now or (isinstance(policy, DefaultRollingPolicy) and size >= policy.part_size)
        return due and self._compacts(size, file.checkpoints)

    def due(self, file: WaitingFile, now: int) -> int | None:
        """When a checkpoint is needed to roll a file to which no records come, or to count it; None: never."""
        aged = self._policy_due(file)
        if self._compacts(file.size, file.checkpoints):
            return aged
        if not self.counts:
            return None
        return max(now + _IDLE_CHECKPOINT_MS, aged or 0)

    def _policy_due(self, file: WaitingFile) -> int | None:
        policy = self.policy
        if not isinstance(policy, DefaultRollingPolicy):
            return None
        return min(file.since + policy.rollover_interval, file.last + policy.inactivity_interval)

    def _compacts(self, size: int, checkpoints: int) -> bool:
        strategy = self.compaction
        if strategy is None:
            return True
        large = strategy.size_threshold is not None and size >= strategy.size_threshold
        return large or (strategy.num_checkpoints is not None and checkpoints >= strategy.num_checkpoints)
