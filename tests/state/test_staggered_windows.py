"""Staggered windows: Flink's cases, and boundaries that a restart and a rescaling do not move."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.common import Time
from holdfast.datastream import (
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowStagger,
)
from holdfast.errors import ConfigurationError
from holdfast.testing import OneInputTestHarness

ms = Time.milliseconds
KEYS = [f"key {number}" for number in range(40)]
END = 10**6


class Spans(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, context.window().start, context.window().end, len(list(elements))


def windows(assigner: Any) -> Any:
    return lambda stream: stream.key_by(lambda key: key).window(assigner).process(Spans()).uid("op")


def spans(assigner: Any, elements: list[tuple[Any, int]], now: int = 0) -> list[Any]:
    with OneInputTestHarness(windows(assigner)) as harness:
        harness.set_processing_time(now)
        for key, stamp in elements:
            harness.process_element(key, stamp)
        harness.process_watermark(END)
        return sorted(harness.extract_output_values())


def the_natural_windows_of_a_key_begin_where_the_first_element_came():
    # Flink's TumblingEventTimeWindowsTest and WindowStaggerTest, with a size of 5 s
    natural = TumblingEventTimeWindows.of(ms(5000), None, WindowStagger.NATURAL)
    assert spans(natural, [("k", 150), ("k", 5099), ("k", 5300)], now=150) == [("k", 150, 5150, 2), ("k", 5150, 10150, 1)]
    assert spans(natural, [("k", 150)], now=5500) == [("k", -4500, 500, 1)]
    offset = TumblingEventTimeWindows.of(ms(5000), ms(100), WindowStagger.NATURAL)
    assert spans(offset, [("k", 5700)], now=5500) == [("k", 5600, 10600, 1)]
    aligned = TumblingEventTimeWindows.of(ms(5000), ms(0), WindowStagger.ALIGNED)
    assert spans(aligned, [("k", 150)], now=5500) == [("k", 0, 5000, 1)]


def the_random_windows_of_a_key_have_always_the_same_boundaries_and_other_keys_have_others():
    assigner = TumblingEventTimeWindows.of(ms(1000), ms(5), window_stagger=WindowStagger.RANDOM)
    elements = [(key, stamp) for key in KEYS for stamp in (0, 1000, 1999)]
    found = spans(assigner, elements)
    assert found == spans(assigner, elements, now=777)
    begins = {key: {start % 1000 for name, start, *_ in found if name == key} for key in KEYS}
    assert all(len(each) == 1 for each in begins.values())
    later = sorted(start for (start,) in begins.values())
    assert len(set(later)) > 30
    assert later[10] < 500 < later[30]
    assert all(end - start == 1000 and start <= 1999 and end > 0 for _, start, end, _ in found)


@pytest.mark.parametrize("stagger", [WindowStagger.RANDOM, WindowStagger.NATURAL])
@pytest.mark.parametrize("parallelism", [1, 3])
def the_boundaries_of_a_key_stay_after_a_restart(stagger: WindowStagger, parallelism: int):
    assigner = TumblingEventTimeWindows.of(ms(1000), window_stagger=stagger)
    found: list[list[Any]] = []
    snapshot = None
    for times in ([333], [10_000], [20_000, 20_500]):
        with OneInputTestHarness(
            windows(assigner), snapshot=snapshot, parallelism=1 if snapshot is None else parallelism
        ) as harness:
            harness.set_processing_time(times[0])
            for key in KEYS:
                for stamp in times:
                    harness.process_element(key, stamp)
            harness.process_watermark(times[0] + 5000)
            found.append(harness.extract_output_values())
            snapshot = harness.snapshot()
    begins = {(key, start % 1000) for told in found for key, start, *_ in told}
    assert len(begins) == len(KEYS)
    if stagger is WindowStagger.NATURAL:
        assert {start for _, start in begins} == {333}


def the_windows_of_processing_time_are_staggered_too():
    assigner = TumblingProcessingTimeWindows.of(ms(1000), window_stagger=WindowStagger.NATURAL)
    with OneInputTestHarness(windows(assigner)) as harness:
        for now, key in ((100, "a"), (600, "b"), (1099, "a"), (1100, "a")):
            harness.set_processing_time(now)
            harness.process_element(key, 0)
        harness.set_processing_time(3000)
        assert sorted(harness.extract_output_values()) == [("a", 100, 1100, 2), ("a", 1100, 2100, 1), ("b", 600, 1600, 1)]


@pytest.mark.parametrize("turned", [False, True])
def the_windows_with_contents_keep_their_span_when_the_program_staggers_others(turned: bool):
    forms = [TumblingEventTimeWindows.of(ms(100)), TumblingEventTimeWindows.of(ms(100), window_stagger=WindowStagger.RANDOM)]
    before, after = forms[::-1] if turned else forms
    (old,), (new,) = spans(before, [("k", 10)]), spans(after, [("k", 210)])
    with OneInputTestHarness(windows(before)) as harness:
        harness.process_element("k", 10)
        snapshot = harness.snapshot()
    with OneInputTestHarness(windows(after), snapshot=snapshot) as harness:
        harness.process_element("k", 210)
        harness.process_watermark(END)
        assert sorted(harness.extract_output_values()) == sorted([old, new])


def a_late_element_of_a_staggered_window_is_dropped():
    assigner = TumblingEventTimeWindows.of(ms(100), window_stagger=WindowStagger.RANDOM)
    ((_, start, end, _),) = spans(assigner, [("k", 1000)])
    with OneInputTestHarness(windows(assigner)) as harness:
        harness.process_watermark(end - 1)
        harness.process_element("k", end - 1).process_element("k", end)
        harness.process_watermark(END)
        assert harness.extract_output_values() == [("k", end, end + 100, 1)]
        assert harness.num_late_records_dropped() == 1
    assert start + 100 == end


def test_wrong_staggers_are_refused():
    with pytest.raises(TypeError, match="window_stagger is a WindowStagger, not 'RANDOM'"):
        TumblingEventTimeWindows.of(ms(100), None, "RANDOM")  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="the offset must be smaller"):
        TumblingProcessingTimeWindows.of(ms(100), ms(100), WindowStagger.RANDOM)
    with pytest.raises(TypeError):
        SlidingEventTimeWindows.of(ms(100), ms(50), None, WindowStagger.RANDOM)  # type: ignore[call-arg]
    assigner = TumblingEventTimeWindows.of(ms(100), ms(5), WindowStagger.RANDOM)
    assert repr(assigner) == "StaggeredEventTimeWindows(100, 5, RANDOM)"
