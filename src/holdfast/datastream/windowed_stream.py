"""WindowedStream: the elements of each key, grouped by time windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.common.output_tag import OutputTag
from holdfast.common.typeinfo import TypeInformation
from holdfast.datastream.function_checks import check_function, check_object, check_type
from holdfast.datastream.functions import AggregateFunction, ProcessWindowFunction, WindowFunction
from holdfast.datastream.window import (
    Trigger,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)
from holdfast.errors import ConfigurationError
from holdfast.runtime.operators.window import WindowOperator
from holdfast.runtime.operators.window_content import Accumulator, Elements, Reduced, WindowContent

if TYPE_CHECKING:
    from holdfast.datastream.data_stream import DataStream
    from holdfast.datastream.keyed_stream import KeyedStream
    from holdfast.datastream.stream_execution_environment import StreamExecutionEnvironment

__all__ = ["WindowedStream"]

_PROCESS = {"process": ("key", "context", "elements"), "clear": ("context",)}
_APPLY = {"apply": ("key", "window", "inputs")}


class WindowedStream:
    """The windows of a KeyedStream, as returned by ``KeyedStream.window``. Each key has its own windows.

    ``reduce`` and ``aggregate`` store one value for each window, ``process`` and ``apply`` all its elements.
    """

    def __init__(self, keyed_stream: KeyedStream, window_assigner: WindowAssigner[Any, Any]) -> None:
        if not isinstance(window_assigner, (TumblingEventTimeWindows, TumblingProcessingTimeWindows)):
            raise TypeError(
                "window() takes tumbling windows, e.g. TumblingEventTimeWindows.of(Time.minutes(1)), not "
                f"{window_assigner!r}."
            )
        self._keyed_stream = keyed_stream
        self._assigner = window_assigner
        self._trigger: Trigger[Any, Any] = window_assigner.get_default_trigger(self.get_execution_environment())
        self._allowed_lateness_ms = 0
        self._late_tag: OutputTag | None = None

    def get_execution_environment(self) -> StreamExecutionEnvironment:
        """The environment that the stream belongs to."""
        return self._keyed_stream.get_execution_environment()

    def get_input_type(self) -> TypeInformation:
        """The type of the elements."""
        return self._keyed_stream.get_type()

    def trigger(self, trigger: Trigger[Any, Any]) -> WindowedStream:
        """Set the trigger. Only the assigner's default trigger is supported: it fires at the window's end.

        Raises:
            ConfigurationError: the trigger is another one.
        """
        if type(trigger) is not type(self._trigger):
            raise ConfigurationError(
                f"Windows of {type(self._assigner).__name__} fire with {type(self._trigger).__name__} only, not with "
                f"{trigger!r}. Leave trigger(...) out."
            )
        self._trigger = trigger
        return self

    def allowed_lateness(self, time_ms: int) -> WindowedStream:
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

    def side_output_late_data(self, output_tag: OutputTag) -> WindowedStream:
        """Send elements that arrive after their window's removal to a side output instead of dropping them."""
        if not isinstance(output_tag, OutputTag):
            raise TypeError(f"side_output_late_data() takes an OutputTag, not {output_tag!r}.")
        self._late_tag = output_tag
        return self

    def reduce(
        self,
        reduce_function: Callable[[Any, Any], Any] | Any,
        window_function: WindowFunction[Any, Any, Any, Any] | ProcessWindowFunction[Any, Any, Any, Any] | None = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
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

    def aggregate(
        self,
        aggregate_function: AggregateFunction,
        window_function: WindowFunction[Any, Any, Any, Any] | ProcessWindowFunction[Any, Any, Any, Any] | None = None,
        accumulator_type: TypeInformation | None = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Aggregate each window's elements, as they arrive.

        Args:
            aggregate_function: The AggregateFunction.
            window_function: The function that makes the results from the key, the window and the aggregated value.
            accumulator_type: The declared type of the accumulators: they are converted to it and stored in its form.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        calls = {
            "create_accumulator": (),
            "add": ("value", "accumulator"),
            "get_result": ("accumulator",),
        }
        check_object(aggregate_function, AggregateFunction, calls, "aggregate()")
        check_type(accumulator_type, "the accumulator_type of aggregate()")
        function = ("aggregate function", aggregate_function)
        content = Accumulator(aggregate_function, accumulator_type)
        return self._windows(content, window_function, output_type, function)

    def apply(
        self, window_function: WindowFunction[Any, Any, Any, Any], output_type: TypeInformation | None = None
    ) -> DataStream:
        """Apply a WindowFunction to all elements of each window.

        Args:
            window_function: The WindowFunction.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        check_object(window_function, WindowFunction, _APPLY, "apply()", "A ProcessWindowFunction goes to process().")
        return self._windows(Elements(self._keyed_stream._transformation.output_type), window_function, output_type)

    def process(
        self,
        process_window_function: ProcessWindowFunction[Any, Any, Any, Any],
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Apply a ProcessWindowFunction to all elements of each window.

        Args:
            process_window_function: The ProcessWindowFunction.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        check_object(
            process_window_function,
            ProcessWindowFunction,
            _PROCESS,
            "process() on windows",
            "A WindowFunction goes to apply().",
        )
        content = Elements(self._keyed_stream._transformation.output_type)
        return self._windows(content, process_window_function, output_type)

    def _windows(
        self,
        content: WindowContent,
        window_function: Any,
        output_type: TypeInformation | None,
        *functions: tuple[str, Any],
    ) -> DataStream:
        call: tuple[str, Any] | None = None
        if isinstance(window_function, ProcessWindowFunction):
            call = ("process", check_object(window_function, ProcessWindowFunction, _PROCESS, "the window function"))
        elif window_function is not None:
            call = ("apply", check_object(window_function, WindowFunction, _APPLY, "the window function"))
        if call is not None:
            functions = (*functions, ("window function", window_function))
        factory = WindowOperator(
            self._assigner,
            self._trigger,
            content,
            call,
            self._allowed_lateness_ms,
            self._late_tag,
            isinstance(window_function, ProcessWindowFunction)
            and type(window_function).clear is not ProcessWindowFunction.clear,
        )
        return self._keyed_stream._then(
            f"Window({type(self._assigner).__name__})",
            factory,
            None,
            output_type,
            functions=functions,
            side_outputs=True,
        )
