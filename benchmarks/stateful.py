"""Stateful jobs that other engines can run as well, from CSV files to a discarding sink.

``fraud``   Per user: a count with its deadline in one state, the last ten amounts in another. The first event of a period
            sets a timer ten minutes ahead, which clears both; every event from the eighth on emits an alert. An event
            after the deadline starts a new period even if the timer has not fired, so the result is the same on every
            engine.
``window``  Per user: sum and count in windows of one minute of event time; every result is emitted.
``window_batches``  The same by batches: CSV lines become columns, the built-in aggregates work on them, and a function of
            batches looks at the results.
``pass``    Per user: a function that does nothing, to measure everything around it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyarrow import compute

from benchmarks import jobs
from benchmarks import measure as measured
from benchmarks.data import LAST, PERIOD_MS, THRESHOLD, data_set, expected
from holdfast.common import Duration, Time, Types, WatermarkStrategy
from holdfast.datastream import (
    AggregateFunction,
    DataStream,
    KeyedProcessFunction,
    MapFunction,
    ProcessWindowFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from holdfast.datastream.connectors.file_system import FileSource, StreamFormat
from holdfast.datastream.formats.csv import CsvRowDeserializationSchema
from holdfast.datastream.operations.batches import BatchMapFunction, Count, Sum, col
from holdfast.datastream.state import ListStateDescriptor, ValueStateDescriptor
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.metrics.stats import EpochStats

WORKLOADS = ("fraud", "window", "window_batches", "pass")
Event = tuple[int, float, int]


class Parse(MapFunction):
    """Parses a line into user, amount and timestamp."""

    def open(self, runtime_context: RuntimeContext) -> None:
        jobs.note_start(runtime_context)

    def map(self, value: str) -> Event:
        user, amount, timestamp = value.split(",")
        return int(user), float(amount), int(timestamp)


class Fraud(KeyedProcessFunction):
    """Detects many payments of one user within ten minutes."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.period = runtime_context.get_state(ValueStateDescriptor("period", Types.TUPLE([Types.LONG(), Types.LONG()])))
        self.last = runtime_context.get_list_state(ListStateDescriptor("last", Types.DOUBLE()))
        metrics = runtime_context.get_metrics_group()
        self.n = metrics.counter("n")
        self.alerts = metrics.counter("alerts")
        self.periods = metrics.counter("periods")
        self.quarters = metrics.counter("alert_quarters")

    def process_element(self, value: Event, ctx: Any) -> Iterator[tuple[int, int, float]]:
        self.n.inc()
        user, amount, timestamp = value
        period = self.period.value()
        if period is None or timestamp >= period[1]:
            count, deadline, amounts = 0, timestamp + PERIOD_MS, []
            ctx.timer_service().register_event_time_timer(deadline)
            self.periods.inc()
        else:
            count, deadline = period
            amounts = list(self.last.get())
        count += 1
        amounts.append(amount)
        if len(amounts) > LAST:
            del amounts[0]
        self.period.update((count, deadline))
        self.last.update(amounts)
        if count >= THRESHOLD:
            total = sum(amounts)
            self.alerts.inc()
            self.quarters.inc(int(total * 4))
            yield user, count, total

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        period = self.period.value()
        if period is not None and period[1] == timestamp:
            self.period.clear()
            self.last.clear()


class Pass(KeyedProcessFunction):
    """Does nothing."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.n = runtime_context.get_metrics_group().counter("n")

    def process_element(self, value: Event, ctx: Any) -> None:
        self.n.inc()


class SumAndCount(AggregateFunction):
    """Aggregates the sum and count of amounts."""

    def create_accumulator(self) -> tuple[float, int]:
        return 0.0, 0

    def add(self, value: Event, accumulator: tuple[float, int]) -> tuple[float, int]:
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator: tuple[float, int]) -> tuple[float, int]:
        return accumulator

    def merge(self, a: tuple[float, int], b: tuple[float, int]) -> tuple[float, int]:
        return a[0] + b[0], a[1] + b[1]


class Emit(ProcessWindowFunction):
    """Emits a window's result with its user and start."""

    def open(self, runtime_context: RuntimeContext) -> None:
        metrics = runtime_context.get_metrics_group()
        self.windows = metrics.counter("windows")
        self.quarters = metrics.counter("total_quarters")
        self.n = metrics.counter("n")

    def process(
        self, key: int, context: Any, elements: Iterable[tuple[float, int]]
    ) -> Iterator[tuple[int, int, float, int]]:
        for total, count in elements:
            self.windows.inc()
            self.quarters.inc(int(total * 4))
            self.n.inc(count)
            yield key, context.window().start, total, count


class Start(BatchMapFunction):
    """Notes the time of the first batch."""

    def open(self, runtime_context: RuntimeContext) -> None:
        jobs.note_start(runtime_context)

    def map_batch(self, batch: Any) -> Any:
        return batch


class Tally(BatchMapFunction):
    """Counts results as `Emit` does."""

    def open(self, runtime_context: RuntimeContext) -> None:
        metrics = runtime_context.get_metrics_group()
        self.windows = metrics.counter("windows")
        self.quarters = metrics.counter("total_quarters")
        self.n = metrics.counter("n")

    def map_batch(self, batch: Any) -> Any:
        self.windows.inc(batch.num_rows)
        self.quarters.inc(int(compute.sum(batch.column("total")).as_py() * 4))
        self.n.inc(compute.sum(batch.column("events")).as_py())
        return batch


def build_batches(env: StreamExecutionEnvironment, directory: Path) -> DataStream:
    """Build the window job by batches, without its sink."""
    parts = [str(directory / f"part-{part}.csv") for part in (0, 1)]
    event = Types.ROW_NAMED(["user", "amount", "at"], [Types.LONG(), Types.DOUBLE(), Types.LONG()])
    lines = StreamFormat.csv(schema=CsvRowDeserializationSchema.Builder(event).build())
    in_time_order = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5))
    return (
        env.from_source(FileSource.for_record_stream_format(lines, *parts).build(), WatermarkStrategy.no_watermarks(), "csv")
        .map_batch(Start(), event)
        .assign_timestamps_and_watermarks(in_time_order.with_timestamp_assigner(col("at")))
        .key_by(col("user"))
        .window(TumblingEventTimeWindows.of(Time.minutes(1)))
        .agg(total=Sum("amount"), events=Count())
        .map_batch(Tally())
        .filter_batch(lambda batch: compute.less(batch.column("events"), 0))
    )


def build(env: StreamExecutionEnvironment, workload: str, directory: Path) -> DataStream:
    """Build the job, without its sink."""
    if workload == "window_batches":
        return build_batches(env, directory)
    parts = [str(directory / f"part-{part}.csv") for part in (0, 1)]
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), *parts).build()
    in_time_order = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5))
    by_user = (
        env.from_source(source, WatermarkStrategy.no_watermarks(), "csv")
        .map(Parse())
        .assign_timestamps_and_watermarks(in_time_order.with_timestamp_assigner(lambda event, _: event[2]))
        .key_by(lambda event: event[0])
    )
    if workload == "fraud":
        return by_user.process(Fraud())
    if workload == "window":
        return by_user.window(TumblingEventTimeWindows.of(Time.minutes(1))).aggregate(SumAndCount(), Emit())
    return by_user.process(Pass())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("data", help="a data set, e.g. u10k-2m: 10,000 users, 2,000,000 events")
    parser.add_argument("--backend", default="rocksdb", choices=("rocksdb", "hashmap"))
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run one workload; returns its figures."""
    work = jobs.scratch()
    usage = measured.Usage()
    spent: list[tuple[int, dict[str, float]]] = [(0, {})]

    def each(stats: EpochStats) -> None:
        usage.sample(measured.this_process())
        spent.append((spent[-1][0] + stats.records_in, {**usage.by_role(), "wall": time.time()}))

    try:
        outcome = measure(options.workload, options.data, options.backend, options.parallelism, options.set, each, work)
    finally:
        jobs.tidy(work)
    events, taken = measured.second_half(spent[1:])
    seconds = taken.pop("wall")
    return {
        "label": f"holdfast-{options.backend}",
        "workload": options.workload,
        "data": options.data,
        **outcome.summary(),
        "second_half": {
            "events": events,
            "events_per_s": round(events / seconds) if events and seconds else 0,
            "cpu_us_by_process": {role: round(cpu / events * 1e6, 2) for role, cpu in taken.items()} if events else {},
        },
        "ok": check(options.workload, options.data, outcome.counters()),
    }


def measure(
    workload: str, data: str, backend: str, parallelism: int, extra: list[str], each: Any, work: Path
) -> jobs.Outcome:
    """Run one workload to its end; checkpoints and local state go to ``work``."""
    directory = data_set(data)
    env = StreamExecutionEnvironment.get_execution_environment(jobs.settings(work, backend, extra))
    env.set_parallelism(parallelism)
    build(env, workload, directory).sink_to(jobs.Discard())
    return jobs.run(env, f"{workload}-{data}", each)


def check(workload: str, data: str, got: dict[str, Any]) -> bool:
    """Whether the counters match the data set's checksums."""
    for quarters, name in (("alert_quarters", "alert_sum"), ("total_quarters", "total")):
        if quarters in got:
            got[name] = got.pop(quarters) / 4
    want = expected(data)
    sums = want[workload.removesuffix("_batches")]
    return got.get("n") == want["n"] and all(got.get(name) == value for name, value in sums.items())
