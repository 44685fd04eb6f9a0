"""Processing time of a job while its wall clock is set forward and back."""

from __future__ import annotations

import itertools
import random

from holdfast.runtime.time.job_clock import _TOLERANCE_MS, JobClock, Step

HOUR = 3_600_000


def run(offsets: list[tuple[float, int]], until: float) -> tuple[JobClock, list[tuple[float, int, Step]], list[int]]:
    """Tick ten times a second by a wall clock that is off by so many ms from these seconds on; what was told, the times."""
    clock, told, times = JobClock(), [], []
    for tick in range(int(until * 10)):
        seconds = tick / 10
        offset = [ms for since, ms in offsets if since <= seconds][-1]
        step = clock.tick(round(1000 * seconds) + offset, seconds)
        times.append(clock.now)
        if step is not None:
            told.append((seconds, clock.ahead_ms, step))
    return clock, told, times


def a_moment_in_which_the_clock_is_ahead_changes_nothing():
    _, told, times = run([(0, HOUR), (5, 2 * HOUR), (8, HOUR)], 100)
    assert times == [HOUR + 100 * n for n in range(1000)]
    assert told == [(5.0, HOUR, Step.FORWARD)]


def a_clock_that_stays_ahead_is_followed_after_a_minute():
    _, told, times = run([(0, HOUR), (5, 2 * HOUR)], 100)
    assert [(seconds, step) for seconds, _, step in told] == [(5.0, Step.FORWARD), (65.0, Step.FOLLOWED)]
    assert times[649] == HOUR + 64_900
    assert times[650:] == [2 * HOUR + 100 * n for n in range(650, 1000)]


def test_behind_a_clock_that_is_set_back_time_goes_on_at_half_its_speed_until_both_agree():
    clock, told, times = run([(0, HOUR), (10, HOUR - 100_000)], 300)
    assert told == [(10.0, -100_000, Step.BACK)]
    assert all(after > before for before, after in itertools.pairwise(times)), "it stood still"
    assert times[1100] - times[100] == 50_000
    assert times[-1] == HOUR - 100_000 + 299_900
    assert clock.speed == 1.0


def a_restored_job_goes_on_from_the_time_of_its_checkpoint():
    clock = JobClock()
    clock.tick(HOUR, 0.0)
    clock.reached(2 * HOUR)
    assert clock.tick(HOUR + 1000, 1.0) is Step.BACK
    assert clock.now == 2 * HOUR + 500
    assert clock.speed == 0.5


def test_time_never_goes_back_nor_stands_still():
    chance = random.Random(4)
    clock, seconds, before = JobClock(), 0.0, 0
    for _ in range(5000):
        seconds += chance.choice([0.01, 0.5, 20.0])
        clock.tick(HOUR * 1000 + round(1000 * seconds) + chance.choice([0, 0, 0, 2000, -2000, HOUR, -HOUR]), seconds)
        assert clock.now > before
        before = clock.now


def a_new_clock_has_no_time_and_follows_the_wall_clock_at_its_speed():
    clock = JobClock()
    assert (clock.now, clock.ahead_ms, clock.speed) == (0, 0, 1.0)
    assert clock.tick(HOUR, 7.0) is None
    assert (clock.now, clock.ahead_ms) == (HOUR, 0)


def a_moment_without_length_moves_no_time_by_itself():
    """Two ticks in one moment of the monotonic clock, of which the second sees the wall clock ahead."""
    clock = JobClock()
    clock.tick(HOUR, 1.0)
    assert clock.tick(2 * HOUR, 1.0) is Step.FORWARD
    assert (clock.now, clock.ahead_ms) == (HOUR, HOUR)


def a_clock_that_is_set_back_at_once_is_told_as_such():
    clock = JobClock()
    clock.tick(HOUR, 0.0)
    assert clock.tick(HOUR - 100_000, 0.0) is Step.BACK
    assert clock.tick(HOUR - 99_900, 0.1) is None  # it is told once


def a_step_back_that_is_tolerated_changes_no_speed():
    told = {}
    for back in (_TOLERANCE_MS, _TOLERANCE_MS + 1):
        clock = JobClock()
        clock.tick(HOUR, 0.0)
        told[back] = clock.tick(HOUR - back, 0.0), clock.speed
    assert list(told.values()) == [(None, 1.0), (Step.BACK, 0.5)]
