"""When epochs begin, and how large they become."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.metrics.requests import MONTH_S
from holdfast.metrics.stats import EpochStats
from holdfast.runtime.plan.pace_settings import PaceSettings
from holdfast.runtime.protocol.events import Instant
from holdfast.runtime.protocol.pacing import CheckpointPace, Pace

AT_ONCE = PaceSettings(
    interval_ms=None, min_pause_ms=0, dollars_per_second=20 / MONTH_S, first_cost=0.0, target_ms=2_000, target_given=False
)


def at(seconds: float) -> Instant:
    return Instant(0, seconds)


def epoch(cost: float = 0.0, records: int = 100) -> EpochStats:
    return EpochStats(1, 0, 100.0, records, 0, requests_cost=cost)


def paced(**settings: object) -> CheckpointPace:
    return CheckpointPace(replace(AT_ONCE, **settings), Pace(1.0, 10_000_000))  # type: ignore[arg-type]


def run(pace: Pace, epochs: int, per_record: float, fixed: float = 0.2, cold: float = 0.0) -> tuple[Pace, list[int]]:
    """Epochs of a job with backlog and that speed; the last pace, and the epochs' sizes."""
    sizes = []
    for epoch in range(epochs):
        sizes.append(pace.budget())
        pace = pace.after(sizes[-1], fixed + sizes[-1] * per_record + (cold if epoch == 0 else 0))
    return pace, sizes


@pytest.mark.parametrize("per_record", [1e-6, 1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("cold", [0.0, 2.0, 6.0])
def test_a_backlog_is_read_in_epochs_of_the_target_duration_from_the_fifth_on(per_record: float, cold: float) -> None:
    _, sizes = run(Pace(1.0, 10_000_000), 10, per_record, cold=cold)
    for size in sizes[4:]:
        seconds = 0.2 + size * per_record
        assert 0.6 < seconds < 1.4 or size == 5_000, sizes


def test_a_job_that_slows_down_gets_smaller_epochs() -> None:
    pace, _ = run(Pace(1.0, 10_000_000), 6, 1e-5)
    _, sizes = run(pace, 8, 1e-4)
    assert 0.2 + sizes[-1] * 1e-4 < 1.4


def test_small_epochs_of_a_quiet_time_do_not_spoil_the_estimate() -> None:
    pace, sizes = run(Pace(1.0, 10_000_000), 6, 1e-5)
    for _ in range(100):
        pace = pace.after(2_000, 0.2 + 2_000 * 1e-5)
    assert pace.budget() > sizes[-1] / 4


def test_one_lucky_epoch_does_not_make_a_huge_one() -> None:
    pace, sizes = run(Pace(1.0, 10**9), 6, 1e-4)
    assert pace.after(sizes[-1], 0.001).budget() <= 5 * sizes[-1]


def test_no_epoch_is_larger_than_allowed() -> None:
    assert Pace(1.0, 100).budget() == 100
    _, sizes = run(Pace(1.0, 100_000), 5, 1e-6)
    assert max(sizes) == 100_000


def a_short_epoch_says_less_about_the_speed_than_a_long_one():
    pace = Pace(1.0, 10_000_000, seconds_per_record=1e-5)
    slow = 8e-5
    short, long = (pace.after(records, pace.fixed_seconds + records * slow) for records in (1_000, 10_000))
    assert pace.seconds_per_record < short.seconds_per_record < 2 * pace.seconds_per_record
    assert long.seconds_per_record > 4 * pace.seconds_per_record


def an_epoch_that_hung_without_records_is_soon_forgotten():
    pace = Pace(1.0, 10_000_000, seconds_per_record=1e-5).after(10, 600.0)
    for _ in range(3):
        pace = pace.after(10, 0.2)
    assert pace.budget() > 60_000


@pytest.mark.parametrize(("fixed", "budget"), [(0.0, 100_000), (0.2, 80_000), (0.5, 50_000), (0.9, 50_000)])
def the_fixed_time_of_an_epoch_leaves_at_least_half_of_the_target_to_its_records(fixed: float, budget: int):
    assert Pace(1.0, 10_000_000, fixed, 1e-5).budget() == pytest.approx(budget, abs=1)


def a_nearly_empty_epoch_tells_of_the_fixed_time_and_any_other_of_the_records():
    pace = Pace(1.0, 10_000_000, fixed_seconds=0.2, seconds_per_record=1e-5)
    idle, busy = pace.after(999, 0.7), pace.after(1_000, 0.7)
    assert (idle.fixed_seconds, idle.seconds_per_record) == (pytest.approx(0.4), 1e-5)
    assert pace.after(999, 0.1).fixed_seconds == pytest.approx(0.16)
    assert busy.fixed_seconds == 0.2
    assert busy.seconds_per_record > 1e-5


@pytest.mark.parametrize(("seconds", "told"), [(3.0, 2.0), (1.05, 0.105), (0.2, 0.02)])
def the_first_epoch_counts_without_a_cold_second_but_a_tenth_of_it_at_least(seconds: float, told: float):
    first = Pace(1.0, 10_000_000).after(10_000, seconds)
    assert (first.seconds_per_record, first.warm) == (pytest.approx(told / 10_000), False)


@pytest.mark.parametrize(("seconds", "told"), [(0.6, 0.4), (0.21, 0.0525)])
def an_epoch_counts_without_the_fixed_time_but_a_quarter_of_it_at_least(seconds: float, told: float):
    pace = Pace(1.0, 10_000_000, fixed_seconds=0.2, seconds_per_record=1.0)
    for warm, most in ((False, 40), (True, 4)):
        after = replace(pace, seconds_per_record=1.5 * told / 10_000, warm=warm).after(10_000, seconds)
        assert (after.seconds_per_record, after.warm) == (pytest.approx(told / 10_000), True)
        # A lucky one is believed to a fortieth after the first epoch, and to a quarter later.
        assert replace(pace, warm=warm).after(10_000, seconds).seconds_per_record == pytest.approx(1.0 / most)


@pytest.mark.parametrize(("seconds", "weight"), [(0.5, 0.25), (1.0, 0.5), (5.0, 0.5)])
def a_slow_epoch_counts_by_its_share_of_the_target_and_by_half_at_most(seconds: float, weight: float):
    after = Pace(1.0, 10_000_000, 0.0, 1e-6).after(10_000, seconds)
    assert after.seconds_per_record == pytest.approx(1e-6 + weight * (seconds / 10_000 - 1e-6))
    assert after.warm


def the_epochs_of_a_job_without_settings_follow_at_once() -> None:
    pace = paced()
    assert pace.wait(at(0.0)) == 0.0
    pace.began(0.0, backlog=0)
    assert pace.completed(0.2, epoch(), left=False) == []
    assert pace.wait(at(0.2)) == pace.interval == 0.0


def an_interval_lasts_from_the_beginning_of_an_epoch_to_that_of_the_next() -> None:
    pace = paced(interval_ms=10_000)
    assert pace.wait(at(100.0)) == 0.0, "the first input does not wait"
    pace.began(100.0, backlog=0)
    pace.completed(104.0, epoch(), left=False)
    assert pace.wait(at(104.0)) == pytest.approx(6.0)
    assert pace.wait(at(110.0)) == pace.wait(at(500.0)) == 0.0


def a_pause_lasts_from_the_end_of_a_checkpoint_on() -> None:
    pace = paced(min_pause_ms=700)
    pace.began(9.0, backlog=10)
    pace.completed(10.0, epoch(), left=True)
    assert pace.wait(at(10.1)) == pytest.approx(0.6)
    assert pace.wait(at(10.7)) == 0.0


@pytest.mark.parametrize(("backlog", "left"), [(1, False), (0, True)])
def a_backlog_ends_the_interval_but_not_the_pause(backlog: int, left: bool) -> None:
    pace = paced(interval_ms=10_000, min_pause_ms=1_000)
    pace.began(0.0, backlog)
    pace.completed(2.0, epoch(), left=left)
    assert pace.wait(at(2.0)) == pytest.approx(1.0)
    pace.began(3.0, backlog=0)
    pace.completed(5.0, epoch(), left=False)
    assert pace.wait(at(5.0)) == pytest.approx(8.0)


def a_test_with_its_own_clock_does_not_wait() -> None:
    pace = paced(interval_ms=10_000)
    pace.began(0.0, backlog=0)
    assert pace.wait(Instant(0, 1.0, virtual=5.0)) == 0.0


def the_checkpoints_of_a_job_without_an_interval_cost_at_most_the_budget() -> None:
    pace = paced(first_cost=3 * 5e-6)
    assert pace.interval == pytest.approx(1.944)
    spent, now = 0.0, 0.0
    while now < 3_600:
        now += pace.wait(at(now))
        pace.began(now, backlog=0)
        cost = 5e-6 * (40 if round(now) % 50 == 0 else 2)  # now and then a base or a merge
        spent += cost
        now += 0.1
        pace.completed(now, epoch(cost), left=False)
    assert 15 < spent / now * MONTH_S < 20.5


def a_budget_sets_no_interval_above_a_minute() -> None:
    """What costs something whether checkpoints are taken or not, such as heartbeats, would lengthen it for ever."""
    pace = paced(first_cost=1e-5)
    now = 0.0
    for _ in range(100):
        pace.began(now, backlog=0)
        heartbeats = 1.1e-5 * pace.interval
        now += 0.1
        told = pace.completed(now, epoch(5e-6 + heartbeats), left=False)
        now += pace.wait(at(now))
        if told:
            last = told[-1]
    assert pace.interval == 60.0
    assert "cost more than 20 dollars a month" in last.settings.described(60.0)


def the_requests_of_a_start_do_not_count() -> None:
    pace = paced(first_cost=1e-5)
    pace.completed(1.0, epoch(1.0), left=False)
    assert pace.interval == pytest.approx(1.296)
    pace.completed(2.0, epoch(2e-5), left=False)
    assert pace.interval == pytest.approx(2.592)


def a_change_is_told_and_so_is_an_interval_that_doubles_by_its_cost() -> None:
    pace = paced(first_cost=1e-5)
    assert [told.interval for told in pace.news()] == [pytest.approx(1.296)]
    assert pace.completed(1.0, epoch(1.2e-5), left=False) == []
    assert pace.completed(2.0, epoch(1.2e-5), left=False) == []
    told = [notice for n in range(60) for notice in pace.completed(3.0 + n, epoch(6e-5), left=False)]
    assert 1 <= len(told) <= 3
    assert pace.interval / 2 < told[-1].interval < 2 * pace.interval == pytest.approx(15.55, 0.01)
    (changed,) = pace.change(30_000, None)
    assert (changed.interval, changed.settings.described(changed.interval)) == (30.0, "every 30 s")
    (changed,) = pace.change(0, 2_000)
    assert "at most 20 dollars a month" in changed.settings.described(changed.interval)
    assert "at the earliest 2 s after the one before" in changed.settings.described(changed.interval)


@pytest.mark.parametrize(
    ("settings", "target"),
    [
        ({}, 2.0),
        ({"interval_ms": 30_000}, 30.0),
        ({"interval_ms": 500}, 0.5),
        ({"interval_ms": 30_000, "target_ms": 3_000, "target_given": True}, 3.0),
        ({"interval_ms": 500, "target_ms": 3_000, "target_given": True}, 0.5),
    ],
)
def the_input_of_an_interval_has_room_in_an_epoch(settings: dict[str, object], target: float) -> None:
    assert replace(AT_ONCE, **settings).target(0.0) == target  # type: ignore[arg-type]


def the_input_of_an_interval_that_the_budget_sets_has_room_in_an_epoch_too() -> None:
    assert AT_ONCE.target(1e-4) == pytest.approx(12.96)
    assert AT_ONCE.target(1e-6) == 2.0
