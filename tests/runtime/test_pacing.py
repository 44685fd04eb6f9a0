"""How large epochs become: the target is met soon after the start, and again when the speed changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.runtime.protocol.pacing import Pace


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
