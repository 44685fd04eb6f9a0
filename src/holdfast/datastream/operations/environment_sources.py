"""EnvironmentSources: the streams that a program begins with."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, overload

from holdfast.common.typeinfo import TypeInformation
from holdfast.common.types import Row
from holdfast.common.values.type_variables import R
from holdfast.common.watermark_strategy import WatermarkStrategy
from holdfast.connectors.base import Source, produced_type
from holdfast.connectors.collection import CollectionSource
from holdfast.connectors.file.formats import TextFormat
from holdfast.connectors.file.source import FileSource
from holdfast.connectors.socket import SocketTextSource
from holdfast.datastream.data_stream import DataStream
from holdfast.datastream.operations.function_checks import check_strategy, check_type
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType

__all__ = ["EnvironmentSources"]


class EnvironmentSources:
    """The calls that begin a stream."""

    @overload
    def from_source(
        self, source: Source[R], watermark_strategy: WatermarkStrategy, source_name: str, type_info: None = None
    ) -> DataStream[R]: ...

    @overload
    def from_source(
        self, source: Source, watermark_strategy: WatermarkStrategy, source_name: str, type_info: TypeInformation[R]
    ) -> DataStream[R]: ...

    def from_source(
        self,
        source: Source,
        watermark_strategy: WatermarkStrategy,
        source_name: str,
        type_info: TypeInformation | None = None,
    ) -> DataStream[Any]:
        """Create a stream of a source's records.

        Args:
            source: The source, e.g. a KafkaSource.
            watermark_strategy: Timestamps and watermarks; ``WatermarkStrategy.no_watermarks()`` for none.
            source_name: The source's name, for plans, metrics and messages.
            type_info: The declared type of the records; by default that of the source's schema, if it declares one, e.g.
                a JsonRowDeserializationSchema.

        Raises:
            TypeError: an argument is of another class.
        """
        return self._from_source(source, watermark_strategy, source_name, type_info)

    @overload
    def add_source(
        self, source_func: Source[R], source_name: str = "Custom Source", type_info: None = None
    ) -> DataStream[R]: ...

    @overload
    def add_source(
        self, source_func: Source, source_name: str = "Custom Source", *, type_info: TypeInformation[R]
    ) -> DataStream[R]: ...

    @overload
    def add_source(self, source_func: Source, source_name: str, type_info: TypeInformation[R]) -> DataStream[R]: ...

    def add_source(
        self, source_func: Source, source_name: str = "Custom Source", type_info: TypeInformation | None = None
    ) -> DataStream[Any]:
        """Create a stream of a source's records, without timestamps; Flink's older name of ``from_source``."""
        return self._from_source(source_func, WatermarkStrategy.no_watermarks(), source_name, type_info)

    @overload
    def create_input(self, input_format: Source[R], type_info: None = None) -> DataStream[R]: ...

    @overload
    def create_input(self, input_format: Source, type_info: TypeInformation[R]) -> DataStream[R]: ...

    def create_input(self, input_format: Source, type_info: TypeInformation | None = None) -> DataStream[Any]:
        """Create a stream of an input format's records, e.g. of an AvroInputFormat.

        Args:
            input_format: The format, which knows its files.
            type_info: The declared type of the records; by default the format's own.

        Raises:
            NotImplementedError: the input format is an object of the JVM.
        """
        if not isinstance(input_format, Source):
            raise NotImplementedError("this InputFormat is an object of the JVM; read with from_source() and a FileSource")
        name = type(input_format).__name__
        return self._from_source(input_format, WatermarkStrategy.no_watermarks(), name, type_info)

    def _from_source(
        self, source: Source, watermark_strategy: WatermarkStrategy, source_name: str, type_info: TypeInformation | None
    ) -> DataStream[Any]:
        given: Any = source
        if not isinstance(given, Source):
            remedy = " Call build() on it." if hasattr(given, "build") else ""
            raise TypeError(f"from_source() takes a Source, not a {type(given).__name__}.{remedy}")
        if not isinstance(watermark_strategy, WatermarkStrategy):
            raise TypeError(
                "from_source() takes a WatermarkStrategy, e.g. WatermarkStrategy.no_watermarks(), not "
                f"{watermark_strategy!r}."
            )
        check_strategy(watermark_strategy, "the watermark strategy of from_source()")
        declared = produced_type(source) if type_info is None else type_info
        return self._add_source(source, source_name, check_type(declared, "from_source()"), watermark_strategy)

    @overload
    def from_collection(self, collection: Iterable[R], type_info: None = None) -> DataStream[R]: ...

    @overload
    def from_collection(self, collection: Iterable[Any], type_info: TypeInformation[R]) -> DataStream[R]: ...

    def from_collection(self, collection: Iterable[Any], type_info: TypeInformation | None = None) -> DataStream[Any]:
        """Create a bounded stream of a collection's elements, in order, read by one subtask.

        Args:
            collection: The elements.
            type_info: Their declared type: elements are converted to it (a tuple becomes a Row, for example).

        Raises:
            ConfigurationError: an element does not fit the type.
        """
        if not isinstance(collection, Iterable):
            raise TypeError(f"from_collection() takes a list of elements, not {collection!r}.")
        values = list(collection)
        type_info = check_type(type_info, "from_collection()")
        if type_info is not None:
            for i, value in enumerate(values):
                try:
                    values[i] = type_info.conform(value)
                except (TypeError, ValueError, OverflowError) as error:
                    raise ConfigurationError(
                        f"Element {i} of the collection, {value!r:.200}, does not fit {type_info!r}: {error}"
                    ) from error
        source = CollectionSource(values)
        return self._add_source(source, "Collection Source", type_info, parallel=False)

    def from_spark(
        self,
        df: DataFrame,
        watermark_strategy: WatermarkStrategy | None = None,
        event_time: str | None = None,
        source_name: str = "DataFrame",
    ) -> DataStream[Row]:
        """Create a bounded stream of the rows of a batch DataFrame, in its partitions, as columns of Arrow.

        Spark computes the DataFrame once, when the job starts. Its tasks store the rows with the job's checkpoints, and all
        restarts read these. They are deleted when the job has read all of them.

        Args:
            df: The DataFrame. A timestamp becomes a wall clock of the session's time zone, a struct a Row.
            watermark_strategy: Timestamps and watermarks; without it, event time stands still until all rows are read.
            event_time: The column with the rows' timestamps: a timestamp, a date, or a whole number in ms.
            source_name: The source's name, for plans, metrics and messages.

        Raises:
            TypeError: this is no DataFrame.
            ConfigurationError: the DataFrame is a streaming one, or its session is stopped or one of Spark Connect; a column
                has a type that cannot be carried, or cannot be the event time.
        """
        from holdfast.spark.dataframe_source import DataFrameSource  # needs pyarrow

        source = DataFrameSource.of(df, event_time)
        return self._from_source(source, watermark_strategy or WatermarkStrategy.no_watermarks(), source_name, None)

    def from_spark_stream(
        self,
        sdf: DataFrame,
        watermark_strategy: WatermarkStrategy | None = None,
        *,
        event_time: str | None = None,
        source_name: str = "Streaming DataFrame",
        trigger: Mapping[str, Any] | None = None,
        output_mode: str = "append",
    ) -> DataStream[Row]:
        """Create a stream of the rows of a streaming DataFrame, of any source that Spark has, as columns of Arrow.

        Spark runs the query in the driver. Its tasks store the rows of each batch with the job's checkpoints, and Spark
        completes the batch when a checkpoint that has read it is complete. The rows are deleted then.

        Args:
            sdf: The DataFrame. A timestamp becomes a wall clock of the session's time zone, a struct a Row.
            watermark_strategy: Timestamps and watermarks. Without it, they are those of ``sdf.withWatermark``; if there are
                none either, event time stands still.
            event_time: The column with the rows' timestamps: a timestamp, a date, or a whole number in ms; by default the
                one with a watermark.
            source_name: The source's name, for plans, metrics and messages.
            trigger: The arguments of ``DataStreamWriter.trigger``, e.g. ``{"processingTime": "5 seconds"}``. With
                ``{"availableNow": True}`` the stream ends when all is read that was there at the start.
            output_mode: For a DataFrame with an aggregation: ``append``, ``update`` or ``complete``. Each batch's rows are
                elements.

        Raises:
            TypeError: this is no DataFrame.
            ConfigurationError: it is a batch DataFrame, or its session is stopped or one of Spark Connect; a column has a
                type that cannot be carried, or cannot be the event time; its source cannot replay a batch.
        """
        from holdfast.spark.stream_query import stream_source  # needs pyarrow

        source, declared = stream_source(sdf, event_time, trigger, output_mode)
        return self._from_source(source, watermark_strategy or declared, source_name, None)

    def from_data_source(
        self,
        data_source: DataSource,
        watermark_strategy: WatermarkStrategy | None = None,
        *,
        event_time: str | None = None,
        schema: StructType | str | None = None,
        bounded: bool | None = None,
        source_name: str | None = None,
    ) -> DataStream[Row]:
        """Create a stream of the rows of a Python data source of PySpark, without Structured Streaming in between.

        Its partitions are read in the job's subtasks. The offsets of a stream reader are in the job's checkpoints; its
        ``commit`` is called after the checkpoint is complete.

        Args:
            data_source: The data source, e.g. ``Orders({"url": "..."})``.
            watermark_strategy: Timestamps and watermarks; without it, event time stands still.
            event_time: The column with the rows' timestamps: a timestamp, a date, or a whole number in ms.
            schema: The columns; by default what its ``schema()`` says.
            bounded: Whether to read it once, by its ``reader``; by default only if it has no stream reader.
            source_name: The source's name, for plans, metrics and messages; by default its ``name()``.

        Raises:
            TypeError: this is no data source.
            ConfigurationError: it has no reader of the kind; a column has a type that cannot be carried, or cannot be the
                event time.
        """
        from holdfast.spark.python_source import PythonDataSource  # needs pyarrow

        source = PythonDataSource.of(data_source, schema, event_time, bounded)
        strategy = watermark_strategy or WatermarkStrategy.no_watermarks()
        return self._from_source(source, strategy, source_name or source.name, None)

    def socket_text_stream(self, hostname: str, port: int) -> DataStream[str]:
        """Create a stream of text lines from a TCP server (e.g. ``nc -lk 9000``), read by one subtask.

        Args:
            hostname: The server's host.
            port: The server's port.
        """
        return self._add_source(SocketTextSource(hostname, port), "Socket Stream", None, parallel=False)

    def read_text_file(self, file_path: str, charset_name: str = "UTF-8") -> DataStream[str]:
        """Create a bounded stream of the lines of a text file, or of all files in a directory.

        Args:
            file_path: A path or ``file://`` URI.
            charset_name: The text's encoding.
        """
        source = FileSource(TextFormat(charset_name), [file_path])
        return self._add_source(source, f"File {file_path}", None)

    @abstractmethod
    def _add_source(
        self,
        source: Source,
        name: str,
        type_info: TypeInformation | None,
        watermark_strategy: WatermarkStrategy | None = None,
        parallel: bool = True,
    ) -> DataStream[Any]:
        """Add a source with the environment's parallelism, or with one subtask."""
