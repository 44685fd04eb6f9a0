"""WindowedStream: the elements of each key, grouped by windows."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any, Generic, overload

from holdfast.common.output_tag import OutputTag
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.types import Row
from holdfast.common.values.type_variables import K, R, S, T, V, W
from holdfast.datastream.functions import AggregateFunction, ProcessWindowFunction, ReduceFunction, WindowFunction
from holdfast.datastream.operations.function_checks import check_function, check_object, check_type
from holdfast.datastream.operations.window_aggregation import window_aggregation
from holdfast.datastream.window import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    Evictor,
    GlobalWindows,
    MergingWindowAssigner,
    PurgingTrigger,
    Trigger,
    WindowAssigner,
)
from holdfast.errors import ConfigurationError
from holdfast.functions.aggregates import Aggregate, Aggregates
from holdfast.runtime.operators.windows.window import WindowOperator
from holdfast.runtime.operators.windows.window_content import Accumulator, Elements, Reduced, WindowContent, can_merge

if TYPE_CHECKING:
    from typing_extensions import Self

    from holdfast.datastream.data_stream import DataStream
    from holdfast.datastream.keyed_stream import KeyedStream
    from holdfast.datastream.stream_execution_environment import StreamExecutionEnvironment
    from holdfast.runtime.plan.operator import OperatorFactory

__all__ = ["Functions", "WindowedStream"]

Functions = tuple[tuple[str, Any], ...]
"""The user's objects in an operator with their names in messages."""

_TRIGGER = {
    "on_element": ("element", "timestamp", "window", "ctx"),
    "on_event_time": ("time", "window", "ctx"),
    "on_processing_time": ("time", "window", "ctx"),
    "can_merge": (),
    "on_merge": ("window", "ctx"),
    "clear": ("window", "ctx"),
}


class WindowedStream(Generic[K, T, W]):
    """The windows of a KeyedStream, as returned by ``KeyedStream.window``. Each key has its own windows.

    ``reduce`` and ``aggregate`` store one value for each window, ``process`` and ``apply`` all its elements.
    """

    _apply_class: type[Any] = WindowFunction
    _apply_arguments: tuple[str, ...] = ("key", "window", "inputs")
    _process_class: type[Any] = ProcessWindowFunction
    _process_arguments: tuple[str, ...] = ("key", "context", "elements")

    _two_inputs = False

    def __init__(self, keyed_stream: KeyedStream[K, T], window_assigner: WindowAssigner[Any, W]) -> None:
        if not isinstance(window_assigner, WindowAssigner):
            raise TypeError(
                "window() takes a WindowAssigner, e.g. TumblingEventTimeWindows.of(Time.minutes(1)), not "
                f"{window_assigner!r}."
            )
        self._keyed_stream = keyed_stream
        self._assigner = window_assigner
        self._trigger: Trigger[Any, Any] | None = None
        self._evictor: Evictor[Any, Any] | None = None
        self._allowed_lateness_ms = 0
        self._late_tag: OutputTag | None = None

    def get_execution_environment(self) -> StreamExecutionEnvironment:
        """The environment that the stream belongs to."""
        return self._keyed_stream.get_execution_environment()

    def get_input_type(self) -> TypeInformation[T]:
        """The type of the elements."""
        return self._keyed_stream.get_type()

    def trigger(self, trigger: Trigger[Any, Any]) -> Self:
        """Set the trigger, which decides when a window fires; it replaces the assigner's default trigger.

        Raises:
            TypeError: the argument is not a trigger, or the windows merge and the trigger does not support it.
        """
        check_object(trigger, Trigger, _TRIGGER, "trigger()")
        if isinstance(self._assigner, MergingWindowAssigner) and not trigger.can_merge():
            raise TypeError(
                f"The windows of {type(self._assigner).__name__} merge, and the trigger {trigger!r} cannot: its "
                "can_merge() is False. Use another trigger, or define can_merge() and on_merge(window, ctx)."
            )
        self._trigger = trigger
        return self

    def evictor(self, evictor: Evictor[Any, Any]) -> Self:
        """Set the evictor, which removes elements when a window fires. The window then keeps all its elements.

        Raises:
            TypeError: the argument is not an evictor.
        """
        arguments = ("elements", "size", "window", "evictor_context")
        check_object(evictor, Evictor, {"evict_before": arguments, "evict_after": arguments}, "evictor()")
        self._evictor = evictor
        return self

    def allowed_lateness(self, time_ms: int) -> Self:
        """Keep windows for this many ms of event time after their end; a late element then fires the window again.

        Raises:
            ConfigurationError: the time is negative, or the windows are in processing time, where no element is late.
        """
        if isinstance(time_ms, bool) or not isinstance(time_ms, int) or time_ms < 0:
            raise ConfigurationError(f"The allowed lateness must be a number of ms from 0, not {time_ms!r}.")
        if time_ms and not self._assigner.is_event_time():
            raise ConfigurationError("allowed_lateness() is for event-time windows; nothing is late in processing time.")
        self._allowed_lateness_ms = time_ms
        return self

    def side_output_late_data(self, output_tag: OutputTag) -> Self:
        """Send elements that arrive after their window's removal to a side output instead of dropping them."""
        if not isinstance(output_tag, OutputTag):
            raise TypeError(f"side_output_late_data() takes an OutputTag, not {output_tag!r}.")
        self._late_tag = output_tag
        return self

    @overload
    def reduce(
        self,
        reduce_function: Callable[[T, T], T] | ReduceFunction[T],
        window_function: None = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream[T]: ...

    @overload
    def reduce(
        self,
        reduce_function: Callable[[T, T], T] | ReduceFunction[T],
        window_function: WindowFunction[T, R, K, W] | ProcessWindowFunction[T, R, K, W],
        output_type: None = None,
    ) -> DataStream[R]: ...

    @overload
    def reduce(
        self,
        reduce_function: Callable[[T, T], T] | ReduceFunction[T],
        window_function: WindowFunction[T, Any, K, W] | ProcessWindowFunction[T, Any, K, W],
        output_type: TypeInformation[R],
    ) -> DataStream[R]: ...

    def reduce(
        self,
        reduce_function: Callable[[T, T], T] | ReduceFunction[T],
        window_function: WindowFunction[T, Any, K, W] | ProcessWindowFunction[T, Any, K, W] | None = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream[Any]:
        """Reduce each window's elements to one, as they arrive.

        Args:
            reduce_function: A callable ``(accumulated, value) -> accumulated`` or a ReduceFunction.
            window_function: The function that makes the results from the key, the window and the reduced value.
            output_type: The declared type of the results: they are checked and converted to it. Without a window
                function it is the type of the elements.
        """
        check_function(reduce_function, "reduce", ("value1", "value2"), "reduce()")
        elements = self._keyed_stream._transformation.output_type
        if window_function is None and output_type is None:
            output_type = elements
        function = ("reduce function", reduce_function)
        return self._windows(Reduced(reduce_function, elements), window_function, output_type, function)

    @overload
    def aggregate(
        self,
        aggregate_function: AggregateFunction[T, S, R],
        window_function: None = None,
        accumulator_type: TypeInformation[S] | None = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream[R]: ...

    @overload
    def aggregate(
        self,
        aggregate_function: AggregateFunction[T, S, V],
        window_function: WindowFunction[V, R, K, W] | ProcessWindowFunction[V, R, K, W],
        accumulator_type: TypeInformation[S] | None = None,
        output_type: TypeInformation[R] | None = None,
    ) -> DataStream[R]: ...

    def aggregate(
        self,
        aggregate_function: AggregateFunction[T, Any, Any],
        window_function: WindowFunction[Any, Any, K, W] | ProcessWindowFunction[Any, Any, K, W] | None = None,
        accumulator_type: TypeInformation | None = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream[Any]:
        """Aggregate each window's elements, as they arrive.

        Args:
            aggregate_function: The AggregateFunction.
            window_function: The function that makes the results from the key, the window and the aggregated value.
            accumulator_type: The declared type of the accumulators: they are converted to it and stored in its form.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        calls: dict[str, tuple[str, ...]] = {
            "create_accumulator": (),
            "add": ("value", "accumulator"),
            "get_result": ("accumulator",),
        }
        if isinstance(self._assigner, MergingWindowAssigner):
            calls["merge"] = ("acc_a", "acc_b")
        check_object(aggregate_function, AggregateFunction, calls, "aggregate()")
        if isinstance(self._assigner, MergingWindowAssigner) and not can_merge(aggregate_function):
            raise ConfigurationError(
                f"The windows of {type(self._assigner).__name__} merge, and {type(aggregate_function).__name__} has no "
                "merge(acc_a, acc_b): define it to merge two accumulators into one."
            )
        check_type(accumulator_type, "the accumulator_type of aggregate()")
        function = ("aggregate function", aggregate_function)
        content = Accumulator(aggregate_function, accumulator_type)
        return self._windows(content, window_function, output_type, function)

    def agg(self, **aggregates: Aggregate) -> DataStream[Row]:
        """Aggregate fields of each window's elements, as they arrive.

        The results are Rows of the key's fields (of `col`; else ``key``), ``window_start``, ``window_end``, and the
        aggregates by their names. Tumbling windows work on whole columns where the elements have columns, or a declared type
        that can become columns.

        Args:
            **aggregates: The aggregates of `holdfast.datastream.operations.batches` by the names of their results, e.g.
                ``total=Sum("amount"), payments=Count()``.

        Raises:
            TypeError: an argument is no aggregate.
            ConfigurationError: two fields have one name, a field has no such aggregate, or the windows have no start.
        """
        keyed, late = self._keyed_stream, self._late_tag is not None
        summary, output_type, form = window_aggregation(keyed._transformation, self._assigner, aggregates, late)
        described = copy(self)
        if form is not None and self._trigger is None and self._evictor is None:
            described._keyed_stream = keyed._with_columns(form)
        function = Aggregates(aggregates)
        return described._windows(Accumulator(function, None), summary, output_type, ("aggregates", function))

    @overload
    def apply(self, window_function: WindowFunction[T, R, K, W], output_type: None = None) -> DataStream[R]: ...

    @overload
    def apply(self, window_function: WindowFunction[T, Any, K, W], output_type: TypeInformation[R]) -> DataStream[R]: ...

    def apply(
        self, window_function: WindowFunction[T, Any, K, W], output_type: TypeInformation | None = None
    ) -> DataStream[Any]:
        """Apply a WindowFunction to all elements of each window.

        Args:
            window_function: The WindowFunction.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        hint = f"A {self._process_class.__name__} goes to process()."
        check_object(window_function, self._apply_class, {"apply": self._apply_arguments}, "apply()", hint)
        return self._windows(Elements(self._keyed_stream._transformation.output_type), window_function, output_type)

    @overload
    def process(
        self, process_window_function: ProcessWindowFunction[T, R, K, W], output_type: None = None
    ) -> DataStream[R]: ...

    @overload
    def process(
        self, process_window_function: ProcessWindowFunction[T, Any, K, W], output_type: TypeInformation[R]
    ) -> DataStream[R]: ...

    def process(
        self, process_window_function: ProcessWindowFunction[T, Any, K, W], output_type: TypeInformation | None = None
    ) -> DataStream[Any]:
        """Apply a ProcessWindowFunction to all elements of each window.

        Args:
            process_window_function: The ProcessWindowFunction.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        calls = {"process": self._process_arguments, "clear": ("context",)}
        hint = f"A {self._apply_class.__name__} goes to apply()."
        check_object(process_window_function, self._process_class, calls, "process() on windows", hint)
        content = Elements(self._keyed_stream._transformation.output_type)
        return self._windows(content, process_window_function, output_type)

    def _windows(
        self,
        content: WindowContent,
        window_function: Any,
        output_type: TypeInformation | None,
        *functions: tuple[str, Any],
    ) -> DataStream[Any]:
        call: tuple[str, Any] | None = None
        clears = False
        if isinstance(window_function, self._process_class):
            calls = {"process": self._process_arguments, "clear": ("context",)}
            check_object(window_function, self._process_class, calls, "the window function")
            call = ("process", self._adapted(window_function))
            clears = type(window_function).clear is not self._process_class.clear
        elif window_function is not None:
            check_object(window_function, self._apply_class, {"apply": self._apply_arguments}, "the window function")
            call = ("apply", self._adapted(window_function))
        if call is not None:
            functions = (*functions, ("window function", window_function))
        trigger = self._effective_trigger()
        functions = (*functions, ("trigger", trigger))
        if self._evictor is not None:
            functions = (*functions, ("evictor", self._evictor))
        factory = WindowOperator(
            self._assigner,
            trigger,
            content,
            call,
            self._allowed_lateness_ms,
            self._late_tag,
            clears,
            self._evictor,
            self._two_inputs,
        )
        kind = f"Window({type(self._assigner).__name__})"
        return self._add(kind, factory, output_type, (*functions, ("window assigner", self._assigner)))

    def _add(self, kind: str, factory: OperatorFactory, output_type: Any, functions: Functions) -> DataStream[Any]:
        return self._keyed_stream._then(kind, factory, None, output_type, functions=functions, side_outputs=True)

    def _adapted(self, window_function: Any) -> Any:
        """The window function as the operator calls it."""
        return window_function

    def _effective_trigger(self) -> Trigger[Any, Any]:
        if self._trigger is not None:
            return self._trigger
        if isinstance(self._assigner, GlobalWindows):
            raise ConfigurationError(
                "Global windows never end, so only your own trigger can fire them: call e.g. "
                "trigger(PurgingTrigger.of(CountTrigger.of(100))) after window(GlobalWindows.create())."
            )
        default = self._assigner.get_default_trigger(self.get_execution_environment())
        if isinstance(self._assigner, (CountTumblingWindowAssigner, CountSlidingWindowAssigner)):
            return PurgingTrigger.of(default)  # a full window gets no more elements
        return default
