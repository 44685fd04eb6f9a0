"""What Spark does for a source of a DataFrame, or of a stream's batches: checks it, has its tasks write the partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.common.formats.arrow import check_dataframes, pyarrow
from holdfast.errors import ConfigurationError
from holdfast.runtime.jvm.pyspark_internals import is_stopped
from holdfast.runtime.spark.spark_context import refuse_connect
from holdfast.spark.column_types import without_zones
from holdfast.spark.stored_rows import PartsWriter, WrittenPart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["check_event_time", "check_frame", "check_session", "spark_partitions", "write_partitions"]

_WRITTEN = "partition int, number int, name string, rows long, latest long"
_DESCRIPTION = "spark.job.description"
_TIMES = ("TimestampType", "TimestampNTZType", "DateType")
_NUMBERS = ("LongType", "IntegerType", "ShortType", "ByteType")


def check_frame(frame: object) -> None:
    """Check that this is a batch DataFrame of a session that runs.

    Raises:
        TypeError: it is no DataFrame.
        ConfigurationError: it is a streaming one, or its session is one of Spark Connect, or stopped.
    """
    if check_session(frame, "from_spark()").isStreaming:
        raise ConfigurationError(
            "from_spark() takes batch DataFrames, and this one is a streaming DataFrame; give it to from_spark_stream()"
        )


def check_session(frame: object, call: str) -> DataFrame:
    """Check that this is a DataFrame of a session that runs.

    Raises:
        TypeError: it is no DataFrame.
        ConfigurationError: its session is one of Spark Connect, or stopped; or a library is not installed.
    """
    from pyspark.sql import DataFrame

    if not isinstance(frame, DataFrame):
        given = f"{type(frame).__module__}.{type(frame).__name__}"
        raise TypeError(f"{call} takes a pyspark.sql.DataFrame, not a {given}.")
    refuse_connect(frame, call)
    check_dataframes()
    if is_stopped(frame.sparkSession.sparkContext):
        raise ConfigurationError(f"{call} got a DataFrame whose SparkSession is stopped; make both anew")
    return frame


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
    from holdfast.runtime.host.shipping import SparkJobFailed
    from holdfast.runtime.spark.stages import name_stages

    context = frame.sparkSession.sparkContext
    try:
        if not is_stopped(context):
            name_stages(context, "Rows of a DataFrame")  # else, in a restart, they have the name of an operator
        return write_partitions(frame, event_time, writer, f"Rows of a DataFrame, to {writer.prefix}")
    except SparkJobFailed as failure:
        raise ConfigurationError(f"the DataFrame cannot be computed: {failure}") from failure
    finally:
        if not is_stopped(context):
            name_stages(context, None)


def write_partitions(
    frame: DataFrame, event_time: str | None, writer: PartsWriter, description: str, *, ordered: bool = False
) -> Iterable[WrittenPart]:
    """Have each partition of a DataFrame written by the task that computes it.

    Args:
        frame: A batch DataFrame.
        event_time: The column of the event time.
        writer: What the tasks write with.
        description: The job's description in Spark's UI.
        ordered: Whether each partition is sorted by event time; rows of one time keep their order.

    Raises:
        SparkJobFailed: it cannot be computed.
        SparkGone: the session is stopped.
    """
    from holdfast.runtime.host.shipping import is_local, portable, ship_package, spark_failure

    context = frame.sparkSession.sparkContext
    if is_stopped(context):
        raise spark_failure(RuntimeError("stopped SparkContext"), True)
    ship_package(context)
    task = portable(_WriteTask(writer))

    def write(batches: Iterator[Any]) -> Iterator[Any]:  # pickled by value: refers to nothing outside
        from pyspark import TaskContext

        return task(TaskContext.get().partitionId(), batches)

    before = context.getLocalProperty(_DESCRIPTION)
    try:
        context.setLocalProperty(_DESCRIPTION, description)
        found = _selected(frame, event_time, ordered).mapInArrow(write, _WRITTEN).collect()
    except Exception as error:
        raise spark_failure(error, is_local(context.master), stopped=is_stopped(context)) from error
    finally:
        if not is_stopped(context):
            context.setLocalProperty(_DESCRIPTION, before)
    return [WrittenPart(*row) for row in found]


class _WriteTask:
    """Writes the partition of a task; its result is the parts, as columns."""

    def __init__(self, writer: PartsWriter) -> None:
        self._writer = writer

    def __call__(self, partition: int, batches: Iterable[Any]) -> Iterator[Any]:
        arrow = pyarrow()
        parts = list(self._writer.write(partition, batches))
        if parts:
            kinds = [arrow.int32(), arrow.int32(), arrow.string(), arrow.int64(), arrow.int64()]
            columns = [arrow.array(values, kind) for values, kind in zip(zip(*parts, strict=True), kinds, strict=True)]
            yield arrow.RecordBatch.from_arrays(columns, names=list(WrittenPart._fields))


def _selected(frame: DataFrame, event_time: str | None, ordered: bool) -> DataFrame:
    """The columns with wall clocks in place of moments, and the event time in ms as another one, perhaps in its order."""
    from pyspark.sql import functions as F

    columns = []
    for each in frame.schema.fields:
        kind, column = without_zones(each.dataType), F.col(_quoted(each.name))
        columns.append(column if kind is each.dataType else column.cast(kind).alias(each.name))
    if event_time is not None:
        kinds = {field.name: type(field.dataType).__name__ for field in frame.schema.fields}
        column = F.col(_quoted(event_time))
        time = F.unix_millis(column.cast("timestamp")) if kinds[event_time] in _TIMES else column.cast("long")
        name = "event time of " + "/".join(kinds)
        columns.append(time.alias(name))
        if ordered:
            place = f"place by {name}"
            selected = frame.select(*columns).withColumn(place, F.monotonically_increasing_id())
            return selected.sortWithinPartitions(F.col(_quoted(name)), F.col(_quoted(place))).drop(place)
    return frame.select(*columns)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
