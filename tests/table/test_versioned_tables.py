"""Versioned tables: Kafka Streams' cases, and random versions against plain Python."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from engine.inprocess import LEDGERS, LedgerSink
from engine.one_operator import opened
from engine.programs import DELAY, everything, records, stream
from engine.test_same_results import config, few, lab, parallelisms, runs, visible
from holdfast.common import Duration, Time, Types, WatermarkStrategy
from holdfast.datastream import ProcessWindowFunction, StreamExecutionEnvironment, TumblingEventTimeWindows
from holdfast.errors import ConfigurationError, IncompatibleState, UserCodeError
from holdfast.runtime.records.records import RecordBatch
from holdfast.table import KStream, KTable
from holdfast.table.versions import JoinVersions, VersionedFactory
from holdfast.testing import TwoInputTestHarness

from .kafka_cases import INPUT, STREAM_VERSIONED_TABLE, STREAM_VERSIONED_TABLE_GRACE, VERSIONED_TABLES
from .test_tables import dashed, of, replayed, step_by_step, values

HISTORY = Time.minutes(5)
STREAM_TIME = WatermarkStrategy.for_monotonous_timestamps()


@pytest.mark.parametrize("how", sorted(VERSIONED_TABLES))
@pytest.mark.parametrize("versioned", ["both", "left", "right"])
def the_joins_of_versioned_tables_are_those_of_kafka_streams(how: str, versioned: str):
    def join(left: Any, right: Any) -> Any:
        first = of(left).to_table(history_retention=None if versioned == "right" else HISTORY)
        second = of(right).to_table(history_retention=None if versioned == "left" else HISTORY)
        return getattr(first, how)(second, dashed).to_stream().to_data_stream()

    assert values(step_by_step(INPUT, join)) == values(VERSIONED_TABLES[how][versioned].split())


@pytest.mark.parametrize("how", sorted(STREAM_VERSIONED_TABLE))
def the_joins_of_a_stream_and_a_versioned_table_are_those_of_kafka_streams(how: str):
    def join(left: Any, right: Any) -> Any:
        return getattr(of(left), how)(of(right).to_table(history_retention=HISTORY), dashed).to_data_stream()

    expected = STREAM_VERSIONED_TABLE[how].split()
    assert step_by_step(INPUT, join) == step_by_step(INPUT, join, STREAM_TIME) == expected


@pytest.mark.parametrize("how", sorted(STREAM_VERSIONED_TABLE_GRACE))
def the_joins_of_a_stream_and_a_versioned_table_with_a_grace_period_are_those_of_kafka_streams(how: str):
    def join(left: Any, right: Any) -> Any:
        table = of(right).to_table(history_retention=HISTORY)
        return getattr(of(left), how)(table, dashed, grace_period=Duration.of_millis(2)).to_data_stream()

    # The stream's time decides in Kafka when a pair is joined, here the watermark of both inputs: the order differs.
    found = step_by_step(INPUT, join, STREAM_TIME)
    assert sorted(found) == sorted([*STREAM_VERSIONED_TABLE_GRACE[how].split(), "E-e@15"])


class Whole(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield from elements


def none_twice(data: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The data without a second record of a key and time: which of both counts is decided by their order."""
    seen: set[Any] = set()
    return {name: [r for r in split if not (r[:2] in seen or seen.add(r[:2]))] for name, split in data.items()}  # type: ignore[func-returns-value]


def row_of(record: Any) -> Any:
    """Every seventh version is a deletion."""
    return None if record[2] % 7 == 0 else record[2]


@settings(few, max_examples=examples(3))
@given(**runs, after=parallelisms, keeps_left=st.booleans(), views=st.booleans())
def a_pair_meets_the_version_of_its_time(seed, backend, parallelism, budget, frame, crashes, after, keeps_left, views):
    orders, rates = records(seed, 100, keys=5), none_twice(records(seed + 1, 80, keys=6))

    def build(env: Any) -> None:
        left, right = (stream(env, data, budget, uid) for data, uid in ((orders, "orders"), (rates, "rates")))
        pairs = KStream.of(left, lambda r: r[0])
        table: KTable = KStream.of(right, lambda r: r[0], row_of).to_table(Types.LONG(), history_retention=HISTORY)
        if views:
            table = table.filter(lambda key, rate: rate % 2).map_values(lambda rate: -rate)
        join = pairs.left_join if keeps_left else pairs.join
        results = join(table, lambda order, rate: (order, rate), grace_period=Duration.of_millis(DELAY)).to_data_stream()
        # No result is late behind the join: a window has all of them.
        windowed = results.key_by(lambda result: 0).window(TumblingEventTimeWindows.of(Time.seconds(10)))
        windowed.process(Whole()).sink_to(LedgerSink("out"))

    history = defaultdict(list)
    for key, time, number in everything(rates):
        rate = row_of((key, time, number))
        if views:
            rate = -rate if rate is not None and rate % 2 else None
        history[key].append((time, rate))
    expected: Counter[Any] = Counter()
    for order in everything(orders):
        rate = max((v for v in history[order[0]] if v[0] <= order[1]), key=lambda v: v[0], default=(0, None))[1]
        if rate is not None or keeps_left:
            expected[repr((order[0], (order, rate)))] += 1
    with lab(build, parallelism=parallelism, budget=budget, config=config(backend, frame)) as job:
        if not (crashes and job._run_until(*crashes[0])):
            job.parallelism = after  # the next driver rescales
            job.run(crashes[1:])
        assert visible() == expected


@settings(few, max_examples=examples(3))
@given(**runs)
def the_newest_versions_are_those_with_the_latest_timestamps(seed, backend, parallelism, budget, frame, crashes):
    rates = none_twice(records(seed, 120, keys=6))

    def build(env: Any) -> None:
        table = KStream.of(stream(env, rates, budget), lambda r: r[0], row_of).to_table(history_retention=HISTORY)
        table.to_changes().sink_to(LedgerSink("out"))

    newest: dict[str, tuple[int, Any]] = {}
    for record in everything(rates):
        newest[record[0]] = max(newest.get(record[0], (-1, None)), (record[1], row_of(record)), key=lambda v: v[0])
    with lab(build, parallelism=parallelism, budget=budget, config=config(backend, frame)) as job:
        job.run(crashes)
        assert replayed(LEDGERS["out"].values) == {key: rate for key, (_, rate) in newest.items() if rate is not None}


def test_replaced_versions_are_forgotten_after_the_history_retention():
    factory = VersionedFactory.join(JoinVersions(lambda left, right: (left, right), True, None, 100, None), 100, None)
    operator, clock, _, told = opened(factory)
    pairs, versions = operator.inputs()
    timers = operator.event_timers  # type: ignore[attr-defined]
    held = operator.function._versions  # type: ignore[attr-defined]
    versions(RecordBatch([("k", "a"), ("k", "b"), ("k", None)], [10, 20, 90], ["k"] * 3))
    kept = []
    for watermark in (100, 119, 120, 189, 190):
        clock.advance(watermark, operator.advance_watermark)
        pairs(RecordBatch([("k", watermark)], [20], ["k"]))
        kept.append(list(held.stamps()))
    # Once the watermark has passed a time by the retention, a pair of that time meets the newest version or none.
    assert kept == [[10, 20, 90], [10, 20, 90], [20, 90], [20, 90], []]
    assert [value for (_, value), _ in told] == [(100, "b"), (119, "b"), (120, None), (189, None), (190, None)]
    assert not timers
    # The deletion is forgotten, but a version before it is still too late.
    versions(RecordBatch([("k", "late"), ("k", "in time")], [90, 91], ["k"] * 2))
    assert list(held.stamps()) == [91]
    assert (clock.late_dropped, [late.timestamp for late in clock.late]) == (1, [90])


def test_a_deleted_row_leaves_nothing_behind():
    operator, clock, state, told = opened(VersionedFactory.newest(None, 100))
    process, space = operator.process, state.space("keyed")

    def since() -> Any:
        (space.row,) = space.table().load(["k"])
        return operator.function._since.value()  # type: ignore[attr-defined]

    process(RecordBatch([("k", 1), ("k", None), ("k", 2)], [10, 20, 15], ["k"] * 3))
    assert [change for change, _ in told] == [("k", 1, None), ("k", None, 1)]
    assert since() == 20
    clock.advance(120, operator.advance_watermark)
    assert since() is None
    assert not operator.event_timers  # type: ignore[attr-defined]
    process(RecordBatch([("k", 2), ("k", 3)], [20, 21], ["k"] * 2))
    assert [change for change, _ in told][2:] == [("k", 3, None)]
    assert clock.late_dropped == 1


def test_wrong_calls_are_told_at_once():
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    env.set_parallelism(1)
    stream = KStream.of(env.from_collection([("a", 1)]), lambda pair: pair[0])
    plain, versioned = stream.to_table(), stream.to_table(history_retention=Time.seconds(2))
    for text, call in {
        "join() of a KStream with a grace_period needs a versioned table": lambda: stream.join(
            plain, dashed, grace_period=Time.seconds(1)
        ),
        "has a grace_period of 3000 ms, but the table keeps replaced values for 2000 ms": lambda: stream.left_join(
            versioned, dashed, grace_period=Time.seconds(3)
        ),
        "the history_retention of to_table() is a Time or a Duration, not 5": lambda: stream.to_table(history_retention=5),  # type: ignore[arg-type]
        "the grace_period of join() of a KStream may not be negative": lambda: stream.join(
            versioned, dashed, grace_period=Time.milliseconds(-1)
        ),
        "filter() of a KTable is called with (key, value)": lambda: versioned.filter(lambda value: True),  # type: ignore
    }.items():
        with pytest.raises((TypeError, ConfigurationError), match=re.escape(text)):
            call()
    versioned.to_stream().to_data_stream().print()
    with pytest.raises(ConfigurationError, match=r"'KStream.to_table' .* works in event time, but the records of"):
        env._plan("job")


def a_version_without_a_timestamp_is_refused_with_its_key():
    operator, *_ = opened(VersionedFactory.newest(None, 100))
    with pytest.raises(UserCodeError, match=r"no timestamp, which a versioned table needs") as error:
        operator.process(RecordBatch([("k", 1)], None, ["k"]))
    assert "'k'" in str(error.value)


def a_version_replaces_another_of_its_time():
    operator, _, _, told = opened(VersionedFactory.newest(None, 100))
    operator.process(RecordBatch([("k", 1), ("k", 2)], [10, 10], ["k"] * 2))
    assert [change for change, _ in told] == [("k", 1, None), ("k", 2, 1)]


def the_grace_period_is_a_part_of_the_history_retention():
    factory = VersionedFactory.join(JoinVersions(lambda left, right: (left, right), True, None, 100, 30), 100, 30)
    operator, clock, _, _ = opened(factory)
    operator.context.forward_watermark = lambda watermark: None
    operator.inputs()[1](RecordBatch([("k", "a"), ("k", "b")], [10, 20], ["k"] * 2))
    held = operator.function._versions  # type: ignore[attr-defined]
    kept = []
    for watermark in (119, 120):
        clock.advance(watermark, operator.advance_watermark)
        kept.append(list(held.stamps()))
    assert kept == [[10, 20], [20]]


@pytest.mark.parametrize("after", [10, 20, 50, 60])
def a_shorter_history_retention_holds_from_the_start_on_and_a_longer_one_is_refused(after: int):
    """The row was replaced at 20, and the watermark is at 31."""

    def pairs(stream: Any) -> KStream[Any, Any]:
        return KStream.of(stream, lambda each: each[0], lambda each: each[1])

    def joined(retention: int) -> Any:
        def build(left: Any, right: Any) -> Any:
            table = pairs(right).to_table(history_retention=Time.milliseconds(retention))
            return pairs(left).left_join(table, lambda one, other: (one, other)).to_data_stream()

        return build

    with TwoInputTestHarness(joined(50)) as harness:
        harness.process_element2(("k", "old"), 1).process_element2(("k", "new"), 20)
        harness.process_both_watermarks(31)
        snapshot = harness.snapshot()
    if after > 50:
        with pytest.raises(IncompatibleState, match="a row whose deletion has been forgotten"):
            TwoInputTestHarness(joined(after), snapshot=snapshot).open()
        return
    with TwoInputTestHarness(joined(after), snapshot=snapshot) as harness:
        harness.process_element1(("k", 1), 5).process_element1(("k", 2), 21)
        kept = after == 50
        assert [result[1] for result in harness.extract_output_values()] == [(1, "old" if kept else None), (2, "new")]
        harness.process_both_watermarks(200)
        assert harness.event_time_timers() == []
        harness.process_element1(("k", 3), 5).process_element1(("k", 4), 201)
        assert [result[1] for result in harness.extract_output_values()][2:] == [(3, None), (4, "new")]
