"""File source and file sink under PyFlink's names."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from typing import Any, Generic, Literal, NoReturn, overload

from holdfast.common.formats.avro import AvroSchema
from holdfast.common.serialization import DeserializationSchema, SerializationSchema
from holdfast.common.time import Duration, Time, to_milliseconds
from holdfast.common.types import Row
from holdfast.common.values.type_variables import IN, R, T, V
from holdfast.connectors.file import sink, source
from holdfast.connectors.file.avro_files import AvroFormat
from holdfast.connectors.file.buckets import BasePathBucketAssigner, DateTimeBucketAssigner
from holdfast.connectors.file.buckets import BucketAssigner as _BucketAssigner
from holdfast.connectors.file.bulk import BulkWriterFactory
from holdfast.connectors.file.formats import CsvFormat, FileFormat, JsonLinesFormat, TextFormat
from holdfast.connectors.file.parquet import ArrowFormat, ParquetFormat
from holdfast.connectors.file.sink import BatchEncoder, JsonLinesEncoder
from holdfast.errors import ConfigurationError

__all__ = [
    "BucketAssigner",
    "FileSink",
    "FileSource",
    "FileSourceBuilder",
    "JsonLinesEncoder",
    "OnCheckpointRollingPolicy",
    "OutputFileConfig",
    "RollingPolicy",
    "StreamFormat",
]


_log = logging.getLogger(__name__)


class StreamFormat:
    """The format of files."""

    @staticmethod
    def text_line_format(charset_name: str = "UTF-8") -> FileFormat[str]:
        """Read every line as a str.

        Raises:
            ConfigurationError: the charset is unknown, or does not extend ASCII.
        """
        return TextFormat(charset_name)

    @overload
    @staticmethod
    def csv(
        delimiter: str = ",",
        quote: str = '"',
        header: Literal[False] = False,
        charset_name: str = "UTF-8",
        schema: None = None,
    ) -> FileFormat[tuple[str, ...]]: ...

    @overload
    @staticmethod
    def csv(
        delimiter: str = ",", quote: str = '"', *, header: Literal[True], charset_name: str = "UTF-8", schema: None = None
    ) -> FileFormat[dict[str, str]]: ...

    @overload
    @staticmethod
    def csv(
        delimiter: str = ",",
        quote: str = '"',
        header: bool = False,
        charset_name: str = "UTF-8",
        *,
        schema: DeserializationSchema[R],
    ) -> FileFormat[R]: ...

    @overload
    @staticmethod
    def csv(
        delimiter: str = ",",
        quote: str = '"',
        header: bool = False,
        charset_name: str = "UTF-8",
        schema: DeserializationSchema | None = None,
    ) -> FileFormat[Any]: ...

    @staticmethod
    def csv(
        delimiter: str = ",",
        quote: str = '"',
        header: bool = False,
        charset_name: str = "UTF-8",
        schema: DeserializationSchema | None = None,
    ) -> FileFormat[Any]:
        """Read every line as a tuple of str, or with ``header`` as a dict by the names in the file's first line.

        Args:
            delimiter: The separator of values.
            quote: The quote character of values with delimiters; doubled, it stands for itself. Line feeds within quotes
                are not supported.
            header: Whether the first line of each file names the columns.
            charset_name: The files' charset.
            schema: Deserializes a line's bytes instead; its None skips the line.

        Raises:
            ConfigurationError: an argument cannot be used.
        """
        return CsvFormat(delimiter, quote, header, charset_name, schema)

    @overload
    @staticmethod
    def json_lines(schema: None = None) -> FileFormat[Any]: ...

    @overload
    @staticmethod
    def json_lines(schema: DeserializationSchema[R]) -> FileFormat[R]: ...

    @staticmethod
    def json_lines(schema: DeserializationSchema | None = None) -> FileFormat[Any]:
        """Read every line as a JSON value, e.g. a dict; blank lines are skipped.

        Args:
            schema: Deserializes a line's bytes instead, e.g. a JsonRowDeserializationSchema.
        """
        return JsonLinesFormat(schema)

    @overload
    @staticmethod
    def parquet(
        columns: Sequence[str] | None = None, as_tuples: Literal[False] = False, as_batches: Literal[False] = False
    ) -> FileFormat[dict[str, Any]]: ...

    @overload
    @staticmethod
    def parquet(
        columns: Sequence[str] | None = None, as_tuples: bool = False, as_batches: bool = False
    ) -> FileFormat[Any]: ...

    @staticmethod
    def parquet(columns: Sequence[str] | None = None, as_tuples: bool = False, as_batches: bool = False) -> FileFormat[Any]:
        """Read every row of a Parquet file as a dict by column name, or as a tuple.

        Args:
            columns: The columns to read; None: all.
            as_tuples: Return tuples instead of dicts.
            as_batches: Return ``pyarrow.RecordBatch`` objects of many rows.

        Raises:
            ConfigurationError: pyarrow is not installed.
        """
        return ParquetFormat(columns, as_tuples, as_batches)

    @overload
    @staticmethod
    def arrow(
        columns: Sequence[str] | None = None, as_tuples: Literal[False] = False, as_batches: Literal[False] = False
    ) -> FileFormat[dict[str, Any]]: ...

    @overload
    @staticmethod
    def arrow(
        columns: Sequence[str] | None = None, as_tuples: bool = False, as_batches: bool = False
    ) -> FileFormat[Any]: ...

    @staticmethod
    def arrow(columns: Sequence[str] | None = None, as_tuples: bool = False, as_batches: bool = False) -> FileFormat[Any]:
        """Read every row of an Arrow IPC file (Feather); the arguments are those of `parquet`."""
        return ArrowFormat(columns, as_tuples, as_batches)

    @overload
    @staticmethod
    def avro(schema: AvroSchema | None = None, as_rows: Literal[False] = False) -> FileFormat[dict[str, Any]]: ...

    @overload
    @staticmethod
    def avro(schema: AvroSchema | None = None, *, as_rows: Literal[True]) -> FileFormat[Row]: ...

    @overload
    @staticmethod
    def avro(schema: AvroSchema | None = None, as_rows: bool = False) -> FileFormat[Any]: ...

    @staticmethod
    def avro(schema: AvroSchema | None = None, as_rows: bool = False) -> FileFormat[Any]:
        """Read every record of an Avro container file as a dict.

        Args:
            schema: The reader's schema, to which records of other schemas are converted; None: each file's own.
            as_rows: Return Rows instead of dicts.

        Raises:
            ConfigurationError: fastavro is not installed.
        """
        return AvroFormat(schema, as_rows)


class FileSource(source.FileSource[T]):
    """A source of records in files, built with `for_record_stream_format`."""

    @staticmethod
    def for_record_stream_format(stream_format: FileFormat[R], *paths: str) -> FileSourceBuilder[R]:
        """Return a builder of a source that reads these files, and all files under these directories.

        Args:
            stream_format: One of `StreamFormat`.
            paths: Local paths, or URIs of files (``file://``, ``s3://``, ``gs://``, ``abfss://``, ``hdfs://``).
        """
        return FileSourceBuilder(stream_format, paths)

    @staticmethod
    def for_bulk_file_format(bulk_format: FileFormat[R], *paths: str) -> FileSourceBuilder[R]:
        """Return a builder of a source of Parquet, Arrow or Avro files; the same as `for_record_stream_format`."""
        return FileSourceBuilder(bulk_format, paths)


class FileSourceBuilder(Generic[T]):
    """Builder of a `FileSource`."""

    def __init__(self, stream_format: FileFormat[T], paths: Sequence[str]) -> None:
        self._format = stream_format
        self._paths = paths
        self._interval: int | None = None

    def monitor_continuously(self, discovery_interval: Duration | Time | datetime.timedelta) -> FileSourceBuilder[T]:
        """Check for new files periodically; the source never ends.

        Args:
            discovery_interval: The time between checks. A file is read once its size is unchanged for this time.

        Raises:
            ConfigurationError: the interval is shorter than a millisecond.
        """
        interval = to_milliseconds(discovery_interval)
        if interval <= 0:
            raise ConfigurationError("the discovery interval must be at least a millisecond")
        self._interval = interval
        return self

    def process_static_file_set(self) -> FileSourceBuilder[T]:
        """Read the files that exist at the start, then end (the default)."""
        self._interval = None
        return self

    def set_file_enumerator(self, file_enumerator: object) -> NoReturn:
        """Refuse another enumerator of files.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("a file enumerator is an object of the JVM; FileSource finds the files below its paths")

    def set_split_assigner(self, split_assigner: object) -> NoReturn:
        """Refuse another assigner of splits.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("a split assigner is an object of the JVM; FileSource shares the files out itself")

    def build(self) -> FileSource[T]:
        """Build the source.

        Raises:
            ConfigurationError: no path was given, or one is on a file system that is not known.
        """
        return FileSource(self._format, self._paths, self._interval)


class BucketAssigner:
    """Chooses the subdirectory of records."""

    @staticmethod
    def base_path_bucket_assigner() -> _BucketAssigner:
        """Write all records to the base path."""
        return BasePathBucketAssigner()

    @staticmethod
    def date_time_bucket_assigner(format_str: str = "yyyy-MM-dd--HH", timezone_id: str | None = None) -> _BucketAssigner:
        """Write records to a subdirectory named after the time of writing.

        Args:
            format_str: The name, with ``yyyy``, ``MM``, ``dd``, ``HH``, ``mm`` and ``ss``.
            timezone_id: The time zone, e.g. ``Asia/Kolkata``; None: the machine's.

        Raises:
            ConfigurationError: other letters in the format, or an unknown zone.
        """
        return DateTimeBucketAssigner(format_str, timezone_id)


class OnCheckpointRollingPolicy:
    """A part file ends with every checkpoint."""


class RollingPolicy:
    """When to close a part file and start the next."""

    @staticmethod
    def on_checkpoint_rolling_policy() -> OnCheckpointRollingPolicy:
        """Roll with every checkpoint."""
        return OnCheckpointRollingPolicy()

    @staticmethod
    def default_rolling_policy(
        part_size: int = 128 << 20, rollover_interval: int = 60_000, inactivity_interval: int = 60_000
    ) -> OnCheckpointRollingPolicy:
        """Also roll with every checkpoint, for compatibility with Flink. The bounds are ignored with a warning.

        Args:
            part_size: Flink's limit of a file's size in bytes.
            rollover_interval: Flink's limit of the time that a file is open, in ms.
            inactivity_interval: Flink's limit of the time without records, in ms.
        """
        if (part_size, rollover_interval, inactivity_interval) != (128 << 20, 60_000, 60_000):
            _log.warning(
                "the bounds of default_rolling_policy(...) have no effect: part files end with every checkpoint; for "
                "larger files raise holdfast.epoch.target-duration"
            )
        return OnCheckpointRollingPolicy()


class OutputFileConfig:
    """Prefix and suffix of the names of finished files.

    Examples:
        >>> OutputFileConfig.builder().with_part_prefix("pay").with_part_suffix(".csv").build().get_part_suffix()
        '.csv'
    """

    def __init__(self, part_prefix: str, part_suffix: str) -> None:
        self._prefix = part_prefix
        self._suffix = part_suffix

    @staticmethod
    def builder() -> OutputFileConfig.OutputFileConfigBuilder:
        """Return a builder."""
        return OutputFileConfig.OutputFileConfigBuilder()

    def get_part_prefix(self) -> str:
        """The prefix of names."""
        return self._prefix

    def get_part_suffix(self) -> str:
        """The suffix of names."""
        return self._suffix

    class OutputFileConfigBuilder:
        """Builder of an `OutputFileConfig`; by default names are ``part-...`` without a suffix."""

        def __init__(self) -> None:
            self._prefix = "part"
            self._suffix = ""

        def with_part_prefix(self, prefix: str) -> OutputFileConfig.OutputFileConfigBuilder:
            """Set the prefix of names."""
            self._prefix = prefix
            return self

        def with_part_suffix(self, suffix: str) -> OutputFileConfig.OutputFileConfigBuilder:
            """Set the suffix of names."""
            self._suffix = suffix
            return self

        def build(self) -> OutputFileConfig:
            """Build the configuration."""
            return OutputFileConfig(self._prefix, self._suffix)


class FileSink(sink.FileSink[IN]):
    """A sink that writes records to files, exactly once, built with `for_row_format`."""

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

    class RowFormatBuilder(Generic[V]):
        """Builder of a `FileSink`."""

        def __init__(self, base_path: str, encoder: BatchEncoder[V] | SerializationSchema[V] | BulkWriterFactory) -> None:
            self._base_path = base_path
            self._encoder = encoder
            self._buckets: _BucketAssigner = DateTimeBucketAssigner()
            self._config = OutputFileConfig.builder().build()

        def with_bucket_assigner(self, bucket_assigner: _BucketAssigner) -> FileSink.RowFormatBuilder[V]:
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
                self._buckets,
                self._config.get_part_prefix(),
                self._config.get_part_suffix(),
            )

    BaseBuilder = RowFormatBuilder

    class BulkFormatBuilder(RowFormatBuilder[V]):
        """Builder of a `FileSink` of bulk files."""
