"""Where a job's time goes, and what is told about it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.metrics import EpochStats, JobMetrics, VertexStats
from holdfast.metrics.diagnosis import Finding, findings
from holdfast.metrics.profile import EPOCHS_KEPT, Profile
from holdfast.metrics.stats import OperatorStats, SubtaskStats
from holdfast.rest.view import job_view

PHASES = {"plan": 0.0, "job": 1.0, "commit": 0.0, "metadata": 0.0}


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


def vertex(busy: list[float], records: list[int] | None = None, **more: object) -> VertexStats:
    records = records or [100] * len(busy)
    subtasks = tuple(SubtaskStats(ms, count, 5_000) for ms, count in zip(busy, records))
    found = VertexStats("v", "Enrich", len(busy), sum(records), 0, sum(busy), subtasks=subtasks)
    return replace(found, **more)  # type: ignore[arg-type]


def job(*vertices: VertexStats, epochs: int = 20, backlog: int = 0, pause: float = 0.0, **phases: float) -> list[Finding]:
    """What is told about a job whose epochs, of one second each, are all alike."""
    clock = Clock()
    metrics = JobMetrics("a" * 32, "payments", clock, clock)
    metrics.status("RUNNING")
    for number in range(1, epochs + 1):
        clock.seconds += 1.0 + pause
        stats = EpochStats(number, int(clock.seconds * 1000), 1000.0, 500, 5, {**PHASES, **phases}, vertices=vertices)
        metrics.epoch_finished(replace(stats, backlog={"source": backlog}))
    return findings(metrics.snapshot())


def test_a_job_without_backlog_keeps_up_and_waits() -> None:
    standing, *_ = job(vertex([10.0]), pause=3.0)
    assert (standing.kind, standing.title) == ("good", "The job keeps up with its input")
    assert standing.detail == "It waits for input 75 % of the time."


def test_a_job_whose_backlog_stays_falls_behind() -> None:
    standing, *_ = job(vertex([900.0]), backlog=1_000_000)
    assert (standing.kind, standing.title) == ("bad", "The job falls behind")
    assert "1,000,000 records wait" in standing.detail


def test_one_busy_subtask_with_most_records_is_skew_of_keys() -> None:
    _, slow, *_ = job(vertex([900.0, 100.0, 100.0], [800, 100, 100]), backlog=1_000_000)
    assert slow.title == "Subtask 1 of Enrich does most of the work"
    assert "It is busy 90 %, the others 10 % on average. It gets 80 % of the records." in slow.detail
    assert "A few keys" in slow.remedy
    assert slow.vertex == "v"
    assert slow.share == pytest.approx(0.9, abs=0.01)


def test_one_busy_subtask_with_as_many_records_has_costly_ones_or_a_slow_host() -> None:
    _, slow, *_ = job(vertex([900.0, 100.0, 100.0]))
    assert "no more records" in slow.detail
    assert "host" in slow.remedy


def test_a_slow_function_is_named_with_its_cost_per_record() -> None:
    operators = (OperatorStats("parse", "Parse", 100.0), OperatorStats("enrich", "Enrich by hand", 1700.0))
    _, slow, *_ = job(vertex([900.0, 900.0], operators=operators), backlog=1_000_000)
    assert slow.title == "The operator Enrich by hand"
    assert "94 % of the working time of Enrich, 8,500 µs for each record" in slow.detail
    assert slow.share == pytest.approx(0.9 * 17 / 18, abs=0.01)


@pytest.mark.parametrize(
    ("phase", "title"),
    [("commit", "Waiting for commits"), ("metadata", "Storing checkpoints"), ("plan", "Planning the input")],
)
def a_wait_of_the_driver_is_told_by_its_phase(phase: str, title: str) -> None:
    found = job(vertex([300.0]), **{"job": 0.3, phase: 0.7})
    assert found[1].title == title
    assert found[1].share == pytest.approx(0.7, abs=0.01)


def test_what_tasks_do_not_take_of_sparks_job_is_sparks_own_work() -> None:
    found = job(vertex([200.0]))
    assert (found[1].title, round(found[1].share, 2)) == ("Spark's own work", 0.8)


def a_vertex_that_writes_state_most_of_the_time_is_told_so() -> None:
    _, slow, *_ = job(vertex([900.0], phases={"process": 0.2, "state": 0.7}))
    assert slow.title == "Writing the state of Enrich"


def a_vertex_that_waits_for_its_source_is_told_so() -> None:
    _, slow, *_ = job(vertex([900.0], phases={"read": 0.7, "process": 0.2}, source_uid="payments"))
    assert slow.title == "Reading the source of Enrich"


def test_what_takes_most_comes_first() -> None:
    shares = [finding.share for finding in job(vertex([300.0]), job=0.4, commit=0.5, metadata=0.1)[1:]]
    assert shares == sorted(shares, reverse=True)
    assert len(shares) >= 3


def a_job_without_an_epoch_has_no_findings_and_still_a_view() -> None:
    metrics = JobMetrics("a" * 32, "payments")
    node = {"id": "v", "description": "Source", "parallelism": 2, "inputs": []}
    metrics.plan({"nodes": [node]})
    view = job_view(metrics.snapshot())
    assert (view["findings"], view["epochs"], view["watermark"], view["lag"]) == ([], [], None, None)
    assert [(vertex["name"], vertex["busy"]) for vertex in view["vertices"]] == [("Source", 0.0)]


def a_failure_is_told_first_and_by_the_name_of_its_error() -> None:
    metrics = JobMetrics("a" * 32, "payments")
    metrics.failure(metrics.snapshot().now_ms, "Traceback ...\nKeyError: 'amount'", "Source (1/2)")
    metrics.checkpoint_failed(7, "KeyError: 'amount'")
    view = job_view(metrics.snapshot())
    assert view["findings"][0]["detail"] == "KeyError in Source (1/2)."
    assert [(epoch["number"], epoch["failed"]) for epoch in view["epochs"]] == [(7, "KeyError: 'amount'")]
    assert job_view(metrics.snapshot(), view["epochs"][-1]["sequence"])["epochs"] == []


def a_job_that_restarts_again_and_again_is_not_told_to_keep_up() -> None:
    clock = Clock()
    metrics = JobMetrics("a" * 32, "payments", clock, clock)
    metrics.epoch_finished(EpochStats(1, int(clock.seconds * 1000), 1000.0, 500, 5, PHASES, vertices=(vertex([10.0]),)))
    for _ in range(3):
        clock.seconds += 2.0
        metrics.failure(int(clock.seconds * 1000), "Traceback ...\nKeyError: 'amount'", "Source (1/2)")
    last, standing, *_ = findings(metrics.snapshot())
    assert last.detail == "KeyError in Source (1/2)."
    assert (standing.kind, standing.title) == ("bad", "The job has completed no epoch since it failed")
    assert standing.detail == "Failures since epoch 1: 3."
    clock.seconds += 2.0
    metrics.epoch_finished(EpochStats(2, int(clock.seconds * 1000), 1000.0, 500, 5, PHASES, vertices=(vertex([10.0]),)))
    assert findings(metrics.snapshot())[1].title == "The job keeps up with its input"


def a_failure_without_a_name_is_told_by_its_message() -> None:
    metrics = JobMetrics("a" * 32, "payments")
    metrics.failure(metrics.snapshot().now_ms, "cannot put /checkpoints/1: No space left on device", "Source (1/2)")
    assert findings(metrics.snapshot())[0].detail == "cannot put /checkpoints/1: No space left on device in Source (1/2)."


epochs = st.lists(
    st.tuples(
        st.integers(1, 4),  # subtasks: the parallelism may change
        st.floats(0, 1e5),
        st.floats(0, 1e5),
        st.integers(0, 10**9),
        st.booleans(),
    ),
    max_size=30,
)


@given(epochs)
def test_any_epochs_give_shares_between_zero_and_one(history: list[tuple[int, float, float, int, bool]]) -> None:
    clock = Clock()
    metrics = JobMetrics("a" * 32, "any", clock, clock)
    for number, (subtasks, busy, duration, records, fails) in enumerate(history, 1):
        clock.seconds += duration / 2000
        if fails:
            metrics.checkpoint_failed(number, "it failed")
            continue
        operators = (OperatorStats("one", "One", busy),)
        stats = vertex([busy / (1 + i) for i in range(subtasks)], [records] * subtasks, operators=operators)
        metrics.epoch_finished(EpochStats(number, 0, duration, records, 0, PHASES, vertices=(stats,)))
    snapshot = metrics.snapshot()
    for found in findings(snapshot):
        assert 0 <= found.share <= 1
    for each in snapshot.profile.vertices.values():
        assert 0 <= each.busy <= 1
        assert 0 <= sum(subtask.records for subtask in each.subtasks) <= 1.000001
        assert each.skew >= 0.999999
    assert 0 <= snapshot.profile.idle <= 1


def the_timeline_is_bounded_and_numbered_without_gaps() -> None:
    profile = Profile()
    for number in range(3 * EPOCHS_KEPT):
        profile.epoch_failed(number, "no", 0)
    kept = profile.snapshot(0.0).epochs
    assert [epoch.sequence for epoch in kept] == list(range(2 * EPOCHS_KEPT + 1, 3 * EPOCHS_KEPT + 1))
