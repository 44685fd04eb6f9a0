"""Streams of functions know their elements and keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from typing_extensions import reveal_type

from holdfast.common import Row, Time, Types, WatermarkGenerator, WatermarkOutput, WatermarkStrategy
from holdfast.datastream import (
    AggregateFunction,
    AsyncDataStream,
    AsyncFunction,
    CoMapFunction,
    DataStream,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeyedStream,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    TimeWindow,
    ValueState,
)
from holdfast.datastream.functions import FlatMapFunction, ProcessJoinFunction, ReduceFunction
from holdfast.datastream.state import MapStateDescriptor, ValueStateDescriptor
from holdfast.datastream.window import EventTimeSessionWindows, TumblingEventTimeWindows

env = StreamExecutionEnvironment.get_execution_environment()


@dataclass(frozen=True)
class Payment:
    shop: str
    amount: float


LATE = OutputTag("late", Types.STRING())
ANY = OutputTag("any")


class Parse(MapFunction[str, Payment]):
    def map(self, value: str) -> Payment:
        shop, amount = value.split(",")
        return Payment(shop, float(amount))


class Words(FlatMapFunction[str, str]):
    def flat_map(self, value: str) -> Iterable[str]:
        return value.split()


class Split(ProcessFunction[str, int]):
    def process_element(self, value: str, ctx: ProcessFunction.Context) -> Iterator[int | tuple[OutputTag[str], str]]:
        yield len(value)
        yield LATE, value


class Total(KeyedProcessFunction[str, Payment, tuple[str, float]]):
    total: ValueState[float]

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.DOUBLE()))
        names = MapStateDescriptor("names", Types.STRING(), Types.INT())
        reveal_type(runtime_context.get_map_state(names))  # MapState[str, int]

    def process_element(self, value: Payment, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, float]]:
        total = (self.total.value() or 0.0) + value.amount
        self.total.update(total)
        yield value.shop, total


class Untyped(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        yield value


class Mean(AggregateFunction[Payment, tuple[float, int], float]):
    def create_accumulator(self) -> tuple[float, int]:
        return 0.0, 0

    def add(self, value: Payment, accumulator: tuple[float, int]) -> tuple[float, int]:
        return accumulator[0] + value.amount, accumulator[1] + 1

    def get_result(self, accumulator: tuple[float, int]) -> float:
        return accumulator[0] / accumulator[1]


class Report(ProcessWindowFunction[float, str, str, TimeWindow]):
    def process(self, key: str, context: ProcessWindowFunction.Context[Any], elements: Iterable[float]) -> Iterator[str]:
        yield f"{key} {context.window()} {sum(elements)}"


class Larger(ReduceFunction[Payment]):
    def reduce(self, value1: Payment, value2: Payment) -> Payment:
        return max(value1, value2, key=lambda payment: payment.amount)


class Either(CoMapFunction[Payment, str, str]):
    def map1(self, value: Payment) -> str:
        return value.shop

    def map2(self, value: str) -> str:
        return value


class Both(KeyedCoProcessFunction[str, Payment, str, int]):
    def process_element1(self, value: Payment, ctx: KeyedCoProcessFunction.Context) -> Iterable[int]:
        return [int(value.amount)]

    def process_element2(self, value: str, ctx: KeyedCoProcessFunction.Context) -> Iterable[int]:
        return [len(value)]


class Paid(ProcessJoinFunction[Payment, str, tuple[Payment, str]]):
    def process_element(self, left: Payment, right: str, ctx: ProcessJoinFunction.Context) -> Iterable[tuple[Payment, str]]:
        yield left, right


def amount(payment: Payment) -> float:
    return payment.amount


def anything(value):  # type: ignore[no-untyped-def]
    return value


lines = env.from_collection(["coffee,3", "books,20"])
reveal_type(lines)  # DataStream[str]
payments = lines.map(Parse())
reveal_type(payments)  # DataStream[Payment]
reveal_type(payments.map(amount))  # DataStream[float]
reveal_type(payments.map(lambda payment: payment.amount * 2))  # DataStream[float]
reveal_type(payments.map(anything))  # DataStream[Any]
reveal_type(payments.filter(lambda payment: payment.amount > 1))  # DataStream[Payment]
reveal_type(lines.flat_map(lambda line: line.split(",")))  # DataStream[str]
reveal_type(lines.flat_map(Words()))  # DataStream[str]
reveal_type(payments.map(lambda p: (p.shop, p.amount), Types.ROW([Types.STRING(), Types.DOUBLE()])))  # DataStream[Row]
rows = payments.map(lambda p: Row(p.shop), output_type=Types.ROW_NAMED(["shop"], [Types.STRING()]))
reveal_type(rows.map(lambda row: row.shop))  # DataStream[Any]
reveal_type(env.from_collection([(1, "a")], Types.ROW([Types.INT(), Types.STRING()])))  # DataStream[Row]
reveal_type(env.from_collection([[1]], type_info=Types.LIST(Types.LONG())))  # DataStream[list[int]]
reveal_type(env.read_text_file("/tmp/x"))  # DataStream[str]

split = lines.process(Split())
reveal_type(split)  # DataStream[int]
reveal_type(split.get_side_output(LATE))  # DataStream[str]
reveal_type(split.get_side_output(ANY))  # DataStream[Any]
reveal_type(split.union(lines))  # DataStream[int | str]

keyed = payments.key_by(lambda payment: payment.shop)
reveal_type(keyed)  # KeyedStream[str, Payment]
reveal_type(payments.key_by(lambda p: (p.shop,), Types.ROW([Types.STRING()])))  # KeyedStream[Row, Payment]
reveal_type(keyed.process(Total()))  # DataStream[tuple[str, float]]
reveal_type(keyed.process(Untyped()))  # DataStream[Any]
reveal_type(keyed.reduce(Larger()))  # DataStream[Payment]
reveal_type(keyed.map(amount).name("amounts").uid("amounts"))  # DataStream[float]
reveal_type(keyed.dedup(Time.hours(1)))  # DataStream[Payment]
reveal_type(keyed.dedup(Time.hours(1), keep="last"))  # DataStream[Row]
reveal_type(keyed.top_n(3, lambda payment: payment.amount))  # DataStream[Row]
pairs = lines.map(lambda line: (line, 1)).key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
pairs.print()

windows = keyed.window(TumblingEventTimeWindows.of(Time.minutes(1)))
reveal_type(windows)  # WindowedStream[str, Payment, TimeWindow]
reveal_type(windows.aggregate(Mean()))  # DataStream[float]
reveal_type(windows.aggregate(Mean(), Report()))  # DataStream[str]
reveal_type(windows.allowed_lateness(5).reduce(Larger()))  # DataStream[Payment]
sessions = keyed.map(amount).key_by(str).window(EventTimeSessionWindows.with_gap(Time.seconds(1)))
reveal_type(sessions.process(Report()))  # DataStream[str]
reveal_type(payments.count_window_all(5))  # AllWindowedStream[Payment, CountWindow]

both = payments.connect(lines)
reveal_type(both)  # ConnectedStreams[Payment, str]
reveal_type(both.map(Either()))  # DataStream[str]
reveal_type(both.key_by(lambda p: p.shop, lambda line: line).process(Both()))  # DataStream[int]
joined = keyed.interval_join(lines.key_by(lambda line: line)).between(Time.seconds(0), Time.seconds(1)).process(Paid())
reveal_type(joined)  # DataStream[tuple[Payment, str]]
versions = keyed.temporal_join(lines.key_by(lambda line: line))
reveal_type(versions.apply(lambda payment, line: len(line)))  # DataStream[int]
reveal_type(versions.left_outer())  # TemporalJoin[Payment, str | None]


class Score(AsyncFunction[Payment, float]):
    async def async_invoke(self, value: Payment) -> list[float]:
        return [value.amount]


reveal_type(AsyncDataStream.ordered_wait(payments, Score(), Time.seconds(1)))  # DataStream[float]


paired = payments.join(lines).where(lambda p: p.shop).equal_to(lambda line: line)
minutes = paired.window(TumblingEventTimeWindows.of(Time.minutes(1)))
reveal_type(minutes)  # JoinedWindows[Payment, str]
reveal_type(minutes.apply(lambda payment, line: (payment.amount, line)))  # DataStream[tuple[float, str]]
grouped = payments.co_group(lines).where(lambda p: p.shop).equal_to(str)
counts = grouped.window(TumblingEventTimeWindows.of(Time.minutes(1))).apply(lambda some, others: [len(list(others))])
reveal_type(counts)  # DataStream[int]


def of_any_kind(stream: DataStream, keyed: KeyedStream) -> DataStream:
    return stream.union(keyed)


def of_objects(stream: DataStream[object]) -> DataStream[str]:
    return stream.map(str)


of_objects(payments)
of_any_kind(payments, keyed)
watermarked = payments.assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps())
reveal_type(watermarked)  # DataStream[Payment]


class AtLargePayments(WatermarkGenerator[Payment]):
    def on_event(self, event: Payment, timestamp: int, output: WatermarkOutput) -> None:
        if event.amount > 1000:
            output.emit_watermark(timestamp)


at_large_payments = WatermarkStrategy.for_generator(AtLargePayments)
reveal_type(payments.assign_timestamps_and_watermarks(at_large_payments))  # DataStream[Payment]
for total in keyed.process(Total()).execute_and_collect():
    reveal_type(total)  # tuple[str, float]
reveal_type(lines.execute_and_collect("job", 5))  # list[str]
reveal_type(lines.execute_and_collect(limit=5))  # list[str]
