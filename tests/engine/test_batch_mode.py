"""BATCH mode: one epoch with the whole input, sorted by key; one result a key; no late data; all timers at the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
from hypothesis import given

from holdfast.common import Time, Types, WatermarkStrategy
from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.datastream import (
    EventTimeSessionWindows,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
)
from holdfast.datastream.connectors.kafka import KafkaSource
from holdfast.errors import ConfigurationError, UserCodeError

from .inprocess import LEDGERS, LedgerSink
from .programs import MINUTE, everything, records, start_of, stream
from .test_same_results import backends, budgets, config, crashes, few, frames, lab, parallelisms, runs, seeds, visible

BATCH = {"execution.runtime-mode": "BATCH"}
LATE = OutputTag("late")


def key_of(record: Any) -> Any:
    return record[0]


def add(a: Any, b: Any) -> Any:
    return a[0], b[1], a[2] + b[2]


class Stamped(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield (*value, ctx.timestamp())


@few
@given(**runs)
def test_rolling_aggregations_give_one_result_a_key(seed, backend, parallelism, budget, frame, crashes):
    data = records(seed, 200)

    def build(env: StreamExecutionEnvironment) -> None:
        keyed = stream(env, data, budget).key_by(key_of)
        reduced = keyed.reduce(add).process(Stamped())
        others = [keyed.sum(2), keyed.min(2), keyed.max(2)]
        tagged = [each.map(lambda r, name=name: (name, r[0], r[2])) for name, each in zip(("sum", "min", "max"), others)]
        reduced.union(*tagged).sink_to(LedgerSink("out"))

    by_key = defaultdict(list)
    for record in sorted(everything(data), key=lambda r: r[1]):
        by_key[record[0]].append(record)
    expected: list[Any] = []
    for key, members in by_key.items():
        total = reduce(add, members)
        values = [member[2] for member in members]
        expected += [(key, members[-1][1], total[2], members[-1][1])]
        expected += [("sum", key, sum(values)), ("min", key, min(values)), ("max", key, max(values))]
    with lab(build, parallelism=parallelism, budget=budget, config={**config(backend, frame, "2kb"), **BATCH}) as job:
        job.run(crashes)
        assert visible() == Counter(map(repr, expected))


class Whole(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, context.window().start, sorted(map(repr, elements))


@few
@given(seed=seeds, parallelism=parallelisms, budget=budgets, crashes=crashes)
def test_nothing_is_late(seed, parallelism, budget, crashes):
    data = records(seed, 200, jitter=20 * MINUTE)  # far beyond the out-of-orderness that the strategy allows

    def build(env: StreamExecutionEnvironment) -> None:
        minutes = stream(env, data, budget).key_by(key_of).window(TumblingEventTimeWindows.of(Time.minutes(1)))
        whole = minutes.side_output_late_data(LATE).process(Whole())
        whole.union(whole.get_side_output(LATE)).sink_to(LedgerSink("out"))

    groups = defaultdict(list)
    for record in everything(data):
        groups[record[0], start_of(record[1])].append(repr(record))
    expected = Counter(repr((*window, sorted(members))) for window, members in groups.items())
    with lab(build, parallelism=parallelism, budget=budget, config=BATCH) as job:
        job.run(crashes)
        assert visible() == expected


class InOrder(KeyedProcessFunction):
    """Sees the elements of a key in the order of time, and the end of the input in its timers."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))
        self.keys: list[Any] = []

    def process_element(self, value: Any, ctx: Any) -> Any:
        timers = ctx.timer_service()
        assert timers.current_watermark() == MIN_TIMESTAMP
        assert self.last.value() is None or self.last.value() <= value[1]
        self.last.update(value[1])
        timers.register_event_time_timer(value[1] + 1000)
        timers.register_processing_time_timer(timers.current_processing_time() + 3_600_000)
        if not self.keys or self.keys[-1] != value[0]:
            assert value[0] not in self.keys  # all elements of a key come one after the other
            self.keys.append(value[0])
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        timers = ctx.timer_service()
        assert timers.current_watermark() == MAX_TIMESTAMP
        yield ctx.get_current_key(), ctx.time_domain().name, timestamp if ctx.time_domain().value == 0 else "hour"


@few
@given(seed=seeds, backend=backends, parallelism=parallelisms, frame=frames, crashes=crashes)
def test_keyed_input_is_sorted_and_timers_fire_at_the_end_in_order(seed, backend, parallelism, frame, crashes):
    data = records(seed, 200, jitter=20 * MINUTE)

    def build(env: StreamExecutionEnvironment) -> None:
        stream(env, data, 17).key_by(key_of).process(InOrder()).sink_to(LedgerSink("out"))

    with lab(build, parallelism=parallelism, config={**config(backend, frame), **BATCH}) as job:
        job.run(crashes)
        told = LEDGERS["out"].values
    stamps = {record[0]: set() for record in everything(data)}
    for record in everything(data):
        stamps[record[0]].add(record[1] + 1000)
    for key, expected in stamps.items():
        fired = [each for each in told if each[0] == key]
        assert [each[2] for each in fired if each[1] == "EVENT_TIME"] == sorted(expected)
        assert [each for each in fired if each[1] == "PROCESSING_TIME"] == [(key, "PROCESSING_TIME", "hour")]


class Sides(KeyedCoProcessFunction):
    """The elements of both sides of a key are in one order of time."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))

    def process_element1(self, value: Any, ctx: Any) -> Any:
        assert self.last.value() is None or self.last.value() <= value[1]
        self.last.update(value[1])
        yield value

    process_element2 = process_element1


def test_two_keyed_inputs_are_sorted_together(job):
    data = [records(seed, 60, jitter=20 * MINUTE) for seed in (1, 2)]

    def build(env: StreamExecutionEnvironment) -> None:
        left, right = (stream(env, each, 7, uid).key_by(key_of) for each, uid in zip(data, ("left", "right")))
        left.connect(right).process(Sides()).sink_to(LedgerSink("out"))

    job(build, config=BATCH).run()
    assert visible() == Counter(map(repr, everything(data[0]) + everything(data[1])))


def the_whole_input_is_one_epoch_and_leaves_no_state(job):
    def build(env: StreamExecutionEnvironment) -> None:
        stream(env, records(3, 300), 10).key_by(key_of).reduce(add).uid("sum").sink_to(LedgerSink("out"))

    lab = job(build, config=BATCH)
    coordinator = lab.coordinator()
    make, runs = coordinator._make_executor, []

    def making(info: Any, plan: Any) -> Any:
        made: Any = make(info, plan)
        run = made.run
        made.run = lambda order: runs.append(order.epoch) or run(order)
        return made

    coordinator._make_executor = making
    coordinator.run()
    assert len(runs) == 1
    completed = coordinator._machine.completed
    assert all(operator.subtasks == [] for operator in completed.operators.values())


def test_windows_of_processing_time_and_sessions_fire_at_the_end(job):
    data = {"s": [("a", 1000 * n, n) for n in (5, 1, 2, 90)]}

    def build(env: StreamExecutionEnvironment) -> None:
        keyed = stream(env, data).key_by(key_of)
        hours = keyed.window(TumblingProcessingTimeWindows.of(Time.hours(1))).reduce(add).map(lambda r: r[2])
        sessions = keyed.window(EventTimeSessionWindows.with_gap(Time.seconds(10))).reduce(add).map(lambda r: -r[2])
        hours.union(sessions).sink_to(LedgerSink("out"))

    job(build, parallelism=1, config=BATCH).run()
    assert Counter(LEDGERS["out"].values) == Counter([98, -8, -90])


class Fails(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        if value[2] == 7:
            raise ValueError("seven")
        yield value


def the_error_of_a_function_names_the_record_in_its_source(job):
    data = {"s": [("k", 100 - n, n) for n in range(20)]}

    def build(env: StreamExecutionEnvironment) -> None:
        stream(env, data).key_by(key_of).process(Fails()).sink_to(LedgerSink("out"))

    with pytest.raises(UserCodeError, match="seven") as failure:
        job(build, config=BATCH).run()
    assert "record: split s, record 7" in str(failure.value)


# ---- the mode -----------------------------------------------------------------------------------------------------------


def plan_of(build: Callable[[Any], Any], mode: RuntimeExecutionMode | None, **settings: str) -> Any:
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    env.set_parallelism(1)
    for key, value in settings.items():
        env._configuration.set_string(key.replace("_", "."), value)
    if mode is not None:
        env.set_runtime_mode(mode)
    build(env)
    return env._plan("job")


def bounded(env: StreamExecutionEnvironment) -> None:
    env.from_collection([1]).print()


def unbounded(env: StreamExecutionEnvironment) -> None:
    builder = KafkaSource.builder().set_bootstrap_servers("localhost:1").set_topics("payments")
    source = env.from_source(builder.build(), WatermarkStrategy.no_watermarks(), "payments")
    source.union(env.from_collection([1])).print()


def test_automatic_picks_batch_if_all_sources_are_bounded():
    assert not plan_of(bounded, None).settings.batch
    assert not plan_of(bounded, RuntimeExecutionMode.STREAMING).settings.batch
    assert plan_of(bounded, RuntimeExecutionMode.BATCH).settings.batch
    assert plan_of(bounded, RuntimeExecutionMode.AUTOMATIC).settings.batch
    assert not plan_of(unbounded, RuntimeExecutionMode.AUTOMATIC).settings.batch


def an_unbounded_source_is_refused_in_batch_mode_with_its_line():
    line = unbounded.__code__.co_firstlineno + 2
    with pytest.raises(ConfigurationError, match=rf"'payments' \(Source, test_batch_mode.py:{line}\) is unbounded"):
        plan_of(unbounded, RuntimeExecutionMode.BATCH)


def a_job_in_batch_mode_starts_from_no_savepoint_and_takes_none():
    def build(env: StreamExecutionEnvironment) -> None:
        env._configuration.set_string("execution.state-recovery.path", "/tmp/savepoint")
        bounded(env)

    with pytest.raises(ConfigurationError, match="BATCH mode, which starts without state"):
        plan_of(build, RuntimeExecutionMode.BATCH)


def a_mode_that_is_none_is_refused():
    env = StreamExecutionEnvironment()
    with pytest.raises(TypeError, match="takes a RuntimeExecutionMode"):
        env.set_runtime_mode("BATCH")  # type: ignore[arg-type]
