"""What triggers of time decide and register, call by call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.common import Time
from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.common.windows import GlobalWindow, TimeWindow
from holdfast.datastream import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    EventTimeTrigger,
    ProcessingTimeTrigger,
    Trigger,
    TriggerResult,
)
from holdfast.errors import ConfigurationError

CONTINUE, FIRE, PURGE, FIRE_AND_PURGE = (
    TriggerResult.CONTINUE,
    TriggerResult.FIRE,
    TriggerResult.PURGE,
    TriggerResult.FIRE_AND_PURGE,
)
WINDOW = TimeWindow(1000, 1025)
LAST = 1024


class Window(Trigger.OnMergeContext):
    """One window: its timers, and the state of its trigger."""

    def __init__(self, watermark: int = MIN_TIMESTAMP, now: int = 0) -> None:
        self.watermark, self.now = watermark, now
        self.event: set[int] = set()
        self.processing: set[int] = set()
        self.held: dict[str, Any] = {}
        self.others: list[Any] = []
        """The state of windows that are merged into this one."""

    def register_event_time_timer(self, time: int) -> None:
        self.event.add(time)

    def register_processing_time_timer(self, time: int) -> None:
        self.processing.add(time)

    def delete_event_time_timer(self, time: int) -> None:
        self.event.remove(time)

    def delete_processing_time_timer(self, time: int) -> None:
        self.processing.remove(time)

    def get_current_watermark(self) -> int:
        return self.watermark

    def get_current_processing_time(self) -> int:
        return self.now

    def get_metric_group(self) -> Any:
        raise NotImplementedError

    def get_partitioned_state(self, state_descriptor: Any) -> Any:
        name, reduce = state_descriptor.get_name(), state_descriptor.get_reduce_function()

        def add(value: Any) -> None:
            self.held[name] = reduce(self.held[name], value) if name in self.held else value

        return SimpleNamespace(get=lambda: self.held.get(name), add=add, clear=lambda: self.held.pop(name, None))

    def merge_partitioned_state(self, state_descriptor: Any) -> None:
        for other in self.others:
            self.get_partitioned_state(state_descriptor).add(other)


def a_result_says_whether_the_window_fires_and_is_purged():
    decided = [(each.is_fire(), each.is_purge()) for each in (CONTINUE, FIRE, PURGE, FIRE_AND_PURGE)]
    assert decided == [(False, False), (True, False), (False, True), (True, True)]


def a_trigger_of_the_user_supports_no_merging_windows_unless_it_says_so():
    class Own(EventTimeTrigger):
        can_merge = Trigger.can_merge

    assert Own().can_merge() is False


def the_trigger_of_event_time_fires_at_the_last_millisecond_and_with_each_element_from_then_on():
    trigger, early, late = EventTimeTrigger.create(), Window(LAST - 1), Window(LAST)
    assert type(trigger) is EventTimeTrigger
    assert trigger.on_element("a", 1003, WINDOW, early) is CONTINUE
    assert (early.event, early.processing) == ({LAST}, set())
    assert trigger.on_event_time(LAST, WINDOW, early) is FIRE
    assert trigger.on_event_time(LAST - 1, WINDOW, early) is CONTINUE
    assert trigger.on_processing_time(LAST, WINDOW, early) is CONTINUE
    trigger.clear(WINDOW, early)
    assert early.event == set()
    assert trigger.on_element("a", 1003, WINDOW, late) is FIRE
    assert late.event == set()


def the_trigger_of_processing_time_fires_whatever_the_watermark_is():
    trigger, window = ProcessingTimeTrigger.create(), Window(MAX_TIMESTAMP, 1003)
    assert type(trigger) is ProcessingTimeTrigger
    assert trigger.on_element("a", 7, WINDOW, window) is CONTINUE
    assert (window.event, window.processing) == (set(), {LAST})
    assert trigger.on_processing_time(LAST, WINDOW, window) is FIRE
    assert trigger.on_event_time(LAST, WINDOW, window) is CONTINUE
    trigger.clear(WINDOW, window)
    assert window.processing == set()


@pytest.mark.parametrize("trigger", [EventTimeTrigger(), ContinuousEventTimeTrigger(10)])
def a_merged_window_of_event_time_fires_at_its_end_if_that_is_not_past(trigger: Any):
    assert trigger.can_merge() is True
    for watermark, timers in (LAST - 1, {LAST}), (LAST, set()):
        window = Window(watermark)
        trigger.on_merge(WINDOW, window)
        assert (window.event, window.processing) == (timers, set())


def a_merged_window_of_processing_time_fires_at_its_end_if_that_is_not_past():
    trigger = ProcessingTimeTrigger()
    assert trigger.can_merge() is True
    for now, timers in (LAST - 1, {LAST}), (LAST, set()):
        window = Window(now=now)
        trigger.on_merge(WINDOW, window)
        assert (window.event, window.processing) == (set(), timers)


def a_continuous_trigger_of_event_time_fires_at_multiples_of_its_interval_and_at_the_end():
    trigger, window = ContinuousEventTimeTrigger.of(Time.milliseconds(10)), Window(LAST - 1)
    assert trigger.interval == 10
    assert trigger.on_element("a", 1003, WINDOW, window) is CONTINUE
    assert (window.event, window.processing) == ({1010, LAST}, set())
    assert trigger.on_element("b", 1017, WINDOW, window) is CONTINUE  # the first firing is registered
    assert window.event == {1010, LAST}
    assert trigger.on_processing_time(1010, WINDOW, window) is CONTINUE
    assert trigger.on_event_time(1009, WINDOW, window) is CONTINUE  # a timer of a window that was merged into it
    assert trigger.on_event_time(1010, WINDOW, window) is FIRE
    assert window.event == {1010, 1020, LAST}
    assert trigger.on_event_time(1010, WINDOW, window) is CONTINUE
    assert trigger.on_event_time(1020, WINDOW, window) is FIRE  # the next one would be behind the end
    assert window.event == {1010, 1020, LAST}
    assert trigger.on_event_time(LAST, WINDOW, window) is FIRE
    assert window.held == {"fire-time": LAST}
    trigger.clear(WINDOW, window := window_at({LAST + 1, LAST}, LAST + 1))
    assert (window.event, window.held) == (set(), {})


def window_at(timers: set[int], due: int) -> Window:
    """A window that fires next at ``due``."""
    window = Window()
    window.event |= timers
    window.held["fire-time"] = due
    return window


def a_continuous_trigger_of_event_time_fires_a_window_that_is_over_with_each_element():
    trigger, window = ContinuousEventTimeTrigger(10), Window(LAST)
    assert trigger.on_element("a", 1003, WINDOW, window) is FIRE
    assert (window.event, window.held) == (set(), {})


def a_continuous_trigger_fires_a_window_without_end_until_the_input_ends():
    trigger, everything = ContinuousEventTimeTrigger(10), GlobalWindow.get()
    window = Window(1010)
    trigger.on_element("a", 1003, everything, window)
    assert trigger.on_event_time(1010, everything, window) is FIRE
    assert 1020 in window.event
    window.watermark = MAX_TIMESTAMP
    assert trigger.on_event_time(1020, everything, window) is FIRE
    assert 1030 not in window.event
    # A window that ends goes on to its end.
    window = Window(1003)
    trigger.on_element("a", 1003, WINDOW, window)
    window.watermark = MAX_TIMESTAMP
    assert trigger.on_event_time(1010, WINDOW, window) is FIRE
    assert 1020 in window.event


def a_continuous_trigger_of_processing_time_goes_by_the_machines_time():
    trigger, window = ContinuousProcessingTimeTrigger.of(Time.milliseconds(10)), Window(MAX_TIMESTAMP, 1003)
    assert trigger.on_element("a", 7, WINDOW, window) is CONTINUE
    assert (window.event, window.processing) == (set(), {1010})
    assert trigger.on_event_time(1010, WINDOW, window) is CONTINUE
    assert trigger.on_processing_time(1010, WINDOW, window) is FIRE
    assert trigger.on_processing_time(1020, WINDOW, window) is FIRE
    assert window.processing == {1010, 1020, LAST}
    assert trigger.on_processing_time(LAST, WINDOW, window) is FIRE
    assert (window.processing, window.held) == ({1010, 1020, LAST}, {})  # nothing is due behind the end
    everything = Window(MAX_TIMESTAMP, 1003)
    trigger.on_element("a", 7, GlobalWindow.get(), everything)
    assert trigger.on_processing_time(1010, GlobalWindow.get(), everything) is FIRE
    assert 1020 in everything.processing  # the end of event time is not that of processing time


def a_continuous_trigger_forgets_its_next_firing_with_its_window():
    trigger, window = ContinuousProcessingTimeTrigger(10), Window(now=1003)
    trigger.clear(WINDOW, window)  # it has had no element
    trigger.on_element("a", 7, WINDOW, window)
    trigger.clear(WINDOW, window)
    assert (window.processing, window.held) == (set(), {})


@pytest.mark.parametrize("kind", [ContinuousEventTimeTrigger, ContinuousProcessingTimeTrigger])
def a_merged_window_fires_next_at_the_first_time_of_those_it_is_made_of(kind: Any):
    trigger, window = kind(10), Window(LAST)
    trigger.on_merge(WINDOW, window)  # none of them has had an element
    assert (window.event, window.processing) == (set(), set())
    window.others = [1020, 1010]
    trigger.on_merge(WINDOW, window)
    assert window.held == {"fire-time": 1010}
    event_time = kind is ContinuousEventTimeTrigger
    assert (window.event, window.processing) == (({1010}, set()) if event_time else (set(), {1010}))


@pytest.mark.parametrize("wrong", [0, -1, True, 2.5])
@pytest.mark.parametrize("kind", [ContinuousEventTimeTrigger, ContinuousProcessingTimeTrigger])
def a_continuous_trigger_fires_at_a_positive_interval(kind: Any, wrong: Any):
    with pytest.raises(ConfigurationError, match=f"{kind.__name__} fires at a positive interval"):
        kind(wrong)
    assert kind(1).interval == 1


def a_trigger_is_named_by_its_class_and_interval():
    named = [repr(each) for each in (EventTimeTrigger(), ProcessingTimeTrigger(), ContinuousEventTimeTrigger(10))]
    assert named == ["EventTimeTrigger()", "ProcessingTimeTrigger()", "ContinuousEventTimeTrigger(10)"]
