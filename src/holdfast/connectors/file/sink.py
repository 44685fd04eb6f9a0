"""The file sink: a finished file appears with its checkpoint.

A writer writes hidden files, ``.<final name>.inprogress.<owner>-<generation>``, one for each bucket, subtask and epoch.
Its committables name them. The committer renames each to its final name, ``part-<subtask>-<epoch>-<random><suffix>``,
which is unique; so a rename repeated after a crash finds the file already renamed. Hidden files carry the owner (the job
and the sink) and the driver's generation in their names, so a later driver can delete those of failed epochs. A driver
that was overtaken during its recovery leaves its successors' files alone.

The base path must be the same directory for the driver and all workers.
"""

from __future__ import annotations

import copy
import logging
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, NamedTuple, Protocol

import orjson
import xxhash

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.common.os_errors import reason
from holdfast.common.serialization import Encoder, SerializationSchema
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.types import Row
from holdfast.connectors.base import Committable, JobInfo, WriterContext
from holdfast.connectors.file.buckets import BasePathBucketAssigner, BucketAssigner
from holdfast.connectors.file.bulk import BulkWriter, BulkWriterFactory
from holdfast.connectors.file.paths import local_path
from holdfast.connectors.java_text import text_of
from holdfast.errors import ConfigurationError, StorageError

__all__ = ["BatchEncoder", "FileSink", "JsonLinesEncoder"]

_IN_PROGRESS = ".inprogress."
_log = logging.getLogger(__name__)


class BatchEncoder(Protocol):
    """Encodes records as bytes of a file, as every `holdfast.common.Encoder` does."""

    def encode_batch(self, values: Sequence[Any]) -> bytes:
        """Encode the records, in order."""


class JsonLinesEncoder:
    r"""Writes each record as JSON on a line of its own; named Rows as objects.

    Examples:
        >>> JsonLinesEncoder().encode_batch([{"a": 1}, [True, None]])
        b'{"a":1}\n[true,null]\n'
    """

    def encode_batch(self, values: Sequence[Any]) -> bytes:
        """Encode the records as lines.

        Raises:
            TypeError: JSON cannot represent a record.
        """
        options = orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
        return b"".join([orjson.dumps(value, _jsonable, options) for value in values])


def _jsonable(value: Any) -> Any:
    if isinstance(value, Row):
        return value.as_dict() if value._fields is not None else list(value)
    raise TypeError(f"JSON has no form for a {type(value).__qualname__}")


class _SchemaEncoder:
    """Writes each record on a line of its own, serialized by a schema."""

    def __init__(self, schema: SerializationSchema) -> None:
        self._schema = schema

    def encode_batch(self, values: Sequence[Any]) -> bytes:
        lines = [data for data in self._schema.serialize_batch(values) if data is not None]
        return b"".join([line if line.endswith(b"\n") else line + b"\n" for line in lines])


class _EncodedParts:
    """Makes writers of part files that hold one encoded record after the other."""

    def __init__(self, encoder: BatchEncoder) -> None:
        self._encoder = encoder

    def create(self, file: BinaryIO) -> BulkWriter:
        return _EncodedPart(self._encoder, file)


class _EncodedPart:
    def __init__(self, encoder: BatchEncoder, file: BinaryIO) -> None:
        self._encoder = encoder
        self._file = file

    def add(self, values: Sequence[Any]) -> None:
        self._file.write(self._encoder.encode_batch(values))

    def finish(self) -> None:
        """Nothing is left to write."""

    def abandon(self) -> None:
        """Nothing is held."""


class FileSink:
    """A sink that writes records to files, exactly once.

    A part file is rolled at every checkpoint.

    Args:
        base_path: A local directory or ``file://`` URI; created if it does not exist.
        encoder: The record format: an Encoder, a SerializationSchema (a line each), `JsonLinesEncoder`, or a
            BulkWriterFactory.
        buckets: The subdirectories of records.
        prefix: The prefix of finished files' names.
        suffix: Their suffix, e.g. ``.csv``.

    Raises:
        ConfigurationError: the path, prefix or suffix cannot be used.
    """

    def __init__(
        self,
        base_path: str,
        encoder: BatchEncoder | SerializationSchema | BulkWriterFactory,
        buckets: BucketAssigner | None = None,
        prefix: str = "part",
        suffix: str = "",
    ) -> None:
        self.base_path = local_path(base_path)
        if isinstance(encoder, SerializationSchema):
            encoder = _SchemaEncoder(encoder)
        if isinstance(encoder, BulkWriterFactory):
            self._parts: BulkWriterFactory | None = encoder
        elif hasattr(encoder, "encode_batch"):
            self._parts = None
        else:
            raise ConfigurationError(
                f"FileSink: {encoder!r} is no encoder; use Encoder.simple_string_encoder() or a SerializationSchema"
            )
        if "/" in prefix + suffix or prefix.startswith((".", "_")):
            raise ConfigurationError(f"FileSink: prefix {prefix!r} and suffix {suffix!r} make hidden or nested files")
        self._encoder: Any = encoder
        self._buckets = buckets or BasePathBucketAssigner()
        self._prefix = prefix
        self._suffix = suffix
        self._type_info: TypeInformation | None = None

    def of_type(self, type_info: TypeInformation) -> FileSink:
        """Return the sink for a stream of this type; an `Encoder` then writes Flink's text, ``(x,1)`` for a tuple."""
        sink = copy.copy(self)
        sink._type_info = type_info
        return sink

    def validate(self) -> None:
        """Create the base path, and probe it with a file.

        Raises:
            ConfigurationError: the base path is not writable.
        """
        probe = os.path.join(self.base_path, f".check-{secrets.token_hex(8)}")
        try:
            os.makedirs(self.base_path, exist_ok=True)
            os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            os.unlink(probe)
        except OSError as e:
            raise ConfigurationError(f"FileSink: cannot write to {self.base_path}: {reason(e)}") from e

    def create_writer(self, context: WriterContext) -> FileWriter:
        """Create a writer."""
        names = (f"{self._prefix}-{context.subtask}", self._suffix)
        owner = f"{_owner(context.job, context.uid)}-{context.job.generation}"
        return FileWriter(self.base_path, self._parts or self._lines(), self._buckets, names, owner)

    def _lines(self) -> _EncodedParts:
        encoder = self._encoder
        if isinstance(encoder, Encoder):
            encoder = encoder.writing(text_of(self._type_info))
        return _EncodedParts(encoder)

    def create_committer(self, job: JobInfo, uid: str) -> FileCommitter:
        """Create the committer, which renames the files."""
        return FileCommitter(self.base_path, _owner(job, uid), job.generation)


def _owner(job: JobInfo, uid: str) -> str:
    """Return the name of a job's sink, the same in every driver of the job."""
    return xxhash.xxh3_64_hexdigest(f"{job.storage_uri or job.job_id}\n{job.job_name}\n{uid}".encode())


class _Part(NamedTuple):
    """A part file in progress."""

    file: BinaryIO
    final: str
    """Its final name."""
    writer: BulkWriter


def _drop(part: _Part) -> None:
    """Delete a part file in progress."""
    _remove(part.file.name)
    # Close last: it may flush, and fail on a full disk.
    try:
        part.writer.abandon()
        part.file.close()
    except OSError as e:
        _log.warning("%s of an abandoned epoch: %s", part.file.name, e)


class FileWriter:
    """Writes one hidden file for each bucket and epoch."""

    def __init__(
        self, base_path: str, parts: BulkWriterFactory, buckets: BucketAssigner, names: tuple[str, str], owner: str
    ) -> None:
        self._base_path = base_path
        self._parts = parts
        self._buckets = buckets
        self._prefix, self._suffix = names
        self._owner = owner
        self._epoch = 0
        self._open: dict[str, _Part] = {}
        """Bucket -> the part file in progress."""

    def begin_epoch(self, epoch: Epoch, attempt: str, completed: CheckpointId) -> None:
        """Start an epoch without files; drop files of an abandoned epoch."""
        self.abort_epoch()
        self._epoch = epoch

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Append the records to the current bucket's file.

        Raises:
            StorageError: the file cannot be written.
            Exception: a record does not fit the file's format.
        """
        bucket = self._buckets.bucket()
        begun = bucket in self._open
        try:
            if not begun:
                self._open[bucket] = self._create(bucket)
            self._open[bucket].writer.add(values)
        except Exception as e:
            if not begun and bucket in self._open:
                _drop(self._open.pop(bucket))
            if isinstance(e, OSError):
                raise _failed("write", os.path.join(self._base_path, bucket), e) from e
            raise

    def prepare_commit(self) -> list[Any]:
        """Flush the files to disk; return one committable for each.

        Raises:
            StorageError: a file cannot be flushed.
        """
        committables: list[Any] = []
        for bucket, (file, final, writer) in self._open.items():
            try:
                writer.finish()
                file.flush()
                if file.tell() == 0:  # no record has bytes
                    _remove(file.name)
                    file.close()
                    continue
                os.fsync(file.fileno())
                file.close()
            except OSError as e:
                raise _failed("flush", file.name, e) from e
            committables.append({"bucket": bucket, "pending": os.path.basename(file.name), "final": final})
        _flush_directories(self._base_path, self._open)
        self._open = {}
        return committables

    def abort_epoch(self) -> None:
        """Delete the open epoch's files."""
        for part in self._open.values():
            _drop(part)
        self._open = {}

    def close(self) -> None:
        """Drop an epoch that is still open."""
        self.abort_epoch()

    def _create(self, bucket: str) -> _Part:
        directory = os.path.join(self._base_path, bucket)
        os.makedirs(directory, exist_ok=True)
        final = f"{self._prefix}-{self._epoch}-{secrets.token_hex(4)}{self._suffix}"
        pending = f".{final}{_IN_PROGRESS}{self._owner}"
        file = open(os.path.join(directory, pending), "xb", buffering=1 << 20)  # noqa: SIM115  (closed at the barrier)
        return _Part(file, final, self._parts.create(file))


class FileCommitter:
    """Renames prepared files to their final names."""

    def __init__(self, base_path: str, owner: str, generation: int) -> None:
        self._base_path = base_path
        self._in_progress = re.compile(rf"\..+{re.escape(_IN_PROGRESS + owner)}(?:-(\d+))?")
        self._generation = generation

    def recover(self, committables: Sequence[Committable]) -> None:
        """Finish the restored checkpoint's files, then delete files of failed epochs."""
        for committable in committables:
            if not self._rename(committable.data):
                # Prepared files are never deleted, so this one was finished and removed later.
                _log.warning("%s was moved or deleted after it was finished", self._path(committable.data, "final"))
        _flush_directories(self._base_path, {c.data["bucket"] for c in committables})
        for directory, _, names in os.walk(self._base_path):
            for name in names:
                found = self._in_progress.fullmatch(name)
                if found and int(found[1] or 0) < self._generation:
                    _remove(os.path.join(directory, name))

    def commit(self, committables: Sequence[Committable]) -> None:
        """Rename the files to their final names; skip files already renamed.

        Raises:
            ConfigurationError: a prepared file is missing. A restart would hide this: recovery cannot distinguish a file
                that never existed here from one that was finished and removed later.
            StorageError: a file cannot be renamed.
        """
        for committable in committables:
            if not self._rename(committable.data):
                raise ConfigurationError(
                    f"{self._path(committable.data, 'pending')}: the prepared file is not there; is {self._base_path} "
                    "the same directory for the driver and all workers?"
                )
        _flush_directories(self._base_path, {c.data["bucket"] for c in committables})

    def close(self) -> None:
        """Do nothing: no resources are open."""

    def _rename(self, data: Any) -> bool:
        """Whether the file now has its final name."""
        final = self._path(data, "final")
        try:
            os.rename(self._path(data, "pending"), final)
        except FileNotFoundError:
            return os.path.exists(final)
        except OSError as e:
            raise _failed("finish", final, e) from e
        return True

    def _path(self, data: Any, which: str) -> str:
        return os.path.join(self._base_path, data["bucket"], data[which])


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # another driver, or the writer itself, deleted it first


def _flush_directories(base_path: str, buckets: Iterable[str]) -> None:
    """Sync the directories of the buckets, so that file and bucket names survive a power failure."""
    for directory in sorted({"", *buckets}):
        path = os.path.join(base_path, directory)
        if os.path.isdir(path):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _failed(what: str, path: str, error: OSError) -> StorageError:
    return StorageError(f"FileSink: cannot {what} {path}: {reason(error)}")
