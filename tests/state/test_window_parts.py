"""Assigners, triggers and evictors, each by itself: what they accept, what they do at their limits, what they are called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.common import Time
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.datastream import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    CumulativeEventTimeWindows,
    CumulativeProcessingTimeWindows,
    DeltaEvictor,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindow,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from holdfast.errors import ConfigurationError, UserCodeError
from holdfast.windowing.evictors import TimestampedValue

from .window_harness import operated

ms = Time.milliseconds


def add(a: Any, b: Any) -> Any:
    return a[0], a[1] + b[1], max(a[2], b[2])


def numbered(elements: range) -> list[Any]:
    return [("k", 1 << number, number) for number in elements]


def sums(found: list[Any]) -> list[int]:
    return [value[1] for value, _ in found]


# ---- count windows ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "slide"), [(3, 3), (3, 1), (4, 2), (5, 3), (2, 3), (1, 1)])
def a_count_window_has_the_elements_from_a_multiple_of_its_slide_on_and_fires_when_it_is_full(size: int, slide: int):
    def build(keyed: Any) -> Any:
        tumbling = size == slide
        assigner = CountTumblingWindowAssigner.of(size) if tumbling else CountSlidingWindowAssigner.of(size, slide)
        return keyed.window(assigner).reduce(add)

    with operated(build) as windows:
        found = [sums(windows.frame([element])) for element in numbered(range(12))]
    for last, results in enumerate(found):
        first = last - size + 1
        full = first >= 0 and first % slide == 0
        assert results == ([sum(1 << n for n in range(first, last + 1))] if full else [])


@pytest.mark.parametrize("wrong", [0, -1, True, 2.5, "3"])
def the_size_and_the_slide_of_count_windows_are_positive_numbers(wrong: Any):
    with pytest.raises(ConfigurationError, match="the size of count windows must be a positive number"):
        CountTumblingWindowAssigner.of(wrong)
    with pytest.raises(ConfigurationError, match="the slide of count windows must be a positive number"):
        CountSlidingWindowAssigner.of(3, wrong)
    with pytest.raises(ConfigurationError, match="fires after a positive number of elements"):
        CountTrigger.of(wrong)


# ---- sessions -----------------------------------------------------------------------------------------------------------


def gap_of(element: Any) -> int:
    return element[1]


@pytest.mark.parametrize("gap", [1, 5])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("event_time", [False, True])
def the_windows_of_a_session_merge_if_they_touch_and_not_a_millisecond_later(gap: int, dynamic: bool, event_time: bool):
    kind: Any = EventTimeSessionWindows if event_time else ProcessingTimeSessionWindows

    def build(keyed: Any) -> Any:
        sessions = keyed.window(kind.with_dynamic_gap(gap_of) if dynamic else kind.with_gap(ms(gap)))
        return sessions.reduce(lambda a, b: (a[0], a[1], [a[2], b[2]]))

    found = []
    second = 100 + gap if event_time else 99 + gap  # in processing time, a session is over when its gap is
    third = second + gap + 1 if event_time else second + gap
    with operated(build) as windows:
        for at in (100, second, third):
            if not event_time:
                found += windows.processing_time(at)
            found += windows.frame([("k", gap, at)])
        found += windows.watermark(1000) if event_time else windows.processing_time(1000)
    assert [(value[2], last) for value, last in found] == [([100, second], second + gap - 1), (third, third + gap - 1)]


@pytest.mark.parametrize(
    "sessions", [EventTimeSessionWindows.with_gap(ms(5)), EventTimeSessionWindows.with_dynamic_gap(len)]
)
def an_assigner_of_the_user_may_leave_windows_and_merging_to_that_of_sessions(sessions: Any):
    assert list(sessions.assign_windows("12345", 100, None)) == [TimeWindow(100, 105)]
    merged = []
    windows = [TimeWindow(100, 105), TimeWindow(112, 117), TimeWindow(105, 110)]
    sessions.merge_windows(windows, SimpleNamespace(merge=lambda of, result: merged.append((set(of), result))))
    assert merged == [({windows[0], windows[2]}, TimeWindow(100, 110))]
    assert type(sessions.get_default_trigger(None)) is EventTimeTrigger
    assert repr(sessions.with_dynamic_gap(len)) == f"DynamicEventTimeSessionWindows({len!r})"


def a_session_of_processing_time_begins_now_and_one_of_event_time_with_the_elements_timestamp():
    now = SimpleNamespace(get_current_processing_time=lambda: 500)
    assert list(ProcessingTimeSessionWindows.with_gap(ms(5)).assign_windows("a", MIN_TIMESTAMP, now)) == [
        TimeWindow(500, 505)
    ]
    sessions: Any = EventTimeSessionWindows.with_gap(ms(5))
    assert list(sessions.assign_windows("a", 100, now)) == [TimeWindow(100, 105)]
    with pytest.raises(ValueError, match="no timestamp marker"):
        sessions.assign_windows("a", MIN_TIMESTAMP, now)


def a_gap_is_a_positive_number_of_milliseconds():
    for kind in (EventTimeSessionWindows, ProcessingTimeSessionWindows):
        for wrong in (0, -1):
            with pytest.raises(ConfigurationError, match=f"gap must be positive, got {wrong} ms"):
                kind.with_gap(ms(wrong))
        for function in (int, 5):
            with pytest.raises(TypeError, match="a dynamic gap needs a SessionWindowTimeGapExtractor or a function"):
                kind.with_dynamic_gap(function)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0, -1, True, 2.5, None])
def a_dynamic_gap_that_is_none_is_the_functions_mistake(wrong: Any):
    sessions = EventTimeSessionWindows.with_dynamic_gap(lambda element: wrong)
    with operated(lambda keyed: keyed.window(sessions).reduce(add)) as windows, pytest.raises(UserCodeError) as failure:
        windows.frame([("k", 1, 1)])
    assert f"the gap extractor returned {wrong!r}; a session's gap must be a positive number of ms" in str(failure.value)


# ---- evictors -----------------------------------------------------------------------------------------------------------


def elements(*stamps: int) -> list[TimestampedValue]:
    return [TimestampedValue(stamp % 100, stamp) for stamp in stamps]


@pytest.mark.parametrize(
    ("make", "left"),
    [
        (lambda after: CountEvictor.of(2, after), [105, 110]),
        (lambda after: CountEvictor.of(9, after), [101, 109, 105, 110]),
        (lambda after: CountEvictor.of(0, after), []),
        (lambda after: TimeEvictor.of(ms(5), after), [109, 110]),
        (lambda after: TimeEvictor.of(ms(6), after), [109, 105, 110]),
        (lambda after: DeltaEvictor.of(5, lambda one, last: last - one, after), [109, 110]),
        (lambda after: DeltaEvictor.of(6, lambda one, last: last - one, after), [109, 105, 110]),
    ],
)
@pytest.mark.parametrize("after", [False, True])
def an_evictor_works_before_or_after_the_function_in_order_of_arrival(make: Any, left: list[int], after: bool):
    held = elements(101, 109, 105, 110)
    make(after).evict_before(held, 4, None, None)
    assert held == (elements(101, 109, 105, 110) if after else elements(*left))
    held = elements(101, 109, 105, 110)
    make(after).evict_after(held, 4, None, None)
    assert held == (elements(*left) if after else elements(101, 109, 105, 110))
    make(after).evict_before(empty := [], 0, None, None)
    make(after).evict_after(empty, 0, None, None)
    assert empty == []


def a_time_evictor_keeps_elements_that_have_no_timestamps():
    held = [TimestampedValue("a", MIN_TIMESTAMP), TimestampedValue("b", MIN_TIMESTAMP)]
    TimeEvictor.of(ms(5)).evict_before(held, 2, None, None)
    assert [each.value for each in held] == ["a", "b"]


@pytest.mark.parametrize("wrong", [-1, True, 2.5, "3"])
def a_count_evictor_keeps_a_number_of_elements_from_0(wrong: Any):
    with pytest.raises(ConfigurationError, match="CountEvictor needs a number of elements from 0"):
        CountEvictor.of(wrong)


@pytest.mark.parametrize("wrong", [int, 3])
def a_difference_is_a_function_of_two_elements(wrong: Any):
    for kind in (DeltaEvictor, DeltaTrigger):
        with pytest.raises(TypeError, match=f"{kind.__name__} needs a function of two elements"):
            kind.of(1.0, wrong)


# ---- triggers -----------------------------------------------------------------------------------------------------------


def a_continuous_trigger_fires_at_each_multiple_of_its_interval_and_at_the_end_of_the_window():
    def build(keyed: Any) -> Any:
        return keyed.window(TumblingEventTimeWindows.of(ms(25))).trigger(ContinuousEventTimeTrigger.of(ms(10))).reduce(add)

    with operated(build) as windows:
        windows.frame([("k", 1, 3)])
        assert windows.watermark(9) == []
        assert windows.watermark(10) == [(("k", 1, 3), 24)]
        windows.frame([("k", 2, 12)])
        assert windows.watermark(19) == []
        assert windows.watermark(20) == [(("k", 3, 12), 24)]
        windows.frame([("k", 4, 21)])
        assert windows.watermark(24) == [(("k", 7, 21), 24)]
        assert windows.watermark(100) == []
        assert windows.rows() == windows.timers() == 0


def a_continuous_trigger_of_processing_time_fires_when_the_millisecond_is_over_and_leaves_no_timer():
    trigger = ContinuousProcessingTimeTrigger.of(ms(10))
    windowed = TumblingProcessingTimeWindows.of(ms(25))
    with operated(lambda keyed: keyed.window(windowed).trigger(trigger).reduce(add)) as windows:
        windows.processing_time(1003)
        windows.frame([("k", 1, 3)])
        assert windows.processing_time(1010) == []
        assert windows.processing_time(1011) == [(("k", 1, 3), 1024)]
        windows.frame([("k", 2, 3)])
        assert windows.processing_time(1021) == [(("k", 3, 3), 1024)]
        assert windows.processing_time(1025) == [(("k", 3, 3), 1024)]
        assert windows.rows() == windows.timers() == 0


def a_count_trigger_begins_anew_with_each_window_and_each_firing():
    def build(keyed: Any) -> Any:
        return keyed.window(TumblingEventTimeWindows.of(ms(10))).trigger(PurgingTrigger.of(CountTrigger.of(2))).reduce(add)

    with operated(build) as windows:
        assert [sums(windows.frame([("k", 1 << n, 5)])) for n in range(5)] == [[], [3], [], [12], []]
        assert windows.watermark(9) == []
        assert windows.rows() == windows.timers() == 0


def a_count_goes_on_over_sessions_that_merge():
    sessions = EventTimeSessionWindows.with_gap(ms(5))
    with operated(lambda keyed: keyed.window(sessions).trigger(CountTrigger.of(3)).reduce(add)) as windows:
        assert windows.frame([("k", 1, 0), ("k", 2, 8)]) == []
        assert sums(windows.frame([("k", 4, 4)])) == [7]  # it lies between the two


def a_continuous_trigger_goes_on_over_sessions_that_merge():
    trigger = ContinuousEventTimeTrigger.of(ms(10))
    sessions = EventTimeSessionWindows.with_gap(ms(8))
    with operated(lambda keyed: keyed.window(sessions).trigger(trigger).reduce(add)) as windows:
        windows.frame([("k", 1, 3), ("k", 2, 16)])
        windows.frame([("k", 4, 10)])
        assert windows.watermark(9) == []
        assert windows.watermark(10) == [(("k", 7, 16), 23)]
        assert windows.watermark(20) == [(("k", 7, 16), 23)]
        assert windows.watermark(23) == [(("k", 7, 16), 23)]
        assert windows.watermark(100) == []
        assert windows.rows() == windows.timers() == 0


def a_delta_trigger_compares_with_the_last_element_that_fired():
    trigger = DeltaTrigger.of(2, lambda old, new: new[1] - old[1])
    with operated(lambda keyed: keyed.window(TumblingEventTimeWindows.of(ms(10))).trigger(trigger).reduce(add)) as windows:
        fired = [bool(windows.frame([("k", number, 5)])) for number in (1, 2, 3, 4, 5, 6, 7)]
        assert fired == [False, False, False, True, False, False, True]
        windows.watermark(9)
        assert windows.rows() == windows.timers() == 0


@pytest.mark.parametrize(
    ("part", "called"),
    [
        (CountTumblingWindowAssigner.of(3), "CountTumblingWindowAssigner(3)"),
        (CountSlidingWindowAssigner.of(3, 2), "CountSlidingWindowAssigner(3, 2)"),
        (EventTimeSessionWindows.with_gap(ms(5)), "EventTimeSessionWindows(5)"),
        (EventTimeSessionWindows.with_dynamic_gap(len), f"DynamicEventTimeSessionWindows({len!r})"),
        (CumulativeEventTimeWindows.of(ms(40), ms(10)), "CumulativeEventTimeWindows(40, 10, 0)"),
        (SlidingEventTimeWindows.of(ms(20), ms(10), ms(3)), "SlidingEventTimeWindows(20, 10, 3)"),
        (CountEvictor.of(3, True), "CountEvictor(3, True)"),
        (TimeEvictor.of(ms(5)), "TimeEvictor(5, False)"),
        (DeltaEvictor.of(1.5, max), f"DeltaEvictor(1.5, {max!r}, False)"),
        (DeltaTrigger.of(1.5, max), f"DeltaTrigger(1.5, {max!r})"),
        (PurgingTrigger.of(CountTrigger.of(3)), "PurgingTrigger(CountTrigger(3))"),
        (EventTimeTrigger.create(), "EventTimeTrigger()"),
    ],
)
def a_message_names_a_part_of_windows_by_its_arguments(part: Any, called: str):
    assert repr(part) == called


@pytest.mark.parametrize(("size", "offset"), [(0, 0), (-1, 0), (10, 10), (10, -10), (1, 1)])
def a_tumbling_window_of_no_size_or_with_an_offset_as_large_is_refused(size: int, offset: int):
    for windows in (TumblingEventTimeWindows, TumblingProcessingTimeWindows):
        with pytest.raises(ConfigurationError, match="must be positive" if size <= 0 else "must be smaller"):
            windows(size, offset)
        assert windows(1, 0).arguments == (1, 0)
        assert windows(10, -9).arguments == (10, -9)


@pytest.mark.parametrize(
    ("size", "slide", "offset", "says"),
    [
        (0, 10, 0, "must be positive, got 0 ms and 10 ms"),
        (10, 0, 0, "must be positive, got 10 ms and 0 ms"),
        (-1, -1, 0, "must be positive"),
        (20, 10, 10, "must be smaller than the slide of 10 ms"),
        (20, 10, -10, "must be smaller than the slide of 10 ms"),
    ],
)
def a_sliding_window_of_no_size_or_slide_or_with_an_offset_as_large_is_refused(
    size: int, slide: int, offset: int, says: str
):
    for windows in (SlidingEventTimeWindows, SlidingProcessingTimeWindows):
        with pytest.raises(ConfigurationError, match=says):
            windows(size, slide, offset)
        smallest = windows(1, 1, 0)
        assert (smallest.size, smallest.slide, smallest.offset) == (1, 1, 0)
        wide = windows.of(ms(20), ms(10), ms(-9))
        assert (wide.size, wide.slide, wide.offset, wide.pane) == (20, 10, -9, 10)


def an_assigner_returns_the_windows_of_an_element_the_latest_first():
    """Assigners of users may call it."""
    context = SimpleNamespace(get_current_processing_time=lambda: 25)
    for make, expected in (
        (lambda of: of[0].of(ms(10), ms(3)), [(23, 33)]),
        (lambda of: of[1].of(ms(20), ms(10), ms(3)), [(23, 43), (13, 33)]),
        (lambda of: of[2].of(ms(30), ms(10)), [(0, 30)]),
    ):
        for of, stamp in (
            ((TumblingEventTimeWindows, SlidingEventTimeWindows, CumulativeEventTimeWindows), 25),
            ((TumblingProcessingTimeWindows, SlidingProcessingTimeWindows, CumulativeProcessingTimeWindows), 7),
        ):
            found = make(of).assign_windows("element", stamp, context)
            assert [(window.start, window.end) for window in found] == expected
    with pytest.raises(ValueError, match="Event-time windows need timestamps"):
        SlidingEventTimeWindows.of(ms(20), ms(10)).assign_windows("element", MIN_TIMESTAMP, None)
    (only,) = GlobalWindows.create().assign_windows("element", MIN_TIMESTAMP, None)
    assert only is GlobalWindow.get()


@pytest.mark.parametrize(("size", "slide"), [(1, 1), (3, 2), (2, 3), (6, 4), (10, 5), (5, 5), (7, 3)])
def the_sliding_windows_of_a_time_are_those_that_contain_it(size: int, slide: int):
    for offset in (0, 1 - slide, slide - 1):
        windows = SlidingEventTimeWindows(size, slide, offset)
        assert windows.arguments == (size, slide, offset)
        for time in range(-25, 25):
            expected = [(at, at + size) for at in range(time - size + 1, time + 1) if (at - offset) % slide == 0]
            assert windows.windows(windows.pane_of(time)) == expected
            assert windows.pane_of(time) <= time < windows.pane_of(time) + windows.pane
