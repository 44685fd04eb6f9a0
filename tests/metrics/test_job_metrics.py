from __future__ import annotations

import threading

import pytest

from holdfast.metrics import CheckpointStats, EpochStats, Failure, JobMetrics, VertexStats
from holdfast.metrics.rate import Rate
from holdfast.metrics.stats import StandbyStats


class Clock:
    """Time that moves when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> JobMetrics:
    return JobMetrics("a" * 32, "payments", clock=clock, wall_clock=clock)


def run_epoch(metrics: JobMetrics, clock: Clock, seconds: float, records: int, number: int = 1, **more: object) -> None:
    clock.now += seconds
    metrics.epoch_finished(
        EpochStats(
            epoch=number,
            started_ms=int((clock.now - seconds) * 1000),
            duration_ms=seconds * 1000,
            records_in=records,
            records_out=records // 10,
            **more,  # type: ignore[arg-type]
        )
    )


def the_rate_is_that_of_the_last_ten_seconds(metrics: JobMetrics, clock: Clock) -> None:
    for n in range(20):
        run_epoch(metrics, clock, 1.0, 500 if n < 10 else 2000, n)
    values = metrics.snapshot().values
    assert values["numRecordsInPerSecond"] == pytest.approx(2000)
    assert values["numRecordsOutPerSecond"] == pytest.approx(200)
    assert values["numRecordsIn"] == 25_000
    assert values["numRecordsOut"] == 2_500


def the_rate_falls_to_zero_when_nothing_comes(metrics: JobMetrics, clock: Clock) -> None:
    for n in range(10):
        run_epoch(metrics, clock, 1.0, 1000, n)
    seen = []
    for _ in range(11):
        seen.append(metrics.snapshot().values["numRecordsInPerSecond"])
        clock.now += 1
    assert seen == sorted(seen, reverse=True)
    assert seen[0] == pytest.approx(1000)
    assert seen[5] == pytest.approx(500)
    assert seen[10] == 0


def the_rate_of_a_young_job_is_not_diluted(metrics: JobMetrics, clock: Clock) -> None:
    run_epoch(metrics, clock, 0.5, 1000)
    assert metrics.snapshot().values["numRecordsInPerSecond"] == pytest.approx(2000)


def the_rate_of_epochs_longer_than_the_window_is_their_own(metrics: JobMetrics, clock: Clock) -> None:
    for n in range(3):
        run_epoch(metrics, clock, 60.0, 60_000, n)
    assert metrics.snapshot().values["numRecordsInPerSecond"] == pytest.approx(1000)
    clock.now += 30
    assert metrics.snapshot().values["numRecordsInPerSecond"] > 500


def an_amount_without_duration_counts_once() -> None:
    rate = Rate(started=0.0, span=10.0)
    rate.add(50, 5.0, 5.0)
    assert rate.per_second(10.0) == 5.0
    assert rate.per_second(15.5) == 0.0


def a_rate_keeps_only_what_its_window_needs() -> None:
    rate = Rate(started=0.0, span=10.0)
    for n in range(10_000):
        rate.add(1, n * 0.2, n * 0.2 + 0.2)
    assert len(rate._parts) < 60


def a_job_that_did_nothing_yet_shows_no_watermark_and_no_checkpoint(metrics: JobMetrics) -> None:
    snapshot = metrics.snapshot()
    assert snapshot.status == "CREATED"
    assert snapshot.values["currentInputWatermark"] == -(2**63)
    assert snapshot.values["pendingRecords"] == 0
    assert "lastCheckpointSize" not in snapshot.values
    assert snapshot.ended_ms == -1


def the_last_checkpoint_s_figures_are_metrics(metrics: JobMetrics) -> None:
    metrics.checkpoint_completed(CheckpointStats(1, 0, 50, delta_bytes=10, full_bytes=10))
    metrics.checkpoint_failed(2, "storage did not answer")
    metrics.checkpoint_completed(CheckpointStats(3, 100, 1820, 7, 28_114_432, 412_309_504, "file:///c/chk-3"))
    values = metrics.snapshot().values
    assert values["checkpointDuration"] == values["lastCheckpointDuration"] == 1820
    assert values["stateSizeBytes"] == values["lastCheckpointFullSize"] == 412_309_504
    assert values["lastCheckpointSize"] == 28_114_432
    assert (values["numberOfCompletedCheckpoints"], values["numberOfFailedCheckpoints"]) == (2, 1)
    assert [checkpoint.id for checkpoint in metrics.snapshot().checkpoints] == [3, 2, 1]


def a_restart_is_counted_when_it_begins(metrics: JobMetrics, clock: Clock) -> None:
    for status in ("RUNNING", "RESTARTING", "RESTARTING", "RUNNING", "RESTARTING", "RUNNING"):
        metrics.status(status)
    assert metrics.snapshot().values["numRestarts"] == 2


def the_uptime_of_a_job_that_is_over_stands_still(metrics: JobMetrics, clock: Clock) -> None:
    clock.now += 5
    metrics.status("FINISHED")
    clock.now += 100
    snapshot = metrics.snapshot()
    assert snapshot.values["uptime"] == 5000
    assert snapshot.ended_ms == snapshot.started_ms + 5000


def the_watermark_never_goes_back(metrics: JobMetrics, clock: Clock) -> None:
    run_epoch(metrics, clock, 1.0, 1, watermark=500)
    run_epoch(metrics, clock, 1.0, 1)
    assert metrics.snapshot().values["currentInputWatermark"] == 500


def the_backlog_is_shown_by_source_and_in_sum(metrics: JobMetrics, clock: Clock) -> None:
    run_epoch(metrics, clock, 1.0, 1, backlog={"payments": 300, "rules": 4})
    values = metrics.snapshot().values
    assert (values["pendingRecords"], values["payments.pendingRecords"], values["rules.pendingRecords"]) == (
        304,
        300,
        4,
    )


def the_phases_of_an_epoch_are_shown_in_milliseconds(metrics: JobMetrics, clock: Clock) -> None:
    run_epoch(metrics, clock, 1.0, 1, phases={"plan": 0.002, "job": 0.25})
    values = metrics.snapshot().values
    assert (values["epochDuration"], values["epochDuration.plan"], values["epochDuration.job"]) == (1000, 2, 250)


def the_share_of_states_found_where_they_were_left_is_over_all_epochs(metrics: JobMetrics, clock: Clock) -> None:
    run_epoch(metrics, clock, 1.0, 1)  # no task has a state yet
    assert "localStateShare" not in metrics.snapshot().values
    for n in range(24):
        run_epoch(metrics, clock, 1.0, 1, n, states_needed=4, states_found=2 if n == 7 else 4)
    values = metrics.snapshot().values
    assert values["localStateShare"] == 94 / 96
    assert values["numStateFetches"] == 2


def the_standby_copies_are_counted_and_the_longest_lag_is_shown(metrics: JobMetrics, clock: Clock) -> None:
    run_epoch(metrics, clock, 1.0, 1)
    assert metrics.snapshot().values["numStandbyCopies"] == 0
    filling = StandbyStats("count", 0, "a", None, None)
    whole = StandbyStats("count", 1, "b", 3, 100.0)
    late = StandbyStats("count", 2, "b", 7, 1500.0)
    run_epoch(metrics, clock, 1.0, 1, 2, standbys=(filling, whole, late))
    metrics.standby_taken_over("subtask 1 goes on")
    values = metrics.snapshot().values
    assert values["numStandbyCopies"] == 2
    assert (values["standbyLagRecords"], values["standbyLagMs"]) == (7, 1500)
    assert values["numStandbyTakeovers"] == 1
    assert [(event.kind, event.text) for event in metrics.snapshot().events] == [("standby", "subtask 1 goes on")]


def a_vertex_sums_its_epochs_and_shows_its_busy_share(metrics: JobMetrics, clock: Clock) -> None:
    for n in range(10):
        vertex = VertexStats("v1", "count", 2, records_in=100, records_out=10, busy_ms=1000, late_dropped=3)
        run_epoch(metrics, clock, 1.0, 100, n, vertices=(vertex,))
    snapshot = metrics.snapshot()
    values = snapshot.vertices[0].values
    assert values["numRecordsIn"] == 1000
    assert values["busyTimeMsPerSecond"] == pytest.approx(500), "two subtasks, one second of work a second"
    assert snapshot.values["numLateRecordsDropped"] == 30
    assert snapshot.values["busyTimeMsPerSecond"] == pytest.approx(500)


def the_vertices_after_a_rescaling_are_those_of_the_new_plan(metrics: JobMetrics, clock: Clock) -> None:
    def epoch(number: int, *names: str) -> list[tuple[str, float]]:
        vertices = tuple(VertexStats(f"v{n}", name, 1, records_in=100, busy_ms=10) for n, name in enumerate(names))
        run_epoch(metrics, clock, 1.0, 100, number, vertices=vertices)
        assert set(metrics.snapshot().profile.vertices) <= {vertex.id for vertex in vertices}
        return [(each.name, each.values["numRecordsIn"]) for each in metrics.snapshot().vertices]

    assert epoch(1, "source", "count") == [("source", 100), ("count", 100)]
    assert epoch(2, "source", "count") == [("source", 200), ("count", 200)]
    assert epoch(3, "source -> count") == [("source -> count", 100)]
    assert epoch(4, "source", "count") == [("source", 100), ("count", 100)]


def the_users_metrics_are_summed_over_epochs(metrics: JobMetrics, clock: Clock) -> None:
    for n in range(4):
        user = {
            "op.hits": ("counter", 3),
            "op.size": ("gauge", n),
            "op.calls": ("meter", 10, 60),
            "op.ms": ("distribution", 2, 10 + n, 1, 9 + n),
        }
        run_epoch(metrics, clock, 1.0, 1, n, user_metrics=user)
    values = metrics.snapshot().user_values
    assert (values["op.hits"], values["op.size"], values["op.calls.count"]) == (12, 3, 40)
    assert values["op.calls.rate"] == pytest.approx(10)
    assert (values["op.ms.count"], values["op.ms.min"], values["op.ms.max"], values["op.ms.mean"]) == (8, 1, 12, 5.75)


def the_record_of_a_long_job_stays_small(metrics: JobMetrics, clock: Clock) -> None:
    for n in range(5_000):
        run_epoch(metrics, clock, 0.2, 1, n)
        metrics.checkpoint_completed(CheckpointStats(n, 0, 1))
        metrics.failure(n, "ValueError: x")
    snapshot = metrics.snapshot()
    assert (len(snapshot.checkpoints), len(snapshot.completed), len(snapshot.failures)) == (100, 1000, 16)
    assert (snapshot.counts.completed, snapshot.failures_total) == (5_000, 5_000)


def test_many_threads_may_read_and_write(metrics: JobMetrics, clock: Clock) -> None:
    def write() -> None:
        for n in range(500):
            vertices = tuple(VertexStats(f"v{at}", "v", 1, int(at == n % 5)) for at in range(5))
            metrics.epoch_finished(EpochStats(n, 0, 1.0, 1, 1, vertices=vertices))
            metrics.checkpoint_completed(CheckpointStats(n, 0, 1))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        snapshot = metrics.snapshot()
        assert sum(v.values["numRecordsIn"] for v in snapshot.vertices) == snapshot.values["numRecordsIn"]
    assert metrics.snapshot().values["numRecordsIn"] == 2_000


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('Traceback (most recent call last):\n  File "a.py", line 1\nZeroDivisionError: division', "ZeroDivisionError"),
        ("holdfast.errors.InputLost: topic payments\noperator source, uid s", "holdfast.errors.InputLost"),
        ("KeyError", "KeyError"),
        ("something went wrong", "Exception"),
        ("", "Exception"),
    ],
)
def the_exception_is_named_as_its_traceback_names_it(text: str, name: str) -> None:
    assert Failure(0, text, "").exception_name == name
