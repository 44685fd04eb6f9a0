"""One ``StatefulProcessor`` in PySpark's ``transformWithState`` and in Holdfast's, beside each other; and ``from_spark``.

``value``   A count and a sum per user, in a value state.
``map``     Counts of a user's pages, in a map state.
``timers``  A count with a time-to-live of an hour; each call moves a timer, which fires right after the batch.

Both engines read the same Parquet files, one a batch or an epoch, with two partitions and RocksDB, and call by batch.
Results are a row for each row of the input; their number and sum are checked. Processor time is that of all processes, from
their start to their end; ``busy_cpu_s`` is that from the first batch's or epoch's beginning to the last one's end.
``rows``    The rows of a DataFrame of five columns into a job, after a smaller one: rows per second, and processor time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks import jobs, measure
from holdfast.common import WatermarkStrategy
from holdfast.datastream import MapFunction, RuntimeContext, StreamExecutionEnvironment
from holdfast.datastream.connectors.file_system import FileSource, StreamFormat
from holdfast.datastream.operations.batches import BatchFilterFunction, col
from holdfast.runtime.jvm.java import find_java
from holdfast.runtime.jvm.jvm import scripts_environment

_STARTS = 4
_LOOK_S = 0.2
PAGES = 7
TTL_MS = 3_600_000
OUTPUT = "user long, n long"
ENGINES = ("holdfast", "pyspark")
ROWS = "rows"


class Value(StatefulProcessor):
    """Counts a user's rows, and sums their amounts."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.state = handle.getValueState("state", "n long, total double")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        n, total = self.state.get() if self.state.exists() else (0, 0.0)
        for row in rows:
            n, total = n + 1, total + row.amount
            yield Row(user=key[0], n=n)
        self.state.update((n, total))

    def close(self) -> None:
        pass


class Map(StatefulProcessor):
    """Counts a user's rows by page."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.pages = handle.getMapState("pages", "page long", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            page = (row.page,)
            n = self.pages.getValue(page)[0] + 1 if self.pages.containsKey(page) else 1
            self.pages.updateValue(page, (n,))
            yield Row(user=key[0], n=n)

    def close(self) -> None:
        pass


class Timers(StatefulProcessor):
    """Counts a user's rows in a state that expires, and moves a timer with each call."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n long", TTL_MS)
        self.fired = handle.getValueState("fired", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        n = self.count.get()[0] if self.count.exists() else 0
        for _ in rows:
            n += 1
            yield Row(user=key[0], n=n)
        self.count.update((n,))
        for timer in self.handle.listTimers():
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        n = self.fired.get()[0] if self.fired.exists() else 0
        self.fired.update((n + 1,))
        return iter([])

    def close(self) -> None:
        pass


WORKLOADS: Mapping[str, tuple[type[StatefulProcessor], str]] = {
    "value": (Value, "None"),
    "map": (Map, "None"),
    "timers": (Timers, "ProcessingTime"),
}


class Sent(StatefulProcessor):
    """Counts a user's records, and gives the moment at which each was sent; a timer ends the count after a minute.

    Spark's workload for its real-time mode, by records (`benchmarks.latency`).
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        n = self.count.get()[0] if self.count.exists() else 0
        for row in rows:
            if not n:
                self.handle.registerTimer(row.event_time + 60_000)
            n += 1
            yield Row(sent=str(row.sent))
        self.count.update((n,))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        self.count.clear()
        return iter([])

    def close(self) -> None:
        pass


def data_set(keys: int, rows: int, batches: int) -> tuple[Path, dict[str, int]]:
    """The directory of the files, made if it does not exist; and the number and sum of the results by workload."""
    import numpy
    import pyarrow
    from pyarrow import parquet

    chance = numpy.random.default_rng(7)
    users = chance.integers(0, keys, rows)
    pages = chance.integers(0, PAGES, rows)
    by_user = numpy.bincount(users).astype(object)
    by_page = numpy.bincount(users * PAGES + pages).astype(object)
    sums = [int((counts * (counts + 1) // 2).sum()) for counts in (by_user, by_page, by_user)]
    found = measure.BENCH / "data" / f"processors-{keys}-{rows}-{batches}"
    if not found.exists():
        table = pyarrow.table({"user": users, "page": pages, "amount": numpy.arange(rows) % 100 / 4})
        hidden = found.with_name(f"{found.name}-{os.getpid()}")
        hidden.mkdir(parents=True)
        for n in range(batches):
            first = n * rows // batches
            parquet.write_table(table.slice(first, (n + 1) * rows // batches - first), hidden / f"{n:02}.parquet")
            os.utime(hidden / f"{n:02}.parquet", (n + 1, n + 1))  # Spark's order is that of the times
        try:
            hidden.rename(found)
        except OSError:
            shutil.rmtree(hidden)
    return found, dict(zip(WORKLOADS, sums, strict=True))


class Tally(MapFunction):
    """Counts and sums results."""

    def open(self, runtime_context: RuntimeContext) -> None:
        metrics = runtime_context.get_metrics_group()
        self.rows, self.sum = metrics.counter("rows"), metrics.counter("sum")

    def map(self, value: Any) -> Any:
        self.rows.inc()
        self.sum.inc(value.n)
        return value


def of_holdfast(workload: str, directory: Path, rows: int, call_mode: str, work: Path) -> dict[str, Any]:
    """Run it in a job, an epoch for each file."""
    processor, time_mode = WORKLOADS[workload]
    limit = f"holdfast.epoch.max-records={rows // len(list(directory.iterdir()))}"
    env = StreamExecutionEnvironment.get_execution_environment(jobs.settings(work, "rocksdb", [limit]))
    env.set_parallelism(2)
    files = sorted(map(str, directory.iterdir()))
    source = FileSource.for_bulk_file_format(StreamFormat.parquet(), *files).build()
    keyed = env.from_source(source, WatermarkStrategy.no_watermarks(), "parquet").key_by(col("user"))
    found = keyed.transform_with_state(processor(), OUTPUT, time_mode, call_mode=call_mode)
    found.map(Tally()).sink_to(jobs.Discard())
    with measure.Course() as course:
        outcome = jobs.run(env, f"processors-{workload}")
    told = outcome.counters()
    return {"results": told["rows"], "sum": told["sum"], "epochs": len(outcome.epochs),
            **_busy(course, outcome.began, outcome.ended)}  # fmt: skip


def _busy(course: measure.Course, began: float, ended: float) -> dict[str, Any]:
    """The seconds and processor time between two moments."""
    spent = course.between(began, ended)
    return {"busy_s": round(ended - began, 2), "busy_cpu_s": round(sum(spent.values()), 2), "busy_cpu_by_process_s": spent}


def session() -> SparkSession:
    """A session of PySpark with its default settings but for RocksDB, two partitions, and no UI."""
    os.environ.update({**scripts_environment(find_java(own_first=True)), "PYSPARK_PYTHON": sys.executable})
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.stateStore.providerClass", provider)
        .getOrCreate()
    )


def of_pyspark(workload: str, directory: Path, work: Path) -> dict[str, Any]:
    """Run it in a query, a batch for each file."""
    processor, time_mode = WORKLOADS[workload]
    spark = session()
    rows = spark.readStream.schema("user long, page long, amount double").option("maxFilesPerTrigger", 1)
    grouped = rows.parquet(str(directory)).groupBy("user")
    found = grouped.transformWithState(processor(), OUTPUT, "append", time_mode)
    results, files = [0, 0, 0], len(list(directory.iterdir()))

    def take(batch: Any, number: int) -> None:
        count, total = batch.selectExpr("count(*)", "sum(n)").first()
        results[0] += count
        results[1] += total or 0
        results[2] += 1

    writer = found.writeStream.foreachBatch(take).option("checkpointLocation", str(work / "checkpoints"))
    with measure.Course() as course:
        for attempt in range(_STARTS):
            query = writer.trigger(availableNow=True).start()
            try:
                while not query.awaitTermination(_LOOK_S):
                    if time_mode == "ProcessingTime" and results[2] > files:
                        query.stop()  # it would look for timers for ever; the batch behind the files fired all of them
                break
            except StreamingQueryException as error:  # its first Python worker has ten seconds, too few on a busy machine
                if "failed to connect back" not in str(error) or attempt == _STARTS - 1:
                    raise
        ended = time.time()
        first = query.recentProgress[0].timestamp
    spark.stop()
    began = datetime.fromisoformat(first.replace("Z", "+00:00")).timestamp()
    return {"results": results[0], "sum": results[1], "epochs": results[2], **_busy(course, began, ended)}


class Last(BatchFilterFunction):
    """Counts rows, and passes none on: a sink would take them as Rows."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.rows = runtime_context.get_metrics_group().counter("rows")

    def filter_batch(self, batch: Any) -> Any:
        self.rows.inc(batch.num_rows)
        return pyarrow.nulls(batch.num_rows, "bool")


def of_rows(rows: int, work: Path) -> dict[str, Any]:
    """Read a DataFrame of five columns in a job."""
    spark = session()
    counted, taken = 0, 0.0
    with measure.Course() as course:
        for count in (rows // 20, rows):
            frame = spark.range(0, count, 1, 8).selectExpr(
                "concat('u', id % 10000) AS user",
                "id",
                "id % 7 AS page",
                "id * 0.25D AS amount",
                "timestamp_millis(id) AS at",
            )
            env = StreamExecutionEnvironment.get_execution_environment(
                jobs.settings(work / str(count), "rocksdb"), spark=spark
            )
            env.set_parallelism(2).from_spark(frame, event_time="at").filter_batch(Last()).sink_to(jobs.Discard())
            began = time.time()
            counted = jobs.run(env, "rows").counters()["rows"]
            ended = time.time()
            taken = ended - began
    spent = course.between(began, ended)
    spark.stop()
    return {
        "results": counted,
        "sum": counted,
        "busy_s": round(taken, 2),
        "events_per_s": round(rows / taken),
        "cpu_us_by_process": {role: round(cpu / rows * 1e6, 2) for role, cpu in spent.items()},
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("workload", choices=(*WORKLOADS, ROWS))
    parser.add_argument("--engine", choices=ENGINES, default="holdfast")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batches", type=int, default=10, help="files, each of which is a batch or an epoch")
    parser.add_argument("--call-mode", choices=("epoch", "record"), default="epoch", help="of Holdfast")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run one workload on one engine; returns its figures."""
    work, rows = jobs.scratch(), options.rows
    try:
        if options.workload == ROWS:
            figures, expected = of_rows(rows, work), rows
        else:
            directory, sums = data_set(options.keys, rows, options.batches)
            expected = sums[options.workload]
            if options.engine == "holdfast":
                figures = of_holdfast(options.workload, directory, rows, options.call_mode, work)
            else:
                figures = of_pyspark(options.workload, directory, work)
    finally:
        jobs.tidy(work)
    return {
        **figures,
        "label": options.engine,
        "workload": options.workload,
        "keys": options.keys,
        "rows": rows,
        "ok": (figures["results"], figures["sum"]) == (rows, expected),
    }


def commands(*, short: bool) -> Iterator[list[str]]:
    """The commands of one round: PySpark takes some minutes for each at most."""
    for workload in WORKLOADS:
        slow = workload == "timers"  # for PySpark, as each call lists the key's timers
        sizes = [("2000", "12000") if slow else ("10000", "60000" if short else "200000")]
        if not short:
            sizes.append(("1000000", "20000" if slow else "500000"))
        for keys, rows in sizes:
            for engine in ENGINES:
                yield ["processors", workload, "--engine", engine, "--keys", keys, "--rows", rows]
    yield ["processors", ROWS, "--rows", "2000000"]


def table(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """The section of the report."""
    lines = ["| state | keys | rows | runs | PySpark | Holdfast | ratio | without the start: PySpark | Holdfast | ratio |",
             "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    groups: dict[tuple[Any, ...], dict[str, list[Mapping[str, Any]]]] = {}
    for each in results:
        if each["ok"] and each["workload"] != ROWS:
            cell = groups.setdefault((each["workload"], each["keys"], each["rows"]), {})
            cell.setdefault(each["label"], []).append(each)
    for (workload, keys, rows), cell in groups.items():
        if set(cell) == set(ENGINES):
            cells = [workload, f"{keys:,}", f"{rows:,}", str(min(map(len, cell.values())))]
            for figure in ("cpu_s", "busy_cpu_s"):
                ours, theirs = (_median(cell[name], figure) for name in ENGINES)
                cells += [_spread(cell["pyspark"], figure), _spread(cell["holdfast"], figure), f"{theirs / ours:.1f}"]
            lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    rates = [each for each in results if each["ok"] and each["workload"] == ROWS]
    if rates:
        spent = statistics.median(sum(each["cpu_us_by_process"].values()) for each in rates)
        rate = f"{_median(rates, 'events_per_s'):,.0f} rows/s, {spent:.2f} µs of processor time a row"
        lines += [f"`from_spark`, five columns: {rate}, Spark's own for the DataFrame included.", ""]
    return lines


def _spread(results: Iterable[Mapping[str, Any]], name: str) -> str:
    """The median in seconds; of several runs with the least and the greatest."""
    values = sorted(each[name] for each in results)
    middle = f"{statistics.median(values):.1f} s"
    return middle if len(values) == 1 else f"{middle} ({values[0]:.1f} to {values[-1]:.1f})"


def _median(results: Iterable[Mapping[str, Any]], name: str) -> float:
    return float(statistics.median(each[name] for each in results))
