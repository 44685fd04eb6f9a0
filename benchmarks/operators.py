"""Jobs around one operator each, from CSV files to a count of results. Flink runs the same (`peers/FlinkOperators.java`).

``session``    Sum and count of a user's payments in sessions with a gap of 30 s.
``join``       A user's payments below 500 with those from 500 on, at most 20 s apart: an interval join.
``dedup``      The first payment of each id (the user with an eighth of the amounts), remembered for a day: `dedup`. In
               Flink, a KeyedProcessFunction with a ValueState and a time-to-live.
``enrich``     Every payment with a rate out of broadcast state.
``top``        The ten largest payments of each user, as a changelog: `top_n`. In Flink, a KeyedProcessFunction with a
               ListState.
``pattern``    Three payments below 50 before one above 950, within ten minutes: CEP.
``async``      Every payment through an asynchronous function that answers after 10 ms, capacity 100, unordered.

The processor time of all processes counts from half of the input on, when JIT compilers and caches are warm.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import jobs, measure
from benchmarks.data import Events, data_set
from benchmarks.stateful import Event, Parse, SumAndCount
from holdfast.cep import CEP, AfterMatchSkipStrategy, Pattern
from holdfast.common import Duration, Time, Types, WatermarkStrategy
from holdfast.datastream import (
    AsyncDataStream,
    AsyncFunction,
    CheckpointedFunction,
    DataStream,
    EventTimeSessionWindows,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedBroadcastProcessFunction,
    MapFunction,
    ProcessJoinFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from holdfast.datastream.connectors.file_system import FileSource, StreamFormat
from holdfast.datastream.state import MapStateDescriptor

WORKLOADS = ("session", "join", "dedup", "enrich", "top", "pattern", "async")
_RATES = MapStateDescriptor("rates", Types.LONG(), Types.DOUBLE())


class Tally(MapFunction, CheckpointedFunction):
    """Counts results, and adds up their amounts in quarters: in fields, as in Flink's job, which tell their metrics."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.results = self.quarters = 0

    def open(self, runtime_context: RuntimeContext) -> None:
        self.metrics = runtime_context.get_metrics_group()

    def map(self, value: float) -> float:
        self.results += 1
        self.quarters += int(value * 4)
        return value

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.metrics.counter("results").inc(self.results)
        self.metrics.counter("quarters").inc(self.quarters)
        self.results = self.quarters = 0


class Pair(ProcessJoinFunction):
    """The sum of a pair's amounts."""

    def process_element(self, left: Event, right: Event, ctx: Any) -> Iterator[float]:
        yield left[1] + right[1]


class Rated(KeyedBroadcastProcessFunction):
    """Payments with their rates. All rates are 1, so that the result does not depend on when they arrive."""

    def process_element(self, value: Event, ctx: Any) -> Iterator[float]:
        rate = ctx.get_broadcast_state(_RATES).get(value[0] % 64)
        yield value[1] if rate is None else value[1] * rate

    def process_broadcast_element(self, value: tuple[int, float], ctx: Any) -> Iterator[float]:
        ctx.get_broadcast_state(_RATES).put(value[0], value[1])
        return iter(())


class Answers(AsyncFunction[Event, float]):
    """Answers after 10 ms."""

    async def async_invoke(self, value: Event) -> list[float]:
        await asyncio.sleep(0.01)
        return [value[1]]


def probes() -> Pattern:
    """Three small payments before a large one."""
    begin = Pattern.begin("probes", AfterMatchSkipStrategy.skip_past_last_event())
    small = begin.where(lambda payment: payment[1] < 50).times(3)
    return small.followed_by("large").where(lambda payment: payment[1] > 950).within(Time.minutes(10))


def build(env: StreamExecutionEnvironment, workload: str, directory: Path) -> DataStream:
    """Build the job up to its results, which are amounts."""
    parts = [str(directory / f"part-{part}.csv") for part in (0, 1)]
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), *parts).build()
    times = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5))
    payments = (
        env.from_source(source, WatermarkStrategy.no_watermarks(), "csv")
        .map(Parse())
        .assign_timestamps_and_watermarks(times.with_timestamp_assigner(lambda event, _: event[2]))
    )
    by_user = payments.key_by(lambda event: event[0])
    match workload:
        case "session":
            windows = by_user.window(EventTimeSessionWindows.with_gap(Time.seconds(30)))
            return windows.aggregate(SumAndCount()).map(lambda result: result[0])
        case "join":
            small = payments.filter(lambda event: event[1] < 500).key_by(lambda event: event[0])
            large = payments.filter(lambda event: event[1] >= 500).key_by(lambda event: event[0])
            return small.interval_join(large).between(Time.seconds(-20), Time.seconds(20)).process(Pair())
        case "dedup":
            ids = payments.key_by(lambda event: event[0] * 8 + int(event[1]) % 8)
            return ids.dedup(Time.days(1)).map(lambda event: event[1])
        case "enrich":
            rates = env.from_collection([(number, 1.0) for number in range(64)])
            return by_user.connect(rates.broadcast(_RATES)).process(Rated())
        case "top":
            return by_user.top_n(10, lambda event: event[1]).map(lambda row: row[1])
        case "pattern":
            return CEP.pattern(by_user, probes()).select(lambda match: match["large"][0][1])
        case _:
            return AsyncDataStream.unordered_wait(payments, Answers(), Time.seconds(60), 100)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("data", help="a data set, e.g. u10k-1m: 10,000 users, 1,000,000 events")
    parser.add_argument("--backend", default="rocksdb", choices=("rocksdb", "hashmap"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the job")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run one workload; returns its figures."""
    work = jobs.scratch()
    directory = data_set(options.data)
    # Checkpoints as far apart as Flink's, but one after the first half of the input, where the measurement begins.
    epochs = ("holdfast.epoch.target-duration=10 s", f"holdfast.epoch.max-records={Events.size(options.data) // 2}")
    usage = measure.Usage()
    spent: list[tuple[int, dict[str, float]]] = []

    def each(stats: Any) -> None:
        usage.sample(measure.this_process())
        spent.append(((spent[-1][0] if spent else 0) + stats.records_in, usage.by_role()))

    try:
        env = StreamExecutionEnvironment.get_execution_environment(
            jobs.settings(work, options.backend, [*epochs, *options.set])
        )
        env.set_parallelism(2)
        build(env, options.workload, directory).map(Tally()).sink_to(jobs.Discard())
        outcome = jobs.run(env, f"{options.workload}-{options.data}", each)
    finally:
        jobs.tidy(work)
    counters = outcome.counters()
    events, cpu = measure.second_half(spent)
    return {
        "label": f"holdfast-{options.backend}",
        "workload": options.workload,
        "data": options.data,
        **outcome.summary(),
        "events_per_cpu_s": round(events / sum(cpu.values())),
        "cpu_us_by_process": {role: round(seconds / events * 1e6, 2) for role, seconds in cpu.items()},
        "results": counters.get("results", 0),
        "sum": counters.get("quarters", 0) / 4,
    }
