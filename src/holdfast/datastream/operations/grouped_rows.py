"""PySpark's ``df.groupBy(...)`` for its stateful operators, under PySpark's names of methods and parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from holdfast.common import Row, WatermarkStrategy
from holdfast.datastream.data_stream import DataStream
from holdfast.datastream.keyed_stream import KeyedStream
from holdfast.datastream.operations.batches import col
from holdfast.datastream.stream_execution_environment import StreamExecutionEnvironment
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StatefulProcessor
    from pyspark.sql.types import StructType

__all__ = ["GroupedRows", "group_by"]


def group_by(
    rows: DataFrame | DataStream[Any],
    *columns: str,
    event_time: str | None = None,
    watermark_strategy: WatermarkStrategy | None = None,
) -> GroupedRows:
    """Group the rows of a DataFrame or a stream by columns, in place of PySpark's ``df.groupBy(...)``.

    Args:
        rows: A batch DataFrame, for a job on its session, or a stream of Rows or dicts.
        columns: The names of the columns.
        event_time: The column with the timestamps of a DataFrame's rows.
        watermark_strategy: The watermarks of a DataFrame, in place of ``withWatermark``.

    Raises:
        TypeError: this is neither.
        ConfigurationError: no column is given, or the DataFrame is refused (see ``from_spark``).
    """
    if not columns:
        raise ConfigurationError("group_by() needs the names of columns: group_by(df, 'user')")
    if isinstance(rows, DataStream):
        if event_time is not None or watermark_strategy is not None:
            raise ConfigurationError("group_by() of a stream takes its event time: assign_timestamps_and_watermarks() first")
        return GroupedRows(lambda _: rows, columns)
    from holdfast.spark.spark_partitions import check_frame  # needs PySpark's SQL

    check_frame(rows)

    def stream(env: StreamExecutionEnvironment | None) -> DataStream[Row]:
        made = env or StreamExecutionEnvironment.get_execution_environment(spark=rows.sparkSession)
        return made.from_spark(rows, watermark_strategy, event_time)

    return GroupedRows(stream, columns)


class GroupedRows:
    """Rows by key, as `group_by` returns them. Its methods call by epoch, as Spark calls by batch."""

    def __init__(
        self, stream: Callable[[StreamExecutionEnvironment | None], DataStream[Any]], columns: tuple[str, ...]
    ) -> None:
        self._stream = stream
        self._columns = columns

    def _keyed(self, env: StreamExecutionEnvironment | None = None) -> KeyedStream[Any, Any]:
        return self._stream(env).key_by(col(*self._columns))

    def _with_initial(self, initial: Any) -> tuple[KeyedStream[Any, Any], KeyedStream[Any, Any] | None]:
        keyed = self._keyed()
        if initial is None:
            return keyed, None
        if not isinstance(initial, GroupedRows):
            raise TypeError(f"initialState is what group_by() returns, not {type(initial).__name__}")
        return keyed, initial._keyed(keyed.get_execution_environment())

    def transformWithState(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedRows | None = None,
        eventTimeColumnName: str = "",
    ) -> DataStream[Row]:
        """Apply a StatefulProcessor in its form for Rows; see ``KeyedStream.transform_with_state``.

        Args:
            statefulProcessor: The processor.
            outputStructType: Names and types of the results.
            outputMode: ``append`` or ``update``.
            timeMode: ``None``, ``ProcessingTime`` or ``EventTime``.
            initialState: Rows grouped in the same way.
            eventTimeColumnName: Refused, if given: results have the event time of their call.
        """
        _check_event_time(eventTimeColumnName)
        keyed, first = self._with_initial(initialState)
        return keyed.transform_with_state(
            statefulProcessor, outputStructType, timeMode, outputMode, first, call_mode="epoch"
        )

    def transformWithStateInPandas(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedRows | None = None,
        eventTimeColumnName: str = "",
    ) -> DataStream[Row]:
        """Apply a StatefulProcessor in its form for pandas; see ``KeyedStream.transform_with_state_in_pandas``.

        Args:
            statefulProcessor: The processor.
            outputStructType: Names and types of the results.
            outputMode: ``append`` or ``update``.
            timeMode: ``None``, ``ProcessingTime`` or ``EventTime``.
            initialState: Rows grouped in the same way.
            eventTimeColumnName: Refused, if given: results have the event time of their call.
        """
        _check_event_time(eventTimeColumnName)
        keyed, first = self._with_initial(initialState)
        return keyed.transform_with_state_in_pandas(statefulProcessor, outputStructType, timeMode, outputMode, first)

    def applyInPandasWithState(
        self,
        func: Callable[[Any, Any, Any], Iterable[Any]],
        outputStructType: StructType | str,
        stateStructType: StructType | str,
        outputMode: str,
        timeoutConf: str,
    ) -> DataStream[Row]:
        """Apply a function with a state and a timeout per key; see ``KeyedStream.apply_in_pandas_with_state``.

        Args:
            func: A callable ``(key, frames, state) -> frames``.
            outputStructType: Names and types of the results.
            stateStructType: Names and types of the state's fields.
            outputMode: ``append`` or ``update``.
            timeoutConf: ``NoTimeout``, ``ProcessingTimeTimeout`` or ``EventTimeTimeout``.
        """
        return self._keyed().apply_in_pandas_with_state(func, outputStructType, stateStructType, outputMode, timeoutConf)


def _check_event_time(column: str) -> None:
    if column:
        raise ConfigurationError(
            f"eventTimeColumnName={column!r}: results have the event time of their call; give them another one by "
            "assign_timestamps_and_watermarks()"
        )
