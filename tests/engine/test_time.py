"""Time within a job: one result a window and one set of late records, however the input is cut and whoever restarts."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Duration, Time, WatermarkStrategy
from holdfast.common.time import MAX_TIMESTAMP
from holdfast.datastream import (
    KeyedProcessFunction,
    OutputTag,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from holdfast.runtime.driver import coordinator
from holdfast.testing import VirtualClock

from .inprocess import CRASH_POINTS, LEDGERS, Lab, LedgerSink, SplitSource
from .test_same_results import few, lab

START = 1_700_000_000_000
SIZE = 100
LATE = OutputTag("late")

crash_lists = st.lists(st.tuples(st.sampled_from(CRASH_POINTS), st.integers(1, 5)), max_size=4)


# ---- windows of processing time ------------------------------------------------------------------------------------------


class Elements(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, context.window().start, list(elements)


def per_tenth_of_a_second(count: int) -> Any:
    def build(env: StreamExecutionEnvironment) -> None:
        source = env.from_source(SplitSource({"s": list(range(count))}), WatermarkStrategy.no_watermarks(), "numbers")
        windows = source.key_by(lambda n: n % 2).window(TumblingProcessingTimeWindows.of(Time.milliseconds(SIZE)))
        windows.process(Elements()).sink_to(LedgerSink("out"))

    return build


def run_by_the_clock(directory: Path, monkeypatch: Any, steps: Any, count: int, crashes: Any = ()) -> list[Any]:
    """Run epochs of two records by a clock that goes these steps of ms; the results."""
    now = itertools.accumulate(itertools.cycle(steps), initial=START)
    monkeypatch.setattr(coordinator.time, "time_ns", lambda: next(now) * 1_000_000)
    LEDGERS["out"].committed.clear()
    job = Lab(per_tenth_of_a_second(count), directory, parallelism=1, budget=2)
    try:
        job.run(crashes)
    finally:
        job.close()
    return list(LEDGERS["out"].values)


def a_window_of_processing_time_that_ends_in_the_millisecond_of_an_epoch_gives_one_result(tmp_path, monkeypatch):
    results = run_by_the_clock(tmp_path, monkeypatch, [SIZE - 1, 1, SIZE - 1, 1, SIZE - 1, 1], 40)
    assert len(results) > 4
    assert [window for window, n in Counter((key, start) for key, start, _ in results).items() if n > 1] == []


moments = st.tuples(st.integers(0, 9), st.sampled_from([-2, -1, 0, 1, 30])).map(lambda m: m[0] * SIZE + m[1])
"""Near the ends of windows."""


@settings(few, max_examples=examples(8))
@given(hours=st.lists(st.lists(moments, min_size=8, max_size=30).map(sorted), min_size=1, max_size=3), crashes=crash_lists)
def test_a_window_of_processing_time_gives_one_result_whatever_the_clocks_of_drivers_show(tmp_path_factory, hours, crashes):
    # The clock goes on within each list, and back from one to the next, as from a driver to another.
    times = [moment + 60 * SIZE for hour in hours for moment in hour]
    steps = [b - a for a, b in itertools.pairwise([0, *times, 10_000])]
    with pytest.MonkeyPatch.context() as patch:
        results = run_by_the_clock(tmp_path_factory.mktemp("clock"), patch, steps, 60, crashes)
    assert [window for window, n in Counter((key, start) for key, start, _ in results).items() if n > 1] == []
    counted = Counter(element for _, _, elements in results for element in elements)
    assert set(counted.values()) <= {1}


# ---- processing time within an epoch ---------------------------------------------------------------------------------


class Waits(KeyedProcessFunction):
    """Sets a timer 20 ms ahead with its first element, and takes 5 ms for each."""

    def process_element(self, value: int, ctx: Any) -> Any:
        timers = ctx.timer_service()
        now = timers.current_processing_time()
        if value == 0:
            timers.register_processing_time_timer(now + 20)
        sleep(0.005)
        yield "element", value, now, timers.current_processing_time()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        now = ctx.timer_service().current_processing_time()
        yield "timer", timestamp, now, ctx.timer_service().current_processing_time()


@pytest.mark.parametrize("keyed_task", [True, False])
def test_processing_time_moves_between_the_batches_of_an_epoch_and_fires_timers_there(tmp_path, keyed_task):
    config = {"holdfast.batch.records": "1", "holdfast.frame.records": "1" if keyed_task else "2048"}

    def build(env: StreamExecutionEnvironment) -> None:
        source = env.from_source(SplitSource({"s": list(range(40))}), WatermarkStrategy.no_watermarks(), "numbers")
        source.key_by(lambda _: "k").process(Waits()).start_new_chain().sink_to(LedgerSink("out"))

    LEDGERS["out"].committed.clear()
    Lab(build, tmp_path, parallelism=1, budget=1000, config=config).run()
    told = LEDGERS["out"].values
    assert [now for _, _, now, _ in told] == sorted(now for _, _, now, _ in told)
    assert all(before == after for _, _, before, after in told), "the clock moved within a call"
    if keyed_task:
        assert len({now for _, _, now, _ in told}) > 20
        (fired,) = [position for position, (kind, *_) in enumerate(told) if kind == "timer"]
        assert 0 < fired < 40, "the timer did not fire among the elements"
        assert told[fired][1] <= told[fired][2]
    else:  # the elements are one frame: the timer fires behind it
        assert [kind for kind, *_ in told] == ["element"] * 40 + ["timer"]


# ---- watermarks after a restart ----------------------------------------------------------------------------------------


def timed(delay: int) -> WatermarkStrategy:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(delay))
    return strategy.with_timestamp_assigner(lambda record, _: record[1])


def sums(keyed: Any, lateness: int = 0) -> Any:
    windows = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(SIZE))).allowed_lateness(lateness)
    return windows.side_output_late_data(LATE).reduce(lambda a, b: (a[0], max(a[1], b[1]), a[2] + b[2]))


@pytest.mark.parametrize("crash", [None, 1, 3])
def test_watermarks_of_the_source_end_at_a_generator_also_after_a_restart(tmp_path, crash):
    hidden = [("hidden", 10_000 + n, 0) for n in range(10)]
    shown = [("a", 100 * n, 1) for n in range(4)]

    def build(env: StreamExecutionEnvironment) -> None:
        source = env.from_source(SplitSource({"s": hidden + shown}), timed(0), "source")
        seen = source.filter(lambda record: record[0] != "hidden").assign_timestamps_and_watermarks(timed(0))
        sums(seen.key_by(lambda record: record[0])).sink_to(LedgerSink("out"))

    LEDGERS["out"].committed.clear()
    job = Lab(build, tmp_path, parallelism=1, budget=2)
    job.run([] if crash is None else [("after complete", crash)])
    assert [record for record in LEDGERS["out"].values] == shown


@pytest.mark.parametrize("crash", [None, 4])
def a_source_that_has_ended_holds_no_other_back_after_a_restart_behind_a_generator(tmp_path, crash):
    short = [("a", 100, 1)]
    long = [("b", 100 * n, 1) for n in range(20)]
    seen: list[int] = []

    class Watermarks(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield value[1], ctx.timer_service().current_watermark()

    def build(env: StreamExecutionEnvironment) -> None:
        first = env.from_source(SplitSource({"s": short}), timed(0), "first").assign_timestamps_and_watermarks(timed(0))
        second = env.from_source(SplitSource({"s": long}), timed(0), "second")
        first.union(second).key_by(lambda record: record[0]).process(Watermarks()).sink_to(LedgerSink("out"))

    LEDGERS["out"].committed.clear()
    Lab(build, tmp_path, parallelism=1, budget=2).run([] if crash is None else [("after complete", crash)])
    seen = [watermark for timestamp, watermark in LEDGERS["out"].values if timestamp == 1900]
    assert seen[0] > 1000


# ---- late records --------------------------------------------------------------------------------------------------------

DELAY = 20

records = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-150, 60), st.integers(0, 9)), min_size=1, max_size=40).map(
    lambda steps: [(key, START + 10 * n + jitter, value) for n, (key, jitter, value) in enumerate(steps)]
)
"""Records of a split: time goes on by 10 ms each, give or take; many are behind the bound."""


def judged(splits: dict[str, list[Any]], lateness: int) -> tuple[Counter[Any], dict[Any, int]]:
    """The late records, and the windows' sums of all others: a record is late by its own split's watermark before it."""
    late: Counter[Any] = Counter()
    totals: dict[Any, int] = {}
    for split in splits.values():
        highest = None
        for key, time, value in split:
            start = time - time % SIZE
            if highest is not None and start + SIZE - 1 + lateness <= highest - DELAY - 1:
                late[key, time, value] += 1
            else:
                totals[key, start] = totals.get((key, start), 0) + value
            highest = time if highest is None else max(highest, time)
    return late, totals


class PassedOn(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value


def late_and_sums(splits: dict[str, list[Any]], lateness: int, way: str, cut: int) -> Any:
    def build(env: StreamExecutionEnvironment) -> None:
        in_source = way != "generator"
        stream = env.from_source(
            SplitSource(splits, cut), timed(DELAY) if in_source else WatermarkStrategy.no_watermarks(), "s"
        )
        if way == "generator":
            stream = stream.map(lambda record: record).assign_timestamps_and_watermarks(timed(DELAY))
        elif way == "chain":
            stream = stream.flat_map(lambda record: [record]).filter(lambda record: True)
        elif way == "shuffles":
            stream = stream.rebalance().map(lambda record: record).key_by(lambda record: record[2]).process(PassedOn())
        totals = sums(stream.key_by(lambda record: record[0]), lateness)
        late = totals.get_side_output(LATE).map(lambda record: ("late", record))
        totals.map(lambda record: ("sum", record)).union(late).sink_to(LedgerSink("out"))

    return build


@settings(few, max_examples=examples(8))
@given(
    splits=st.dictionaries(st.sampled_from(["s", "t", "u"]), records, min_size=1),
    lateness=st.sampled_from([0, 0, 60]),
    way=st.sampled_from(["source", "chain", "shuffles", "generator"]),
    parallelism=st.integers(1, 3),
    budget=st.sampled_from([3, 15, 5000]),
    cut=st.booleans(),
    batch=st.sampled_from(["1", "7", "4096"]),
    frame=st.sampled_from(["1", "5", "2048"]),
    crashes=crash_lists,
)
def test_the_same_records_are_late_however_the_input_is_cut(
    splits, lateness, way, parallelism, budget, cut, batch, frame, crashes
):
    if way == "generator":
        # Each subtask of the generator has one split: behind several it sees their records as they come.
        splits = dict(list(splits.items())[:parallelism])
    late, totals = judged(splits, lateness)
    build = late_and_sums(splits, lateness, way, budget if cut else 0)
    sizes = {"holdfast.batch.records": batch, "holdfast.frame.records": frame, "state.backend.type": "hashmap"}
    with lab(build, parallelism=parallelism, budget=budget, config=sizes) as job:
        job.run(crashes)
        assert Counter(record for kind, record in LEDGERS["out"].values if kind == "late") == late
        results = [((key, time - time % SIZE), total) for kind, (key, time, total) in LEDGERS["out"].values if kind == "sum"]
        assert dict(results) == totals
        if lateness == 0:
            assert len(results) == len(totals), "a window gave two results"


# ---- idleness in mid-chain ---------------------------------------------------------------------------------------------


class Told(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, context.window().start, len(list(elements)), context.current_watermark()


IDLE_CLOCK = VirtualClock(START)


def slowly(record: Any) -> Any:
    """Take longer than the idle timeout, for some records."""
    if record[1] % 200 == 100:
        IDLE_CLOCK.advance(400)
    return record


def behind_a_generator(
    directory: Path, splits: dict[str, Any], parallelism: int, idle_ms: int, step: Any, most: int = 0
) -> list[Any]:
    """Windows of 200 ms behind a generator in mid-chain and a function, by the virtual clock; what they told.

    ``most``: with unaligned checkpoints, and a generator behind a shuffle: the most records of a subtask in an epoch.
    """
    strategy = timed(0)
    if idle_ms:
        strategy = strategy.with_idleness(Duration.of_millis(idle_ms))

    def build(env: StreamExecutionEnvironment) -> None:
        source = env.from_source(SplitSource(splits), WatermarkStrategy.no_watermarks(), "s").map(lambda record: record)
        if most:
            source = source.rebalance()
        stream = source.assign_timestamps_and_watermarks(strategy).map(step)
        windows = stream.key_by(lambda record: record[0]).window(TumblingEventTimeWindows.of(Time.milliseconds(200)))
        windows.process(Told()).sink_to(LedgerSink("out"))

    LEDGERS["out"].committed.clear()
    config = {"execution.checkpointing.unaligned.enabled": "true"} if most else {}
    job = Lab(build, directory, parallelism=parallelism, budget=40, config=config, records_before_deadline=most, early=False)
    coordinator = job.coordinator()
    coordinator._wall_clock, coordinator._virtual_seconds = IDLE_CLOCK.now, lambda: IDLE_CLOCK.now() / 1000
    try:
        coordinator.run()
    finally:
        job.close()
    return list(LEDGERS["out"].values)


@pytest.mark.parametrize("idle_ms", [0, 300])
def a_slow_function_behind_a_generator_makes_no_subtask_idle(tmp_path, idle_ms):
    splits = {"a": [("a", 50_000 + 10 * n) for n in range(60)], "b": [("b", 10 * n) for n in range(60)]}
    told = behind_a_generator(tmp_path, splits, 2, idle_ms, slowly)
    assert sum(count for _, _, count, _ in told) == 120


def a_subtask_without_a_split_does_not_hold_event_time_back_at_a_generator_in_mid_chain(tmp_path):
    splits = {name: [(name, 10 * n) for n in range(200)] for name in "ab"}
    told = behind_a_generator(tmp_path, splits, 3, 0, lambda record: record)
    assert len(told) == 20
    fired_before_the_end = [start for _, start, _, watermark in told if watermark < MAX_TIMESTAMP]
    assert len(fired_before_the_end) > 10


def test_records_that_wait_before_a_generator_in_mid_chain_are_no_silence(tmp_path):
    splits = {"a": [("a", 10 * n) for n in range(100)]}
    told = behind_a_generator(tmp_path, splits, 2, 300, slowly, most=5)
    assert sum(count for _, _, count, _ in told) == 100
