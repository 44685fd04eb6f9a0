"""Async I/O: retries, timeouts, and what a failing function is told."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from typing import Any

import pytest

from holdfast.common import Time
from holdfast.datastream import (
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategy,
    StreamExecutionEnvironment,
)
from holdfast.datastream.async_retry_predicates import empty_result_predicate
from holdfast.errors import UserCodeError
from holdfast.runtime.async_io import event_loop

from .async_programs import GATE, LONG, Gated, Looks, both, is_a, numbers, waiting
from .inprocess import LEDGERS, LedgerSink

# ---- retries ------------------------------------------------------------------------------------------------------------


class Flaky(AsyncFunction):
    """Fails twice for each element, each time in another way."""

    def __init__(self) -> None:
        self.attempts: Counter[Any] = Counter()

    async def async_invoke(self, value: Any) -> list[Any]:
        self.attempts[value] += 1
        if self.attempts[value] == 1:
            raise ConnectionError("gone")
        return [] if self.attempts[value] == 2 else [(value, self.attempts[value])]


def retries(most: int) -> list[AsyncRetryStrategy[Any]]:
    predicates = empty_result_predicate, functools.partial(is_a, ConnectionError)
    return [
        AsyncRetryStrategy.fixed_delay(most, 1, *predicates),
        AsyncRetryStrategy.exponential_backoff(most, 1, 4, 2.0, *predicates),
    ]


@both
@pytest.mark.parametrize("strategy", retries(2), ids=["fixed delay", "exponential backoff"])
def test_exceptions_and_results_are_retried_by_the_strategy(job, how, strategy):
    def build(env: StreamExecutionEnvironment) -> None:
        wait = getattr(AsyncDataStream, f"{how}_wait_with_retry")
        wait(numbers(env, list(range(20))), Flaky(), LONG, strategy, capacity=4).sink_to(LedgerSink("out"))

    job(build, parallelism=1, budget=20).run()
    assert sorted(LEDGERS["out"].values) == [(n, 3) for n in range(20)]


@pytest.mark.parametrize("strategy", retries(1), ids=["fixed delay", "exponential backoff"])
def the_last_answer_counts_when_there_are_no_more_retries(job, strategy):
    def build(env: StreamExecutionEnvironment) -> None:
        waited = AsyncDataStream.ordered_wait_with_retry(numbers(env, [1]), Flaky(), LONG, strategy)
        waited.sink_to(LedgerSink("out"))

    job(build, parallelism=1).run()
    assert LEDGERS["out"].values == []


# ---- errors -------------------------------------------------------------------------------------------------------------


class Fails(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        await asyncio.sleep(0.001)
        if value == 17:
            raise LookupError("no such customer")
        return [value]


@both
@pytest.mark.parametrize("parallelism", [1, 2])
def an_error_begins_with_the_users_traceback_and_names_the_record(job, how, parallelism):
    def build(env: StreamExecutionEnvironment) -> None:
        source = numbers(env, list(range(30)), cut=6)
        source = source.rebalance() if parallelism > 1 else source
        waiting(how, source, Fails()).uid("fails").sink_to(LedgerSink("out"))

    with pytest.raises(UserCodeError, match="no such customer") as failure:
        job(build, parallelism=parallelism, budget=6).run()
    text = str(failure.value)
    assert text.startswith("Traceback")
    assert "in async_invoke" in text.splitlines()[1]
    for part in ("LookupError: no such customer", "'AsyncWait' (uid 'fails')", "element: 17"):
        assert part in text
    located = [line for line in text.splitlines() if line.startswith("  record: ")]
    assert located in ([], ["  record: split s, record 17"])  # one that was in flight at a restart has no origin any more


class FailsAmongSilent(AsyncFunction):
    """Answers half of the capacity, then fails one element; in the first attempt, the others never have an answer."""

    async def async_invoke(self, value: Any) -> list[Any]:
        if value == 60:
            raise LookupError("no such customer")
        if value >= 50 and not GATE.is_set():
            try:
                await asyncio.Event().wait()
            finally:
                GATE.set()
        return [value]


@both
def an_error_does_not_wait_for_other_answers(job, gate, how):
    def build(env: StreamExecutionEnvironment) -> None:
        source = numbers(env, list(range(400)))
        waiting(how, source, FailsAmongSilent(), Time.hours(1), capacity=100).sink_to(LedgerSink("out"))

    with pytest.raises(UserCodeError, match="no such customer"):
        job(build, parallelism=1, budget=400).run()


class AnswersInReverse(AsyncFunction):
    """Answers the elements of a group, the last one first."""

    def __init__(self, group: int) -> None:
        self.group = group
        self.next: dict[int, asyncio.Future[None]] = {}

    async def async_invoke(self, value: Any) -> list[Any]:
        if value % self.group < self.group - 1:
            mine = self.next[value] = asyncio.get_running_loop().create_future()
            await mine
        if value % self.group:
            self.next.pop(value - 1).set_result(None)
        return [value]


@both
@pytest.mark.parametrize("group", [1, 2, 7, 10])
def test_answers_in_reverse_leave_room_for_the_next_ones(job, how, group):
    def build(env: StreamExecutionEnvironment) -> None:
        waiting(how, numbers(env, list(range(700))), AnswersInReverse(group), capacity=10).sink_to(LedgerSink("out"))

    job(build, parallelism=1, budget=700).run()
    assert sorted(LEDGERS["out"].values) == list(range(700))
    if how == "ordered":
        assert LEDGERS["out"].values == list(range(700))


class Silent(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        await asyncio.Event().wait()
        return []


class Patient(Silent):
    def timeout(self, value: Any) -> list[Any]:
        return [("late", value)]


def a_call_that_never_answers_is_told_with_operator_and_element(job):
    def build(env: StreamExecutionEnvironment) -> None:
        waiting("unordered", numbers(env, [5]), Silent(), Time.milliseconds(50)).uid("silent").sink_to(LedgerSink("out"))

    with pytest.raises(UserCodeError) as failure:
        job(build, parallelism=1).run()
    text = str(failure.value)
    assert "TimeoutError: async_invoke() gave no answer within 50 ms" in text
    assert "it waits in async_invoke (test_async_io_errors.py:" in text
    assert "'AsyncWait' (uid 'silent')" in text
    assert "element: 5" in text


@both
def the_results_of_timeout_are_emitted(job, how):
    def build(env: StreamExecutionEnvironment) -> None:
        waiting(how, numbers(env, [1, 2, 3]), Patient(), Time.milliseconds(30), capacity=2).sink_to(LedgerSink("out"))

    job(build, parallelism=1, budget=3).run()
    assert sorted(LEDGERS["out"].values) == [("late", 1), ("late", 2), ("late", 3)]


class Asleep(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        block()
        return []


def block() -> None:
    while not GATE.is_set():
        time.sleep(0.01)


def a_coroutine_that_blocks_is_told_with_the_line(job, gate, monkeypatch):
    for pause in ("_CHECK_SECONDS", "_GRACE_SECONDS", "_PAUSE_SECONDS", "_CLOSING_SECONDS"):
        monkeypatch.setattr(event_loop, pause, 0.05)

    def build(env: StreamExecutionEnvironment) -> None:
        waiting("unordered", numbers(env, [5]), Asleep(), Time.milliseconds(30)).uid("asleep").sink_to(LedgerSink("out"))

    with pytest.raises(UserCodeError, match="must await, never block") as failure:
        job(build, parallelism=1).run()
    text = str(failure.value)
    assert "in async_invoke" in text
    assert "    block()" in text
    assert "element: 5" in text


class Returns(AsyncFunction):
    def __init__(self, what: Any) -> None:
        self.what = what

    async def async_invoke(self, value: Any) -> list[Any]:
        return self.what  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (None, r"async_invoke\(\) returned None; it must return a list"),
        (7, r"async_invoke\(\) returned a int \(7\)"),
        ("text", "must return a list of results"),
    ],
)
def a_result_that_is_no_list_is_told(job, what, message):
    def build(env: StreamExecutionEnvironment) -> None:
        waiting("ordered", numbers(env, [1]), Returns(what)).sink_to(LedgerSink("out"))

    with pytest.raises(UserCodeError, match=message):
        job(build, parallelism=1).run()


class Exits(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        raise SystemExit(3)


class CancelsItself(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        raise asyncio.CancelledError


@pytest.mark.parametrize("function", [Exits(), CancelsItself()], ids=["exit", "cancel"])
def a_coroutine_that_exits_or_cancels_itself_fails_the_job(job, function):
    def build(env: StreamExecutionEnvironment) -> None:
        waiting("ordered", numbers(env, [1]), function).sink_to(LedgerSink("out"))

    with pytest.raises(UserCodeError, match=r"SystemExit|CancelledError") as failure:
        job(build, parallelism=1).run()
    assert "element: 1" in str(failure.value)


class FailsToOpen(Looks):
    async def open(self, runtime_context: Any) -> None:
        await asyncio.sleep(0)
        raise ConnectionRefusedError("no database")


def a_function_that_cannot_open_is_named(job):
    def build(env: StreamExecutionEnvironment) -> None:
        waiting("ordered", numbers(env, [1]), FailsToOpen()).uid("looks").sink_to(LedgerSink("out"))

    with pytest.raises(UserCodeError, match="no database") as failure:
        job(build, parallelism=1).run()
    assert "'AsyncWait' (uid 'looks')" in str(failure.value)


class Odd(int):
    """Opens the gate when it is to be pickled, which it cannot be."""

    def __reduce__(self) -> Any:
        GATE.set()
        raise TypeError("not to be pickled")

    def __deepcopy__(self, memo: Any) -> Any:
        return self


def an_element_that_cannot_be_stored_is_told(job, gate, caplog):
    def build(env: StreamExecutionEnvironment) -> None:
        source = numbers(env, [3, 20], cut=1).map(lambda n: Odd(n))
        waiting("unordered", source, Gated()).map(int).sink_to(LedgerSink("out"))

    job(build, parallelism=1, budget=1).run()
    assert sorted(LEDGERS["out"].values) == [3, 20]  # in the rerun, which waits for each element
    assert "the element waits for results when the epoch ends, but cannot be stored" in caplog.text
    assert "element: 3" in caplog.text
