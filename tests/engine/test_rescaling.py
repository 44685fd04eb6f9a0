"""A job that resumes at another parallelism: every key's state, timers and windows are where the key now goes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compactions
import holdfast.state.backends.upkeep
from effort import examples
from holdfast.common import WatermarkStrategy
from holdfast.connectors.number_seq import NumberSequenceSource
from holdfast.datastream import MapFunction, StreamExecutionEnvironment
from holdfast.testing import InProcessEnvironment

from .inprocess import CRASH_POINTS, LEDGERS, Lab, LedgerSink, RecordSlices, SplitSource
from .programs import UntypedSessions, records, sessions, sessions_model, windows, windows_model
from .test_same_results import IN_FILES, backends, config, few, lab, seeds, visible

parallelisms = st.sampled_from([1, 2, 3, 4, 5, 7, 8])
moves = st.lists(st.tuples(parallelisms, st.sampled_from(CRASH_POINTS), st.integers(1, 4)), min_size=2, max_size=6)
"""Drivers: at which parallelism each runs, and where it dies. Count 1 is its first epoch."""


@pytest.fixture(autouse=True)
def early_bases(monkeypatch):
    """Bases and merged deltas after a few epochs, so that both are restored."""
    monkeypatch.setattr(holdfast.state.backends.upkeep, "due", compactions.anything(1))


def run(job: Lab, drivers: list[tuple[int, str, int]], last: int) -> None:
    for parallelism, point, count in drivers:
        job.parallelism = parallelism
        if job._run_until(point, count):
            return
    job.parallelism = last
    job.run()


@settings(few, max_examples=examples(2))
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


UNALIGNED = {"execution.checkpointing.unaligned.enabled": "true"}


def numbers(env: StreamExecutionEnvironment, function: Any = lambda n: n) -> None:
    """Numbers from a source of one subtask, which is chained to the function behind it if that has one subtask, too."""
    source = env.from_source(SplitSource({"a": list(range(400))}, cut=20), WatermarkStrategy.no_watermarks(), "source")
    source.set_parallelism(1).uid("source").map(function).uid("map").sink_to(LedgerSink("out")).uid("out")


def run_numbers(job: Lab, rescales: dict[int, int]) -> list[BaseException | None]:
    """Run the job to its end; the answers to the rescalings."""
    LEDGERS["out"].committed.clear()
    coordinator, answers = rescaling(job, rescales)
    try:
        coordinator.run()
    finally:
        job.close()
    assert sorted(LEDGERS["out"].values) == list(range(400))
    return [answer.exception() for answer in answers]


def a_rescaling_begins_with_an_aligned_epoch_so_that_no_operator_has_channel_state(tmp_path):
    job = Lab(numbers, tmp_path, budget=40, config=UNALIGNED, records_before_deadline=8)
    assert run_numbers(job, {4: 1, 7: 3}) == [None, None]


def a_job_that_cannot_process_what_waits_in_time_is_not_rescaled_and_goes_on(tmp_path):
    job = Lab(numbers, tmp_path, budget=40, config=UNALIGNED, records_before_deadline=8, early=False)
    job.slices = lambda seconds: RecordSlices(2, random.Random(1))
    (refusal,) = run_numbers(job, {4: 1})
    assert "input of earlier epochs still waits" in str(refusal)


class TwoLicences(MapFunction):
    def open(self, runtime_context: Any) -> None:
        if runtime_context.get_number_of_parallel_subtasks() > 2:
            raise RuntimeError("licences for two subtasks only")

    def map(self, value: int) -> int:
        return value


def a_job_whose_functions_cannot_open_at_the_new_parallelism_goes_on_at_the_one_before(tmp_path):
    job = Lab(lambda env: numbers(env, TwoLicences()), tmp_path, budget=40)
    (refusal,) = run_numbers(job, {3: 3})
    assert "its tasks cannot run at parallelism 3, and it goes on as before" in str(refusal)
    assert "licences for two subtasks only" in str(refusal)
    assert job.metrics is not None
    assert job.metrics.snapshot().values["numRestarts"] == 0


def a_job_whose_checkpoint_has_lost_a_file_is_not_rescaled_and_goes_on(tmp_path):
    data = records(5, 300)
    with lab(windows(data, cut=15), budget=15, config=config("hashmap", "64") | IN_FILES) as job:
        coordinator, answers = rescaling(job, {3: 5})
        complete = coordinator._log.complete

        def losing(*checkpoint: Any) -> None:
            complete(*checkpoint)
            if len(answers) == 1 and not answers[0].done() and not lost:
                file = next(file for file in checkpoint[0].files() if file.path.endswith(".delta"))
                lost.append(file.path)
                job.storage.delete([file.path])

        lost: list[str] = []
        coordinator._log.complete = losing
        try:
            coordinator.run()
        finally:
            job.close()
        assert lost
        assert lost[0] in str(answers[0].exception())
        assert visible() == windows_model(data)


def an_edge_of_a_rescaled_job_is_sampled():
    env = InProcessEnvironment()
    env.set_parallelism(1)
    numbers = env.from_source(NumberSequenceSource(1, 10**9), WatermarkStrategy.no_watermarks(), "numbers")
    numbers.key_by(lambda n: n % 3).reduce(lambda a, b: b).print()
    job = env.execute_async("sampled")
    try:
        job.rescale(2).result()
        sender, receiver = [node["id"] for node in job.metrics.snapshot().plan["nodes"]][:2]
        assert job.begin_sample(sender, receiver).result(60) is not None
    finally:
        job.cancel().result()
