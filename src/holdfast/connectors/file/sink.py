"""The file sink: a finished file appears with its checkpoint.

A writer writes part files that nobody sees, one for each bucket, subtask and epoch (see `outputs`). Its committables name
them. The committer moves each to its final name, ``part-<subtask>-<epoch>-<random><suffix>``, which is unique; so a move
repeated after a crash finds the file already moved. Part files in progress carry the owner (the job and the sink) and the
driver's generation in their names, so a later driver can delete those of failed epochs. A driver that was overtaken during
its recovery leaves its successors' files alone.

The base path must be the same directory for the driver and all workers.
"""

from __future__ import annotations

import copy
import json
import logging
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Generic, NamedTuple, NoReturn

import xxhash

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.checkpoint.stores.object_store import leaves
from holdfast.common.serialization import Encoder, SerializationSchema
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.values.type_variables import IN, R, V
from holdfast.connectors.base import Committable, JobInfo, SinkWriter, WriterContext, check_form
from holdfast.connectors.file.buckets import BucketAssigner, DateTimeBucketAssigner
from holdfast.connectors.file.bulk import BulkWriter, BulkWriterFactory
from holdfast.connectors.file.encoders import BatchEncoder, EncodedParts, SchemaEncoder
from holdfast.connectors.file.outputs import Output, PartFile, open_output
from holdfast.connectors.file.paths import absolute_path
from holdfast.connectors.file.refusals import failure, writing
from holdfast.connectors.file.sink_settings import OnCheckpointRollingPolicy, OutputFileConfig
from holdfast.connectors.java_text import text_of
from holdfast.errors import ConfigurationError, CorruptFile, StorageError

__all__ = ["FileSink"]

_log = logging.getLogger(__name__)


class FileSink(Generic[IN]):
    """A sink that writes records to files, exactly once.

    A part file is rolled at every checkpoint, and in an object store at 1 GB.

    Args:
        base_path: A local directory, which is created if it does not exist, or the URI of a directory in an object store or
            HDFS (``s3://``, ``gs://``, ``abfss://``, ``hdfs://``).
        encoder: The record format: an Encoder, a SerializationSchema (a line each), `JsonLinesEncoder`, or a
            BulkWriterFactory.
        bucket_assigner: The subdirectories of records; by default one per hour, as in Flink.
        part_prefix: The prefix of finished files' names.
        part_suffix: Their suffix, e.g. ``.csv``.

    Raises:
        ConfigurationError: the path, the encoder, prefix or suffix cannot be used.
    """

    def __init__(
        self,
        base_path: str,
        encoder: BatchEncoder[IN] | SerializationSchema[IN] | BulkWriterFactory,
        *,
        bucket_assigner: BucketAssigner | None = None,
        part_prefix: str = "part",
        part_suffix: str = "",
    ) -> None:
        self.base_path = absolute_path(base_path)
        if isinstance(encoder, SerializationSchema):
            encoder = SchemaEncoder(encoder)
        if isinstance(encoder, BulkWriterFactory):
            self._parts: BulkWriterFactory | None = encoder
        elif hasattr(encoder, "encode_batch"):
            self._parts = None
        else:
            raise ConfigurationError(
                f"FileSink: {encoder!r} is no encoder; use Encoder.simple_string_encoder() or a SerializationSchema"
            )
        if "/" in part_prefix + part_suffix or part_prefix.startswith((".", "_")):
            raise ConfigurationError(
                f"FileSink: prefix {part_prefix!r} and suffix {part_suffix!r} make hidden or nested files"
            )
        self._encoder: Any = encoder
        self._buckets = bucket_assigner or DateTimeBucketAssigner()
        self._prefix = part_prefix
        self._suffix = part_suffix
        self._type_info: TypeInformation | None = None

    @staticmethod
    def for_row_format(base_path: str, encoder: BatchEncoder[R] | SerializationSchema[R]) -> FileSink.RowFormatBuilder[R]:
        """Return a builder of a sink that writes one record at a time.

        Args:
            base_path: A local directory, or the URI of a directory (``s3://``, ``gs://``, ``abfss://``, ``hdfs://``).
            encoder: ``Encoder.simple_string_encoder()``, `JsonLinesEncoder`, or a SerializationSchema (a line each).
        """
        return FileSink.RowFormatBuilder(base_path, encoder)

    @staticmethod
    def for_bulk_format(base_path: str, writer_factory: BulkWriterFactory) -> FileSink.BulkFormatBuilder[Any]:
        """Return a builder of a sink that writes Parquet, Arrow or Avro files.

        Args:
            base_path: A local directory, or the URI of a directory (``s3://``, ``gs://``, ``abfss://``, ``hdfs://``).
            writer_factory: Of `ParquetBulkWriters`, `ArrowBulkWriters` or `AvroBulkWriters`.

        Raises:
            TypeError: the factory is of another class.
        """
        if not isinstance(writer_factory, BulkWriterFactory):
            raise TypeError(
                "for_bulk_format() takes a factory of bulk writers such as ParquetBulkWriters.for_row_type(...), not "
                f"{writer_factory!r}."
            )
        return FileSink.BulkFormatBuilder(base_path, writer_factory)

    def of_type(self, type_info: TypeInformation) -> FileSink[IN]:
        """Return the sink for a stream of this type; an `Encoder` then writes Flink's text, ``(x,1)`` for a tuple."""
        sink = copy.copy(self)
        sink._type_info = type_info
        return sink

    def validate(self) -> None:
        """Create a local base path, and probe it with a file. A store is probed when the job has taken over.

        Raises:
            ConfigurationError: the base path is not writable.
        """
        if "://" not in self.base_path:
            open_output(self.base_path, {}).check()

    def create_writer(self, context: WriterContext) -> SinkWriter[IN]:
        """Create a writer."""
        names = (f"{self._prefix}-{context.subtask}", self._suffix)
        owner = f"{_owner(context.job, context.uid)}-{context.job.generation}"
        output = open_output(self.base_path, context.job.storage_config, context.uid)
        return FileWriter(output, self._parts or self._lines(), self._buckets, names, owner)

    def _lines(self) -> EncodedParts:
        encoder = self._encoder
        if isinstance(encoder, Encoder):
            encoder = encoder.writing(text_of(self._type_info))
        return EncodedParts(encoder)

    def check_prepared(self, data: Any) -> None:
        """Check that output is a part file below the base path."""
        check_form(data, ("bucket", "pending", "final"), "FileSink")
        for name in ("bucket", "pending", "final"):
            if not isinstance(data[name], str) or leaves(data[name]):
                raise CorruptFile(str(data[name]), "the checkpoint names a part file outside the directory of the FileSink")

    def create_committer(self, job: JobInfo, uid: str) -> FileCommitter:
        """Create the committer, which moves the files to their final names.

        Raises:
            ConfigurationError: the store is not writable.
        """
        output = open_output(self.base_path, job.storage_config, uid)
        if "://" in self.base_path:
            output.check()
        return FileCommitter(output, _owner(job, uid), job.generation)

    class RowFormatBuilder(Generic[V]):
        """Builder of a `FileSink`."""

        def __init__(self, base_path: str, encoder: BatchEncoder[V] | SerializationSchema[V] | BulkWriterFactory) -> None:
            self._base_path = base_path
            self._encoder = encoder
            self._buckets: BucketAssigner | None = None
            self._config = OutputFileConfig.builder().build()

        def with_bucket_assigner(self, bucket_assigner: BucketAssigner) -> FileSink.RowFormatBuilder[V]:
            """Set the buckets; by default one per hour, as in Flink."""
            self._buckets = bucket_assigner
            return self

        def with_output_file_config(self, output_file_config: OutputFileConfig) -> FileSink.RowFormatBuilder[V]:
            """Set prefix and suffix of file names."""
            self._config = output_file_config
            return self

        def with_rolling_policy(self, rolling_policy: OnCheckpointRollingPolicy) -> FileSink.RowFormatBuilder[V]:
            """Accept the only policy: a part file ends with every checkpoint.

            Raises:
                ConfigurationError: the policy is another one.
            """
            if not isinstance(rolling_policy, OnCheckpointRollingPolicy):
                raise ConfigurationError(
                    f"FileSink: cannot roll by {rolling_policy!r}; use RollingPolicy.on_checkpoint_rolling_policy()"
                )
            return self

        def with_bucket_check_interval(self, interval: int) -> FileSink.RowFormatBuilder[V]:
            """Accept an interval, in ms. It has no effect: every epoch ends its part files."""
            return self

        def enable_compact(self, strategy: object, compactor: object) -> NoReturn:
            """Refuse compaction.

            Raises:
                NotImplementedError: always.
            """
            raise NotImplementedError("files are not compacted; longer epochs write larger ones")

        def disable_compact(self) -> FileSink.RowFormatBuilder[V]:
            """Do nothing: files are not compacted."""
            return self

        def build(self) -> FileSink[V]:
            """Build the sink.

            Raises:
                ConfigurationError: the path, the encoder or the names cannot be used.
            """
            return FileSink(
                self._base_path,
                self._encoder,
                bucket_assigner=self._buckets,
                part_prefix=self._config.get_part_prefix(),
                part_suffix=self._config.get_part_suffix(),
            )

    BaseBuilder = RowFormatBuilder

    class BulkFormatBuilder(RowFormatBuilder[V]):
        """Builder of a `FileSink` of bulk files."""


def _owner(job: JobInfo, uid: str) -> str:
    """Return the name of a job's sink, the same in every driver of the job."""
    names = f"{job.job_name}\n{uid}"
    if names.count("\n") > 1:
        names = json.dumps([job.job_name, uid])
    return xxhash.xxh3_64_hexdigest(f"{job.storage_uri or job.job_id}\n{names}".encode())


class _Part(NamedTuple):
    """A part file in progress."""

    bucket: str
    file: PartFile
    writer: BulkWriter


def _drop(part: _Part) -> None:
    """Delete a part file in progress."""
    part.file.drop(part.writer.abandon)


class FileWriter:
    """Writes part files for each bucket and epoch."""

    def __init__(
        self, output: Output, parts: BulkWriterFactory, buckets: BucketAssigner, names: tuple[str, str], owner: str
    ) -> None:
        self._output = output
        self._parts = parts
        self._buckets = buckets
        self._prefix, self._suffix = names
        self._owner = owner
        self._epoch = 0
        self._open: dict[str, _Part] = {}
        """Bucket -> the part file in progress."""
        self._full: list[Any] = []
        """Committables of part files that reached the greatest size."""

    def begin_epoch(self, epoch: Epoch, attempt: str, committed: CheckpointId) -> None:
        """Start an epoch without files; drop files of an abandoned epoch."""
        self.abort_epoch()
        self._epoch = epoch

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Append the records to the current bucket's file.

        Raises:
            ConfigurationError: the file cannot be written.
            StorageError: it cannot be written now.
            Exception: a record does not fit the file's format.
        """
        bucket = self._buckets.bucket()
        begun = bucket in self._open
        try:
            if not begun:
                self._open[bucket] = self._create(bucket)
            part = self._open[bucket]
            part.writer.add(values)
        except Exception as e:
            if not begun and bucket in self._open:
                _drop(self._open.pop(bucket))
            if isinstance(e, OSError | StorageError):
                raise failure(self._output.told("write", bucket), e) from e
            raise
        if self._output.longest_part is not None and part.file.size >= self._output.longest_part:
            self._full += self._finish(self._open.pop(bucket))

    def prepare_commit(self) -> list[Any]:
        """Make the files durable; return one committable for each.

        Raises:
            ConfigurationError: a file cannot be written.
            StorageError: it cannot be written now.
        """
        committables = self._full
        for part in self._open.values():
            committables += self._finish(part)
        self._output.flush(self._open)
        self._open, self._full = {}, []
        return committables

    def _finish(self, part: _Part) -> list[Any]:
        """Finish a part file; returns its committable, if it has content."""
        with writing(self._output.told("finish", part.bucket)):
            part.writer.finish()
            data = part.file.finish()
        return [] if data is None else [data]

    def abort_epoch(self) -> None:
        """Delete the open epoch's files."""
        for part in self._open.values():
            _drop(part)
        self._output.discard(self._full)
        self._open, self._full = {}, []

    def close(self) -> None:
        """Drop an epoch that is still open."""
        self.abort_epoch()

    def _create(self, bucket: str) -> _Part:
        final = f"{self._prefix}-{self._epoch}-{secrets.token_hex(4)}{self._suffix}"
        file = self._output.create(bucket, final, self._owner)
        return _Part(bucket, file, self._parts.create(file.stream))


class FileCommitter:
    """Moves prepared files to their final names."""

    def __init__(self, output: Output, owner: str, generation: int) -> None:
        self._output = output
        self._owner = owner
        self._generation = generation

    def recover(self, committables: Sequence[Committable]) -> None:
        """Finish the restored checkpoint's files, then delete files of failed epochs."""
        for committable, visible in self._published(committables):
            if not visible:
                # Prepared files are never deleted, so this one was finished and removed later.
                _log.warning("%s was moved or deleted after it was finished", self._output.final(committable.data))
        self._output.flush(c.data["bucket"] for c in committables)
        self._output.sweep(self._owner, self._generation)

    def commit(self, committables: Sequence[Committable]) -> None:
        """Move the files to their final names; skip files already moved.

        Raises:
            ConfigurationError: a prepared file cannot be moved, or is missing. A restart would hide this: recovery cannot
                distinguish a file that never existed here from one that was finished and removed later.
            StorageError: a file cannot be moved now.
        """
        for committable, visible in self._published(committables):
            if not visible:
                raise ConfigurationError(
                    f"{self._output.pending(committable.data)}: the prepared file is not there; is {self._output.uri} "
                    "the same directory for the driver and all workers?"
                )
        self._output.flush(c.data["bucket"] for c in committables)

    def _published(self, committables: Sequence[Committable]) -> Iterator[tuple[Committable, bool]]:
        return zip(committables, self._output.publish([c.data for c in committables]), strict=True)

    def close(self) -> None:
        """Do nothing: no resources are open."""
