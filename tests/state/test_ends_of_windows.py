"""The very millisecond at which windows fire and at which they are over, in each form that windows are kept in."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.common import Time
from holdfast.datastream import (
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    EventTimeSessionWindows,
    EventTimeTrigger,
    OutputTag,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)

from .window_harness import operated

ms = Time.milliseconds
TUMBLING = TumblingEventTimeWindows.of(ms(10))
FORMS: dict[str, Any] = {
    "aligned": lambda keyed: keyed.window(TUMBLING),
    "paned": lambda keyed: keyed.window(SlidingEventTimeWindows.of(ms(10), ms(5))),
    "triggered": lambda keyed: keyed.window(TUMBLING).trigger(PurgingTrigger.of(EventTimeTrigger.create())),
    "evicting": lambda keyed: keyed.window(TUMBLING).evictor(CountEvictor.of(9)),
    "sessions": lambda keyed: keyed.window(EventTimeSessionWindows.with_gap(ms(5))),
    "triggered sessions": lambda keyed: keyed.window(EventTimeSessionWindows.with_gap(ms(5))).trigger(
        PurgingTrigger.of(EventTimeTrigger.create())
    ),
}
LAST = {"paned": 14}
"""The last millisecond of the last window of an element at 7; in the other forms it is below."""


def add(a: Any, b: Any) -> Any:
    return a[0], a[1] + b[1], max(a[2], b[2])


def last_of(form: str) -> int:
    return LAST.get(form, 11 if "sessions" in form else 9)


def build(form: str, lateness: int) -> Any:
    return lambda keyed: FORMS[form](keyed).allowed_lateness(lateness).side_output_late_data(OutputTag("late")).reduce(add)


@pytest.mark.parametrize("form", FORMS)
def a_window_fires_with_the_watermark_of_its_last_millisecond_and_an_element_is_late_from_then_on(form):
    last = last_of(form)
    with operated(build(form, 0)) as windows:
        windows.frame([("a", 1, 7)])
        windows.watermark(last - 1)
        assert windows.frame([("b", 2, 7)]) == []
        assert sorted(windows.watermark(last)) == [(("a", 1, 7), last), (("b", 2, 7), last)]
        assert windows.frame([("a", 4, 7)]) == []
        assert windows.late == [(("a", 4, 7), 7)]
        assert windows.watermark(10_000) == []


@pytest.mark.parametrize("form", FORMS)
def an_element_fires_its_window_again_until_the_watermark_of_its_last_millisecond_and_the_lateness(form):
    last = last_of(form)
    with operated(build(form, 3)) as windows:
        windows.frame([("a", 1, 7)])
        windows.watermark(last)
        windows.watermark(last + 2)
        again = windows.frame([("a", 2, 7)])
        assert again == [(("a", 2 if "triggered" in form else 3, 7), last)]
        windows.watermark(last + 3)
        assert windows.frame([("a", 4, 7)]) == []
        assert windows.late == [(("a", 4, 7), 7)]
        assert windows.watermark(10_000) == []
        assert windows.rows() == windows.timers() == 0


@pytest.mark.parametrize("form", FORMS)
def an_element_behind_its_own_splits_watermark_is_late_though_its_window_may_yet_fire(form):
    last = last_of(form)
    with operated(build(form, 0)) as windows:
        assert windows.frame([("a", 1, 7)], late_by=last - 1) == []
        assert windows.frame([("a", 2, 7)], late_by=last) == []
        assert windows.late == [(("a", 2, 7), 7)]
        assert windows.watermark(last)[-1] == (("a", 1, 7), last)


def a_timer_of_processing_time_does_not_end_a_window_of_event_time():
    """The wall clock is beyond the window's end, at which this trigger fires at the latest."""
    trigger = ContinuousProcessingTimeTrigger.of(ms(100))
    with operated(lambda keyed: keyed.window(TUMBLING).trigger(trigger).reduce(add)) as windows:
        windows.processing_time(1_000_000)
        windows.frame([("a", 1, 7)])
        assert windows.processing_time(1_000_101) == [(("a", 1, 7), 9)]
        windows.frame([("a", 2, 7)])
        assert windows.processing_time(1_000_201) == [(("a", 3, 7), 9)]
