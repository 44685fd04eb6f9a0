"""AsyncFunction, a function that waits for an external system, and the strategies that retry its calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Generic, TypeVar

from holdfast.common.values.type_variables import IN, OUT, V
from holdfast.functions.function import Function, RuntimeContext

__all__ = [
    "AsyncFunction",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "ExponentialBackoffDelayRetryStrategy",
    "FixedDelayRetryStrategy",
    "NoRetryStrategy",
    "RetryPredicate",
    "retried",
]


N = TypeVar("N", int, float)

ResultPredicate = Callable[[list[V]], bool]
ExceptionPredicate = Callable[[Exception], bool]


retried: ContextVar[bool] = ContextVar("retried", default=False)
"""Whether a call of ``async_invoke`` repeats one whose answer was to be retried."""


class AsyncFunction(Function, Generic[IN, OUT]):
    """Requests results from an external system, many at a time.

    All methods run in the event loop of the subtask, in one thread. A method that blocks (``time.sleep``, ``requests``)
    stops all requests of the subtask.
    """

    @abstractmethod
    async def async_invoke(self, value: IN) -> list[OUT]:
        """Return the results of an element, as a list; empty for none."""

    def timeout(self, value: IN) -> list[OUT]:
        """Return the results of an element that was not answered in time.

        Raises:
            TimeoutError: always, unless overridden; the job fails.
        """
        raise TimeoutError("async_invoke() did not answer in time")

    def open(self, runtime_context: RuntimeContext) -> Awaitable[None] | None:  # type: ignore[override]
        """Open connections; called once before the first element. May be a coroutine."""
        return None

    def close(self) -> Awaitable[None] | None:  # type: ignore[override]
        """Release connections; called once after the last element. May be a coroutine."""
        return None


class AsyncRetryPredicate(ABC, Generic[V]):
    """Which answers to retry."""

    @abstractmethod
    def result_predicate(self) -> ResultPredicate[V] | None:
        """Results -> whether to retry; None: results are never retried."""

    @abstractmethod
    def exception_predicate(self) -> ExceptionPredicate | None:
        """Exception -> whether to retry; None: exceptions are never retried."""


class AsyncRetryStrategy(ABC, Generic[V]):
    """When to retry a call of an AsyncFunction, and how often. It must keep no state: it is shared by all elements."""

    @abstractmethod
    def can_retry(self, current_attempts: int) -> bool:
        """Whether to retry after this many attempts."""

    @abstractmethod
    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """The delay before the next attempt, in ms."""

    @abstractmethod
    def get_retry_predicate(self) -> AsyncRetryPredicate[V]:
        """Which answers to retry."""

    @staticmethod
    def no_restart() -> AsyncRetryStrategy[V]:
        """Never retry (the name is PyFlink's)."""
        return NoRetryStrategy()

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: ResultPredicate[V] | None,
        exception_predicate: ExceptionPredicate | None,
    ) -> AsyncRetryStrategy[V]:
        """Retry after a fixed delay.

        Args:
            max_attempts: The number of retries.
            backoff_time_millis: The delay before each, in ms.
            result_predicate: Results -> whether to retry; None: results are never retried.
            exception_predicate: Exception -> whether to retry; None: exceptions are never retried.
        """
        return FixedDelayRetryStrategy(max_attempts, backoff_time_millis, result_predicate, exception_predicate)

    @staticmethod
    def exponential_backoff(
        max_attempts: int,
        initial_delay: int,
        max_retry_delay: int,
        multiplier: float,
        result_predicate: ResultPredicate[V] | None,
        exception_predicate: ExceptionPredicate | None,
    ) -> AsyncRetryStrategy[V]:
        """Retry after delays that grow by a factor.

        Args:
            max_attempts: The number of retries.
            initial_delay: The first delay, in ms.
            max_retry_delay: The longest delay, in ms.
            multiplier: Each delay as a multiple of the one before.
            result_predicate: Results -> whether to retry; None: results are never retried.
            exception_predicate: Exception -> whether to retry; None: exceptions are never retried.
        """
        return ExponentialBackoffDelayRetryStrategy(
            max_attempts, initial_delay, max_retry_delay, multiplier, result_predicate, exception_predicate
        )


class RetryPredicate(AsyncRetryPredicate[V]):
    """A predicate of results and one of exceptions."""

    def __init__(self, result_predicate: ResultPredicate[V] | None, exception_predicate: ExceptionPredicate | None) -> None:
        for name, predicate in (("result_predicate", result_predicate), ("exception_predicate", exception_predicate)):
            if predicate is not None and not callable(predicate):
                raise TypeError(f"the {name} of a retry strategy is a callable -> bool or None, not {predicate!r}")
        self._result_predicate = result_predicate
        self._exception_predicate = exception_predicate

    def result_predicate(self) -> ResultPredicate[V] | None:
        """Results -> whether to retry."""
        return self._result_predicate

    def exception_predicate(self) -> ExceptionPredicate | None:
        """Exception -> whether to retry."""
        return self._exception_predicate


def _at_least(least: int, given: N, name: str, kinds: tuple[type, ...] = (int,)) -> N:
    if isinstance(given, bool) or not isinstance(given, kinds) or given < least:
        raise ValueError(f"the {name} of a retry strategy is a number of at least {least}, not {given!r}")
    return given


class NoRetryStrategy(AsyncRetryStrategy[V]):
    """Never retries."""

    def can_retry(self, current_attempts: int) -> bool:
        """False."""
        return False

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """-1, as in Flink: there is no next attempt."""
        return -1

    def get_retry_predicate(self) -> AsyncRetryPredicate[V]:
        """A predicate that holds for no answer."""
        return RetryPredicate(None, None)


class FixedDelayRetryStrategy(AsyncRetryStrategy[V]):
    """Retries after a fixed delay."""

    def __init__(
        self,
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: ResultPredicate[V] | None,
        exception_predicate: ExceptionPredicate | None,
    ) -> None:
        self._max_attempts = _at_least(1, max_attempts, "max_attempts")
        self._backoff_time_millis = _at_least(0, backoff_time_millis, "backoff_time_millis")
        self._predicate = RetryPredicate(result_predicate, exception_predicate)

    def can_retry(self, current_attempts: int) -> bool:
        """Whether there has been no more than the greatest number of retries."""
        return current_attempts <= self._max_attempts

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """The delay, in ms."""
        return self._backoff_time_millis

    def get_retry_predicate(self) -> AsyncRetryPredicate[V]:
        """Which answers to retry."""
        return self._predicate


class ExponentialBackoffDelayRetryStrategy(AsyncRetryStrategy[V]):
    """Retries after delays that grow by a factor."""

    def __init__(
        self,
        max_attempts: int,
        initial_delay: int,
        max_retry_delay: int,
        multiplier: float,
        result_predicate: ResultPredicate[V] | None,
        exception_predicate: ExceptionPredicate | None,
    ) -> None:
        self._max_attempts = _at_least(1, max_attempts, "max_attempts")
        self._initial_delay = _at_least(0, initial_delay, "initial_delay")
        self._max_retry_delay = _at_least(0, max_retry_delay, "max_retry_delay")
        self._multiplier = _at_least(1, multiplier, "multiplier", (int, float))
        self._predicate = RetryPredicate(result_predicate, exception_predicate)

    def can_retry(self, current_attempts: int) -> bool:
        """Whether there has been no more than the greatest number of retries."""
        return current_attempts <= self._max_attempts

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """The delay after this many attempts, in ms.

        >>> strategy = ExponentialBackoffDelayRetryStrategy(5, 100, 500, 2.0, None, None)
        >>> [strategy.get_backoff_time_millis(attempts) for attempts in (1, 2, 3, 4, 5000)]
        [100, 200, 400, 500, 500]
        """
        delay: float = self._initial_delay
        most = self._max_retry_delay
        for _ in range(current_attempts - 1):
            if delay >= most or self._multiplier == 1 or delay == 0:
                break
            delay *= self._multiplier
        return int(min(delay, most))

    def get_retry_predicate(self) -> AsyncRetryPredicate[V]:
        """Which answers to retry."""
        return self._predicate
