"""Sliding windows of keys: Kafka Streams' cases, the definition in plain Python, and what a restart goes on with."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Time
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.errors import ConfigurationError, IncompatibleState, UserCodeError
from holdfast.table import KStream, SlidingWindows, Windowed
from holdfast.table.sliding import AggregateSliding
from holdfast.testing import OneInputTestHarness

from .sliding_cases import ANY_ORDER, CASES, FINAL, IN_ANY_ORDER, LAST, Case
from .sliding_model import windows_of

Pair = tuple[str, str, int]


def windows(difference: int, grace: int) -> SlidingWindows:
    return SlidingWindows.of_time_difference_and_grace(Time.milliseconds(difference), Time.milliseconds(grace))


def texts(difference: int, grace: int) -> Any:
    """The values of each window, one after the other."""

    def build(stream: Any) -> Any:
        grouped = KStream.of(stream, lambda pair: pair[0], lambda pair: pair[1]).group_by_key()
        table = grouped.windowed_by(windows(difference, grace)).aggregate(str, lambda key, value, all: all + value)
        return table.to_changes()

    return build


def pairs_of(text: str) -> list[Pair]:
    return [(word[0], word[1], int(word[3:])) for word in text.split()]


def feed(harness: Any, pairs: list[Pair], latest: int = -1) -> None:
    """Feed pairs. The watermark is behind them, as that of `for_monotonous_timestamps` is."""
    for key, value, stamp in pairs:
        harness.process_element((key, value), stamp)
        latest = max(latest, stamp)
        harness.process_watermark(latest - 1)


def successive(changes: list[Any]) -> dict[Windowed[str], list[str]]:
    """The values of each window, of which each is the old one of the next."""
    found: dict[Any, list[Any]] = defaultdict(list)
    for window, new, old in changes:
        assert old == (found[window][-1] if found[window] else None)
        found[window].append(new)
    return found


def of_case(case: Case) -> dict[Windowed[str], list[str]]:
    begins = "0" if ":0" in case.windows else ""
    found = {}
    for text in case.windows.split():
        window, _, values = text.partition(":")
        start = int(window[1:])
        found[Windowed(window[0], start, start + case.difference)] = [each[len(begins) :] for each in values.split(",")]
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.source)
def the_windows_are_those_of_kafka_streams(case: Case):
    with OneInputTestHarness(texts(case.difference, case.grace)) as harness:
        feed(harness, pairs_of(case.pairs))
        assert successive(harness.extract_output_values()) == of_case(case)


@pytest.mark.parametrize("case", FINAL, ids=lambda case: case.source)
def the_closed_windows_are_those_of_kafka_streams(case: Case):
    pairs = pairs_of(case.pairs)
    latest = max(stamp for _, _, stamp in pairs)
    with OneInputTestHarness(texts(case.difference, case.grace)) as harness:
        feed(harness, pairs)
        found = successive(harness.extract_output_values())
    closed = {window: values[-1:] for window, values in found.items() if window.end + case.grace < latest}
    assert closed == of_case(case)


@pytest.mark.parametrize("seed", range(5))
def the_windows_do_not_depend_on_the_order_of_pairs_that_are_not_late(seed: int):
    pairs = pairs_of(ANY_ORDER)
    random.Random(seed).shuffle(pairs)
    with OneInputTestHarness(texts(10, 100)) as harness:
        feed(harness, [*pairs, *pairs_of(LAST)])
        found = successive(harness.extract_output_values())
    told = {f"{window.key}{window.start}:{''.join(sorted(values[-1]))}" for window, values in found.items()}
    assert told == set(IN_ANY_ORDER.split())


def changes_of(difference: int, pairs: list[Pair]) -> list[list[Any]]:
    return [change for _, *change in windows_of([(key, stamp, value) for key, value, stamp in pairs], difference, "".join)]


@settings(deadline=None, max_examples=examples(60))
@given(
    pairs=st.lists(st.tuples(st.sampled_from("AB"), st.sampled_from("xyz"), st.integers(0, 40)), max_size=14),
    difference=st.sampled_from([0, 1, 4, 10]),
    cut=st.integers(0, 14),
)
def the_windows_are_those_of_the_definition(pairs, difference, cut):
    with OneInputTestHarness(texts(difference, 100)) as harness:
        feed(harness, pairs[:cut])
        found = harness.extract_output_values()
        snapshot = harness.snapshot()
    with OneInputTestHarness(texts(difference, 100), parallelism=2, snapshot=snapshot) as harness:
        feed(harness, pairs[cut:], max((stamp for _, _, stamp in pairs[:cut]), default=-1))
        found += harness.extract_output_values()
        harness.process_watermark(1000)
        assert harness.event_time_timers() == []
    assert [[key.key, key.start, new, old] for key, new, old in found] == changes_of(difference, pairs)


@settings(deadline=None, max_examples=examples(30))
@given(
    pairs=st.lists(st.tuples(st.just("A"), st.sampled_from("xyz"), st.integers(0, 60)), max_size=16),
    difference=st.sampled_from([0, 1, 4, 10]),
    grace=st.sampled_from([0, 1, 5]),
)
def a_window_is_forgotten_when_no_pair_can_change_it_or_begin_with_it(pairs, difference, grace):
    found = []
    for forgets in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not forgets:
                patch.setattr(AggregateSliding, "on_timer", lambda function, timestamp, ctx: ())
            with OneInputTestHarness(texts(difference, grace)) as harness:
                feed(harness, pairs)
                found.append((harness.extract_output_values(), harness.num_late_records_dropped()))
                harness.process_watermark(10_000)
                assert harness.event_time_timers() == []
    assert found[0] == found[1]


def a_pair_that_is_late_for_all_its_windows_is_counted():
    with OneInputTestHarness(texts(10, 5)) as harness:
        feed(harness, [("A", "x", 45), ("A", "y", 30), ("A", "z", 29)])
        assert successive(harness.extract_output_values()) == {Windowed("A", 35, 45): ["x"]}
        assert harness.num_late_records_dropped() == 1


def a_count_and_a_reduction_have_a_row_for_each_window():
    def build(how: Any) -> Any:
        return lambda stream: (
            how(
                KStream.of(stream, lambda pair: pair[0], lambda pair: pair[1])
                .group_by_key()
                .windowed_by(SlidingWindows.of_time_difference_with_no_grace(Time.milliseconds(10)))
            )
            .to_stream()
            .to_data_stream()
        )

    for how, values in ((lambda of: of.count(), [1, 1, 2]), (lambda of: of.reduce(max), ["x", "y", "y"])):
        with OneInputTestHarness(build(how)) as harness:
            feed(harness, [("A", "x", 20), ("A", "y", 22)])
            rows = [Windowed("A", 10, 20), Windowed("A", 12, 22), Windowed("A", 21, 31)]
            assert sorted(harness.extract_output_values(), key=lambda pair: pair[0].start) == [
                (rows[0], values[0]),
                (rows[1], values[2]),
                (rows[2], values[1]),
            ]


def a_pair_without_a_value_is_left_out_and_an_aggregate_of_none_deletes_its_window():
    def build(stream: Any) -> Any:
        grouped = KStream.of(stream, lambda pair: pair[0], lambda pair: pair[1]).group_by_key()
        small = grouped.windowed_by(windows(10, 0)).aggregate(int, lambda key, value, all: all + value or None)
        return small.to_changes()

    with OneInputTestHarness(build) as harness:
        feed(harness, [("A", 1, 20), ("A", None, 20), ("A", -1, 20), ("A", 5, 20)])  # type: ignore[list-item]
        window = Windowed("A", 10, 20)
        assert harness.extract_output_values() == [(window, 1, None), (window, None, 1), (window, 5, None)]


def an_aggregator_may_change_what_it_is_given():
    def build(stream: Any) -> Any:
        def add(key: Any, value: Any, all: list[Any]) -> list[Any]:
            all.append(value)
            return all

        grouped = KStream.of(stream, lambda pair: pair[0], lambda pair: pair[1]).group_by_key()
        return grouped.windowed_by(windows(10, 5)).aggregate(list, add).to_changes()

    with OneInputTestHarness(build) as harness:
        feed(harness, [("A", "x", 20), ("A", "y", 25), ("A", "z", 22)])
        found = {f"{window.start}": new for window, new, _ in harness.extract_output_values()}
    assert {start: "".join(all) for start, all in found.items()} == {
        **{"10": "x", "12": "xz", "15": "xyz"},
        **{"21": "yz", "23": "y"},
    }


@pytest.mark.parametrize(
    ("difference", "grace", "says"),
    [
        (10, 5, ""),
        (10, 4, ""),
        (10, 6, "5 ms after their end, and the program's grace period is 6 ms"),
        (9, 5, "'difference': 10"),
    ],
)
def a_restart_may_shorten_the_grace_period_and_nothing_else(difference: int, grace: int, says: str):
    with OneInputTestHarness(texts(10, 5)) as harness:
        feed(harness, [("A", "x", 20)])
        snapshot = harness.snapshot()
    if says:
        with pytest.raises(IncompatibleState, match=says):
            OneInputTestHarness(texts(difference, grace), snapshot=snapshot)
        return
    with OneInputTestHarness(texts(difference, grace), snapshot=snapshot) as harness:
        feed(harness, [("A", "y", 20)], 20)
        assert harness.extract_output_values() == [(Windowed("A", 10, 20), "xy", "x")]
        harness.process_watermark(56)
        assert harness.event_time_timers() == []


def a_timestamp_before_1970_is_refused():
    with OneInputTestHarness(texts(10, 5)) as harness, pytest.raises(UserCodeError, match="take timestamps from 0 on"):
        harness.process_element(("A", "x"), -1)


def test_wrong_calls_are_told_at_once():
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    env.set_parallelism(1)
    grouped = KStream.of(env.from_collection([("a", 1)]), lambda pair: pair[0]).group_by_key()
    for text, call in {
        "windowed_by() takes TimeWindows, SlidingWindows or SessionWindows, not 5": lambda: grouped.windowed_by(5),  # type: ignore[call-overload]
        "the time difference of SlidingWindows may not be negative": lambda: windows(-1, 0),
        "the grace period of SlidingWindows may not be negative": lambda: windows(1, -1),
        "the time difference of SlidingWindows is a Time or a Duration, not 5": lambda: (
            SlidingWindows.of_time_difference_with_no_grace(5)  # type: ignore[arg-type]
        ),
        "reduce() of a TimeWindowedKStream is called with (aggregate, value)": lambda: grouped.windowed_by(
            windows(1, 0)
        ).reduce(lambda value: value),  # type: ignore
    }.items():
        with pytest.raises((TypeError, ConfigurationError), match=re.escape(text)):
            call()
    grouped.windowed_by(windows(1, 0)).count().to_stream().to_data_stream().print()
    with pytest.raises(ConfigurationError, match=r"'TimeWindowedKStream.count' .* works in event time, but the records of"):
        env._plan("job")
