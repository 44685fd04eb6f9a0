"""How large epochs become: the target is met soon after the start, and again when the speed changes."""

from __future__ import annotations

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
