"""Latency of Spark's own micro-batches, to compare `latency` with: transformWithState in Python, its state in RocksDB.

The job keeps a count per user and emits the timestamp of every input record. A generator writes JSON files, twenty a
second, each visible at once and whole. Latency is from a record's timestamp to the moment when the driver holds the
record's result. Output is at least once: there is no transaction. Spark has its default settings but for the provider of
state stores, as many shuffle partitions as cores, and triggers without a pause.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from benchmarks import jobs, measure
from holdfast.runtime.jvm.java import find_java
from holdfast.runtime.jvm.jvm import scripts_environment

FILES_PER_S = 20
_START_S = 120.0
"""Time limit of the first batch, which a busy machine needs."""


def generate(work: Path, rate: int, users: int, seconds: float, name: str) -> None:
    """The generator's process: ``rate`` records a second, in files whose names begin with ``name``."""
    began, number = time.time(), 0
    for file in range(int(seconds * FILES_PER_S)):
        due = began + file / FILES_PER_S
        time.sleep(max(0.0, due - time.time()))
        lines = []
        while number < (file + 1) * rate / FILES_PER_S:
            lines.append(orjson.dumps({"user_id": f"u{number * 7919 % users}", "sent": time.time_ns() // 1_000_000}))
            number += 1
        hidden = work / f"{name}-{file}.json"
        hidden.write_bytes(b"\n".join(lines))
        hidden.rename(work / "input" / hidden.name)


def spark(work: Path, rate: int, users: int, seconds: float, warm_up: float) -> None:
    """The job's process: prints the latencies (ms) after the warm-up, as JSON."""
    from pyspark.sql import Row, SparkSession
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Count(StatefulProcessor):
        """Counts a user's records."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            self.count = handle.getValueState("count", "n long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            found = self.count.get()
            count = found[0] if found else 0
            for row in rows:
                count += 1
                yield Row(sent=row["sent"])
            self.count.update((count,))

        def close(self) -> None:
            pass

    os.environ.update({**scripts_environment(find_java(own_first=True)), "PYSPARK_PYTHON": sys.executable})
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .getOrCreate()
    )
    lines = session.readStream.schema("user_id string, sent long").json(str(work / "input"))
    counts = lines.groupBy("user_id").transformWithState(Count(), "sent long", "append", "None")
    latencies: list[tuple[float, float]] = []
    batches: list[float] = []

    def take(batch: Any, number: int) -> None:
        rows = batch.collect()
        now = time.time()
        batches.append(now)
        latencies.extend((now, now * 1000 - row["sent"]) for row in rows)

    query = counts.writeStream.foreachBatch(take).option("checkpointLocation", str(work / "checkpoints")).start()
    generator = [sys.executable, "-m", "benchmarks.micro_batch", "generate", str(work), str(rate), str(users)]
    environment = measure.environment()
    subprocess.run([*generator, "1", "first"], env=environment, cwd=measure.ROOT, check=True)
    deadline = time.monotonic() + _START_S
    while not batches:
        if time.monotonic() > deadline:
            raise SystemExit(f"no batch within {_START_S:.0f} s: {query.status} {query.exception()}")
        time.sleep(0.05)
    begins = time.time()
    subprocess.run([*generator, str(seconds), "then"], env=environment, cwd=measure.ROOT, check=True)
    time.sleep(2)
    query.stop()
    session.stop()
    counted = [late for when, late in latencies if when > begins + warm_up]
    paces = [b - a for a, b in itertools.pairwise(batches) if a > begins + warm_up]
    print(json.dumps({"latencies": counted, "batch_ms": 1000 * statistics.median(paces) if paces else None}))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--rate", type=int, default=1_000, help="records per second")
    parser.add_argument("--users", type=int, default=50_000, help="number of keys")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--warm-up", type=float, default=10, help="seconds before latencies are measured")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the job under load; returns its latencies."""
    work = jobs.scratch()
    (work / "input").mkdir()
    try:
        arguments = [str(each) for each in (work, options.rate, options.users, options.seconds, options.warm_up)]
        said = subprocess.run(
            [sys.executable, "-m", "benchmarks.micro_batch", "spark", *arguments],
            env=measure.environment(), cwd=measure.ROOT, stdout=subprocess.PIPE, text=True, check=True,
        ).stdout  # fmt: skip
    finally:
        jobs.tidy(work)
    told = json.loads(said.splitlines()[-1])
    return {
        **measure.percentiles(sorted(told["latencies"])),
        "epoch_ms": told["batch_ms"] and round(told["batch_ms"]),
        "rate": options.rate,
        "users": options.users,
        "label": "spark micro-batch",
        "workload": "latency",
        "ok": bool(told["latencies"]),
    }


if __name__ == "__main__":
    task, where, *numbers = sys.argv[1:]
    if task == "generate":
        generate(Path(where), int(numbers[0]), int(numbers[1]), float(numbers[2]), numbers[3])
    else:
        spark(Path(where), int(numbers[0]), int(numbers[1]), float(numbers[2]), float(numbers[3]))
