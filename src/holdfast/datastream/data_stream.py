"""DataStream: a stream of elements and its operations.

Every call extends the program's graph; ``env.execute()`` or ``execute_and_collect()`` runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, overload

from holdfast.common.output_tag import OutputTag, Tagged
from holdfast.common.system.jvm_only import refusing
from holdfast.common.typeinfo import TypeInformation, Types
from holdfast.common.values.type_variables import R, T, W
from holdfast.common.watermark_strategy import WatermarkStrategy
from holdfast.datastream.data_stream_sink import CloseableIterator, DataStreamSink
from holdfast.datastream.functions import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ProcessFunction,
)
from holdfast.datastream.operations.batch_operations import BatchOperations
from holdfast.datastream.operations.function_checks import (
    check_function,
    check_object,
    check_strategy,
    check_type,
    selector_callable,
)
from holdfast.datastream.operations.operator_settings import OperatorSettings, check_count
from holdfast.datastream.operations.projection import projection
from holdfast.datastream.operations.stream_output import StreamOutput
from holdfast.datastream.window import CountSlidingWindowAssigner, CountTumblingWindowAssigner, CountWindow, WindowAssigner
from holdfast.errors import ConfigurationError
from holdfast.graph.transformations import (
    OperatorTransformation,
    Partitioned,
    Physical,
    SideOutput,
    Transformation,
    Union,
)
from holdfast.runtime.operators.function_factory import FunctionFactory, FunctionOperatorClass
from holdfast.runtime.operators.stateless import Filter, FlatMap, Map, Process
from holdfast.runtime.operators.timestamps import TimestampsAndWatermarksOperator
from holdfast.runtime.plan.operator import OperatorFactory
from holdfast.runtime.plan.plan import Partitioning
from holdfast.state.api.descriptors import MapStateDescriptor
from holdfast.state.keys.key_groups import MAX_KEY_GROUPS

if TYPE_CHECKING:
    from typing_extensions import Self

    from holdfast.common.execution_config import ExecutionConfig
    from holdfast.datastream.stream_execution_environment import StreamExecutionEnvironment

__all__ = [
    "AllWindowedStream",
    "BroadcastConnectedStream",
    "BroadcastStream",
    "CloseableIterator",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "KeyedStream",
    "WindowedStream",
]

_NEED_KEYS = frozenset(("max", "max_by", "min", "min_by", "reduce", "sum", "window"))


class DataStream(StreamOutput[T], BatchOperations[T], OperatorSettings, Generic[T]):
    """A stream of elements, created by the environment's sources or derived from other streams."""

    _element_operators: ClassVar[Mapping[str, FunctionOperatorClass]] = {"Map": Map, "FlatMap": FlatMap, "Filter": Filter}

    def __init__(self, env: StreamExecutionEnvironment, transformation: Transformation) -> None:
        self._env = env
        self._transformation = transformation

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(
            f"a {type(self).__name__} cannot be used inside a function: it exists only where the program is built"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            remedy = ": it needs keys, so call key_by(...) first" if name in _NEED_KEYS else ""
            raise AttributeError(f"a {type(self).__name__} has no {name}(){remedy}")

    # ---- operator settings and properties ----------------------------------------------------------------------------

    def get_name(self) -> str:
        """The name of the operator that produces this stream."""
        return self._operator("get_name").name

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Set the number of the operator's key groups: the highest parallelism it can ever have.

        It cannot change after the first checkpoint.
        """
        operator = self._operator("set_max_parallelism")
        operator.max_parallelism = check_count(max_parallelism, "max parallelism", most=MAX_KEY_GROUPS)
        return self

    def force_non_parallel(self) -> Self:
        """Set the operator's parallelism and max parallelism to 1."""
        operator = self._operator("force_non_parallel")
        operator.parallelism = operator.max_parallelism = 1
        operator.parallelism_configured = True
        return self

    def start_new_chain(self) -> Self:
        """Never chain the operator to the one before it."""
        self._operator("start_new_chain").starts_chain = True
        return self

    def cache(self) -> NoReturn:
        """Refuse to cache the stream between jobs.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("streams are not cached between jobs; write the elements to files, and read these")

    def get_type(self) -> TypeInformation[T]:
        """The type of the elements; pickled Python objects unless declared."""
        return self._transformation.output_type or Types.PICKLED_BYTE_ARRAY()

    def get_execution_environment(self) -> StreamExecutionEnvironment:
        """The environment that the stream belongs to."""
        return self._env

    def get_execution_config(self) -> ExecutionConfig:
        """The environment's ExecutionConfig."""
        return self._env.get_config()

    def _operator(self, call: str) -> Physical:
        if not isinstance(self._transformation, Physical):
            raise ConfigurationError(
                f"{call}() belongs to an operator, and this {self._what()} is none: call it on the operator after it."
            )
        return self._transformation

    def _what(self) -> str:
        if isinstance(self._transformation, Partitioned):
            return f"stream partitioned by {self._transformation.partitioning.value}"
        return "union" if isinstance(self._transformation, Union) else "side output"

    # ---- element by element -----------------------------------------------------------------------------------------

    @overload
    def map(self, func: Callable[[T], R] | MapFunction[T, R], output_type: None = None) -> DataStream[R]: ...

    @overload
    def map(self, func: Callable[[T], Any] | MapFunction[T, Any], output_type: TypeInformation[R]) -> DataStream[R]: ...

    def map(
        self, func: Callable[[T], Any] | MapFunction[T, Any], output_type: TypeInformation | None = None
    ) -> DataStream[Any]:
        """Convert each element to one element.

        Args:
            func: A callable ``value -> value`` or a MapFunction, which on a keyed stream may keep keyed state.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        check_function(func, "map", ("value",), "map()")
        return self._then("Map", self._calling("Map", func), func, output_type)

    @overload
    def flat_map(
        self, func: Callable[[T], Iterable[R | Tagged]] | FlatMapFunction[T, R], output_type: None = None
    ) -> DataStream[R]: ...

    @overload
    def flat_map(
        self, func: Callable[[T], Iterable[Any]] | FlatMapFunction[T, Any], output_type: TypeInformation[R]
    ) -> DataStream[R]: ...

    def flat_map(
        self, func: Callable[[T], Iterable[Any]] | FlatMapFunction[T, Any], output_type: TypeInformation | None = None
    ) -> DataStream[Any]:
        """Convert each element to any number of elements.

        Args:
            func: A callable ``value -> iterable`` or a FlatMapFunction, which on a keyed stream may keep keyed state; a
                generator is fine.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        check_function(func, "flat_map", ("value",), "flat_map()")
        return self._then("FlatMap", self._calling("FlatMap", func), func, output_type, side_outputs=True)

    def filter(self, func: Callable[[T], object] | FilterFunction[T]) -> DataStream[T]:
        """Keep the elements for which the function returns a true value.

        Args:
            func: A callable ``value -> bool`` or a FilterFunction, which on a keyed stream may keep keyed state.
        """
        check_function(func, "filter", ("value",), "filter()")
        output_type = self._transformation.output_type
        return self._then("Filter", self._calling("Filter", func), func, output_type, passes_elements=True)

    def _calling(self, kind: str, func: Any) -> FunctionFactory:
        return FunctionFactory(self._element_operators[kind], func)

    def project(self, *field_indexes: int) -> DataStream[tuple[Any, ...]]:
        """Keep some fields of each tuple or Row, as a tuple of them in this order.

        Args:
            *field_indexes: The positions of the fields, from 0.

        Raises:
            TypeError: the elements are declared with a type without fields.
            ConfigurationError: an index is not one of a field.
        """
        declared = self._transformation.output_type
        return self._then("Project", *projection(field_indexes, declared))

    @overload
    def process(self, func: ProcessFunction[T, R], output_type: None = None) -> DataStream[R]: ...

    @overload
    def process(self, func: ProcessFunction[T, Any], output_type: TypeInformation[R]) -> DataStream[R]: ...

    def process(self, func: ProcessFunction[T, Any], output_type: TypeInformation | None = None) -> DataStream[Any]:
        """Apply a ProcessFunction to each element, with access to timestamps and side outputs.

        Args:
            func: The ProcessFunction. For state and timers use ``key_by`` and a KeyedProcessFunction.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).

        Raises:
            TypeError: ``func`` is of another class.
        """
        given: Any = func
        if isinstance(given, KeyedProcessFunction):
            raise TypeError(
                f"process() on a stream without keys got the KeyedProcessFunction {type(given).__name__}: state and "
                "timers belong to keys. Call key_by(...) before process(...)."
            )
        check_object(func, ProcessFunction, {"process_element": ("value", "ctx")}, "process()")
        return self._then("Process", FunctionFactory(Process, func), func, output_type, side_outputs=True)

    def assign_timestamps_and_watermarks(self, watermark_strategy: WatermarkStrategy[T]) -> DataStream[T]:
        """Assign timestamps and watermarks by the strategy."""
        if not isinstance(watermark_strategy, WatermarkStrategy):
            raise TypeError(
                f"assign_timestamps_and_watermarks() takes a WatermarkStrategy, not {watermark_strategy!r}; make one "
                "with WatermarkStrategy.for_bounded_out_of_orderness(...) and the like."
            )
        check_strategy(watermark_strategy, "assign_timestamps_and_watermarks()")
        if watermark_strategy.alignment is not None:
            raise ConfigurationError(
                "assign_timestamps_and_watermarks() cannot hold back a stream: give the strategy with "
                "with_watermark_alignment() to from_source()."
            )
        factory = TimestampsAndWatermarksOperator(watermark_strategy)
        output_type = self._transformation.output_type
        return self._then(
            "Timestamps/Watermarks",
            factory,
            watermark_strategy,
            output_type,
            role="watermark strategy",
            passes_elements=True,
        )

    def get_side_output(self, output_tag: OutputTag[R]) -> DataStream[R]:
        """The stream of elements that this stream's operator emits with the tag.

        Raises:
            TypeError: the tag is not an OutputTag.
            ConfigurationError: the operator has no side outputs.
        """
        if not isinstance(output_tag, OutputTag):
            raise TypeError(f"get_side_output() takes an OutputTag, not {output_tag!r}.")
        operator = self._transformation
        if not isinstance(operator, OperatorTransformation) or not operator.side_outputs:
            what = operator if isinstance(operator, Physical) else f"a {self._what()}"
            raise ConfigurationError(
                f"{what} has no side outputs. Call get_side_output(...) on the very stream that process(...), "
                "flat_map(...) or a window operation returned."
            )
        return DataStream(self._env, SideOutput(inputs=(operator,), tag=output_tag.tag_id, output_type=output_tag.type_info))

    # ---- where elements go ------------------------------------------------------------------------------------------

    def union(self, *streams: DataStream[R]) -> DataStream[T | R]:
        """Merge this stream with others; the streams interleave in no particular order.

        The union has a declared type if all streams declare the same one.
        """
        for stream in streams:
            if not isinstance(stream, DataStream):
                raise TypeError(f"union() takes streams, not {stream!r}.")
            if stream._env is not self._env:
                raise ConfigurationError("union() takes streams of one environment; these belong to two.")
        inputs = tuple(s._transformation for s in (self, *streams))
        types = {each.output_type for each in inputs}
        return DataStream(self._env, Union(inputs=inputs, output_type=types.pop() if len(types) == 1 else None))

    @overload
    def connect(self, ds: DataStream[R]) -> ConnectedStreams[T, R]: ...

    @overload
    def connect(self, ds: BroadcastStream[R]) -> BroadcastConnectedStream[T, R]: ...

    def connect(self, ds: DataStream | BroadcastStream) -> ConnectedStreams | BroadcastConnectedStream:
        """Connect this stream with another one, possibly of other elements, for one function with a method for each stream.

        Args:
            ds: A stream, or a BroadcastStream (as ``broadcast(descriptor)`` returns it), whose elements reach every
                subtask.
        """
        if not isinstance(ds, (DataStream, BroadcastStream)):
            raise TypeError(f"connect() takes a stream or the result of broadcast(descriptor), not {ds!r}.")
        if ds.get_execution_environment() is not self._env:
            raise ConfigurationError("connect() takes a stream of the same environment; these have different ones.")
        if isinstance(ds, BroadcastStream):
            return BroadcastConnectedStream(self, ds, ds.broadcast_state_descriptors)
        return ConnectedStreams(self, ds)

    @overload
    def key_by(self, key_selector: Callable[[T], R] | KeySelector[T, R], key_type: None = None) -> KeyedStream[R, T]: ...

    @overload
    def key_by(
        self, key_selector: Callable[[T], Any] | KeySelector[T, Any], key_type: TypeInformation[R]
    ) -> KeyedStream[R, T]: ...

    def key_by(
        self, key_selector: Callable[[T], Any] | KeySelector[T, Any], key_type: TypeInformation | None = None
    ) -> KeyedStream[Any, T]:
        """Partition by key: all elements of a key go to one subtask, in order, and state is kept per key.

        Args:
            key_selector: A callable ``value -> key`` or a KeySelector. It must always give the same key for the same
                element.
            key_type: The declared type of the keys: they are checked and converted to it (a tuple becomes a Row).
        """
        check_function(key_selector, "get_key", ("value",), "key_by()")
        select = selector_callable(key_selector, "get_key")
        check_type(key_type, "the key_type of key_by()")
        return KeyedStream(self, self._partitioned(Partitioning.HASH, key_selector=select, key_type=key_type))

    def window_all(self, window_assigner: WindowAssigner[Any, W]) -> AllWindowedStream[T, W]:
        """Group all elements by windows, whatever their keys, in one subtask."""
        return AllWindowedStream(self, window_assigner)

    def join(self, other_stream: DataStream[R]) -> JoinedStreams[T, R]:
        """Join with another stream, by key and window: the pairs of elements.

        Examples:
            ``orders.join(payments).where(order_id).equal_to(payment_id).window(assigner).apply(function)``
        """
        return JoinedStreams(self, other_stream)

    def co_group(self, other_stream: DataStream[R]) -> CoGroupedStreams[T, R]:
        """Join with another stream, by key and window: all elements of both, also of keys that only one of them has."""
        return CoGroupedStreams(self, other_stream)

    def count_window_all(self, size: int, slide: int = 0) -> AllWindowedStream[T, CountWindow]:
        """Group all elements by their number, in one subtask.

        Args:
            size: The number of elements in a window.
            slide: A window begins with each ``slide``-th element; 0: when the one before it is full.
        """
        if slide == 0:
            return AllWindowedStream(self, CountTumblingWindowAssigner.of(size))
        return AllWindowedStream(self, CountSlidingWindowAssigner.of(size, slide))

    def partition_custom(
        self, partitioner: Callable[[R, int], int] | Partitioner[R], key_selector: Callable[[T], R] | KeySelector[T, R]
    ) -> DataStream[T]:
        """Send each element to the subtask that the partitioner picks.

        Args:
            partitioner: A callable ``(key, num_partitions) -> int`` or a Partitioner.
            key_selector: A callable ``value -> key`` or a KeySelector.
        """
        check_function(partitioner, "partition", ("key", "num_partitions"), "partition_custom()")
        check_function(key_selector, "get_key", ("value",), "partition_custom()")
        node = self._partitioned(
            Partitioning.CUSTOM,
            key_selector=selector_callable(key_selector, "get_key"),
            partitioner=selector_callable(partitioner, "partition"),
        )
        return DataStream(self._env, node)

    def shuffle(self) -> DataStream[T]:
        """Spread the elements over the next operator's subtasks at random, evenly."""
        return self._spread(Partitioning.SHUFFLE)

    def rebalance(self) -> DataStream[T]:
        """Spread the elements over the next operator's subtasks in turn (round robin)."""
        return self._spread(Partitioning.REBALANCE)

    def rescale(self) -> DataStream[T]:
        """Spread the elements in turn over those of the next operator's subtasks that are close to the sender."""
        return self._spread(Partitioning.RESCALE)

    def forward(self) -> DataStream[T]:
        """Send each element to the next operator's subtask of the same number; needs equal parallelism."""
        return self._spread(Partitioning.FORWARD)

    @overload
    def broadcast(self) -> DataStream[T]: ...

    @overload
    def broadcast(
        self, broadcast_state_descriptor: MapStateDescriptor, *other_broadcast_state_descriptors: MapStateDescriptor
    ) -> BroadcastStream[T]: ...

    def broadcast(
        self,
        broadcast_state_descriptor: MapStateDescriptor | None = None,
        *other_broadcast_state_descriptors: MapStateDescriptor,
    ) -> DataStream[T] | BroadcastStream[T]:
        """Send each element to every subtask of the next operator.

        Args:
            broadcast_state_descriptor: A broadcast state that the elements are to change, in a function of this stream
                and another one: ``other.connect(stream.broadcast(descriptor)).process(f)``.
            *other_broadcast_state_descriptors: Further ones.
        """
        stream = self._spread(Partitioning.BROADCAST)
        if broadcast_state_descriptor is None:
            return stream
        return BroadcastStream(stream, [broadcast_state_descriptor, *other_broadcast_state_descriptors])

    def _spread(self, partitioning: Partitioning) -> DataStream[T]:
        return DataStream(self._env, self._partitioned(partitioning))

    def _partitioned(self, partitioning: Partitioning, **how: Any) -> Partitioned:
        return Partitioned(
            inputs=(self._transformation,),
            output_type=self._transformation.output_type,
            partitioning=partitioning,
            **how,
        )

    def _then(
        self,
        kind: str,
        factory: OperatorFactory,
        func: Any,
        output_type: Any,
        *,
        role: str = "function",
        functions: tuple[tuple[str, Any], ...] = (),
        others: tuple[DataStream[Any], ...] = (),
        **settings: Any,
    ) -> DataStream[Any]:
        node = self._env._add_operator(
            inputs=(self._transformation, *(other._transformation for other in others)),
            kind=kind,
            name=kind,
            factory=factory,
            functions=functions or ((role, func),),
            output_type=check_type(output_type, f"the output_type of {kind}"),
            **settings,
        )
        return DataStream(self._env, node)


# DataStream makes these streams, and they need it: this module comes first.
from holdfast.datastream.all_windowed_stream import AllWindowedStream  # noqa: E402
from holdfast.datastream.connected_streams import (  # noqa: E402
    BroadcastConnectedStream,
    BroadcastStream,
    ConnectedStreams,
)
from holdfast.datastream.joined_streams import CoGroupedStreams, JoinedStreams  # noqa: E402
from holdfast.datastream.keyed_stream import KeyedStream  # noqa: E402
from holdfast.datastream.windowed_stream import WindowedStream  # noqa: E402

if not TYPE_CHECKING:
    __getattr__ = refusing(
        __name__,
        {
            "CachedDataStream": "streams are not cached between jobs; write the elements to files, and read these",
        },
    )
