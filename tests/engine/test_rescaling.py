"""A job that resumes at another parallelism: every key's state, timers and windows are where the key now goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast.state.backend

from .inprocess import CRASH_POINTS, Lab
from .programs import UntypedSessions, records, sessions, sessions_model, windows, windows_model
from .test_same_results import backends, budgets, config, few, lab, seeds, visible

parallelisms = st.sampled_from([1, 2, 3, 4, 5, 7, 8])
moves = st.lists(st.tuples(parallelisms, st.sampled_from(CRASH_POINTS), st.integers(1, 4)), min_size=2, max_size=6)
"""Drivers: at which parallelism each runs, and where it dies. Count 1 is its first epoch."""


@pytest.fixture(autouse=True)
def early_bases(monkeypatch):
    """Materialisations after a few epochs, so that bases and deltas are both restored."""
    monkeypatch.setattr(holdfast.state.backend, "MOST_DELTAS", 3)


def run(job: Lab, drivers: list[tuple[int, str, int]], last: int) -> None:
    for parallelism, point, count in drivers:
        job.parallelism = parallelism
        if job._run_until(point, count):
            return
    job.parallelism = last
    job.run()


@few
@given(seed=seeds, backend=backends, drivers=moves, last=parallelisms, budget=budgets)
def the_windows_are_complete_whatever_the_parallelism_was(seed, backend, drivers, last, budget):
    data = records(seed, 300)
    with lab(windows(data, cut=budget), budget=budget, config=config(backend, "64")) as job:
        run(job, drivers, last)
        assert visible() == windows_model(data)


@few
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
