"""Aggregates of several streams and of windows: Kafka Streams' cases, and what a window takes."""

from __future__ import annotations

from typing import Any

import pytest

from engine.inprocess import LedgerSink, SplitSource
from holdfast.common import Time, WatermarkStrategy
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.errors import ConfigurationError, IncompatibleState
from holdfast.table import KStream, SessionWindows, TimeWindows, Windowed
from holdfast.table.changes import one_more
from holdfast.table.windowed import AggregateSessions, AggregateWindows

from .kafka_grouped_cases import COUNTS, MIXED, PLAIN, SESSIONS, TIME_WINDOWS, steps
from .test_tables import outcome

STREAM_TIME = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda record, _: record[3])


def appended(key: Any, value: Any, aggregate: str) -> str:
    return aggregate + value


def added(key: Any, value: Any, aggregate: str) -> str:
    return f"{aggregate}+{value}"


def removed(key: Any, value: Any, aggregate: str) -> str:
    return f"{aggregate}-{value}"


def merged(key: Any, aggregate: str, other: str) -> str:
    return f"{aggregate}+{other}"


def zero() -> str:
    return "0"


def told(pair: Any) -> str:
    return f"{pair[0]}={'-' if pair[1] is None else pair[1]}"


def told_without_window(pair: Any) -> str:
    return told((pair[0].key, pair[1]))


def told_with_window(pair: Any) -> str:
    key, start, end = pair[0]
    return told((f"{key}@{start}/{end}", pair[1]))


def rows(text: str, build: Any, tell: Any) -> list[str]:
    """The rows of a table of streams, with one record in an epoch."""

    def program(env: Any) -> None:
        source = env.from_source(SplitSource({"all": steps(text)}, 1), STREAM_TIME, "source")
        numbered = [source.filter(lambda record, number=number: record[0] == number) for number in range(3)]
        grouped = [KStream.of(each, lambda r: r[1], lambda r: r[2]).group_by_key() for each in numbered]
        build(*grouped).to_stream().to_data_stream().map(tell).sink_to(LedgerSink("out"))

    return outcome(program, parallelism=1, budget=1)


@pytest.mark.parametrize("name", sorted(PLAIN))
def the_aggregates_of_several_streams_are_those_of_kafka_streams(name: str):
    text, wanted = PLAIN[name]

    def build(*groups: Any) -> Any:
        together = groups[0].cogroup(appended)
        for each in groups[1:]:
            together = together.cogroup(each, appended)
        return together.aggregate(str)

    assert rows(text, build, told) == wanted.split()


def test_each_of_several_streams_has_an_aggregator_of_its_own():
    text, wanted = MIXED[""]
    found = rows(text, lambda one, two, _: one.cogroup(added).cogroup(two, removed).aggregate(zero), told)
    assert found == wanted.split()


@pytest.mark.parametrize("case", sorted(TIME_WINDOWS))
def the_time_windows_of_several_streams_are_those_of_kafka_streams(case: Any):
    size, advance, _ = case
    text, wanted = TIME_WINDOWS[case]

    def build(one: Any, two: Any, _: Any) -> Any:
        windows = TimeWindows.of_size_with_no_grace(Time.milliseconds(size)).advance_by(Time.milliseconds(advance))
        return one.cogroup(added).cogroup(two, removed).windowed_by(windows).aggregate(zero)

    assert rows(text, build, told_without_window) == wanted.split()


@pytest.mark.parametrize("case", sorted(SESSIONS))
def the_sessions_of_several_streams_are_those_of_kafka_streams(case: Any):
    gap, grace, _ = case
    text, wanted = SESSIONS[case]

    def build(one: Any, two: Any, _: Any) -> Any:
        windows = SessionWindows.of_inactivity_gap_and_grace(Time.milliseconds(gap), Time.milliseconds(grace))
        return one.cogroup(added).cogroup(two, removed).windowed_by(windows).aggregate(zero, merged)

    assert rows(text, build, told_without_window) == wanted.split()


def windows_of(case: str) -> Any:
    kind, length, grace = case.split()
    make = TimeWindows.of_size_and_grace if kind == "time" else SessionWindows.of_inactivity_gap_and_grace
    return make(Time.milliseconds(int(length)), Time.milliseconds(int(grace)))


@pytest.mark.parametrize("case", sorted(COUNTS))
def the_counts_of_windows_are_those_of_kafka_streams(case: str):
    text, wanted, _ = COUNTS[case]
    found = rows(text, lambda one, *_: one.windowed_by(windows_of(case)).count(), told_with_window)
    assert found == wanted.split()


def the_values_of_a_window_are_reduced_and_aggregated():
    text = "0:k=a@0 0:k=b@1 0:k=c@12"
    tumbling = TimeWindows.of_size_with_no_grace(Time.milliseconds(10))
    sessions = SessionWindows.of_inactivity_gap_with_no_grace(Time.milliseconds(10))
    reduced = rows(text, lambda one, *_: one.windowed_by(tumbling).reduce(lambda a, b: a + b), told_with_window)
    assert reduced == ["k@0/10=a", "k@0/10=ab", "k@10/20=c"]
    aggregated = rows(text, lambda one, *_: one.windowed_by(tumbling).aggregate(zero, added), told_with_window)
    assert aggregated == ["k@0/10=0+a", "k@0/10=0+a+b", "k@10/20=0+c"]
    reduced = rows(
        "0:k=a@0 0:k=b@20 0:k=c@10",
        lambda one, *_: one.windowed_by(windows_of("session 10 50")).reduce(lambda a, b: a + b),
        told_with_window,
    )
    assert reduced == ["k@0/0=a", "k@20/20=b", "k@0/0=-", "k@20/20=-", "k@0/20=abc"]
    aggregated = rows(text, lambda one, *_: one.windowed_by(sessions).aggregate(zero, added, merged), told_with_window)
    assert aggregated == ["k@0/0=0+a", "k@0/0=-", "k@0/1=0+0+a+b", "k@12/12=0+c"]


def changing(key: Any, value: list[Any], aggregate: list[Any]) -> list[Any]:
    value.append("seen")
    aggregate.append(len(value))
    return aggregate


@pytest.mark.parametrize("kind", ["time", "session"])
def the_functions_of_windows_may_change_what_they_are_given(kind: str):
    def build(env: Any) -> None:
        records = [(0, "k", ["v"], 0), (0, "k", ["v"], 1), (0, "k", ["v"], 2)]
        source = env.from_source(SplitSource({"all": records}, 1), STREAM_TIME, "source")
        group = KStream.of(source, lambda r: r[1], lambda r: r[2]).group_by_key()
        if kind == "time":
            hopping = TimeWindows.of_size_with_no_grace(Time.milliseconds(4)).advance_by(Time.milliseconds(2))
            table = group.windowed_by(hopping).aggregate(list, changing)
        else:
            table = group.windowed_by(windows_of("session 5 0")).aggregate(list, changing, joined)
        table.to_changes().sink_to(LedgerSink("out"))

    found = outcome(build, parallelism=1, budget=9)
    if kind == "time":
        window = Windowed("k", 0, 4)
        assert found == [
            (window, [2], None),
            (window, [2, 2], [2]),
            (window, [2, 2, 2], [2, 2]),
            (Windowed("k", 2, 6), [2], None),
        ]
    else:
        assert found == [
            (Windowed("k", 0, 0), [2], None),
            (Windowed("k", 0, 0), None, [2]),
            (Windowed("k", 0, 1), [2, 2], None),
            (Windowed("k", 0, 1), None, [2, 2]),
            (Windowed("k", 0, 2), [2, 2, 2], None),
        ]


def joined(key: Any, aggregate: list[Any], other: list[Any]) -> list[Any]:
    other.extend(aggregate)
    return other


def a_session_that_is_closed_takes_no_element_that_is_near_it():
    text = "0:k=a@100 0:other=x@116 0:k=b@108 0:other=y@200"
    found = rows(
        text, lambda one, *_: one.windowed_by(windows_of("session 10 0")).reduce(lambda a, b: a + b), told_with_window
    )
    assert [each for each in found if each.startswith("k")] == ["k@100/100=a", "k@108/108=b"]


def the_windows_that_are_not_stored_are_refused():
    def of(size: int, grace: int) -> AggregateWindows:
        return AggregateWindows(TimeWindows(size, grace, size), int, one_more)

    assert of(10, 5).continuing(of(10, 7).definition()).windows.grace_ms == 5
    with pytest.raises(IncompatibleState, match="forgotten"):
        of(10, 5).continuing(of(10, 4).definition())
    with pytest.raises(IncompatibleState, match="aggregates of the windows"):
        of(10, 5).continuing(of(20, 5).definition())
    sessions = AggregateSessions(SessionWindows(10, 5), int, one_more, one_more)
    with pytest.raises(IncompatibleState, match="aggregates of the windows"):
        sessions.continuing(of(10, 5).definition())


def test_wrong_arguments_of_groups_and_windows_are_refused():
    env, other = (StreamExecutionEnvironment.get_execution_environment() for _ in range(2))
    group, foreign = (KStream.of(e.from_collection([("k", 1)]), lambda r: r[0]).group_by_key() for e in (env, other))
    together = group.cogroup(lambda key, value, total: total)
    with pytest.raises(TypeError, match="takes a KGroupedStream"):
        together.cogroup(KStream.of(env.from_collection([1]), lambda r: r), lambda key, value, total: total)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="one environment"):
        together.cogroup(foreign, lambda key, value, total: total)
    with pytest.raises(TypeError, match="TimeWindows, SlidingWindows or SessionWindows"):
        group.windowed_by(5)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="must be positive"):
        TimeWindows.of_size_with_no_grace(Time.milliseconds(0))
    with pytest.raises(ConfigurationError, match="may not be negative"):
        SessionWindows.of_inactivity_gap_and_grace(Time.milliseconds(1), Time.milliseconds(-1))
    with pytest.raises(ConfigurationError, match="at most the size"):
        TimeWindows.of_size_with_no_grace(Time.milliseconds(5)).advance_by(Time.milliseconds(6))
    with pytest.raises(TypeError, match="Time or a Duration"):
        TimeWindows.of_size_with_no_grace(5)  # type: ignore[arg-type]
