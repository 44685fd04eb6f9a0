"""Sessions are added to in whole batches, and stored as if each element were added by itself."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Time
from holdfast.datastream import EventTimeSessionWindows, EventTimeTrigger, OutputTag

from .test_triggers_against_a_model import Gather, Tell
from .window_harness import Operated

FRAMES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(-30, 40)), min_size=1, max_size=12)
STEPS = st.lists(st.tuples(FRAMES, st.sampled_from([0, 0, 1, 5, 30]), st.integers(0, 12)), min_size=1, max_size=8)
SESSIONS = {
    "static": EventTimeSessionWindows.with_gap(Time.milliseconds(8)),
    "dynamic": EventTimeSessionWindows.with_dynamic_gap(lambda element: 4 + element[1]),
}


class Own(EventTimeTrigger[Any]):
    """The same, but a program's own, which may do anything: each element is added by itself."""


def stored(harness: Operated) -> tuple[Any, ...]:
    """All rows and timers."""
    rows = {
        (name, key, tuple(repr(sorted(cell.items()) if isinstance(cell, dict) else cell) for cell in row[1:]))
        for name, space in harness.state.spaces.items()
        for table in space.tables.values()
        for key, row in table.rows.items()
        if any(cell is not None for cell in row[1:])
    }
    return rows, {name: set(queue.all()) for name, queue in harness.state.timers.items()}


def sessions(kind: str, lateness: int, trigger: Any) -> Operated:
    def build(keyed: Any) -> Any:
        windows = keyed.window(SESSIONS[kind]).allowed_lateness(lateness).side_output_late_data(OutputTag("late"))
        return windows.trigger(trigger).aggregate(Gather(), Tell())

    return Operated(build)


@pytest.mark.parametrize("kind", SESSIONS)
@given(steps=STEPS, lateness=st.sampled_from([0, 6, 50]))
@settings(deadline=None, max_examples=examples(100))
def the_sessions_are_the_same_whether_added_to_in_batches_or_by_each_element(kind: str, steps: Any, lateness: int) -> None:
    batches, single = both = [sessions(kind, lateness, trigger) for trigger in (EventTimeTrigger(), Own())]
    try:
        assert type(batches.operator) is not type(single.operator)
        watermark = 0
        for frame, by, ahead in steps:
            elements = [(key, value, watermark + distance) for key, value, distance in frame]
            found, expected = (Counter(map(repr, each.frame(elements, watermark + ahead))) for each in both)
            assert found == expected
            watermark += by
            found, expected = (Counter(map(repr, each.watermark(watermark))) for each in both)
            assert found == expected
            assert batches.late == single.late
            assert stored(batches) == stored(single)
            for each in both:
                each.checkpoint()
    finally:
        for each in both:
            each.close()
            shutil.rmtree(each.root)
