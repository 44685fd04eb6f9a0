"""The lookup join and its cache."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common import Duration, Time
from holdfast.datastream import AsyncDataStream, AsyncRetryStrategy, FlatJoinFunction, JoinFunction
from holdfast.datastream.async_retry_predicates import empty_result_predicate, has_exception_predicate
from holdfast.datastream.operations.lookup_join import AsyncLookupFunction, LookupCache, LookupJoin
from holdfast.errors import ConfigurationError, UserCodeError
from holdfast.functions.lookup_cache import CachedRows

from .async_programs import numbers
from .inprocess import LEDGERS, LedgerSink

LONG = Time.seconds(60)
ASKED: Counter[Any] = Counter()


class Users(AsyncLookupFunction):
    """Users with two accounts each; the odd ones do not exist."""

    async def open(self, runtime_context: Any) -> None:
        self.loop = asyncio.get_running_loop()

    async def async_lookup(self, key: Any) -> list[Any]:
        assert asyncio.get_running_loop() is self.loop
        ASKED[key] += 1
        await asyncio.sleep(0.002)
        return [] if key % 2 else [[f"account {key}"], [f"savings {key}"]]

    async def close(self) -> None:
        LEDGERS["closed"].committed["users"] = [sum(ASKED.values())]


class Changes(JoinFunction):
    """Changes the row that it gets, which must not show in the cache."""

    def open(self, runtime_context: Any) -> None:
        self.opened = True

    def join(self, first: Any, second: Any) -> Any:
        assert self.opened
        if second is None:
            return first, None
        second.append("changed")
        return first, second[0], len(second)


class Twice(FlatJoinFunction):
    def join(self, first: Any, second: Any) -> Any:
        yield first
        yield second[0]


def joined(job: Any, values: list[Any], join: LookupJoin, how: str = "ordered_wait", *args: Any) -> list[Any]:
    def build(env: Any) -> None:
        getattr(AsyncDataStream, how)(numbers(env, values), join, LONG, *args).sink_to(LedgerSink("out"))

    ASKED.clear()
    job(build, parallelism=1, budget=len(values)).run()
    return LEDGERS["out"].values


def modulo(value: Any) -> Any:
    return value % 5


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("cache", [None, LookupCache(), LookupCache(2), LookupCache(cache_missing_key=False)])
def an_element_is_joined_with_each_row_of_its_key(job, outer, cache):
    found = joined(job, list(range(60)), LookupJoin(modulo, Users(), Changes(), cache, outer))
    expected: list[Any] = []
    for n in range(60):
        key = n % 5
        if key % 2 == 0:
            expected += [(n, f"account {key}", 2), (n, f"savings {key}", 2)]
        elif outer:
            expected.append((n, None))
    assert found == expected
    if cache == LookupCache():
        assert set(ASKED.values()) == {1}  # also for elements that came while the lookup was under way
    assert LEDGERS["closed"].values == [sum(ASKED.values())]


def a_flat_join_function_gives_any_number_of_results(job):
    assert joined(job, [4, 3], LookupJoin(modulo, Users(), Twice())) == [4, "account 4", 4, "savings 4"]


class Flaky(AsyncLookupFunction):
    async def async_lookup(self, key: Any) -> list[Any]:
        ASKED[key] += 1
        await asyncio.sleep(0.001)
        if ASKED[key] == 1:
            raise ConnectionError("gone")
        return [key]


def a_failed_lookup_is_retried_and_not_cached(job):
    retry = AsyncRetryStrategy.fixed_delay(2, 1, None, has_exception_predicate)
    join = LookupJoin(modulo, Flaky(), lambda value, row: (value, row), LookupCache())
    assert joined(job, list(range(20)), join, "ordered_wait_with_retry", retry) == [(n, n % 5) for n in range(20)]
    assert Counter({key: 2 for key in range(5)}) == ASKED


class Slow(AsyncLookupFunction):
    """A database that has each row from the second time on that it is asked."""

    async def async_lookup(self, key: Any) -> list[Any]:
        ASKED[key] += 1
        return [key] if ASKED[key] > 1 else []


@pytest.mark.parametrize("cache", [None, LookupCache()])
def a_retry_of_an_empty_lookup_asks_again(job, cache):
    retry = AsyncRetryStrategy.fixed_delay(5, 1, empty_result_predicate, None)
    join = LookupJoin(modulo, Slow(), lambda value, row: (value, row), cache)
    assert joined(job, [3, 8], join, "ordered_wait_with_retry", retry) == [(3, 3), (8, 3)]


class Hangs(AsyncLookupFunction):
    """The first connection of a key is dead."""

    async def async_lookup(self, key: Any) -> list[Any]:
        ASKED[key] += 1
        if ASKED[key] == 1:
            try:
                await asyncio.Event().wait()
            finally:
                LEDGERS["cancelled"].committed[key] = [key]
        return [f"answer {ASKED[key]}"]


class Tolerant(LookupJoin):
    def timeout(self, value: Any) -> list[Any]:
        return [(value, "timed out")]


def a_lookup_that_hangs_is_left_when_its_elements_have_timed_out(job):
    join = Tolerant(modulo, Hangs(), lambda value, row: (value, row))

    def build(env: Any) -> None:
        waits = AsyncDataStream.ordered_wait(numbers(env, [1, 6, 11]), join, Time.milliseconds(100), 1)
        waits.sink_to(LedgerSink("out"))

    ASKED.clear()
    job(build, parallelism=1, budget=3).run()
    assert LEDGERS["out"].values == [(1, "timed out"), (6, "answer 2"), (11, "answer 3")]
    assert LEDGERS["cancelled"].values == [1]


def a_join_function_may_change_its_element(job):
    def fill(value: Any, row: Any) -> Any:
        value["accounts"] = row
        return value

    found = joined(job, [{"k": 2}], LookupJoin(lambda value: value["k"], Users(), fill))
    assert found == [{"k": 2, "accounts": ["account 2"]}, {"k": 2, "accounts": ["savings 2"]}]


class Wrong(AsyncLookupFunction):
    async def async_lookup(self, key: Any) -> list[Any]:
        return {"a": "row"}  # type: ignore[return-value]


def a_lookup_that_returns_no_list_is_told(job):
    with pytest.raises(UserCodeError, match=r"async_lookup\(\) returned .*; it must return a list of rows") as failure:
        joined(job, [7], LookupJoin(modulo, Wrong(), lambda value, row: row))
    assert "element: 7" in str(failure.value)


class Plain(AsyncLookupFunction):
    def async_lookup(self, key: Any) -> Any:  # type: ignore[override]
        return [key]


def test_what_cannot_work_is_refused_where_it_is_written():
    pair = lambda value, row: (value, row)
    with pytest.raises(TypeError, match="takes an AsyncLookupFunction, not"):
        LookupJoin(modulo, lambda key: [key], pair)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"Plain.async_lookup is not a coroutine function"):
        LookupJoin(modulo, Plain(), pair)
    with pytest.raises(ConfigurationError, match=r"called with \(element, row\)"):
        LookupJoin(modulo, Users(), lambda value: value)
    with pytest.raises(TypeError, match="is a LookupCache or None"):
        LookupJoin(modulo, Users(), pair, 1000)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_rows of a LookupCache"):
        LookupCache(0)
    with pytest.raises(ValueError, match="expire_after_write of a LookupCache"):
        LookupCache(expire_after_write=Time.seconds(0))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("get"), st.integers(0, 5)),
        st.tuples(st.just("put"), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.integers(1, 6)),
    ),
    max_size=60,
)


@given(
    steps=steps,
    size=st.integers(1, 4),
    write=st.sampled_from([None, 5]),
    access=st.sampled_from([None, 3]),
    missing=st.booleans(),
)
def the_cache_keeps_what_a_plain_model_keeps(steps, size, write, access, missing):
    now = 0.0
    spans = {"expire_after_write": write, "expire_after_access": access}
    given_spans = {name: None if span is None else Duration.of_seconds(span) for name, span in spans.items()}
    cache = CachedRows(LookupCache(size, cache_missing_key=missing, **given_spans), lambda: now)
    model: list[tuple[int, list[Any], float, float]] = []
    """Key, rows, when read, when used; the last used one last."""
    for number, (step, argument) in enumerate(steps):
        if step == "wait":
            now += argument
            continue
        found = [each for each in model if each[0] == argument]
        if step == "put":
            rows = [number] if argument else []
            cache.put(argument, rows)
            if rows or missing:
                model = [each for each in model if each[0] != argument] + [(argument, rows, now, now)]
                model = model[-size:]
            continue
        valid = [e for e in found if not (write and now - e[2] >= write) and not (access and now - e[3] >= access)]
        assert cache.get(argument) == (valid[0][1] if valid else None)
        model = [each for each in model if each[0] != argument] + [(k, r, at, now) for k, r, at, _ in valid]
        assert len(cache) == len(model)
