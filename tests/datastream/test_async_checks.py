"""What is wrong with async I/O is told at the call that is wrong, or before the job starts."""

from __future__ import annotations

import time
from typing import Any

import pytest

from holdfast.common import Time
from holdfast.datastream import AsyncDataStream, AsyncFunction, AsyncRetryStrategy
from holdfast.datastream.async_retry_predicates import empty_result_predicate, has_exception_predicate
from holdfast.datastream.async_retry_strategies import ExponentialBackoffDelayRetryStrategy, NoRetryStrategy
from holdfast.errors import ConfigurationError


class Good(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        return [value]


class NoCoroutine(AsyncFunction):
    def async_invoke(self, value: Any) -> Any:  # type: ignore[override]
        return [value]


class Short(AsyncFunction):
    async def async_invoke(self) -> list[Any]:  # type: ignore[override]
        return []


class Sleeps(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        time.sleep(0.1)
        return [value]


class AwaitsTimeout(Good):
    async def timeout(self, value: Any) -> list[Any]:  # type: ignore[override]
        return []


SECOND = Time.seconds(1)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda value: value, TypeError, "takes an AsyncFunction, not"),
        (Good, TypeError, r"got the class Good; give it an object: Good\(\.\.\.\)"),
        (NoCoroutine(), ConfigurationError, "NoCoroutine.async_invoke is not a coroutine function; write it with async def"),
        (Short(), ConfigurationError, r"is called with \(value\)"),
        (AwaitsTimeout(), ConfigurationError, "is a coroutine function, which nothing awaits"),
    ],
)
@pytest.mark.parametrize("how", ["ordered", "unordered"])
def a_function_of_the_wrong_kind_is_refused(stream, how, function, error, message):
    with pytest.raises(error, match=message):
        getattr(AsyncDataStream, f"{how}_wait")(stream, function, SECOND)


def test_wrong_limits_are_refused(stream):
    with pytest.raises(ConfigurationError, match=r"timeout of ordered_wait.. must be at least 1 ms, not 0 ms"):
        AsyncDataStream.ordered_wait(stream, Good(), Time.seconds(0))
    with pytest.raises(ConfigurationError, match=r"capacity of unordered_wait.. must be a whole number of at least 1"):
        AsyncDataStream.unordered_wait(stream, Good(), SECOND, 0)
    with pytest.raises(TypeError, match=r"ordered_wait.. takes a DataStream"):
        AsyncDataStream.ordered_wait([1], Good(), SECOND)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"takes an AsyncRetryStrategy, e\.g\."):
        AsyncDataStream.ordered_wait_with_retry(stream, Good(), SECOND, 3)  # type: ignore[arg-type]


def a_coroutine_that_sleeps_is_refused_with_its_line(env, stream):
    AsyncDataStream.unordered_wait(stream, Sleeps(), SECOND).print()
    line = Sleeps.async_invoke.__code__.co_firstlineno + 1
    with pytest.raises(ConfigurationError, match=rf"test_async_checks.py:{line}\) calls time.sleep\(\).*asyncio.sleep"):
        env._plan("job")


def a_function_that_cannot_be_pickled_is_refused(env, stream):
    function = Good()
    function.connection = (each for each in "a generator")  # type: ignore[attr-defined]
    AsyncDataStream.unordered_wait(stream, function, SECOND).print()
    with pytest.raises(ConfigurationError, match=r"The async function of operator .* the attribute 'connection'"):
        env._plan("job")


def a_retry_strategy_checks_its_numbers_and_predicates():
    for make in (
        lambda: AsyncRetryStrategy.fixed_delay(0, 1, None, None),
        lambda: AsyncRetryStrategy.fixed_delay(1, -1, None, None),
        lambda: AsyncRetryStrategy.exponential_backoff(1, 10, 100, 0.5, None, None),
    ):
        with pytest.raises(ValueError, match="of a retry strategy is a number of at least"):
            make()
    with pytest.raises(TypeError, match="result_predicate of a retry strategy is a callable"):
        AsyncRetryStrategy.fixed_delay(1, 1, True, None)  # type: ignore[arg-type]


def test_strategies_retry_as_often_and_as_late_as_they_are_told():
    predicates = empty_result_predicate, has_exception_predicate
    fixed: Any = AsyncRetryStrategy.fixed_delay(2, 50, *predicates)
    assert [fixed.can_retry(n) for n in (1, 2, 3)] == [True, True, False]
    assert [fixed.get_backoff_time_millis(n) for n in (1, 2)] == [50, 50]
    growing = ExponentialBackoffDelayRetryStrategy(9, 10, 70, 3.0, *predicates)
    assert [growing.get_backoff_time_millis(n) for n in (1, 2, 3, 4)] == [10, 30, 70, 70]
    assert [growing.get_backoff_time_millis(n) for n in (2, 1)] == [30, 10]  # the elements share one strategy
    never: Any = AsyncRetryStrategy.no_restart()
    assert isinstance(never, NoRetryStrategy)
    assert not never.can_retry(1)
    predicate = fixed.get_retry_predicate()
    assert predicate.result_predicate()([])
    assert not predicate.result_predicate()([1])
    assert predicate.exception_predicate()(ValueError())
