"""Two streams with one function: ConnectedStreams, and BroadcastConnectedStream with broadcast state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, overload

from holdfast.common.typeinfo import TypeInformation
from holdfast.common.values.type_variables import A, B, R, T
from holdfast.datastream.data_stream import DataStream
from holdfast.datastream.functions import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeySelector,
)
from holdfast.datastream.keyed_stream import KeyedStream
from holdfast.datastream.operations.function_checks import check_object
from holdfast.datastream.operations.two_inputs import two_inputs
from holdfast.errors import ConfigurationError
from holdfast.runtime.operators.broadcast import BroadcastProcess, KeyedBroadcastProcess
from holdfast.runtime.operators.co import CoFlatMap, CoMap, CoProcess, KeyedCoFlatMap, KeyedCoMap, KeyedCoProcess
from holdfast.runtime.operators.function_factory import FunctionFactory
from holdfast.runtime.plan.operator import OperatorFactory
from holdfast.state.api.descriptors import MapStateDescriptor

if TYPE_CHECKING:
    from holdfast.datastream.stream_execution_environment import StreamExecutionEnvironment

__all__ = ["BroadcastConnectedStream", "BroadcastStream", "ConnectedStreams"]

_ON_TIMER = {"on_timer": ("timestamp", "ctx")}


class ConnectedStreams(Generic[A, B]):
    """Two streams, as returned by ``connect``. The function has one method for each stream's elements.

    If both streams are keyed, they share the key's state and timers. The function's watermark is the lower one of the two
    streams.
    """

    def __init__(self, stream1: DataStream[A], stream2: DataStream[B]) -> None:
        self.stream1 = stream1
        self.stream2 = stream2

    @property
    def _keyed(self) -> bool:
        return isinstance(self.stream1, KeyedStream) and isinstance(self.stream2, KeyedStream)

    def key_by(
        self,
        key_selector1: Callable[[A], Any] | KeySelector[A, Any],
        key_selector2: Callable[[B], Any] | KeySelector[B, Any],
        key_type: TypeInformation | None = None,
    ) -> ConnectedStreams[A, B]:
        """Partition both streams by key: elements of either stream with the same key share state and timers.

        Args:
            key_selector1: A callable ``value -> key`` or a KeySelector for the first stream.
            key_selector2: The same for the second stream; both must return keys of the same type.
            key_type: The declared type of the keys.
        """
        return ConnectedStreams(self.stream1.key_by(key_selector1, key_type), self.stream2.key_by(key_selector2, key_type))

    @overload
    def map(self, func: CoMapFunction[A, B, R], output_type: None = None) -> DataStream[R]: ...

    @overload
    def map(self, func: CoMapFunction[A, B, Any], output_type: TypeInformation[R]) -> DataStream[R]: ...

    def map(self, func: CoMapFunction[A, B, Any], output_type: TypeInformation | None = None) -> DataStream[Any]:
        """Convert each element of either stream to one element.

        Args:
            func: The CoMapFunction.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).

        Raises:
            TypeError: ``func`` has another class.
        """
        methods = {"map1": ("value",), "map2": ("value",)}
        check_object(func, CoMapFunction, methods, "map() of connected streams", "Derive it from CoMapFunction.")
        factory = FunctionFactory(KeyedCoMap if self._keyed else CoMap, func)
        return self._then("CoMap", factory, func, output_type)

    @overload
    def flat_map(self, func: CoFlatMapFunction[A, B, R], output_type: None = None) -> DataStream[R]: ...

    @overload
    def flat_map(self, func: CoFlatMapFunction[A, B, Any], output_type: TypeInformation[R]) -> DataStream[R]: ...

    def flat_map(self, func: CoFlatMapFunction[A, B, Any], output_type: TypeInformation | None = None) -> DataStream[Any]:
        """Convert each element of either stream to any number of elements.

        Args:
            func: The CoFlatMapFunction.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).

        Raises:
            TypeError: ``func`` has another class.
        """
        methods = {"flat_map1": ("value",), "flat_map2": ("value",)}
        where = "flat_map() of connected streams"
        check_object(func, CoFlatMapFunction, methods, where, "Derive it from CoFlatMapFunction.")
        factory = FunctionFactory(KeyedCoFlatMap if self._keyed else CoFlatMap, func)
        return self._then("CoFlatMap", factory, func, output_type)

    @overload
    def process(
        self, func: CoProcessFunction[A, B, R] | KeyedCoProcessFunction[Any, A, B, R], output_type: None = None
    ) -> DataStream[R]: ...

    @overload
    def process(
        self, func: CoProcessFunction[A, B, Any] | KeyedCoProcessFunction[Any, A, B, Any], output_type: TypeInformation[R]
    ) -> DataStream[R]: ...

    def process(
        self,
        func: CoProcessFunction[A, B, Any] | KeyedCoProcessFunction[Any, A, B, Any],
        output_type: TypeInformation | None = None,
    ) -> DataStream[Any]:
        """Apply a function to each element of either stream, with access to timestamps and side outputs.

        Args:
            func: A CoProcessFunction; a KeyedCoProcessFunction, with state and timers, if both streams are keyed.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).

        Raises:
            TypeError: ``func`` has another class.
        """
        methods: dict[str, Sequence[str]] = {"process_element1": ("value", "ctx"), "process_element2": ("value", "ctx")}
        where = "process() of connected streams"
        if isinstance(func, KeyedCoProcessFunction):
            if not self._keyed:
                raise TypeError(
                    f"{where} without keys got the KeyedCoProcessFunction {type(func).__name__}: state and timers belong to "
                    "keys. Call key_by(selector1, selector2) before process(...)."
                )
            check_object(func, KeyedCoProcessFunction, {**methods, **_ON_TIMER}, where)
            return self._then("KeyedCoProcess", FunctionFactory(KeyedCoProcess, func), func, output_type)
        check_object(func, CoProcessFunction, methods, where, "Derive it from CoProcessFunction or KeyedCoProcessFunction.")
        return self._then("CoProcess", FunctionFactory(CoProcess, func), func, output_type)

    def _then(self, kind: str, factory: OperatorFactory, func: Any, output_type: Any) -> DataStream[Any]:
        return two_inputs((self.stream1, self.stream2), kind, factory, (("function", func),), output_type)


class BroadcastStream(Generic[T]):
    """A stream that reaches every subtask, with its broadcast states, as returned by ``broadcast(descriptor)``."""

    def __init__(self, input_stream: DataStream[T], broadcast_state_descriptors: Sequence[MapStateDescriptor]) -> None:
        names = set()
        for descriptor in broadcast_state_descriptors:
            if not isinstance(descriptor, MapStateDescriptor):
                raise TypeError(f"broadcast() takes MapStateDescriptors, not {descriptor!r}.")
            if descriptor.ttl_config is not None:
                raise ConfigurationError(
                    f"Broadcast state {descriptor.name!r} has a time-to-live, but only keyed state expires: leave it out, "
                    "and remove entries in process_broadcast_element."
                )
            if descriptor.name in names:
                raise ConfigurationError(f"broadcast() got two descriptors named {descriptor.name!r}.")
            names.add(descriptor.name)
        self.input_stream = input_stream
        self.broadcast_state_descriptors = list(broadcast_state_descriptors)

    def get_execution_environment(self) -> StreamExecutionEnvironment:
        """The environment that the stream belongs to."""
        return self.input_stream.get_execution_environment()


class BroadcastConnectedStream(Generic[A, B]):
    """A stream, keyed or not, connected with a BroadcastStream."""

    def __init__(
        self,
        non_broadcast_stream: DataStream[A],
        broadcast_stream: BroadcastStream[B],
        broadcast_state_descriptors: Sequence[MapStateDescriptor],
    ) -> None:
        self.non_broadcast_stream = non_broadcast_stream
        self.broadcast_stream = broadcast_stream
        self.broadcast_state_descriptors = list(broadcast_state_descriptors)

    @overload
    def process(
        self, func: BroadcastProcessFunction[A, B, R] | KeyedBroadcastProcessFunction[Any, A, B, R], output_type: None = None
    ) -> DataStream[R]: ...

    @overload
    def process(
        self,
        func: BroadcastProcessFunction[A, B, Any] | KeyedBroadcastProcessFunction[Any, A, B, Any],
        output_type: TypeInformation[R],
    ) -> DataStream[R]: ...

    def process(
        self,
        func: BroadcastProcessFunction[A, B, Any] | KeyedBroadcastProcessFunction[Any, A, B, Any],
        output_type: TypeInformation | None = None,
    ) -> DataStream[Any]:
        """Apply a function whose broadcast side changes state in every subtask, and whose other side reads that state.

        In every epoch the broadcast elements come first, so that they apply to all other elements of the epoch.

        Args:
            func: A BroadcastProcessFunction; on a keyed stream a KeyedBroadcastProcessFunction.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).

        Raises:
            TypeError: ``func`` has another class.
        """
        keyed = isinstance(self.non_broadcast_stream, KeyedStream)
        wanted: type = KeyedBroadcastProcessFunction if keyed else BroadcastProcessFunction
        methods: dict[str, Sequence[str]] = {
            "process_element": ("value", "ctx"),
            "process_broadcast_element": ("value", "ctx"),
        }
        where = f"process() of a {'keyed ' if keyed else ''}stream connected with a BroadcastStream"
        hint = (
            f"Derive it from {wanted.__name__}." if keyed else "Call key_by(...) before connect(...) for state and timers."
        )
        check_object(func, wanted, {**methods, **_ON_TIMER} if keyed else methods, where, hint)
        descriptors = tuple(self.broadcast_state_descriptors)
        factory: OperatorFactory
        if keyed:
            kind, factory = "KeyedBroadcastProcess", FunctionFactory(KeyedBroadcastProcess, func, (descriptors,))
        else:
            kind, factory = "BroadcastProcess", FunctionFactory(BroadcastProcess, func, (descriptors,))
        streams = (self.non_broadcast_stream, self.broadcast_stream.input_stream)
        return two_inputs(streams, kind, factory, (("function", func),), output_type)
