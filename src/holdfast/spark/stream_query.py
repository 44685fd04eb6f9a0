"""What Spark does for a source of a streaming DataFrame: checks it, and runs its query."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.common.time import Duration
from holdfast.common.types import Row
from holdfast.common.watermark_strategy import WatermarkStrategy
from holdfast.errors import ConfigurationError
from holdfast.runtime.jvm.pyspark_internals import is_stopped, query_execution
from holdfast.spark.column_types import arrow_columns, declared_type
from holdfast.spark.spark_partitions import check_event_time, check_session, write_partitions
from holdfast.spark.stored_rows import PartsWriter, WrittenPart
from holdfast.spark.stream_source import Ended, SparkStreamSource, Take

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType

__all__ = ["declared_watermark", "stream_source"]

_DELAY = "spark.watermarkDelayMs"
"""In the metadata of a column that has a watermark: the delay in ms."""
_ENDING = ("availableNow", "once")
_NO_FILE_SYSTEM = ("ClassNotFoundException", "No FileSystem for scheme")
"""What Hadoop says if the file system of a location's scheme is not installed."""
_TIMES = ("TimestampType", "TimestampNTZType")


def declared_watermark(schema: StructType, event_time: str | None = None) -> tuple[str, int] | None:
    """The column of a streaming DataFrame that has a watermark, and its delay in ms; None: there is none.

    Args:
        schema: The DataFrame's schema.
        event_time: The column, if the program chooses it.

    Raises:
        ConfigurationError: several columns have one, and the program chooses none.
    """
    found = [
        (field.name, int(field.metadata[_DELAY]))
        for field in schema.fields
        if _DELAY in (field.metadata or {}) and type(field.dataType).__name__ in _TIMES and event_time in (None, field.name)
    ]
    if len(found) > 1:
        names = " and ".join(name for name, _ in found)
        raise ConfigurationError(
            f"the columns {names} of the streaming DataFrame have watermarks: choose one by event_time="
        )
    return found[0] if found else None


def stream_source(
    frame: DataFrame, event_time: str | None, trigger: Mapping[str, Any] | None, output_mode: str
) -> tuple[SparkStreamSource, WatermarkStrategy[Row]]:
    """The source of a streaming DataFrame, and the watermarks that it declares.

    Args:
        frame: The DataFrame.
        event_time: A column of timestamps, dates, or whole numbers in ms: the rows' timestamps. None: the one that has a
            watermark.
        trigger: The arguments of ``DataStreamWriter.trigger``; None: a batch begins as soon as the one before is complete.
        output_mode: ``append``, ``update`` or ``complete``.

    Raises:
        TypeError: it is no DataFrame.
        ConfigurationError: it is a batch DataFrame, a column cannot be carried or be the event time, or its source cannot
            replay a batch.
    """
    check_session(frame, "from_spark_stream()")
    if not frame.isStreaming:
        raise ConfigurationError(
            "from_spark_stream() takes streaming DataFrames, and this one is a batch DataFrame; give it to from_spark(), or "
            "read it with spark.readStream"
        )
    if trigger is not None and (len(trigger) != 1 or "continuous" in trigger or "realTime" in trigger):
        raise ConfigurationError(
            f"the trigger of from_spark_stream() is {dict(trigger)}; it is one of {{'processingTime': '5 seconds'}}, "
            "{'availableNow': True} and None, as batches are what the job's checkpoints refer to"
        )
    if "socket" in _sources(frame):
        raise ConfigurationError(
            "from_spark_stream() got a DataFrame of Spark's socket source, which cannot replay a batch after a crash; read "
            "it with env.socket_text_stream(), which keeps what it has received"
        )
    columns = arrow_columns(frame.schema)
    check_event_time(frame.schema, event_time)
    strategy: WatermarkStrategy[Row] = WatermarkStrategy.no_watermarks()
    watermark = declared_watermark(frame.schema, event_time)
    if watermark is not None:
        event_time, delay = watermark
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(delay))
    start = functools.partial(_StreamQuery, frame, event_time, trigger, output_mode)
    return SparkStreamSource(columns, start, event_time, declared_type(frame.schema)), strategy


def _sources(frame: DataFrame) -> set[str]:
    """The names of the sources, those of DataSource V2 as ``format()`` had them."""
    leaves = query_execution(frame).analyzed().collectLeaves()
    return {leaves.apply(each).toString().strip() for each in range(leaves.size())}


class _StreamQuery:
    """A query of Structured Streaming that hands its batches over."""

    def __init__(
        self,
        frame: DataFrame,
        event_time: str | None,
        trigger: Mapping[str, Any] | None,
        output_mode: str,
        location: str,
        take: Take,
        ended: Ended,
    ) -> None:
        from pyspark.errors import AnalysisException

        self._context = frame.sparkSession.sparkContext
        self._event_time = event_time
        self._take = take
        self._ended = ended
        self._ends = trigger is not None and any(each in _ENDING for each in trigger)
        self._stopped = False
        writer = frame.writeStream.outputMode(output_mode).option("checkpointLocation", location).foreachBatch(self._batch)
        if trigger is not None:
            writer = writer.trigger(**trigger)
        try:
            self._query: StreamingQuery = writer.start()
        except (AnalysisException, ValueError, TypeError) as error:
            reason = (str(error).splitlines() or [""])[0]
            raise ConfigurationError(f"Spark refuses the query of the streaming DataFrame: {reason}") from error
        except Exception as error:
            if any(each in str(error) for each in _NO_FILE_SYSTEM):
                scheme = location.partition("://")[0]
                raise ConfigurationError(
                    f"Spark cannot keep the checkpoints of the streaming DataFrame's query in {location}, below the job's "
                    f"execution.checkpointing.dir: this Spark has no file system for {scheme}://. Start it with the package "
                    "that has one (spark.jars.packages; for s3a, org.apache.hadoop:hadoop-aws of the release of Spark's "
                    "Hadoop), and give the session its settings (for s3a, spark.hadoop.fs.s3a.*)"
                ) from error
            raise self._failure(error) from error
        threading.Thread(target=self._watch, name="holdfast-watches-query", daemon=True).start()

    def _batch(self, frame: DataFrame, number: int) -> None:
        def written(writer: PartsWriter) -> Iterable[WrittenPart]:
            description = f"Rows of batch {number} of a streaming DataFrame, to {writer.prefix}"
            ordered = self._event_time is not None
            return write_partitions(frame, self._event_time, writer, description, ordered=ordered)

        self._take(written, number)

    def _watch(self) -> None:
        try:
            self._query.awaitTermination()
        except Exception as error:
            self._ended(self._failure(error))
            return
        if self._stopped or self._ends:
            self._ended(None)
        elif is_stopped(self._context):
            self._ended(self._failure(RuntimeError("stopped SparkContext")))
        else:
            self._ended(RuntimeError("the query of the streaming DataFrame was stopped, and not by its job"))

    def _failure(self, error: BaseException) -> Exception:
        from holdfast.runtime.host.shipping import SparkJobFailed, is_local, spark_failure

        failure = spark_failure(error, is_local(self._context.master), stopped=is_stopped(self._context))
        if isinstance(failure, SparkJobFailed):
            return SparkJobFailed(f"the query of the streaming DataFrame has failed: {failure}")
        return failure

    def stop(self) -> None:
        """Stop the query, and wait for its end."""
        self._stopped = True
        if not is_stopped(self._context):
            self._query.stop()
