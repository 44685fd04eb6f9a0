"""AsyncDataStream: async I/O, requests to an external system for the elements of a stream."""

from __future__ import annotations

from typing import Any

from holdfast.common.time import Duration, Time, to_milliseconds
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.values.type_variables import R, S
from holdfast.datastream.data_stream import DataStream
from holdfast.datastream.functions import AsyncFunction, AsyncRetryStrategy
from holdfast.datastream.operations.function_checks import check_async
from holdfast.datastream.operations.operator_settings import check_count
from holdfast.errors import ConfigurationError
from holdfast.runtime.operators.async_wait import AsyncWaitOperator

__all__ = ["AsyncDataStream"]


class AsyncDataStream:
    """Applies an AsyncFunction to a stream: each element waits for its results while others are under way.

    Results have the timestamp of their element. A function that is called again after a failure, or by a retry strategy,
    requests the same twice: requests must be safe to repeat.

    Examples:
        ``AsyncDataStream.unordered_wait(payments, Score(), Time.seconds(5), capacity=100)``
    """

    @staticmethod
    def unordered_wait(
        data_stream: DataStream[S],
        async_function: AsyncFunction[S, R],
        timeout: Time | Duration,
        capacity: int = 100,
        output_type: TypeInformation | None = None,
    ) -> DataStream[R]:
        """Emit results as they come, never past a watermark.

        Args:
            data_stream: The stream.
            async_function: The AsyncFunction.
            timeout: How long an element may wait. After it the function's ``timeout`` is called, which fails by default.
            capacity: The number of elements of a subtask that may wait at a time.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        return _wait(data_stream, async_function, timeout, None, capacity, output_type, "unordered_wait()")

    @staticmethod
    def unordered_wait_with_retry(
        data_stream: DataStream[S],
        async_function: AsyncFunction[S, R],
        timeout: Time | Duration,
        async_retry_strategy: AsyncRetryStrategy[Any],
        capacity: int = 100,
        output_type: TypeInformation | None = None,
    ) -> DataStream[R]:
        """Emit results as they come, never past a watermark; retry calls by a strategy.

        Args:
            data_stream: The stream.
            async_function: The AsyncFunction.
            timeout: How long an element may wait, from the first attempt to the answer of the last.
            async_retry_strategy: Which answers to retry, and when.
            capacity: The number of elements of a subtask that may wait at a time.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        where = "unordered_wait_with_retry()"
        return _wait(data_stream, async_function, timeout, async_retry_strategy, capacity, output_type, where)

    @staticmethod
    def ordered_wait(
        data_stream: DataStream[S],
        async_function: AsyncFunction[S, R],
        timeout: Time | Duration,
        capacity: int = 100,
        output_type: TypeInformation | None = None,
    ) -> DataStream[R]:
        """Emit results in the order of the elements.

        Args:
            data_stream: The stream.
            async_function: The AsyncFunction.
            timeout: How long an element may wait. After it the function's ``timeout`` is called, which fails by default.
            capacity: The number of elements of a subtask that may wait at a time, for results or for their turn.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        return _wait(data_stream, async_function, timeout, None, capacity, output_type, "ordered_wait()")

    @staticmethod
    def ordered_wait_with_retry(
        data_stream: DataStream[S],
        async_function: AsyncFunction[S, R],
        timeout: Time | Duration,
        async_retry_strategy: AsyncRetryStrategy[Any],
        capacity: int = 100,
        output_type: TypeInformation | None = None,
    ) -> DataStream[R]:
        """Emit results in the order of the elements; retry calls by a strategy.

        Args:
            data_stream: The stream.
            async_function: The AsyncFunction.
            timeout: How long an element may wait, from the first attempt to the answer of the last.
            async_retry_strategy: Which answers to retry, and when.
            capacity: The number of elements of a subtask that may wait at a time, for results or for their turn.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        where = "ordered_wait_with_retry()"
        return _wait(data_stream, async_function, timeout, async_retry_strategy, capacity, output_type, where)


def _wait(
    stream: DataStream[S],
    func: AsyncFunction[S, R],
    timeout: Time | Duration,
    strategy: AsyncRetryStrategy[Any] | None,
    capacity: int,
    output_type: TypeInformation | None,
    where: str,
) -> DataStream[R]:
    given: Any = stream
    if not isinstance(given, DataStream):
        raise TypeError(f"{where} takes a DataStream, not {given!r}.")
    check_async(func, where)
    timeout_ms = to_milliseconds(timeout)
    if timeout_ms < 1:
        raise ConfigurationError(f"The timeout of {where} must be at least 1 ms, not {timeout_ms} ms.")
    check_count(capacity, f"capacity of {where}")
    roles: tuple[tuple[str, Any], ...] = (("async function", func),)
    if where.endswith("retry()"):
        wrong: Any = strategy
        if not isinstance(wrong, AsyncRetryStrategy):
            raise TypeError(
                f"{where} takes an AsyncRetryStrategy, e.g. AsyncRetryStrategy.fixed_delay(3, 100, None, "
                f"has_exception_predicate), not {wrong!r}."
            )
        roles += (("retry strategy", strategy),)
    factory = AsyncWaitOperator(
        func, timeout_ms, capacity, where.startswith("ordered"), strategy or AsyncRetryStrategy.no_restart()
    )
    return stream._then("AsyncWait", factory, func, output_type, functions=roles)
