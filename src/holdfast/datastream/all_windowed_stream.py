"""AllWindowedStream: all elements of a stream, grouped by windows, in one subtask."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, overload

from holdfast.common.typeinfo import TypeInformation
from holdfast.common.values.type_variables import R, S, T, V, W
from holdfast.datastream.functions import (
    AggregateFunction,
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    ReduceFunction,
    RuntimeContext,
    WindowFunction,
)
from holdfast.datastream.window import WindowAssigner
from holdfast.datastream.windowed_stream import WindowedStream
from holdfast.errors import ConfigurationError
from holdfast.functions.aggregates import Aggregate
from holdfast.runtime.operators.windows.window_content import WindowContent
from holdfast.runtime.records.user_code import open_function

if TYPE_CHECKING:
    from holdfast.datastream.data_stream import DataStream

__all__ = ["AllWindowedStream"]


def _one_key(value: Any) -> int:
    """Give all elements the same key, and so the same windows."""
    return 0


class _WithoutKey(WindowFunction[Any, Any, Any, Any]):
    """Calls an AllWindowFunction without the key."""

    def __init__(self, function: AllWindowFunction[Any, Any, Any]) -> None:
        self._function = function

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open the function."""
        open_function(self._function, runtime_context)

    def close(self) -> None:
        """Close the function."""
        self._function.close()

    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        """Call the function."""
        return self._function.apply(window, inputs)


class _ProcessWithoutKey(ProcessWindowFunction[Any, Any, Any, Any]):
    """Calls a ProcessAllWindowFunction without the key."""

    def __init__(self, function: ProcessAllWindowFunction[Any, Any, Any]) -> None:
        self._function = function

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open the function."""
        open_function(self._function, runtime_context)

    def close(self) -> None:
        """Close the function."""
        self._function.close()

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        """Call the function."""
        return self._function.process(context, elements)

    def clear(self, context: Any) -> None:
        """Clear the function's state of a window."""
        self._function.clear(context)


class AllWindowedStream(WindowedStream[int, T, W]):
    """The windows of a stream without keys, as returned by ``DataStream.window_all``.

    One subtask processes all elements, whatever the job's parallelism.
    """

    _apply_class = AllWindowFunction
    _apply_arguments = ("window", "inputs")
    _process_class = ProcessAllWindowFunction
    _process_arguments = ("context", "elements")

    def __init__(self, data_stream: DataStream[T], window_assigner: WindowAssigner[Any, W]) -> None:
        super().__init__(data_stream.key_by(_one_key), window_assigner)

    @overload  # type: ignore[override]  # other classes of functions, as in PyFlink
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
        window_function: AllWindowFunction[T, R, W] | ProcessAllWindowFunction[T, R, W],
        output_type: None = None,
    ) -> DataStream[R]: ...

    @overload
    def reduce(
        self,
        reduce_function: Callable[[T, T], T] | ReduceFunction[T],
        window_function: AllWindowFunction[T, Any, W] | ProcessAllWindowFunction[T, Any, W],
        output_type: TypeInformation[R],
    ) -> DataStream[R]: ...

    def reduce(
        self,
        reduce_function: Callable[[T, T], T] | ReduceFunction[T],
        window_function: AllWindowFunction[T, Any, W] | ProcessAllWindowFunction[T, Any, W] | None = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream[Any]:
        """Reduce each window's elements to one, as they arrive.

        Args:
            reduce_function: A callable ``(accumulated, value) -> accumulated`` or a ReduceFunction.
            window_function: The function that makes the results from the window and the reduced value.
            output_type: The declared type of the results: they are checked and converted to it. Without a window
                function it is the type of the elements.
        """
        function: Any = window_function
        return super().reduce(reduce_function, function, output_type)

    @overload  # type: ignore[override]  # other classes of functions, as in PyFlink
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
        window_function: AllWindowFunction[V, R, W] | ProcessAllWindowFunction[V, R, W],
        accumulator_type: TypeInformation[S] | None = None,
        output_type: TypeInformation[R] | None = None,
    ) -> DataStream[R]: ...

    def aggregate(
        self,
        aggregate_function: AggregateFunction[T, Any, Any],
        window_function: AllWindowFunction[Any, Any, W] | ProcessAllWindowFunction[Any, Any, W] | None = None,
        accumulator_type: TypeInformation | None = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream[Any]:
        """Aggregate each window's elements, as they arrive.

        Args:
            aggregate_function: The AggregateFunction.
            window_function: The function that makes the results from the window and the aggregated value.
            accumulator_type: The declared type of the accumulators: they are converted to it and stored in its form.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        function: Any = window_function
        return super().aggregate(aggregate_function, function, accumulator_type, output_type)

    @overload  # type: ignore[override]  # another class of functions, as in PyFlink
    def apply(self, window_function: AllWindowFunction[T, R, W], output_type: None = None) -> DataStream[R]: ...

    @overload
    def apply(self, window_function: AllWindowFunction[T, Any, W], output_type: TypeInformation[R]) -> DataStream[R]: ...

    def apply(
        self, window_function: AllWindowFunction[T, Any, W], output_type: TypeInformation | None = None
    ) -> DataStream[Any]:
        """Apply an AllWindowFunction to all elements of each window.

        Args:
            window_function: The AllWindowFunction.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        function: Any = window_function
        return super().apply(function, output_type)

    @overload  # type: ignore[override]  # another class of functions, as in PyFlink
    def process(
        self, process_window_function: ProcessAllWindowFunction[T, R, W], output_type: None = None
    ) -> DataStream[R]: ...

    @overload
    def process(
        self, process_window_function: ProcessAllWindowFunction[T, Any, W], output_type: TypeInformation[R]
    ) -> DataStream[R]: ...

    def process(
        self, process_window_function: ProcessAllWindowFunction[T, Any, W], output_type: TypeInformation | None = None
    ) -> DataStream[Any]:
        """Apply a ProcessAllWindowFunction to all elements of each window.

        Args:
            process_window_function: The ProcessAllWindowFunction.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        function: Any = process_window_function
        return super().process(function, output_type)

    def agg(self, **aggregates: Aggregate) -> NoReturn:
        """Refuse: there is no key whose results could be named.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError("agg() aggregates by key: call key_by(col(...)).window(...), or use aggregate(...).")

    def _adapted(self, window_function: Any) -> Any:
        if isinstance(window_function, ProcessAllWindowFunction):
            return _ProcessWithoutKey(window_function)
        return _WithoutKey(window_function)

    def _windows(
        self, content: WindowContent, window_function: Any, output_type: TypeInformation | None, *functions: tuple[str, Any]
    ) -> DataStream[Any]:
        return super()._windows(content, window_function, output_type, *functions).force_non_parallel()
