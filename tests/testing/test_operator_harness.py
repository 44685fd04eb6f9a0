"""The operator harness: elements, times, state and checkpoints of real operators, without a JVM."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from holdfast.common import Duration, Row, Time, Types, WatermarkStrategy
from holdfast.datastream import (
    AsyncDataStream,
    AsyncFunction,
    BroadcastProcessFunction,
    CheckpointedFunction,
    CoProcessFunction,
    DataStream,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    RuntimeContext,
)
from holdfast.datastream.functions import ProcessJoinFunction
from holdfast.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.datastream.window import EventTimeSessionWindows, TumblingEventTimeWindows, TumblingProcessingTimeWindows
from holdfast.errors import ConfigurationError, IncompatibleState, UserCodeError
from holdfast.testing import OneInputTestHarness, ProcessFunctionTestHarnesses, TwoInputTestHarness, VirtualClock

BACKENDS = [{"state.backend.type": "hashmap"}, {"state.backend.type": "rocksdb"}]
backends = pytest.mark.parametrize("backend", BACKENDS, ids=["hashmap", "rocksdb"])

COUNT = ValueStateDescriptor("count", Types.LONG())
SEEN = ListStateDescriptor("seen", Types.STRING())
AMOUNTS = MapStateDescriptor("amounts", Types.STRING(), Types.LONG())
LARGEST = ReducingStateDescriptor("largest", max, Types.LONG())
REFUSED = OutputTag("refused", Types.LONG())
RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())


class Account(KeyedProcessFunction[str, tuple[str, int], str]):
    """Counts payments; reports them 60 s after the first one by event time, and idle ones by processing time."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(COUNT)
        self.seen = runtime_context.get_list_state(SEEN)
        self.amounts = runtime_context.get_map_state(AMOUNTS)
        self.largest = runtime_context.get_reducing_state(LARGEST)

    def process_element(self, value: tuple[str, int], ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        _, amount = value
        if amount < 0:
            yield REFUSED, amount
            return
        if self.count.value() is None:
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 1000)
        self.count.update((self.count.value() or 0) + 1)
        self.seen.add(str(amount))
        self.amounts.put(str(amount), amount)
        self.largest.add(amount)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[str]:
        yield f"{ctx.get_current_key()} {ctx.time_domain().name} {self.count.value()}"


def account(**options: Any) -> OneInputTestHarness[tuple[str, int], str]:
    return ProcessFunctionTestHarnesses.for_keyed_process_function(Account(), lambda payment: payment[0], **options)


@backends
def an_element_changes_the_state_and_the_timers_of_its_key(backend: dict[str, str]) -> None:
    with account(configuration=backend) as harness:
        harness.process_element(("a", 3), 1000).process_element(("a", 9), 2000).process_element(("b", 4), 5000)
        assert harness.get_keyed_state(COUNT, "a") == 2
        assert harness.get_keyed_state(SEEN, "a") == ["3", "9"]
        assert harness.get_keyed_state(AMOUNTS, "a") == {"3": 3, "9": 9}
        assert harness.get_keyed_state(LARGEST, "a") == 9
        assert harness.get_keyed_state(COUNT, "nobody") is None
        assert harness.event_time_timers() == [(61_000, "a"), (65_000, "b")]
        assert harness.processing_time_timers() == [(1000, "a"), (1000, "b")]
        assert harness.get_output() == []


@backends
def a_timer_fires_when_its_time_comes(backend: dict[str, str]) -> None:
    with account(configuration=backend) as harness:
        harness.process_element(("a", 3), 1000)
        assert harness.process_watermark(60_999).get_output() == []
        assert harness.process_watermark(61_000).get_output() == [("a EVENT_TIME 1", 61_000)]
        harness.clear_output()
        assert harness.set_processing_time(999).get_output() == []
        assert harness.set_processing_time(5000).extract_output_values() == ["a PROCESSING_TIME 1"]
        assert harness.event_time_timers() == harness.processing_time_timers() == []


def a_side_output_is_read_by_its_tag() -> None:
    with account() as harness:
        harness.process_element(("a", -3), 0).process_element(("a", 3), 0)
        assert harness.get_side_output(REFUSED) == [-3]
        assert harness.get_side_output(OutputTag("other")) == []


@backends
@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (4, 2)])
def a_snapshot_is_restored_at_another_parallelism(backend: dict[str, str], before: int, after: int) -> None:
    shops = [f"shop-{n}" for n in range(20)]
    with account(configuration=backend, parallelism=before) as harness:
        for n, shop in enumerate(shops):
            harness.process_element((shop, n), n)
        harness.process_watermark(60_004)
        assert sorted(harness.extract_output_values()) == sorted(f"shop-{n} EVENT_TIME 1" for n in range(5))
        snapshot = harness.snapshot()
        harness.process_element(("shop-0", 5), 70_000)  # lost: it comes after the snapshot
    with account(configuration=backend, parallelism=after, snapshot=snapshot) as harness:
        assert [harness.get_keyed_state(COUNT, shop) for shop in shops] == [1] * 20
        assert len(harness.event_time_timers()) == 15
        harness.process_element(("shop-7", 1), 80_000)
        assert harness.get_keyed_state(COUNT, "shop-7") == 2
        harness.process_watermark(60_019)
        assert len(harness.get_output()) == 15


def a_state_that_no_function_has_is_reported() -> None:
    with account() as harness, pytest.raises(LookupError, match="no function has a keyed state 'nothing'"):
        harness.get_keyed_state(ValueStateDescriptor("nothing"), "a")


def a_snapshot_of_another_program_is_refused() -> None:
    with account() as harness:
        harness.process_element(("a", 3), 0)
        snapshot = harness.snapshot()
    with pytest.raises(IncompatibleState, match="KeyedProcess"):
        OneInputTestHarness(lambda stream: stream.map(str), snapshot=snapshot)


def a_wrong_program_is_refused_when_the_harness_is_made() -> None:
    with pytest.raises(ConfigurationError, match="parallelism"):
        OneInputTestHarness(lambda stream: stream.map(str).set_parallelism(0))
    with pytest.raises(TypeError, match="must return a stream, not None"):
        OneInputTestHarness(lambda stream: None)  # type: ignore[arg-type, return-value]


@backends
def the_windows_of_a_key_fire_and_drop_late_elements(backend: dict[str, str]) -> None:
    late = OutputTag("late")

    def totals(payments: DataStream) -> DataStream:
        windows = payments.key_by(lambda p: p[0]).window(TumblingEventTimeWindows.of(Time.seconds(10)))
        return windows.side_output_late_data(late).reduce(lambda a, b: (a[0], a[1] + b[1]))

    with OneInputTestHarness(totals, configuration=backend, parallelism=2) as harness:
        for element in (("a", 1, 1000), ("a", 2, 9999), ("b", 5, 3000), ("a", 7, 10_000)):
            harness.process_element(element[:2], element[2])
        assert harness.process_watermark(9_998).get_output() == []
        assert sorted(harness.process_watermark(9_999).get_output()) == [(("a", 3), 9_999), (("b", 5), 9_999)]
        harness.clear_output().process_element(("a", 100), 5000)
        assert harness.get_side_output(late) == [("a", 100)]
        snapshot = harness.snapshot()
    with OneInputTestHarness(totals, configuration=backend, snapshot=snapshot) as harness:
        assert harness.process_watermark(19_999).get_output() == [(("a", 7), 19_999)]


def a_late_element_without_a_side_output_is_counted() -> None:
    def count(stream: DataStream) -> DataStream:
        return (
            stream.key_by(lambda n: 0).window(EventTimeSessionWindows.with_gap(Time.seconds(1))).reduce(lambda a, b: a + b)
        )

    with OneInputTestHarness(count) as harness:
        harness.process_watermark(100_000).process_element(1, 5000)
        assert harness.num_late_records_dropped() == 1


def the_clock_moves_processing_time_windows() -> None:
    def count(stream: DataStream) -> DataStream:
        windows = stream.key_by(lambda n: n % 2).window(TumblingProcessingTimeWindows.of(Time.seconds(10)))
        return windows.reduce(lambda a, b: a + b)

    clock = VirtualClock(start=1_000)
    with OneInputTestHarness(count, clock=clock) as harness:
        harness.process_element(1).process_element(3).process_element(4)
        clock.advance(Duration.of_seconds(8))
        assert harness.get_output() == []
        clock.advance(1_000)
        assert sorted(harness.extract_output_values()) == [4, 4]
        with pytest.raises(ValueError, match="cannot go back"):
            clock.set(5)


def a_program_of_several_tasks_is_driven_as_one() -> None:
    def program(lines: DataStream) -> DataStream:
        words = lines.flat_map(lambda line: line.split())
        counts = words.map(lambda word: (word, 1)).key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
        return counts.key_by(lambda pair: pair[1]).reduce(lambda a, b: b).map(lambda pair: f"{pair[0]}:{pair[1]}")

    with OneInputTestHarness(program, parallelism=3) as harness:
        harness.process_element("a b a").process_element("b")
        assert sorted(harness.extract_output_values()) == ["a:1", "a:2", "b:1", "b:2"]


def a_generator_of_watermarks_within_the_program_moves_event_time() -> None:
    def program(stream: DataStream) -> DataStream:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value)
        timed = stream.assign_timestamps_and_watermarks(strategy)
        return (
            timed.key_by(lambda n: 0).window(TumblingEventTimeWindows.of(Time.milliseconds(10))).reduce(lambda a, b: a + b)
        )

    with OneInputTestHarness(program) as harness:
        harness.process_element(1).process_element(2)
        assert harness.process_element(15).get_output() == [(3, 9)]


def the_declared_types_of_input_and_output_hold() -> None:
    row = Types.ROW_NAMED(["shop", "amount"], [Types.STRING(), Types.LONG()])
    with OneInputTestHarness(lambda rows: rows.map(lambda r: (r[0], 2 * r[1]), row)) as harness:
        harness.process_element(("a", 4))
        assert harness.extract_output_values() == [Row(shop="a", amount=8)]
        with pytest.raises(UserCodeError, match="does not fit the declared type"):
            harness.process_element(("a", "x"))


def an_error_of_a_function_names_its_element() -> None:
    with OneInputTestHarness(lambda stream: stream.map(lambda n: 1 // n)) as harness:
        with pytest.raises(UserCodeError, match="0") as caught:
            harness.process_element(0)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


class Buffer(MapFunction[int, int], CheckpointedFunction):
    def initialize_state(self, context: Any) -> None:
        self.kept = context.get_operator_state_store().get_list_state(ListStateDescriptor("kept", Types.LONG()))

    def snapshot_state(self, context: Any) -> None:
        pass

    def map(self, value: int) -> int:
        self.kept.add(value)
        return value


def the_operator_state_is_divided_among_the_subtasks() -> None:
    def program(stream: DataStream) -> DataStream:
        return stream.rebalance().map(Buffer())

    with OneInputTestHarness(program) as harness:
        for n in range(6):
            harness.process_element(n)
        assert harness.get_operator_state("kept") == [[0, 1, 2, 3, 4, 5]]
        snapshot = harness.snapshot()
    with OneInputTestHarness(program, parallelism=2, snapshot=snapshot) as harness:
        assert harness.get_operator_state("kept") == [[0, 1, 2], [3, 4, 5]]
        with pytest.raises(LookupError):
            harness.get_operator_state("other")


class Match(KeyedCoProcessFunction[str, str, str, str]):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.order = runtime_context.get_state(ValueStateDescriptor("order", Types.STRING()))

    def process_element1(self, value: str, ctx: KeyedCoProcessFunction.Context) -> Iterable[str]:
        self.order.update(value)
        ctx.timer_service().register_event_time_timer(100)
        return ()

    def process_element2(self, value: str, ctx: KeyedCoProcessFunction.Context) -> Iterable[str]:
        yield f"{self.order.value()} paid by {value}"

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterable[str]:
        yield f"{self.order.value()} timed out"


def the_event_time_of_two_inputs_is_the_lower_watermark() -> None:
    first = ProcessFunctionTestHarnesses.for_keyed_co_process_function(Match(), lambda v: v[0], lambda v: v[0])
    with first as harness:
        harness.process_element1("a1", 0).process_element2("a2", 0)
        harness.process_watermark1(500)
        assert harness.extract_output_values() == ["a1 paid by a2"]
        assert harness.process_watermark2(100).extract_output_values()[1:] == ["a1 timed out"]
        harness.clear_output().process_both_watermarks(1000)
        assert harness.get_output() == []


class Tell(CoProcessFunction[int, str, str]):
    def process_element1(self, value: int, ctx: CoProcessFunction.Context) -> Iterable[str]:
        yield f"number {value} at {ctx.timestamp()}"

    def process_element2(self, value: str, ctx: CoProcessFunction.Context) -> Iterable[str]:
        yield f"text {value} at {ctx.timestamp()}"


def a_function_of_two_streams_gets_the_elements_of_each() -> None:
    with ProcessFunctionTestHarnesses.for_co_process_function(Tell()) as harness:
        harness.process_element1(5, 1).process_element2("x", 2)
        assert harness.extract_output_values() == ["number 5 at 1", "text x at 2"]


class Limits(KeyedBroadcastProcessFunction[str, tuple[str, int], tuple[str, int], str]):
    def process_element(self, value: Any, ctx: Any) -> Iterator[str]:
        limit = ctx.get_broadcast_state(RULES).get(value[0])
        if limit is not None and value[1] > limit:
            yield f"{value[0]} over {limit}"

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put(*value)


class PlainLimits(BroadcastProcessFunction[tuple[str, int], tuple[str, int], str]):
    process_element = Limits.process_element
    process_broadcast_element = Limits.process_broadcast_element


def the_rules_reach_every_subtask() -> None:
    keyed = ProcessFunctionTestHarnesses.for_keyed_broadcast_process_function(Limits(), lambda p: p[0], RULES, parallelism=3)
    plain = ProcessFunctionTestHarnesses.for_broadcast_process_function(PlainLimits(), RULES, parallelism=3)
    for made in (keyed, plain):
        with made as harness:
            harness.process_element1(("a", 50)).process_element2(("a", 10)).process_element1(("a", 50))
            assert harness.extract_output_values() == ["a over 10"]
            assert harness.get_operator_state("rules") == [{"a": 10}] * 3


class Pair(ProcessJoinFunction[tuple[str, int], tuple[str, int], tuple[int, int]]):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        yield left[1], right[1]


def a_join_of_two_streams_is_driven_as_one_operator() -> None:
    def join(left: DataStream, right: DataStream) -> DataStream:
        keyed = left.key_by(lambda v: v[0])
        return (
            keyed.interval_join(right.key_by(lambda v: v[0]))
            .between(Time.milliseconds(0), Time.milliseconds(5))
            .process(Pair())
        )

    with TwoInputTestHarness(join, parallelism=2) as harness:
        harness.process_element1(("a", 1), 10).process_element2(("a", 2), 15).process_element2(("a", 3), 16)
        assert harness.get_output() == [((1, 2), 15)]


class Doubled(AsyncFunction[int, int]):
    async def async_invoke(self, value: int) -> list[int]:
        await asyncio.sleep(0.001 * (10 - value))
        return [2 * value]


def a_request_of_async_io_is_answered_when_the_call_returns() -> None:
    def program(stream: DataStream) -> DataStream:
        doubled = AsyncDataStream.ordered_wait(stream, Doubled(), Time.seconds(60), 10)
        return (
            doubled.key_by(lambda n: 0).window(TumblingEventTimeWindows.of(Time.milliseconds(10))).reduce(lambda a, b: a + b)
        )

    with OneInputTestHarness(program) as harness:
        harness.process_element(1, 1).process_element(9, 2)
        assert harness.process_watermark(9).get_output() == [(20, 9)]


class Stamps(ProcessFunction[int, int]):
    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Iterable[int]:
        return [ctx.timestamp(), ctx.timer_service().current_watermark(), ctx.timer_service().current_processing_time()]


def a_process_function_sees_the_times_of_the_harness() -> None:
    with ProcessFunctionTestHarnesses.for_process_function(Stamps()) as harness:
        harness.process_watermark(7).set_processing_time(9).process_element(0, 8).process_element(0)
        assert harness.extract_output_values() == [8, 7, 9, -(2**63), 7, 9]


def the_harness_starts_no_jvm_and_does_not_import_spark() -> None:
    program = """
import sys
from holdfast.testing import OneInputTestHarness
with OneInputTestHarness(lambda stream: stream.key_by(lambda n: n).reduce(lambda a, b: a + b)) as harness:
    print(harness.process_element(4).process_element(4).extract_output_values())
print("pyspark" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={"PATH": ""}, check=False)
    assert done.stdout.splitlines() == ["[4, 8]", "False"], done.stderr
