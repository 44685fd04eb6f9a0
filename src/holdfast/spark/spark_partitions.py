"""What Spark does for a source of a DataFrame: checks it, and has its tasks write the partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.common.formats.arrow import pyarrow
from holdfast.errors import ConfigurationError
from holdfast.spark.column_types import without_zones
from holdfast.spark.stored_rows import PartsWriter, WrittenPart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["check_event_time", "check_frame", "spark_partitions"]

_WRITTEN = "partition int, number int, name string, rows long"
_TIMES = ("TimestampType", "TimestampNTZType", "DateType")
_NUMBERS = ("LongType", "IntegerType", "ShortType", "ByteType")


def check_frame(frame: object) -> None:
    """Check that this is a batch DataFrame of a session that runs.

    Raises:
        TypeError: it is no DataFrame.
        ConfigurationError: it is a streaming one, or its session is one of Spark Connect, or stopped.
    """
    from pyspark.sql import DataFrame

    if not isinstance(frame, DataFrame):
        given = f"{type(frame).__module__}.{type(frame).__name__}"
        raise TypeError(f"from_spark() takes a pyspark.sql.DataFrame, not a {given}.")
    if ".connect." in type(frame).__module__:
        raise ConfigurationError(
            "from_spark() got a DataFrame of a Spark Connect session, which has no SparkContext for the job to run on; take "
            "a session of SparkSession.builder.master(...), or write Parquet files and read them with a FileSource"
        )
    if frame.sparkSession.sparkContext._jsc is None:
        raise ConfigurationError("from_spark() got a DataFrame whose SparkSession is stopped; make both anew")
    if frame.isStreaming:
        raise ConfigurationError(
            "from_spark() takes batch DataFrames, and this one is a streaming DataFrame; read its source with a KafkaSource "
            "or a FileSource"
        )


def check_event_time(schema: StructType, event_time: str | None) -> None:
    """Check that the column of the event time exists and holds times.

    Raises:
        ConfigurationError: it does not.
    """
    if event_time is None:
        return
    kinds = {field.name: field.dataType for field in schema.fields}
    if event_time not in kinds:
        raise ConfigurationError(f"the DataFrame has no column {event_time} for the event time; it has {', '.join(kinds)}")
    if type(kinds[event_time]).__name__ not in _TIMES + _NUMBERS:
        raise ConfigurationError(
            f"column {event_time} cannot be the event time, as it is of type {kinds[event_time].simpleString()}; take one "
            "of timestamps, dates, or whole numbers in ms"
        )


def spark_partitions(frame: DataFrame, event_time: str | None, writer: PartsWriter) -> Iterable[WrittenPart]:
    """Compute a DataFrame, and have each of its partitions written by the task that computes it.

    Raises:
        ConfigurationError: it cannot be computed.
        SparkGone: the session is stopped.
    """
    from holdfast.runtime.host.shipping import SparkJobFailed, is_local, portable, ship_package, spark_failure

    context = frame.sparkSession.sparkContext
    if context._jsc is None:
        raise spark_failure(RuntimeError("stopped SparkContext"), True)
    ship_package(context)
    task = portable(_WriteTask(writer))

    def write(batches: Iterator[Any]) -> Iterator[Any]:  # pickled by value: refers to nothing outside
        from pyspark import TaskContext

        return task(TaskContext.get().partitionId(), batches)

    try:
        context.setJobDescription(f"Rows of a DataFrame, to {writer.prefix}")
        found = _selected(frame, event_time).mapInArrow(write, _WRITTEN).collect()
    except Exception as error:
        failure = spark_failure(error, is_local(context.master), stopped=context._jsc is None)
        if not isinstance(failure, SparkJobFailed):
            raise failure from error
        raise ConfigurationError(f"the DataFrame cannot be computed: {failure}") from error
    finally:
        if context._jsc is not None:
            context.setLocalProperty("spark.job.description", None)
    return [WrittenPart(*row) for row in found]


class _WriteTask:
    """Writes the partition of a task; its result is the parts, as columns."""

    def __init__(self, writer: PartsWriter) -> None:
        self._writer = writer

    def __call__(self, partition: int, batches: Iterable[Any]) -> Iterator[Any]:
        arrow = pyarrow()
        parts = list(self._writer.write(partition, batches))
        if parts:
            kinds = [arrow.int32(), arrow.int32(), arrow.string(), arrow.int64()]
            columns = [arrow.array(values, kind) for values, kind in zip(zip(*parts, strict=True), kinds, strict=True)]
            yield arrow.RecordBatch.from_arrays(columns, names=list(WrittenPart._fields))


def _selected(frame: DataFrame, event_time: str | None) -> DataFrame:
    """The columns with wall clocks in place of moments, and the event time in ms as another one."""
    from pyspark.sql import functions as F

    columns = []
    for each in frame.schema.fields:
        kind, column = without_zones(each.dataType), F.col(_quoted(each.name))
        columns.append(column if kind is each.dataType else column.cast(kind).alias(each.name))
    if event_time is not None:
        kinds = {field.name: type(field.dataType).__name__ for field in frame.schema.fields}
        column = F.col(_quoted(event_time))
        time = F.unix_millis(column.cast("timestamp")) if kinds[event_time] in _TIMES else column.cast("long")
        columns.append(time.alias("event time of " + "/".join(kinds)))
    return frame.select(*columns)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
