"""Async I/O: the results of a program without it, whatever is in flight when an epoch ends or a driver dies."""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Types, WatermarkStrategy
from holdfast.connectors.base import EpochInput, JobInfo
from holdfast.datastream import (
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategy,
    CheckpointedFunction,
    ListStateDescriptor,
    StreamExecutionEnvironment,
)
from holdfast.errors import UserCodeError

from . import requests_in_flight
from .async_programs import ASKED, GATE, LONG, Gated, Looks, both, is_a, numbers, waiting
from .inprocess import LEDGERS, LedgerSink, SplitEnumerator, SplitSource
from .programs import records, windows, windows_model
from .test_same_results import budgets, config, crashes, few, lab, runs, seeds, visible

# ---- results ------------------------------------------------------------------------------------------------------------


@both
@settings(few, max_examples=examples(3))
@given(
    **runs,
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


@settings(few, max_examples=examples(3))
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


class Backwards(AsyncFunction):
    """Answers the elements below 10 once the gate is open, the last one first."""

    answered: ClassVar[set[int]] = set()

    async def async_invoke(self, value: Any) -> list[Any]:
        while value < 10 and not (GATE.is_set() and self.answered.issuperset(range(value + 1, 10))):
            await asyncio.sleep(0.002)
        self.answered.add(value)
        return [value]


@pytest.mark.parametrize("parallelism", [2, 3, 4])
def the_order_of_results_is_kept_if_requests_in_flight_are_restored_at_another_parallelism(job, gate, parallelism):
    def build(env: StreamExecutionEnvironment) -> None:
        source = env.from_source(SplitSource({"s": list(range(40))}, 0), WatermarkStrategy.no_watermarks(), "n")
        results = waiting("ordered", source, Backwards()).uid("asks")
        results.key_by(lambda value: "all").map(lambda value: value).uid("by key").sink_to(LedgerSink("out"))

    Backwards.answered.clear()
    lab = job(build, parallelism=1, budget=10)
    assert not lab._run_until("after complete", 2)
    assert LEDGERS["out"].values == []
    lab.parallelism = parallelism
    gate.set()
    assert lab._run_until("", 0)
    assert LEDGERS["out"].values == list(range(40))


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("form", requests_in_flight.FORMS)
def test_requests_in_flight_of_a_job_of_an_older_release_are_sent_again(job, gate, tmp_path, form, parallelism):
    before = requests_in_flight.unpacked(form, tmp_path)
    assert before == []
    lab = job(requests_in_flight.build, parallelism=parallelism, budget=14)
    gate.set()
    assert lab._run_until("", 0)
    found = LEDGERS["out"].values
    for values in requests_in_flight.NUMBERS.values():
        own = [value for value in found if value in values]
        assert (own if parallelism == 2 else sorted(own)) == values
    assert set(range(10)) <= set(ASKED)


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
    written.result(timeout=600)
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
