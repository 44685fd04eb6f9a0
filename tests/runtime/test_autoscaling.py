"""The autoscaler's decisions, epoch by epoch, on a clock that the tests turn."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common import Configuration, WatermarkStrategy
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.errors import ConfigurationError
from holdfast.metrics import EpochStats, VertexStats
from holdfast.metrics.stats import OperatorStats
from holdfast.runtime.driver.scaling_scope import scope_of
from holdfast.runtime.plan.autoscaling import Autoscaler, AutoscalerSettings, Scope
from holdfast.runtime.plan.settings import JobSettings
from holdfast.runtime.protocol.statistics import shown_id

SETTINGS = AutoscalerSettings(least=1, most=8, utilization=0.7, stabilization_seconds=30, window_seconds=30)


def scaler(settings: AutoscalerSettings, cores: Callable[[], int] = lambda: 4, most: int = 128) -> Autoscaler:
    return Autoscaler(settings, cores, lambda parallelism: Scope(frozenset({"v0"}), most))


class Job:
    """A job whose subtasks process so many records a second, with epochs of one second."""

    def __init__(self, parallelism: int = 2, speed: float = 100.0, fixed: int = 0) -> None:
        self.scaler = scaler(SETTINGS)
        self.parallelism, self.speed, self.fixed = parallelism, speed, fixed
        self.backlog = 0.0
        self.now = 0.0
        self.rescales = True
        """Whether decisions are carried out."""
        self.decisions: list[tuple[float, int]] = []

    def run(self, seconds: int, arriving: float) -> None:
        for _ in range(seconds):
            self.now += 1
            ready = self.backlog + arriving
            read = min(ready, self.parallelism * self.speed)
            self.backlog = ready - read
            busy = 1000 * read / self.speed
            vertices = [VertexStats("v0", "count", self.parallelism, busy_ms=busy)]
            if self.fixed:
                vertices.append(VertexStats("v1", "fixed", self.fixed, busy_ms=1000.0))
            stats = EpochStats(
                int(self.now), 0, 1000, int(read), 0, backlog={"s": int(self.backlog)}, vertices=tuple(vertices)
            )
            wanted = self.scaler.observe(stats, self.parallelism, self.now)
            if wanted is not None:
                self.decisions.append((self.now, wanted))
                self.parallelism = wanted if self.rescales else self.parallelism


def a_job_with_a_long_interval_of_checkpoints_is_scaled_by_its_last_epochs() -> None:
    wanted = None
    autoscaler = scaler(SETTINGS)
    for n in range(4):  # one a minute, and the window is half a minute
        busy = VertexStats("v0", "count", 2, busy_ms=2 * 58_000.0)
        stats = EpochStats(n, 0, 58_000, 6_000, 0, backlog={"s": 0}, vertices=(busy,))
        wanted = wanted or autoscaler.observe(stats, 2, 60.0 * n)
    assert wanted == 3


def a_job_that_keeps_up_at_the_target_keeps_its_parallelism() -> None:
    job = Job()
    job.run(300, arriving=140)
    assert job.decisions == []


@pytest.mark.parametrize(("arriving", "parallelism"), [(148, 4), (320, 4), (332, 4), (130, 2), (350, 5)])
def a_job_whose_load_is_close_to_the_target_keeps_its_parallelism(arriving: int, parallelism: int) -> None:
    """At 4 subtasks of 100 records a second each, it is close from 140 (half the target) to 340 (half of what is above)."""
    job = Job(parallelism=4)
    job.run(100, arriving)
    assert job.parallelism == parallelism


def the_load_is_that_of_the_latest_window() -> None:
    job = Job()
    job.run(300, arriving=140)
    job.run(15, arriving=185)
    assert job.decisions == []
    job.run(15, arriving=185)
    assert [wanted for _, wanted in job.decisions] == [3]


def the_load_before_a_rescaling_does_not_count_after_it() -> None:
    autoscaler, parallelism = scaler(AutoscalerSettings(1, 8, 0.7, stabilization_seconds=20, window_seconds=60)), 2
    decisions = []
    for second in range(1, 80):
        load = 1.0 if parallelism == 2 else 0.75
        busy = VertexStats("v0", "count", parallelism, busy_ms=1000 * load * parallelism)
        wanted = autoscaler.observe(EpochStats(second, 0, 1000, 100, 0, vertices=(busy,)), parallelism, float(second))
        if wanted is not None:
            decisions.append(wanted)
            parallelism = wanted
    assert decisions == [3]


def a_backlog_raises_the_parallelism_until_it_is_worked_off_and_then_lowers_it() -> None:
    job = Job()
    job.run(120, arriving=400)
    assert job.decisions[0][0] == 31, "not before the stabilization interval"
    assert job.parallelism >= 6
    job.run(300, arriving=400)
    assert job.backlog == 0
    assert 5 <= job.parallelism <= 8
    job.run(300, arriving=50)
    assert job.parallelism == 1


def a_job_without_input_shrinks_to_the_minimum() -> None:
    job = Job(parallelism=4)
    job.run(100, arriving=0)
    assert job.parallelism == 1
    assert len(job.decisions) == 1


def the_maximum_is_the_number_of_cores_unless_it_is_set() -> None:
    unset = AutoscalerSettings(1, None, 0.7, 30, 30)
    job = Job()
    cores = [3]
    job.scaler = scaler(unset, lambda: cores[0])
    job.run(200, arriving=10_000)
    assert job.parallelism == 3
    cores[0] = 5  # an executor has joined
    job.run(200, arriving=10_000)
    assert job.parallelism == 5
    cores[0] = 2
    job.run(200, arriving=10_000)
    assert job.parallelism == 2


def test_the_minimum_holds_with_fewer_cores_and_with_any_load() -> None:
    for arriving in (0, 140, 10_000):
        job = Job(parallelism=2)
        job.scaler = scaler(AutoscalerSettings(6, None, 0.7, 30, 30))
        job.run(200, arriving)
        assert job.parallelism == 6


def a_max_parallelism_of_the_program_bounds_the_parallelism() -> None:
    job = Job(parallelism=2)
    job.scaler = scaler(SETTINGS, most=5)
    job.run(200, arriving=10_000)
    assert job.parallelism == 5


def a_job_that_somebody_else_has_rescaled_is_measured_anew() -> None:
    job = Job(parallelism=2)
    job.run(100, arriving=140)
    job.parallelism = 4
    job.run(300, arriving=280)
    assert job.decisions == []


def a_decision_that_was_not_carried_out_is_taken_again_after_the_interval() -> None:
    job = Job(parallelism=2)
    job.rescales = False
    job.run(100, arriving=400)
    assert [at for at, _ in job.decisions] == [31, 61, 91]
    assert all(parallelism > 2 for _, parallelism in job.decisions)


def observed(settings: AutoscalerSettings, *epochs: tuple[float, float, int], rate: int = 10) -> list[int | None]:
    """The decisions for a job at parallelism 2 whose epochs end at a time, with a busy share, and a backlog behind them.

    ``rate``: the records that an epoch reads a second.
    """
    autoscaler, before, found = scaler(settings), 0.0, []
    for n, (at, busy, backlog) in enumerate(epochs):
        vertex = VertexStats("v0", "count", 2, busy_ms=2 * 1000 * busy * (at - before))
        stats = EpochStats(n, 0, 1, round(rate * (at - before)), 0, backlog={"s": backlog}, vertices=(vertex,))
        found.append(autoscaler.observe(stats, 2, at))
        before = at
    return found


@pytest.mark.parametrize(("load", "wanted"), [(0.24, 1), (0.25, None), (0.75, None), (0.76, 4), (1.0, 4), (2.5, 8)])
def a_load_from_half_the_target_to_halfway_from_there_to_all_is_close_to_it(load: float, wanted: int | None) -> None:
    settings = AutoscalerSettings(1, 8, utilization=0.5, stabilization_seconds=0, window_seconds=30)
    assert observed(settings, (4, load, 0), (8, load, 0)) == [None, wanted]
    assert observed(settings, (4, load, 0), (8, load, 0), rate=0) == [None, wanted], "timers are work, too"


def a_backlog_counts_as_far_as_it_is_to_be_worked_off_in_a_window() -> None:
    settings = AutoscalerSettings(1, 8, utilization=0.5, stabilization_seconds=0, window_seconds=30)
    # 600 records in 30 s are 20 a second beside the 10 that arrive: the load is three times as high.
    assert observed(settings, (4, 0.5, 600), (8, 0.5, 600)) == [None, 6]
    assert observed(settings, (4, 0.5, 600), (8, 0.5, 560)) == [None, 4], "it shrinks by 10 a second already"
    assert observed(settings, (4, 0.5, 0), (8, 0.5, 40)) == [None, 5], "20 a second arrive"


def an_epoch_that_ended_before_the_window_does_not_count() -> None:
    settings = AutoscalerSettings(1, 8, utilization=0.5, stabilization_seconds=0, window_seconds=30)
    assert observed(settings, (15, 0.5, 0), (30, 0.5, 0), (45, 0.5, 0), (60, 1.1, 0)) == [None, None, None, 4]


def test_two_epochs_may_end_at_the_same_time() -> None:
    """By a coarse clock."""
    settings = AutoscalerSettings(1, 8, utilization=0.5, stabilization_seconds=0, window_seconds=30)
    assert observed(settings, (4, 0.5, 0), (4, 0.5, 0), (8, 0.5, 0))[-1] is None


def test_vertices_with_a_parallelism_of_their_own_do_not_count() -> None:
    for fixed in (1, 3):
        job = Job(parallelism=3, fixed=fixed)
        job.run(200, arriving=210)
        assert job.decisions == []


def test_an_operator_of_its_own_parallelism_does_not_count_while_it_shares_tasks_with_a_scaled_one() -> None:
    """At 2 its tasks are the job's, too, and busy; at any other parallelism, they are its own."""
    config = {"parallelism.default": "2"}
    env = StreamExecutionEnvironment(Configuration.from_dict(config))
    numbers = env.from_source(NumberSequenceSource(1, 9), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    counted = numbers.key_by(lambda n: n).reduce(lambda a, b: a).uid("counted")
    counted.map(lambda n: n).uid("fixed").set_parallelism(2).print().uid("out").set_parallelism(2)
    busy_ms = {"counted": 1000.0, "fixed": 1900.0, "out": 10.0}
    replan = env._replan(env._plan("shared"))
    scaler = Autoscaler(SETTINGS, lambda: 8, partial(scope_of, replan))
    parallelism, decisions = 2, []
    for second in range(1, 300):
        vertices = []
        for vertex in replan(parallelism).vertices:
            own = tuple(OperatorStats(each.uid, each.name, busy_ms.get(each.uid, 200.0)) for each in vertex.chain)
            busy = sum(each.busy_ms for each in own)
            vertices.append(VertexStats(shown_id(vertex.id), vertex.name, vertex.parallelism, busy_ms=busy, operators=own))
        wanted = scaler.observe(EpochStats(second, 0, 1000, 100, 0, vertices=tuple(vertices)), parallelism, second)
        if wanted is not None:
            parallelism = wanted
            decisions.append(wanted)
    assert decisions == []


@pytest.mark.parametrize("parallelism", [2, 3])
def the_vertices_that_a_rescaling_changes_are_known_from_the_plan(parallelism: int) -> None:
    env = StreamExecutionEnvironment().set_parallelism(parallelism)
    numbers = env.from_source(NumberSequenceSource(1, 9), WatermarkStrategy.no_watermarks(), "numbers")
    counted = numbers.key_by(lambda n: n).reduce(lambda a, b: a).set_max_parallelism(7)
    own = counted.key_by(lambda n: n).reduce(lambda a, b: a).name("own").set_parallelism(3).set_max_parallelism(5)
    own.print().set_parallelism(3)
    plan = env._plan("scaled")
    scope = scope_of(env._replan(plan), parallelism)
    assert {v.name for v in plan.vertices if shown_id(v.id) not in scope.vertices} == {"own -> Sink: Print to Std. Out"}
    assert scope.most == 7


@given(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 2_000)), max_size=8))
def the_parallelism_stays_within_its_bounds_and_changes_once_an_interval_at_most(phases: list[tuple[int, int]]) -> None:
    job = Job()
    for seconds, arriving in phases:
        job.run(seconds, arriving)
    times = [at for at, _ in job.decisions]
    assert all(1 <= parallelism <= 8 for _, parallelism in job.decisions)
    assert all(b - a >= 30 for a, b in itertools.pairwise(times))


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("job.autoscaler.vertex.max-parallelism", "1", "less than"),
        ("job.autoscaler.utilization.target", "1.5", "between 0 and 1"),
        ("job.autoscaler.vertex.min-parallelism", "0", "at least 1"),
    ],
)
def test_wrong_bounds_are_refused(key: str, value: str, told: str) -> None:
    config = {"job.autoscaler.enabled": "true", "job.autoscaler.vertex.min-parallelism": "2", key: value}
    with pytest.raises(ConfigurationError, match=told):
        JobSettings.of(config)
