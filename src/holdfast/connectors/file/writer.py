"""FileWriter: writes the part files of one subtask of the file sink.

A file that is rolled at the next checkpoint in any case is written at once, under a name that readers do not see. Any
other waits: what is written to it between two checkpoints is a chunk in the state of the writer. When it is rolled, a part
file is written of its chunks. So a checkpoint has either the chunks or the committable of the part file, and what a later
attempt or another subtask continues from is never altered.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.connectors.base import WriterState
from holdfast.connectors.file.buckets import BucketAssigner, check_bucket
from holdfast.connectors.file.bulk import BulkWriterFactory
from holdfast.connectors.file.chunks import BulkWriter, Chunks
from holdfast.connectors.file.outputs import Output, PartFile
from holdfast.connectors.file.refusals import failure, writing
from holdfast.connectors.file.waiting import Rolling, WaitingFile, restored_files
from holdfast.errors import StorageError

__all__ = ["FileWriter", "FilesInState", "PartFiles"]

_LONGEST_CHUNK = 16 << 20
"""Bytes of a chunk from which it goes to the state before the next checkpoint, so that memory is bounded."""


class _Part(NamedTuple):
    """A part file in progress."""

    bucket: str
    file: PartFile
    writer: BulkWriter


class PartFiles:
    """Begins and finishes part files, which nobody sees yet."""

    def __init__(self, output: Output, factory: BulkWriterFactory, names: tuple[str, str], owner: str) -> None:
        self.output = output
        self.epoch = Epoch(0)
        self._factory = factory
        self._prefix, self._suffix = names
        self._owner = owner

    def create(self, bucket: str) -> _Part:
        """Begin a part file."""
        final = f"{self._prefix}-{self.epoch}-{secrets.token_hex(4)}{self._suffix}"
        file = self.output.create(bucket, final, self._owner)
        return _Part(bucket, file, self._factory.create(file.stream))

    def finish(self, part: _Part) -> list[Any]:
        """Finish a part file; returns its committable, if it has content."""
        with writing(self.output.told("finish", part.bucket)):
            part.writer.finish()
            data = part.file.finish()
        return [] if data is None else [data]

    @staticmethod
    def drop(part: _Part) -> None:
        """Delete a part file in progress."""
        part.file.drop(part.writer.abandon)


class FilesInState:
    """The files that wait to be rolled, as the state of the writer has them."""

    def __init__(self, state: WriterState | None, chunks: Chunks) -> None:
        self.chunks = chunks
        self._state = state
        self._stored = bool(state is not None and state.parts)

    def restored(self) -> dict[str, WaitingFile]:
        """Those of the last checkpoint, by bucket."""
        return restored_files(self._state.parts, self.chunks.form) if self._state is not None else {}

    def add(self, file: WaitingFile, chunk: bytes) -> None:
        """Append a chunk to a file."""
        assert self._state is not None, "a writer without state has no files that wait"
        file.add(self._state, chunk)

    def replay(self, file: WaitingFile, writer: BulkWriter) -> None:
        """Write the chunks of a file to a part file."""
        if file.parts:
            assert self._state is not None
            for chunk in file.chunks(self._state):
                self.chunks.replay(chunk, writer)

    def store(self, files: Iterable[WaitingFile]) -> None:
        """Set the files of the next checkpoint."""
        parts = [part for file in files for part in file.stored(self.chunks.form)]
        if parts or self._stored:
            assert self._state is not None
            self._state.store(parts)
            self._stored = bool(parts)


class _Chunk:
    """What has been written to a file since the last checkpoint."""

    def __init__(self, chunks: Chunks, delimiter: bytes) -> None:
        self._file = io.BytesIO()
        self._file.write(delimiter)
        self.writer = chunks.create(self._file)

    @property
    def size(self) -> int:
        return self._file.tell()

    def finished(self) -> bytes:
        self.writer.finish()
        return self._file.getvalue()


@dataclass
class _File:
    """A file in progress: it waits, or is written at once."""

    waiting: WaitingFile
    chunk: _Chunk | None = None
    part: _Part | None = None
    goes_on: bool = True
    """Whether all that it waits with is of earlier checkpoints."""

    @property
    def size(self) -> int:
        if self.part is not None:
            return self.part.file.size
        return self.waiting.size + (0 if self.chunk is None else self.chunk.size)


class FileWriter:
    """Writes part files for each bucket."""

    def __init__(
        self, parts: PartFiles, state: FilesInState, rolling: Rolling, buckets: BucketAssigner, now: Callable[[], int]
    ) -> None:
        self._parts = parts
        self._output = parts.output
        self._state = state
        self._rolling = rolling
        self._buckets = buckets
        self._now = now
        self._ends = False
        self._files: dict[str, _File] = {}
        """Bucket -> the file in progress."""
        self._rolled: list[Any] = []
        """Committables of part files."""
        self._restore()

    def _restore(self) -> None:
        self._files = {bucket: _File(waiting) for bucket, waiting in self._state.restored().items()}

    def begin_epoch(self, epoch: Epoch, attempt: str, committed: CheckpointId) -> None:
        """Start an epoch with the files of the last checkpoint; drop files of an abandoned epoch."""
        self.abort_epoch()
        self._parts.epoch = epoch

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Append the records to the current bucket's file.

        Raises:
            ConfigurationError: the bucket is none, or the file cannot be written.
            StorageError: it cannot be written now.
            Exception: a record does not fit the file's format.
        """
        bucket, now = self._buckets.bucket(), self._now()
        file = self._files.get(bucket)
        if file is None:
            check_bucket(bucket)
            file = self._files[bucket] = _File(WaitingFile(bucket, now, now))
        begun = file.part is not None
        try:
            self._writer(file).add(values)
        except Exception as e:
            if not begun and file.part is not None:
                self._parts.drop(file.part)
                file.part = None
            if isinstance(e, OSError | StorageError):
                raise failure(self._output.told("write", bucket), e) from e
            raise
        file.waiting.last = now
        size, longest = file.size, self._output.longest_part
        if (longest is not None and size >= longest) or self._rolling.is_full(size, file.waiting.checkpoints):
            self._roll(file)
            del self._files[bucket]
        elif file.chunk is not None and file.chunk.size >= _LONGEST_CHUNK:
            self._wait(file)
            file.goes_on = False

    def _writer(self, file: _File) -> BulkWriter:
        if self._rolling.at_once:
            return self._begun(file).writer
        if file.chunk is None:
            file.chunk = _Chunk(self._state.chunks, self._rolling.delimiter if file.waiting.parts and file.goes_on else b"")
        return file.chunk.writer

    def _begun(self, file: _File) -> _Part:
        """The part file of a file, with the chunks that it has waited with."""
        if file.part is None:
            file.part = self._parts.create(file.waiting.bucket)
            self._state.replay(file.waiting, file.part.writer)
        return file.part

    def _roll(self, file: _File) -> None:
        """Write and finish the part file of a file."""
        bucket = file.waiting.bucket
        try:
            part = self._begun(file)
            if file.chunk is not None and (chunk := file.chunk.finished()):
                self._state.chunks.replay(chunk, part.writer)
            file.chunk = None
        except (OSError, StorageError) as e:
            raise failure(self._output.told("write", bucket), e) from e
        self._rolled += self._parts.finish(part)
        file.part = None

    def _wait(self, file: _File) -> None:
        """Let a file wait, with the records since the last checkpoint."""
        if file.chunk is not None and (chunk := file.chunk.finished()):
            self._state.add(file.waiting, chunk)
        file.chunk = None

    def prepare_commit(self) -> list[Any]:
        """Make files and state durable; return a committable for each file that is rolled.

        Raises:
            ConfigurationError: a file cannot be written.
            StorageError: it cannot be written now.
        """
        now, rolling = self._now(), self._rolling
        for bucket, file in list(self._files.items()):
            file.waiting.checkpoints += rolling.counts
            if self._ends or rolling.at_once or rolling.rolls(file.waiting, file.size, now):
                self._roll(file)
                del self._files[bucket]
                continue
            self._wait(file)
            file.goes_on = True
            if not file.waiting.parts:  # no record has bytes
                del self._files[bucket]
        if self._rolled:
            self._output.flush({data["bucket"] for data in self._rolled})
        self._state.store(file.waiting for file in self._files.values())
        committables, self._rolled, self._ends = self._rolled, [], False
        return committables

    def end_input(self) -> None:
        """Roll all files in this epoch."""
        self._ends = True

    def next_commit(self) -> int | None:
        """The time at which a file is due that waits, without further records."""
        now = self._now()
        times = [self._rolling.due(file.waiting, now) for file in self._files.values()]
        return min((time for time in times if time is not None), default=None)

    def abort_epoch(self) -> None:
        """Delete the open epoch's files, and go back to those of the last checkpoint."""
        for file in self._files.values():
            if file.part is not None:
                self._parts.drop(file.part)
        self._output.discard(self._rolled)
        self._rolled, self._ends = [], False
        self._restore()

    def close(self) -> None:
        """Drop an epoch that is still open."""
        self.abort_epoch()
