"""File source and file sink under PyFlink's names."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence

from holdfast.common.serialization import DeserializationSchema, SerializationSchema
from holdfast.common.time import Duration, Time, to_milliseconds
from holdfast.connectors.file import sink, source
from holdfast.connectors.file.buckets import BasePathBucketAssigner, DateTimeBucketAssigner
from holdfast.connectors.file.buckets import BucketAssigner as _BucketAssigner
from holdfast.connectors.file.formats import CsvFormat, FileFormat, JsonLinesFormat, TextFormat
from holdfast.connectors.file.parquet import ParquetFormat
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
    """How files become records."""

    @staticmethod
    def text_line_format(charset_name: str = "UTF-8") -> FileFormat:
        """Every line is a record, a str.

        Raises:
            ConfigurationError: the charset is unknown, or does not extend ASCII.
        """
        return TextFormat(charset_name)

    @staticmethod
    def csv(
        delimiter: str = ",",
        quote: str = '"',
        header: bool = False,
        charset_name: str = "UTF-8",
        schema: DeserializationSchema | None = None,
    ) -> FileFormat:
        """Every line is a row: a tuple of str, with ``header`` a dict by the names in the file's first line.

        Args:
            delimiter: What stands between values.
            quote: What stands around a value that holds delimiters; doubled it stands for itself. Line feeds within
                quotes are not supported.
            header: Whether the first line of each file names the columns.
            charset_name: The files' charset.
            schema: Makes the record of a line's bytes instead; None of it is no record.

        Raises:
            ConfigurationError: an argument cannot be used.
        """
        return CsvFormat(delimiter, quote, header, charset_name, schema)

    @staticmethod
    def json_lines(schema: DeserializationSchema | None = None) -> FileFormat:
        """Every line is a JSON value, e.g. a dict; blank lines are skipped.

        Args:
            schema: Makes the record of a line's bytes instead, e.g. a JsonRowDeserializationSchema.
        """
        return JsonLinesFormat(schema)

    @staticmethod
    def parquet(columns: Sequence[str] | None = None, as_tuples: bool = False) -> FileFormat:
        """Every row of a Parquet file is a record: a dict by column name, or a tuple.

        Args:
            columns: The columns to read; None: all.
            as_tuples: Tuples instead of dicts.

        Raises:
            ConfigurationError: pyarrow is not installed.
        """
        return ParquetFormat(columns, as_tuples)


class FileSource(source.FileSource):
    """A source of the records in files; made by `for_record_stream_format`."""

    @staticmethod
    def for_record_stream_format(stream_format: FileFormat, *paths: str) -> FileSourceBuilder:
        """A builder of a source that reads these files, and all files under these directories.

        Args:
            stream_format: One of `StreamFormat`.
            paths: Local paths or ``file://`` URIs.
        """
        return FileSourceBuilder(stream_format, paths)

    @staticmethod
    def for_bulk_file_format(bulk_format: object, *paths: str) -> FileSourceBuilder:
        """Not offered: bulk formats are classes of Java.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("bulk formats are Java classes; use for_record_stream_format(StreamFormat.parquet(), ...)")


class FileSourceBuilder:
    """Makes a `FileSource`."""

    def __init__(self, stream_format: FileFormat, paths: Sequence[str]) -> None:
        self._format = stream_format
        self._paths = paths
        self._interval: int | None = None

    def monitor_continuously(self, discovery_interval: Duration | Time | datetime.timedelta) -> FileSourceBuilder:
        """Look for new files again and again; the source never ends.

        Args:
            discovery_interval: The time between two looks. A file is taken once it has kept its size so long.

        Raises:
            ConfigurationError: the interval is shorter than a millisecond.
        """
        interval = to_milliseconds(discovery_interval)
        if interval <= 0:
            raise ConfigurationError("the discovery interval must be at least a millisecond")
        self._interval = interval
        return self

    def process_static_file_set(self) -> FileSourceBuilder:
        """Read the files that are there at the start, then end; this is the default."""
        self._interval = None
        return self

    def build(self) -> FileSource:
        """The source.

        Raises:
            ConfigurationError: no path was given, or one is not local.
        """
        return FileSource(self._format, self._paths, self._interval)


class BucketAssigner:
    """Which subdirectory records are written to."""

    @staticmethod
    def base_path_bucket_assigner() -> _BucketAssigner:
        """All to the base path."""
        return BasePathBucketAssigner()

    @staticmethod
    def date_time_bucket_assigner(format_str: str = "yyyy-MM-dd--HH", timezone_id: str | None = None) -> _BucketAssigner:
        """To one named after the time of writing.

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
    """When a part file ends and the next begins."""

    @staticmethod
    def on_checkpoint_rolling_policy() -> OnCheckpointRollingPolicy:
        """With every checkpoint."""
        return OnCheckpointRollingPolicy()

    @staticmethod
    def default_rolling_policy(
        part_size: int = 128 << 20, rollover_interval: int = 60_000, inactivity_interval: int = 60_000
    ) -> OnCheckpointRollingPolicy:
        """With every checkpoint, too: accepted for programs that come from Flink. Bounds are ignored with a warning.

        Args:
            part_size: Flink's bound of a file's bytes.
            rollover_interval: Flink's bound of the time that a file is open, in ms.
            inactivity_interval: Flink's bound of the time without records, in ms.
        """
        if (part_size, rollover_interval, inactivity_interval) != (128 << 20, 60_000, 60_000):
            _log.warning(
                "the bounds of default_rolling_policy(...) have no effect: part files end with every checkpoint; for "
                "larger files raise holdfast.epoch.target-duration"
            )
        return OnCheckpointRollingPolicy()


class OutputFileConfig:
    """How the names of finished files begin and end.

    Examples:
        >>> OutputFileConfig.builder().with_part_prefix("pay").with_part_suffix(".csv").build().get_part_suffix()
        '.csv'
    """

    def __init__(self, part_prefix: str, part_suffix: str) -> None:
        self._prefix = part_prefix
        self._suffix = part_suffix

    @staticmethod
    def builder() -> OutputFileConfig.OutputFileConfigBuilder:
        """A builder."""
        return OutputFileConfig.OutputFileConfigBuilder()

    def get_part_prefix(self) -> str:
        """How names begin."""
        return self._prefix

    def get_part_suffix(self) -> str:
        """How names end."""
        return self._suffix

    class OutputFileConfigBuilder:
        """Makes an `OutputFileConfig`; without more, names are ``part-...`` with no suffix."""

        def __init__(self) -> None:
            self._prefix = "part"
            self._suffix = ""

        def with_part_prefix(self, prefix: str) -> OutputFileConfig.OutputFileConfigBuilder:
            """Set how names begin."""
            self._prefix = prefix
            return self

        def with_part_suffix(self, suffix: str) -> OutputFileConfig.OutputFileConfigBuilder:
            """Set how names end."""
            self._suffix = suffix
            return self

        def build(self) -> OutputFileConfig:
            """The configuration."""
            return OutputFileConfig(self._prefix, self._suffix)


class FileSink(sink.FileSink):
    """A sink that writes records to files, exactly once; made by `for_row_format`."""

    @staticmethod
    def for_row_format(base_path: str, encoder: BatchEncoder | SerializationSchema) -> FileSink.RowFormatBuilder:
        """A builder of a sink that writes record after record.

        Args:
            base_path: A local directory or ``file://`` URI.
            encoder: ``Encoder.simple_string_encoder()``, `JsonLinesEncoder`, or a SerializationSchema (a line each).
        """
        return FileSink.RowFormatBuilder(base_path, encoder)

    @staticmethod
    def for_bulk_format(base_path: str, writer_factory: object) -> FileSink.RowFormatBuilder:
        """Not offered: bulk writers are classes of Java.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("bulk writers are Java classes; use FileSink.for_row_format(path, encoder)")

    class RowFormatBuilder:
        """Makes a `FileSink`."""

        def __init__(self, base_path: str, encoder: BatchEncoder | SerializationSchema) -> None:
            self._base_path = base_path
            self._encoder = encoder
            self._buckets: _BucketAssigner = DateTimeBucketAssigner()
            self._config = OutputFileConfig.builder().build()

        def with_bucket_assigner(self, bucket_assigner: _BucketAssigner) -> FileSink.RowFormatBuilder:
            """Set the buckets; by default they are hours, as in Flink."""
            self._buckets = bucket_assigner
            return self

        def with_output_file_config(self, output_file_config: OutputFileConfig) -> FileSink.RowFormatBuilder:
            """Set how the names of files begin and end."""
            self._config = output_file_config
            return self

        def with_rolling_policy(self, rolling_policy: OnCheckpointRollingPolicy) -> FileSink.RowFormatBuilder:
            """Accept the policy there is: a part file ends with every checkpoint.

            Raises:
                ConfigurationError: it is another one.
            """
            if not isinstance(rolling_policy, OnCheckpointRollingPolicy):
                raise ConfigurationError(
                    f"FileSink: cannot roll by {rolling_policy!r}; use RollingPolicy.on_checkpoint_rolling_policy()"
                )
            return self

        def build(self) -> FileSink:
            """The sink.

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
