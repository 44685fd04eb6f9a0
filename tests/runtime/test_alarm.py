"""When a job that waits goes on: for input, a timer, an idle split or an epoch for channel state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.runtime.protocol.alarm import Alarm
from holdfast.runtime.protocol.events import Instant


def at(seconds: float) -> Instant:
    return Instant(0, seconds)


def source(idle_at: int | None) -> Any:
    return SimpleNamespace(next_idle=lambda: idle_at)


def the_earliest_timer_is_due_at_its_millisecond_and_a_job_sleeps_no_longer() -> None:
    alarm = Alarm()
    alarm.set([None, 5_300, 9_000])
    assert not alarm.due(5_299, at(1.0))
    assert alarm.due(5_300, at(1.0))
    assert alarm.sleep([], 5_000, at(1.0), beside_a_commit=False) == pytest.approx(0.3)
    assert alarm.sleep([], 1_000, at(1.0), beside_a_commit=False) == 0.5
    assert alarm.sleep([], 6_000, at(1.0), beside_a_commit=False) == 0.0
    alarm.set([None])
    assert not alarm.due(10_000, at(1.0))
    assert alarm.sleep([], 10_000, at(1.0), beside_a_commit=False) == 0.5


def the_epoch_for_channel_state_is_due_at_its_time() -> None:
    alarm = Alarm()
    alarm.set([], next_epoch=7.2)
    assert alarm.sleep([], 0, at(7.0), beside_a_commit=False) == pytest.approx(0.2)
    assert alarm.sleep([], 0, at(8.0), beside_a_commit=False) == 0.0
    assert not alarm.due(0, at(7.1))
    assert alarm.due(0, at(7.2))


def a_split_that_becomes_idle_wakes_the_job_once() -> None:
    alarm = Alarm()
    assert alarm.sleep([source(None), source(3_100), source(3_050)], 0, at(3.0), beside_a_commit=False) == pytest.approx(
        0.05
    )
    assert not alarm.due(0, at(3.04))
    assert alarm.due(0, at(3.05))
    assert not alarm.due(0, at(3.05))
    assert alarm.sleep([source(3_050)], 0, at(4.0), beside_a_commit=False) == 0.0


def a_job_beside_a_commit_sleeps_shortly() -> None:
    assert Alarm().sleep([], 0, at(3.0), beside_a_commit=True) == 0.01
