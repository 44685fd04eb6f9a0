"""Streams on a real local Spark: what comes out is what the program says."""

from __future__ import annotations

import sys

import cloudpickle
import pytest

from holdfast.common import RestartStrategies, Time, Types, WatermarkStrategy
from holdfast.datastream import (
    AggregateFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
)

pytestmark = pytest.mark.spark

PAYMENTS = [("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 15)]
SEEN = OutputTag("seen")


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        if count == 1:
            ctx.timer_service().register_event_time_timer(value[1] + 5)
        yield value[0], count
        yield SEEN, value

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), "timer", timestamp


class Mean(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]


class WithWindow(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, context.window().start, list(elements)


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    return env.set_restart_strategy(RestartStrategies.no_restart())


@pytest.fixture(autouse=True)
def functions_of_this_module_travel_by_value():
    """The workers' path does not hold the tests."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def timed(env: StreamExecutionEnvironment):
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value[1])
    return env.from_collection(PAYMENTS).assign_timestamps_and_watermarks(strategy)


def test_state_timers_side_outputs_and_unions(env):
    counted = timed(env).key_by(lambda value: value[0]).process(Count())
    everything = counted.map(lambda x: ("main", *x)).union(
        counted.get_side_output(SEEN).map(lambda x: ("seen", *x)),
        env.from_collection([1, 2]).rebalance().map(lambda x: ("more", x)),
    )
    with everything.execute_and_collect("union") as results:
        found = sorted(results, key=repr)
    assert found == sorted(
        [
            *(("main", "a", n) for n in (1, 2, 3)),
            *(("main", "b", n) for n in (1, 2)),
            ("main", "a", "timer", 6),
            ("main", "b", "timer", 7),
            *(("seen", *payment) for payment in PAYMENTS),
            ("more", 1),
            ("more", 2),
        ],
        key=repr,
    )


def test_windows_behind_windows(env):
    windows = timed(env).key_by(lambda value: value[0]).window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
    means = windows.aggregate(Mean(), WithWindow())
    per_window = (
        means.key_by(lambda result: result[1])
        .window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
        .reduce(lambda left, right: (min(left[0], right[0]), left[1], sorted(left[2] + right[2])))
    )
    assert sorted(per_window.execute_and_collect("windows")) == [("a", 0, [2.0, 3.0]), ("a", 10, [15.0])]


def test_a_limit_gives_a_list_and_ends_the_job(env):
    found = env.from_collection(range(1000)).key_by(lambda x: x % 3).sum().execute_and_collect("limited", limit=5)
    assert isinstance(found, list)
    assert len(found) == 5


def test_two_operators_may_be_given_one_function_object(env):
    count = Count()
    keyed = timed(env).key_by(lambda value: value[0])
    twice = keyed.process(count).filter(lambda x: x[1] != "timer").key_by(lambda x: x[0]).process(count)
    ends = {x[0]: x[1] for x in twice.filter(lambda x: x[1] != "timer").execute_and_collect("twice")}
    assert ends == {"a": 3, "b": 2}
