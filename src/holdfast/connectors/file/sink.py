"""The file sink: a finished file appears with the checkpoint that rolls it.

A writer writes part files that nobody sees (see `writer` and `outputs`). Its committables name them. The committer moves
each to its final name, ``part-<subtask>-<epoch>-<random><suffix>``, which is unique; so a move repeated after a crash finds
the file already moved. Part files in progress carry the owner (the job and the sink) and the driver's generation in their
names, so a later driver can delete those of failed epochs. A driver that was overtaken during its recovery leaves its
successors' files alone.

The base path must be the same directory for the driver and all workers.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Generic

import xxhash

from holdfast.checkpoint.paths import canonical_uri
from holdfast.checkpoint.stores.object_store import leaves
from holdfast.common.serialization import Encoder, SerializationSchema
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.values.type_variables import IN, R, V
from holdfast.connectors.base import Committable, JobInfo, SinkWriter, WriterContext, check_form
from holdfast.connectors.file.buckets import BucketAssigner, DateTimeBucketAssigner
from holdfast.connectors.file.bulk import BulkWriterFactory
from holdfast.connectors.file.chunks import chunks_of
from holdfast.connectors.file.encoders import BatchEncoder, EncodedParts, SchemaEncoder
from holdfast.connectors.file.outputs import Output, open_output
from holdfast.connectors.file.paths import absolute_path
from holdfast.connectors.file.sink_settings import (
    ConcatFileCompactor,
    DefaultRollingPolicy,
    FileCompactor,
    FileCompactStrategy,
    IdenticalFileCompactor,
    OnCheckpointRollingPolicy,
    OutputFileConfig,
    RecordWiseFileCompactor,
    RollingPolicy,
)
from holdfast.connectors.file.waiting import Rolling
from holdfast.connectors.file.writer import FilesInState, FileWriter, PartFiles
from holdfast.connectors.java_text import text_of
from holdfast.errors import ConfigurationError, CorruptFile

__all__ = ["FileSink"]

_log = logging.getLogger(__name__)


class FileSink(Generic[IN]):
    """A sink that writes records to files, exactly once.

    By default a part file is rolled at every checkpoint, and in an object store at 1 GB. A rolling policy and compaction
    make fewer, larger files of the same records: until a file is rolled, its records are state of the sink, in checkpoints
    and savepoints. At the end of the input, all files are rolled.

    Args:
        base_path: A local directory, which is created if it does not exist, or the URI of a directory in an object store or
            HDFS (``s3://``, ``gs://``, ``abfss://``, ``hdfs://``).
        encoder: The record format: an Encoder, a SerializationSchema (a line each), `JsonLinesEncoder`, or a
            BulkWriterFactory.
        bucket_assigner: The subdirectories of records; by default one per hour, as in Flink.
        part_prefix: The prefix of finished files' names.
        part_suffix: Their suffix, e.g. ``.csv``.
        rolling_policy: When files are rolled.
        compact_strategy: When the files of several checkpoints become one. A file is rolled once the policy and the strategy
            both say so.
        compactor: How they become one; by default `RecordWiseFileCompactor`, which fits any format.

    Raises:
        ConfigurationError: the path, the encoder, prefix, suffix, policy or compactor cannot be used.
    """

    def __init__(
        self,
        base_path: str,
        encoder: BatchEncoder[IN] | SerializationSchema[IN] | BulkWriterFactory,
        *,
        bucket_assigner: BucketAssigner | None = None,
        part_prefix: str = "part",
        part_suffix: str = "",
        rolling_policy: RollingPolicy | None = None,
        compact_strategy: FileCompactStrategy | None = None,
        compactor: FileCompactor | None = None,
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
        policy = RollingPolicy.on_checkpoint_rolling_policy() if rolling_policy is None else rolling_policy
        self._rolling = _rolling(policy, compact_strategy, compactor, isinstance(encoder, BulkWriterFactory))
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
            open_output(self.base_path, {}).check("")

    @property
    def keeps_state(self) -> bool:
        """Always: a file that is not rolled yet, or was not under a former policy, is state."""
        return True

    def create_writer(self, context: WriterContext) -> SinkWriter[IN]:
        """Create a writer.

        Raises:
            IncompatibleState: the records of files that are not rolled yet are those of another format or schema.
        """
        parts = self._parts or self._lines()
        waiting = FilesInState(context.state, chunks_of(parts))
        names = (f"{self._prefix}-{context.subtask}", self._suffix)
        owner = f"{_owner(context.job, context.uid)}-{context.job.generation}"
        output = open_output(self.base_path, context.job.storage_config, context.uid)
        return FileWriter(PartFiles(output, parts, names, owner), waiting, self._rolling, self._buckets, context.now)

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
        owner = _owner(job, uid)
        if "://" in self.base_path:
            output.check(f"{owner}-{job.generation}")
        return FileCommitter(output, owner, job.generation)

    class RowFormatBuilder(Generic[V]):
        """Builder of a `FileSink`."""

        def __init__(self, base_path: str, encoder: BatchEncoder[V] | SerializationSchema[V] | BulkWriterFactory) -> None:
            self._base_path = base_path
            self._encoder = encoder
            self._buckets: BucketAssigner | None = None
            self._config = OutputFileConfig.builder().build()
            self._policy: RollingPolicy | None = None
            self._strategy: FileCompactStrategy | None = None
            self._compactor: FileCompactor | None = None

        def with_bucket_assigner(self, bucket_assigner: BucketAssigner) -> FileSink.RowFormatBuilder[V]:
            """Set the buckets; by default one per hour, as in Flink."""
            self._buckets = bucket_assigner
            return self

        def with_output_file_config(self, output_file_config: OutputFileConfig) -> FileSink.RowFormatBuilder[V]:
            """Set prefix and suffix of file names."""
            self._config = output_file_config
            return self

        def with_rolling_policy(self, rolling_policy: RollingPolicy) -> FileSink.RowFormatBuilder[V]:
            """Set when a file is rolled; by default, with every checkpoint."""
            self._policy = rolling_policy
            return self

        def with_bucket_check_interval(self, interval: int) -> FileSink.RowFormatBuilder[V]:
            """Accept an interval, in ms. It has no effect: a file is rolled when its time has come."""
            return self

        def enable_compact(self, strategy: FileCompactStrategy, compactor: FileCompactor) -> FileSink.RowFormatBuilder[V]:
            """Make one file of those of several checkpoints, before it becomes visible.

            Args:
                strategy: When.
                compactor: `FileCompactor.concat_file_compactor()` for row formats, `RecordWiseFileCompactor` for any.

            Raises:
                ConfigurationError: it is not a strategy.
            """
            if not isinstance(strategy, FileCompactStrategy):
                raise ConfigurationError(f"FileSink: compacts by FileCompactStrategy.builder()...build(), not {strategy!r}")
            self._compactor = compactor
            self._strategy = strategy
            return self

        def disable_compact(self) -> FileSink.RowFormatBuilder[V]:
            """Do not compact, which is the default."""
            self._strategy = self._compactor = None
            return self

        def build(self) -> FileSink[V]:
            """Build the sink.

            Raises:
                ConfigurationError: the path, the encoder, the names, the policy or the compactor cannot be used.
            """
            return FileSink(
                self._base_path,
                self._encoder,
                bucket_assigner=self._buckets,
                part_prefix=self._config.get_part_prefix(),
                part_suffix=self._config.get_part_suffix(),
                rolling_policy=self._policy,
                compact_strategy=self._strategy,
                compactor=self._compactor,
            )

    BaseBuilder = RowFormatBuilder

    class BulkFormatBuilder(RowFormatBuilder[V]):
        """Builder of a `FileSink` of bulk files."""


def _rolling(
    policy: RollingPolicy, strategy: FileCompactStrategy | None, compactor: FileCompactor | None, bulk: bool
) -> Rolling:
    if not isinstance(policy, DefaultRollingPolicy | OnCheckpointRollingPolicy):
        raise ConfigurationError(
            f"FileSink: cannot roll by {policy!r}; use RollingPolicy.default_rolling_policy(...) or "
            "on_checkpoint_rolling_policy()"
        )
    if compactor is not None:
        if not isinstance(compactor, ConcatFileCompactor | RecordWiseFileCompactor | IdenticalFileCompactor):
            raise ConfigurationError(
                f"FileSink: cannot compact by {compactor!r}; use FileCompactor.concat_file_compactor() or "
                "RecordWiseFileCompactor()"
            )
        if isinstance(compactor, ConcatFileCompactor) and bulk:
            raise ConfigurationError(
                "FileSink: files of a bulk format cannot be written one after another; use RecordWiseFileCompactor()"
            )
    if strategy is None or isinstance(compactor, IdenticalFileCompactor):
        return Rolling(policy)
    return Rolling(policy, strategy, compactor.file_delimiter if isinstance(compactor, ConcatFileCompactor) else b"")


def _owner(job: JobInfo, uid: str) -> str:
    """Return the name of a job's sink, the same in every driver of the job."""
    names = f"{job.job_name}\n{uid}"
    if names.count("\n") > 1:
        names = json.dumps([job.job_name, uid])
    storage = canonical_uri(job.storage_uri) if job.storage_uri else job.job_id
    return xxhash.xxh3_64_hexdigest(f"{storage}\n{names}".encode())


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
