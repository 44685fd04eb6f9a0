"""KeyedStream: a stream partitioned by key, with state and timers per key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, overload

from holdfast.common.formats.columns import ColumnForm
from holdfast.common.time import Duration, Time
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.types import Row
from holdfast.common.values.type_variables import K, R, T, W
from holdfast.datastream.data_stream import DataStream
from holdfast.datastream.functions import KeyedProcessFunction, KeySelector, Partitioner, ReduceFunction
from holdfast.datastream.operations.aggregations import Max, MaxBy, Min, MinBy, Sum
from holdfast.datastream.operations.function_checks import check_function, check_object
from holdfast.datastream.operations.ranking import FirstOfKey, FirstWithinWatermark, LastOfKey, TopN, check_offset
from holdfast.datastream.window import CountSlidingWindowAssigner, CountTumblingWindowAssigner, CountWindow, WindowAssigner
from holdfast.datastream.windowed_stream import WindowedStream
from holdfast.errors import ConfigurationError
from holdfast.graph.transformations import Partitioned
from holdfast.runtime.operators.function_factory import FunctionFactory
from holdfast.runtime.operators.keyed import ChangelogProcess, KeyedFilter, KeyedFlatMap, KeyedMap, KeyedProcess, KeyedReduce
from holdfast.runtime.operators.timeless import Timeless
from holdfast.runtime.plan.plan import Partitioning

if TYPE_CHECKING:
    from pyspark.sql.streaming import StatefulProcessor
    from pyspark.sql.types import StructType

    from holdfast.spark.transform_with_state import ProcessorFunction

__all__ = ["KeyedStream"]


class KeyedStream(DataStream[T], Generic[K, T]):
    """A stream partitioned by key, as returned by ``key_by``.

    Functions on it may keep keyed state, which they get in ``open(runtime_context)``. Operations without a function
    (``print``, ``sink_to``, ``union``, ...) see the values alone, still partitioned by key. A KeyedStream is not an
    operator: set name, uid and parallelism on the operator after it.
    """

    _transformation: Partitioned
    _element_operators = {"Map": KeyedMap, "FlatMap": KeyedFlatMap, "Filter": KeyedFilter}  # noqa: RUF012

    def __init__(self, stream: DataStream[T], transformation: Partitioned) -> None:
        super().__init__(stream._env, transformation)
        self._stream = stream

    def _what(self) -> str:
        return "KeyedStream"

    @overload  # type: ignore[override]  # takes another class of function, as in PyFlink
    def process(self, func: KeyedProcessFunction[K, T, R], output_type: None = None) -> DataStream[R]: ...

    @overload
    def process(self, func: KeyedProcessFunction[K, T, Any], output_type: TypeInformation[R]) -> DataStream[R]: ...

    def process(self, func: KeyedProcessFunction[K, T, Any], output_type: TypeInformation | None = None) -> DataStream[Any]:
        """Apply a KeyedProcessFunction to each element and to its timers.

        Args:
            func: The KeyedProcessFunction.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).

        Raises:
            TypeError: ``func`` is of another class.
        """
        calls = {"process_element": ("value", "ctx"), "on_timer": ("timestamp", "ctx")}
        check_object(func, KeyedProcessFunction, calls, "process() on a KeyedStream", "Derive it from KeyedProcessFunction.")
        return self._then("KeyedProcess", FunctionFactory(KeyedProcess, func), func, output_type, side_outputs=True)

    def transform_with_state(
        self,
        processor: StatefulProcessor,
        output_schema: StructType | str,
        time_mode: str = "None",
        output_mode: str = "append",
        initial_state: KeyedStream[K, Any] | None = None,
        *,
        call_mode: str = "record",
    ) -> DataStream[Row]:
        """Apply a StatefulProcessor that was written for PySpark's ``transformWithState``, in its form for Rows.

        ``handleInputRows`` is called with each element as soon as it comes, as an iterator of one ``pyspark.sql.Row``, or
        with all elements of a key in an epoch. Elements must be Rows with names, or dicts. The key is a tuple. Watermarks
        and timers are Spark's: a timer fires when the highest timestamp less the delay has reached it. In event time, late
        elements are dropped and counted.

        Args:
            processor: The processor.
            output_schema: Names and types of the results, a StructType or ``"id string, count long"``.
            time_mode: ``None``, ``ProcessingTime`` or ``EventTime``: the time of timers, and that which the processor sees.
            output_mode: ``append`` or ``update``, which emit the same rows.
            initial_state: A bounded stream, keyed in the same way. Its rows are read to their end before any element of this
                stream, and given to ``handleInitialState``.
            call_mode: ``record``, or ``epoch`` for Spark's batches: a call with all elements of a key in an epoch, at its
                end, then the timers; the watermark is that of the epoch before. Results depend on the cut into epochs.

        Raises:
            TypeError: this is no StatefulProcessor, or the initial state is no keyed stream.
            ConfigurationError: a mode or schema is not known, or a state of ``init`` is refused.
        """
        from holdfast.spark.transform_with_state import ProcessorFunction  # needs PySpark's SQL

        return self._stateful(ProcessorFunction, processor, output_schema, time_mode, output_mode, initial_state, call_mode)

    def transform_with_state_in_pandas(
        self,
        processor: StatefulProcessor,
        output_schema: StructType | str,
        time_mode: str = "None",
        output_mode: str = "append",
        initial_state: KeyedStream[K, Any] | None = None,
        *,
        call_mode: str = "epoch",
    ) -> DataStream[Row]:
        """Apply a StatefulProcessor that was written for PySpark's ``transformWithStateInPandas``.

        As `transform_with_state`, but ``handleInputRows`` is called with an iterator of one ``pandas.DataFrame``, with the
        elements of a key in an epoch, and gives DataFrames.

        Args:
            processor: The processor.
            output_schema: As in `transform_with_state`.
            time_mode: As in `transform_with_state`.
            output_mode: As in `transform_with_state`.
            initial_state: As in `transform_with_state`; ``handleInitialState`` gets each row as a DataFrame.
            call_mode: ``epoch``; with ``record``, each DataFrame has one row.

        Raises:
            TypeError: as in `transform_with_state`.
            ConfigurationError: as there, or pandas is not installed.
        """
        try:
            from holdfast.spark.pandas_processors import PandasProcessorFunction
        except ImportError as error:
            raise ConfigurationError("transform_with_state_in_pandas() needs pandas: pip install pandas") from error

        function = PandasProcessorFunction
        return self._stateful(function, processor, output_schema, time_mode, output_mode, initial_state, call_mode)

    def apply_in_pandas_with_state(
        self,
        func: Callable[[Any, Any, Any], Iterable[Any]],
        output_schema: StructType | str,
        state_schema: StructType | str,
        output_mode: str = "append",
        timeout_conf: str = "NoTimeout",
        *,
        call_mode: str = "epoch",
    ) -> DataStream[Row]:
        """Apply a function that was written for PySpark's ``applyInPandasWithState``.

        Args:
            func: A callable ``(key, frames, state) -> frames``: the key as a tuple, an iterator of ``pandas.DataFrame`` with
                the elements of the key in an epoch, and the key's ``GroupState``. After the timeout it is called with an
                empty DataFrame.
            output_schema: As in `transform_with_state`.
            state_schema: Names and types of the state's fields.
            output_mode: ``append`` or ``update``, which emit the same rows.
            timeout_conf: ``NoTimeout``, ``ProcessingTimeTimeout`` or ``EventTimeTimeout``; late elements are dropped in the
                last one.
            call_mode: ``epoch``; with ``record``, each DataFrame has one row.

        Raises:
            TypeError: ``func`` cannot be called with three arguments.
            ConfigurationError: a mode, a timeout or a schema is not known, or pandas is not installed.
        """
        check_function(func, "apply", ("key", "frames", "state"), "apply_in_pandas_with_state()")
        try:
            from holdfast.spark.group_state import TIME_MODES, GroupFunction, GroupProcessor
        except ImportError as error:
            raise ConfigurationError("apply_in_pandas_with_state() needs pandas: pip install pandas") from error

        time_mode = TIME_MODES.get(timeout_conf)
        if time_mode is None:
            known = ", ".join(TIME_MODES)
            raise ConfigurationError(f"apply_in_pandas_with_state(): timeout_conf is one of {known}, not {timeout_conf!r}")
        processor = GroupProcessor(func, state_schema, time_mode)
        made = self._stateful(GroupFunction, processor, output_schema, time_mode, output_mode, None, call_mode)
        return made.name("ApplyInPandasWithState")

    def drop_duplicates_within_watermark(self, delay: Time | Duration) -> DataStream[T]:
        """Keep the first element of each key, and drop those that come until the watermark is ``delay`` behind it.

        As PySpark's ``dropDuplicatesWithinWatermark``, whose delay is that of ``withWatermark``: duplicates whose times are
        at most ``delay`` apart are dropped. Late elements are dropped, too.

        Args:
            delay: The event time for which a key is remembered behind its first element's timestamp.
        """
        func = FirstWithinWatermark(delay)
        output_type = self._transformation.output_type
        return self._then("KeyedProcess", FunctionFactory(KeyedProcess, func), func, output_type).name("Deduplicate")

    def _stateful(
        self,
        function: type[ProcessorFunction],
        processor: StatefulProcessor,
        output_schema: StructType | str,
        time_mode: str,
        output_mode: str,
        initial_state: KeyedStream[K, Any] | None,
        call_mode: str,
    ) -> DataStream[Row]:
        from holdfast.spark.transform_with_state import processor_factory

        first = () if initial_state is None else (self._initial(initial_state),)
        modes = time_mode, output_mode, call_mode
        factory = processor_factory(processor, output_schema, *modes, function, initial=bool(first))
        schema = factory.func.schema.as_row
        made = self._then("KeyedProcess", factory, factory.func, schema, role="StatefulProcessor", others=first)
        return made.name("TransformWithState")

    def _initial(self, given: Any) -> KeyedStream[K, Any]:
        if not isinstance(given, KeyedStream) or given._env is not self._env:
            raise TypeError(
                "the initial_state of transform_with_state() is a keyed stream of the same environment, "
                f'not {type(given).__name__}; a DataFrame becomes one by env.from_spark(df).key_by(col("user"))'
            )
        stream, keyed = given._stream, given._transformation
        node = self._env._add_operator(
            inputs=(stream._transformation,),
            kind="InitialState",
            name="InitialState",
            factory=Timeless(),
            functions=(),
            output_type=stream._transformation.output_type,
            passes_elements=True,
        )
        rows: DataStream[Any] = DataStream(self._env, node)
        by_key = rows._partitioned(keyed.partitioning, key_selector=keyed.key_selector, key_type=keyed.key_type)
        return KeyedStream(rows, by_key)

    def reduce(self, func: Callable[[T, T], T] | ReduceFunction[T]) -> DataStream[T]:
        """Combine each element with the key's previous result, and emit the new result.

        Args:
            func: A callable ``(accumulated, value) -> accumulated`` or a ReduceFunction. The first element of a key is
                emitted unchanged.
        """
        check_function(func, "reduce", ("value1", "value2"), "reduce()")
        return self._rolling("Reduce", func)

    def sum(self, position_to_sum: int | str = 0) -> DataStream[T]:
        """Emit, for each element, the key's first element with the sum of one field so far.

        Args:
            position_to_sum: The field's index or name; 0 for elements that are plain numbers.
        """
        return self._rolling("Sum", Sum(position_to_sum))

    def min(self, position_to_min: int | str = 0) -> DataStream[T]:
        """Emit, for each element, the key's first element with the minimum of one field so far.

        Args:
            position_to_min: The field's index or name; 0 for elements that are plain numbers.
        """
        return self._rolling("Min", Min(position_to_min))

    def max(self, position_to_max: int | str = 0) -> DataStream[T]:
        """Emit, for each element, the key's first element with the maximum of one field so far.

        Args:
            position_to_max: The field's index or name; 0 for elements that are plain numbers.
        """
        return self._rolling("Max", Max(position_to_max))

    def min_by(self, position_to_min_by: int | str = 0) -> DataStream[T]:
        """Emit, for each element, the key's element with the smallest field so far; the first one on ties.

        Args:
            position_to_min_by: The field's index or name; 0 for elements that are plain numbers.
        """
        return self._rolling("MinBy", MinBy(position_to_min_by))

    def max_by(self, position_to_max_by: int | str = 0) -> DataStream[T]:
        """Emit, for each element, the key's element with the largest field so far; the first one on ties.

        Args:
            position_to_max_by: The field's index or name; 0 for elements that are plain numbers.
        """
        return self._rolling("MaxBy", MaxBy(position_to_max_by))

    def _rolling(self, kind: str, func: Any) -> DataStream[T]:
        output_type = self._transformation.output_type
        operator = FunctionFactory(KeyedReduce, func, (output_type,))
        return self._then(kind, operator, func, output_type, role="reduce function")

    @overload
    def dedup(self, ttl: Time | Duration, keep: Literal["first"] = "first") -> DataStream[T]: ...

    @overload
    def dedup(self, ttl: Time | Duration, keep: Literal["last"]) -> DataStream[Row]: ...

    def dedup(self, ttl: Time | Duration, keep: Literal["first", "last"] = "first") -> DataStream[Any]:
        """Keep one element of each key, e.g. of each event id: ``events.key_by(id).dedup(Time.hours(1))``.

        Args:
            ttl: The processing time for which a key is remembered after its first element (``first``), or its newest one.
            keep: ``first`` emits the first element of a key at once, and drops the others. ``last`` emits a changelog:
                Rows of the elements' fields, INSERT for the first, UPDATE_BEFORE and UPDATE_AFTER when a newer one comes.
        """
        if keep not in ("first", "last"):
            raise ConfigurationError(f'dedup() keeps the "first" or the "last" element of a key, not {keep!r}.')
        if keep == "last":
            return self._changelog("Deduplicate", LastOfKey(ttl, self._transformation.output_type))
        return self.filter(FirstOfKey(ttl)).name("Deduplicate")

    def top_n(
        self,
        n: int,
        order_by: Callable[[T], Any],
        *,
        descending: bool = True,
        unique_key: Callable[[T], Any] | None = None,
        rank_field: str | None = None,
        offset: int = 0,
    ) -> DataStream[Row]:
        """Keep the ``n`` best elements of each key; of equal ones, those that came first.

        Emits a changelog: Rows of the elements' fields. A new one is an INSERT, after the DELETE of the one that it drops.

        Args:
            n: The number of elements.
            order_by: A callable ``element -> value`` to order by.
            descending: Whether larger values are better.
            unique_key: A callable ``element -> id``: an element replaces the one of the same key and id (UPDATE_BEFORE,
                UPDATE_AFTER), e.g. when running totals are ranked. Elements must only get better: one that gets worse than
                an element that was left out fails the job.
            rank_field: The name of a last field with the rank, from 1: each row whose rank changes is updated.
            offset: How many of the best are left out: the ranks are ``offset + 1`` to ``offset + n``, as with SQL's
                ``LIMIT n OFFSET offset``. An element that enters them may be one that a better element has moved down.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ConfigurationError(f"top_n() keeps a positive number of elements, not {n!r}.")
        check_offset(offset, "elements")
        check_function(order_by, "apply", ("element",), "order_by of top_n()")
        if unique_key is not None:
            check_function(unique_key, "apply", ("element",), "unique_key of top_n()")
        return self._changelog("TopN", TopN(n, order_by, descending, unique_key, rank_field, offset))

    def _changelog(self, name: str, func: KeyedProcessFunction[K, T, Row]) -> DataStream[Row]:
        return self._then("KeyedProcess", FunctionFactory(ChangelogProcess, func), func, None, side_outputs=True).name(name)

    def window(self, window_assigner: WindowAssigner[Any, W]) -> WindowedStream[K, T, W]:
        """Group the elements of each key by windows, e.g. ``TumblingEventTimeWindows.of(Time.minutes(1))``."""
        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int = 0) -> WindowedStream[K, T, CountWindow]:
        """Group the elements of each key by their number.

        Args:
            size: The number of elements in a window.
            slide: A window begins with each ``slide``-th element; 0: when the one before it is full. A window gives its
                result when it is full.
        """
        if slide == 0:
            return WindowedStream(self, CountTumblingWindowAssigner.of(size))
        return WindowedStream(self, CountSlidingWindowAssigner.of(size, slide))

    def interval_join(self, other_stream: KeyedStream[Any, R]) -> IntervalJoin[T, R]:
        """Join with another keyed stream: elements with the same key whose timestamps are within an interval.

        Examples:
            ``orders.interval_join(payments).between(Time.minutes(0), Time.minutes(5)).process(function)``
        """
        return IntervalJoin(*self._with(other_stream, "interval_join()"))

    def temporal_join(self, versions: KeyedStream[Any, R]) -> TemporalJoin[T, R]:
        """Join each element with the version of its key that is valid at the element's timestamp.

        Args:
            versions: A versioned table: each of its elements is a version of its key, valid from the element's timestamp on.

        Examples:
            ``orders.temporal_join(rates).apply(lambda order, rate: ...)``
        """
        return TemporalJoin(self._with(versions, "temporal_join()"))

    def _with(self, other_stream: KeyedStream[Any, R], call: str) -> tuple[KeyedStream[K, T], KeyedStream[Any, R]]:
        """This stream and the other one, if they can be the inputs of a join."""
        if not isinstance(other_stream, KeyedStream):
            raise TypeError(f"{call} takes a KeyedStream, not {other_stream!r}: call key_by(...) on it.")
        if other_stream._env is not self._env:
            raise ConfigurationError(f"{call} takes streams of one environment; these belong to two.")
        return self, other_stream

    @overload
    def key_by(self, key_selector: Callable[[T], R] | KeySelector[T, R], key_type: None = None) -> KeyedStream[R, T]: ...

    @overload
    def key_by(
        self, key_selector: Callable[[T], Any] | KeySelector[T, Any], key_type: TypeInformation[R]
    ) -> KeyedStream[R, T]: ...

    def key_by(
        self, key_selector: Callable[[T], Any] | KeySelector[T, Any], key_type: TypeInformation | None = None
    ) -> KeyedStream[Any, T]:
        """Partition the original stream by another key."""
        return self._stream.key_by(key_selector, key_type)

    def partition_custom(
        self, partitioner: Callable[[R, int], int] | Partitioner[R], key_selector: Callable[[T], R] | KeySelector[T, R]
    ) -> DataStream[T]:
        """Send each element to the subtask that the partitioner picks; the stream is no longer keyed."""
        return self._stream.partition_custom(partitioner, key_selector)

    def _with_columns(self, form: ColumnForm) -> KeyedStream[K, T]:
        """The same stream, whose elements reach the next operator as columns."""
        keys = self._transformation
        how = {"key_selector": keys.key_selector, "key_type": keys.key_type, "columns": form}
        return KeyedStream(self._stream, self._stream._partitioned(keys.partitioning, **how))

    def _spread(self, partitioning: Partitioning) -> DataStream[T]:
        raise ConfigurationError(
            f"A KeyedStream is partitioned by its keys already; {partitioning.value.lower()}() would break them apart. "
            "Call it on the stream before key_by(...), or on the operator after it."
        )


# A KeyedStream makes joins of KeyedStreams: this module comes first.
from holdfast.datastream.joined_streams import IntervalJoin  # noqa: E402
from holdfast.datastream.operations.temporal_join import TemporalJoin  # noqa: E402
