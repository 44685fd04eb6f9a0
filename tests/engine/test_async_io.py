"""Async I/O: the results of a program without it, whatever is in flight when an epoch ends or a driver dies."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Time, Types, WatermarkStrategy
from holdfast.connectors.base import EpochInput, JobInfo
from holdfast.datastream import (
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategy,
    CheckpointedFunction,
    ListStateDescriptor,
    StreamExecutionEnvironment,
)
from holdfast.datastream.async_retry_predicates import empty_result_predicate, exception_type_predicate
from holdfast.errors import UserCodeError
from holdfast.runtime.operators import event_loop

from .inprocess import LEDGERS, LedgerSink, SplitEnumerator, SplitSource
from .programs import records, windows, windows_model
from .test_same_results import backends, budgets, config, crashes, few, frames, lab, parallelisms, seeds, visible

LONG = Time.seconds(60)


class Looks(AsyncFunction):
    """Answers each element by itself, after a moment."""

    def __init__(self, most: float = 0.003) -> None:
        self.most = most

    async def async_invoke(self, value: Any) -> list[Any]:
        await asyncio.sleep(random.random() * self.most)
        return [value]


def numbers(env: StreamExecutionEnvironment, values: list[Any], cut: int = 0) -> Any:
    return env.from_source(SplitSource({"s": values}, cut), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")


def waiting(how: str, source: Any, function: Any, timeout: Time = LONG, **options: Any) -> Any:
    return getattr(AsyncDataStream, f"{how}_wait")(source, function, timeout, **options)


both = pytest.mark.parametrize("how", ["ordered", "unordered"])


# ---- results ------------------------------------------------------------------------------------------------------------


@both
@settings(few, max_examples=examples(6))
@given(
    seed=seeds,
    backend=backends,
    parallelism=parallelisms,
    budget=budgets,
    frame=frames,
    crashes=crashes,
    capacity=st.sampled_from([1, 3, 100]),
    spread=st.booleans(),
)
def test_windows_behind_async_io_have_the_results_of_windows_without(
    how, seed, backend, parallelism, budget, frame, crashes, capacity, spread
):
    data = records(seed, 200)

    def build(env: StreamExecutionEnvironment) -> None:
        def before(source: Any) -> Any:
            source = source.rebalance() if spread else source
            return waiting(how, source, Looks(), capacity=capacity).uid("looks")

        windows(data, cut=budget, before=before)(env)

    options = {"parallelism": parallelism, "budget": budget, "config": config(backend, frame)}
    with lab(build, **options) as job:
        job.run(crashes)
        assert visible() == windows_model(data)


@settings(few, max_examples=examples(6))
@given(seed=seeds, budget=budgets, capacity=st.sampled_from([1, 2, 50]), crashes=crashes)
def test_ordered_results_keep_the_order_of_the_input(seed, budget, capacity, crashes):
    def build(env: StreamExecutionEnvironment) -> None:
        source = numbers(env, list(range(200)), cut=budget)
        waiting("ordered", source, Looks(), capacity=capacity).uid("looks").sink_to(LedgerSink("out"))

    with lab(build, parallelism=1, budget=budget, config={}) as job:
        job.run(crashes)
        assert LEDGERS["out"].values == list(range(200))


class Counts(AsyncFunction):
    most = 0

    async def open(self, runtime_context: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.now = 0

    async def async_invoke(self, value: Any) -> list[Any]:
        assert asyncio.get_running_loop() is self.loop
        self.now += 1
        Counts.most = max(Counts.most, self.now)
        await asyncio.sleep(0.001)
        self.now -= 1
        return [value, -value] if value % 2 else []

    async def close(self) -> None:
        assert asyncio.get_running_loop() is self.loop
        LEDGERS["closed"].committed["closed"] = [self.now]


def test_no_more_requests_run_than_the_capacity_allows(job):
    def build(env: StreamExecutionEnvironment) -> None:
        waiting("unordered", numbers(env, list(range(300))), Counts(), capacity=7).sink_to(LedgerSink("out"))

    job(build, parallelism=1, budget=100).run()
    assert sorted(LEDGERS["out"].values) == sorted(sign * n for n in range(1, 300, 2) for sign in (1, -1))
    assert Counts.most == 7
    assert LEDGERS["closed"].values == [0]


class Changes(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        value.append("changed")
        if len(value) > 2:
            return []
        await asyncio.sleep(0)
        raise ConnectionError


def test_each_attempt_gets_the_element_as_it_came(job):
    def build(env: StreamExecutionEnvironment) -> None:
        retry = AsyncRetryStrategy.fixed_delay(3, 1, None, functools.partial(is_a, ConnectionError))
        source = numbers(env, [[1]])
        waited = AsyncDataStream.ordered_wait_with_retry(source, Changes(), LONG, retry)
        waited.sink_to(LedgerSink("out"))

    with pytest.raises(UserCodeError, match="ConnectionError") as failure:
        job(build, parallelism=1).run()
    assert "element: [1]" in str(failure.value)


# ---- requests in flight when an epoch ends ------------------------------------------------------------------------------


GATE = threading.Event()
ASKED: Counter[Any] = Counter()


class Gated(AsyncFunction):
    """Answers the elements below 10 once the gate is open, all others at once."""

    async def async_invoke(self, value: Any) -> list[Any]:
        ASKED[value] += 1
        while value < 10 and not GATE.is_set():
            await asyncio.sleep(0.002)
        return [value]


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    GATE.clear()
    ASKED.clear()
    yield GATE
    GATE.set()


@dataclass(frozen=True)
class Lingering(SplitSource):
    """Ends only after all records have been seen in the ledger."""

    wanted: int = 0

    def create_enumerator(self, job: JobInfo, uid: str) -> SplitEnumerator:
        return LingeringEnumerator(self, job.generation)


class LingeringEnumerator(SplitEnumerator):
    def __init__(self, source: Lingering, generation: int) -> None:
        super().__init__(source, generation)
        self._wanted = source.wanted
        self._until = time.monotonic() + 30

    def plan(self, max_records: int) -> EpochInput:
        planned = super().plan(max_records)
        seen = len(LEDGERS["out"].values)
        if seen >= 20:  # all that need not wait
            GATE.set()
        ended = seen >= self._wanted or time.monotonic() > self._until
        return EpochInput(tuple(part for part in planned.ranges if part.start != part.end), planned.backlog, ended)


@both
def test_requests_in_flight_do_not_hold_up_the_epoch_and_an_idle_job_emits_them_later(job, gate, how):
    values = list(range(10, 30)) + list(range(10)) if how == "ordered" else list(range(30))

    def build(env: StreamExecutionEnvironment) -> None:
        source = Lingering({"s": values}, wanted=30)
        source = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
        waiting(how, source, Gated()).sink_to(LedgerSink("out"))

    job(build, parallelism=1, budget=5).run()
    told = LEDGERS["out"].values
    assert told[:20] == list(range(10, 30)) if how == "ordered" else set(told[:20]) == set(range(10, 30))
    assert sorted(told) == list(range(30))
    assert Counter(range(30)) == ASKED


@both
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_requests_in_flight_are_sent_again_after_a_crash_at_any_parallelism(job, gate, how, parallelism):
    def build(env: StreamExecutionEnvironment) -> None:
        source = numbers(env, list(range(40))).rebalance()
        waiting(how, source, Gated(), capacity=20).uid("gated").sink_to(LedgerSink("out"))

    lab = job(build, parallelism=2, budget=10)
    assert not lab._run_until("after complete", 3)
    asked, emitted = Counter(ASKED), set(LEDGERS["out"].values)
    assert set(asked) >= set(range(10))
    lab.parallelism = parallelism
    gate.set()
    assert lab._run_until("", 0)
    assert sorted(LEDGERS["out"].values) == list(range(40))
    again = ASKED - asked
    assert set(again) >= set(range(10))
    assert set(again) & emitted == set()


@both
def a_savepoint_holds_the_requests_in_flight(job, gate, how, tmp_path):
    def build(env: StreamExecutionEnvironment) -> None:
        source = numbers(env, list(range(40)), cut=10)
        waiting(how, source, Gated(), capacity=100).uid("gated").sink_to(LedgerSink("out"))

    lab = job(build, "first", parallelism=1, budget=10)
    coordinator = lab.coordinator()
    written = coordinator.request_savepoint(str(tmp_path / "savepoint"), stop=True, drain=False)
    coordinator.run()
    lab.close()
    written.result(timeout=30)
    gate.set()
    job(build, "second", parallelism=2, budget=10, savepoint=str(tmp_path / "savepoint"))
    committed = dict(LEDGERS["out"].committed)
    second = job(build, "second", parallelism=2, budget=10, savepoint=str(tmp_path / "savepoint"))
    LEDGERS["out"].committed.update(committed)
    second.run()
    assert sorted(LEDGERS["out"].values) == list(range(40))


class Numbered(AsyncFunction, CheckpointedFunction):
    """Numbers its elements, across restarts."""

    def initialize_state(self, context: Any) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("numbers", Types.LONG()))
        self.number = sum(self.state.get())

    def snapshot_state(self, context: Any) -> None:
        self.state.update([self.number])

    async def async_invoke(self, value: Any) -> list[Any]:
        self.number += 1
        return [(value, self.number)]


def an_async_function_has_operator_state(job):
    def build(env: StreamExecutionEnvironment) -> None:
        waiting("ordered", numbers(env, list(range(30)), cut=7), Numbered()).uid("n").sink_to(LedgerSink("out"))

    job(build, parallelism=1, budget=7).run([("after complete", 2)])
    values, counted = zip(*LEDGERS["out"].values)
    assert list(values) == list(range(30))
    # An element that was in flight at the crash is counted again; none is forgotten.
    assert all(a < b for a, b in itertools.pairwise(counted))


# ---- retries ------------------------------------------------------------------------------------------------------------


def is_a(kind: type[Exception], error: Exception) -> bool:
    return exception_type_predicate(error, kind)


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
    assert "it waits in async_invoke (test_async_io.py:" in text
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
