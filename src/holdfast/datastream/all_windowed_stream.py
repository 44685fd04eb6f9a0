"""AllWindowedStream: all elements of a stream, grouped by windows, in one subtask."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from holdfast.common.typeinfo import TypeInformation
from holdfast.datastream.functions import (
    AggregateFunction,
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    RuntimeContext,
    WindowFunction,
)
from holdfast.datastream.window import WindowAssigner
from holdfast.datastream.windowed_stream import WindowedStream
from holdfast.runtime.operators.window_content import WindowContent

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
        self._function.open(runtime_context)

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
        self._function.open(runtime_context)

    def close(self) -> None:
        """Close the function."""
        self._function.close()

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        """Call the function."""
        return self._function.process(context, elements)

    def clear(self, context: Any) -> None:
        """Clear the function's state of a window."""
        self._function.clear(context)


class AllWindowedStream(WindowedStream):
    """The windows of a stream without keys, as returned by ``DataStream.window_all``.

    One subtask processes all elements, whatever the job's parallelism.
    """

    _apply_class = AllWindowFunction
    _apply_arguments = ("window", "inputs")
    _process_class = ProcessAllWindowFunction
    _process_arguments = ("context", "elements")

    def __init__(self, data_stream: DataStream, window_assigner: WindowAssigner[Any, Any]) -> None:
        super().__init__(data_stream.key_by(_one_key), window_assigner)

    def reduce(
        self,
        reduce_function: Callable[[Any, Any], Any] | Any,
        window_function: AllWindowFunction[Any, Any, Any] | ProcessAllWindowFunction[Any, Any, Any] | None = None,  # type: ignore[override]  # other classes of functions, as in PyFlink
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Reduce each window's elements to one, as they arrive.

        Args:
            reduce_function: A callable ``(accumulated, value) -> accumulated`` or a ReduceFunction.
            window_function: The function that makes the results from the window and the reduced value.
            output_type: The declared type of the results: they are checked and converted to it. Without a window
                function it is the type of the elements.
        """
        return super().reduce(reduce_function, window_function, output_type)  # type: ignore[arg-type]

    def aggregate(
        self,
        aggregate_function: AggregateFunction,
        window_function: AllWindowFunction[Any, Any, Any] | ProcessAllWindowFunction[Any, Any, Any] | None = None,  # type: ignore[override]  # other classes of functions, as in PyFlink
        accumulator_type: TypeInformation | None = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Aggregate each window's elements, as they arrive.

        Args:
            aggregate_function: The AggregateFunction.
            window_function: The function that makes the results from the window and the aggregated value.
            accumulator_type: The declared type of the accumulators: they are converted to it and stored in its form.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        return super().aggregate(aggregate_function, window_function, accumulator_type, output_type)  # type: ignore[arg-type]

    def apply(  # type: ignore[override]  # another class of functions, as in PyFlink
        self, window_function: AllWindowFunction[Any, Any, Any], output_type: TypeInformation | None = None
    ) -> DataStream:
        """Apply an AllWindowFunction to all elements of each window.

        Args:
            window_function: The AllWindowFunction.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        return super().apply(window_function, output_type)  # type: ignore[arg-type]

    def process(  # type: ignore[override]  # another class of functions, as in PyFlink
        self,
        process_window_function: ProcessAllWindowFunction[Any, Any, Any],
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Apply a ProcessAllWindowFunction to all elements of each window.

        Args:
            process_window_function: The ProcessAllWindowFunction.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        return super().process(process_window_function, output_type)  # type: ignore[arg-type]

    def _adapted(self, window_function: Any) -> Any:
        if isinstance(window_function, ProcessAllWindowFunction):
            return _ProcessWithoutKey(window_function)
        return _WithoutKey(window_function)

    def _windows(
        self, content: WindowContent, window_function: Any, output_type: TypeInformation | None, *functions: tuple[str, Any]
    ) -> DataStream:
        return super()._windows(content, window_function, output_type, *functions).force_non_parallel()
