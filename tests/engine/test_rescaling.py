"""A job that resumes at another parallelism: every key's state, timers and windows are where the key now goes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compactions
import holdfast.state.keyed_backend
from effort import examples

from .inprocess import CRASH_POINTS, Lab
from .programs import UntypedSessions, records, sessions, sessions_model, windows, windows_model
from .test_same_results import backends, budgets, config, few, lab, seeds, visible

parallelisms = st.sampled_from([1, 2, 3, 4, 5, 7, 8])
moves = st.lists(st.tuples(parallelisms, st.sampled_from(CRASH_POINTS), st.integers(1, 4)), min_size=2, max_size=6)
"""Drivers: at which parallelism each runs, and where it dies. Count 1 is its first epoch."""


@pytest.fixture(autouse=True)
def early_bases(monkeypatch):
    """Bases and merged deltas after a few epochs, so that both are restored."""
    monkeypatch.setattr(holdfast.state.keyed_backend, "due", compactions.anything(1))


def run(job: Lab, drivers: list[tuple[int, str, int]], last: int) -> None:
    for parallelism, point, count in drivers:
        job.parallelism = parallelism
        if job._run_until(point, count):
            return
    job.parallelism = last
    job.run()


@settings(few, max_examples=examples(5))
@given(seed=seeds, backend=backends, drivers=moves, last=parallelisms, budget=budgets)
def the_windows_are_complete_whatever_the_parallelism_was(seed, backend, drivers, last, budget):
    data = records(seed, 300)
    with lab(windows(data, cut=budget), budget=budget, config=config(backend, "64")) as job:
        run(job, drivers, last)
        assert visible() == windows_model(data)


@settings(few, max_examples=examples(5))
@given(
    seed=seeds,
    backends=st.lists(backends, min_size=7, max_size=7),
    drivers=moves,
    last=parallelisms,
    budget=st.sampled_from([15, 40]),
    function=st.sampled_from([UntypedSessions, UntypedSessions.__base__]),
    cache=st.sampled_from(["256mb", "2kb"]),
)
def test_all_kinds_of_state_and_timers_follow_their_keys(seed, backends, drivers, last, budget, function, cache):
    data = records(seed, 300, keys=20)
    with lab(sessions(data, cut=budget, function=function), budget=budget) as job:
        kinds = iter(backends)
        for parallelism, point, count in drivers:
            job.parallelism, job.config = parallelism, config(next(kinds), "64", cache)
            if job._run_until(point, count):
                break
        else:
            job.parallelism, job.config = last, config(next(kinds), "64", cache)
            job.run()
        assert visible() == sessions_model(data)


# ---- while it runs


def rescaling(job: Lab, rescales: dict[int, int]) -> tuple[Any, list[Any]]:
    """A driver that is told to rescale: by number of the completed checkpoint, to which parallelism."""
    coordinator = job.coordinator()
    complete, done, answers = coordinator._log.complete, [0], []

    def completing(*checkpoint: Any) -> None:
        complete(*checkpoint)
        done[0] += 1
        if done[0] in rescales:
            job.parallelism = rescales[done[0]]
            answers.append(coordinator.request_rescale(job.plan()))

    coordinator._log.complete = completing
    return coordinator, answers


@settings(few, max_examples=examples(5))
@given(
    seed=seeds,
    backend=backends,
    rescales=st.dictionaries(st.integers(1, 6), parallelisms, min_size=1, max_size=4),
    budget=st.sampled_from([15, 40]),
    failures=st.sampled_from([0.0, 0.03]),
)
def a_job_that_is_rescaled_while_it_runs_has_the_same_results(seed, backend, rescales, budget, failures):
    data = records(seed, 300, keys=20)
    with lab(sessions(data, cut=budget), budget=budget, config=config(backend, "64")) as job:
        job.failures, job.seed = failures, seed
        coordinator, answers = rescaling(job, rescales)
        try:
            coordinator.run()
        finally:
            job.close()
        assert visible() == sessions_model(data)
        assert all(answer.done() for answer in answers)
        if failures == 0:
            assert job.metrics.snapshot().values["numRestarts"] == 0


def parallelisms_of_plans(coordinator: Any) -> list[list[int]]:
    """For each executor that the coordinator makes, the parallelism of its vertices."""
    seen: list[list[int]] = []
    make = coordinator._make_executor

    def making(info: Any, plan: Any) -> Any:
        seen.append([vertex.parallelism for vertex in plan.vertices])
        return make(info, plan)

    coordinator._make_executor = making
    return seen


def a_rescaled_job_runs_its_tasks_at_the_new_parallelism():
    data = records(5, 300)
    with lab(windows(data, cut=15), budget=15, config=config("rocksdb", "64")) as job:
        coordinator, answers = rescaling(job, {2: 5, 8: 3})
        tasks = parallelisms_of_plans(coordinator)
        try:
            coordinator.run()
        finally:
            job.close()
        assert list(map(set, tasks)) == [{2}, {5}, {3}]
        assert [answer.exception() for answer in answers] == [None, None]
        assert visible() == windows_model(data)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def a_job_that_is_rescaled_from_one_subtask_and_back_changes_its_tasks(backend):
    data = records(6, 300, keys=20)
    with lab(sessions(data, cut=15), parallelism=1, budget=15, config=config(backend, "64", "2kb")) as job:
        assert not job._run_until("before complete", 2)  # a driver that dies
        job.failures = 0.02
        coordinator, answers = rescaling(job, {2: 2, 6: 1})
        tasks = parallelisms_of_plans(coordinator)
        try:
            coordinator.run()
        finally:
            job.close()
        assert [each for n, each in enumerate(tasks) if each != tasks[n - 1] or n == 0] == [
            [1, 1],  # the sink has two inputs
            [2, 2, 2],
            [1, 1],
        ]
        assert [answer.exception() for answer in answers] == [None, None]
        assert visible() == sessions_model(data)


def a_second_request_during_a_rescaling_is_refused_and_so_is_one_after_the_end():
    data = records(5, 300)
    with lab(windows(data, cut=15), budget=15, config=config("hashmap", "64")) as job:
        coordinator = job.coordinator()
        first = coordinator.request_rescale(job.plan())
        second = coordinator.request_rescale(job.plan())
        try:
            coordinator.run()
        finally:
            job.close()
        assert first.exception() is None
        assert str(second.exception()) == "the job was not rescaled: another rescaling is under way"
        assert str(coordinator.request_rescale(job.plan()).exception()) == "the job was not rescaled: it has ended"
