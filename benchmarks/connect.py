"""A job's epochs over Spark Connect beside those over RDDs, in interleaved pairs (ADR 66): latency, MB/s, processor time.

One JVM has the SparkContext and a Connect server. With ``connect``, the stages of each epoch are a plan of Connect:
``mapInArrow`` for a level, ``repartitionById`` for a shuffle, frames in a binary column. All else is the same: tasks, slots,
checkpoints. Needs ``pip install grpcio grpcio-status``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow
from pyspark import TaskContext

from benchmarks.measure import Usage, machine, this_process
from holdfast.common import Configuration, Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.runtime.jvm.pyspark_internals import java_session
from holdfast.runtime.spark import spark as executor
from holdfast.runtime.spark.level_task import LevelTask
from holdfast.runtime.spark.spark_context import spark_context
from holdfast.runtime.spark.stages import Stages

WARM = 5
"""Epochs that are not measured."""
KEYS = 10
SIZES = {"latency": (20, 15, 8), "volume": (10_000, 2, 2_000)}
"""Records of an epoch, epochs, and bytes of a record."""
_FRAME = pyarrow.schema([("target", pyarrow.int32()), ("frame", pyarrow.binary())])


@dataclass
class Turn:
    """What one job has measured."""

    seconds: list[float] = field(default_factory=list)
    """Of each epoch's Spark job."""
    cpu: list[float] = field(default_factory=list)
    """Processor seconds of all processes: before the job, and after each epoch."""
    sent: int = 0
    """Bytes of the largest request that the driver sent for an epoch; Connect only."""


@dataclass(frozen=True)
class Broadcasted:
    """The job's setup within the closure, as Connect has no broadcasts."""

    value: bytes


turn = Turn()
usage = Usage()
session: Any = None
workers = ""
"""A file with a line for each task of Connect: level, partition, process, executor, attempt."""


class TimedStages(Stages):
    """Stages of RDDs."""

    def collect(self, calls: Sequence[Sequence[bytes]]) -> list[bytes]:
        """Run an epoch."""
        began = time.perf_counter()
        frames = super().collect(calls)
        note(began)
        return frames


class ConnectStages(Stages):
    """Stages as a plan of Spark Connect."""

    def __init__(self, context: Any, tasks: Sequence[LevelTask], widths: Sequence[int], *others: Any) -> None:
        super().__init__(context, tasks, widths, *others)
        from pyspark.sql.connect.proto import ExecutePlanRequest  # noqa: F401  (fails here without grpcio)
        from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

        self._levels, self._partitions = tasks, widths
        self._held = Broadcasted(others[1].value)
        self._schema = StructType([StructField("target", IntegerType()), StructField("frame", BinaryType())])
        self._begin = session.range(0, widths[0], 1, widths[0])
        assert self._begin.columns == ["id"]

    def collect(self, calls: Sequence[Sequence[bytes]]) -> list[bytes]:
        """Run an epoch."""
        began = time.perf_counter()
        frame = self._begin
        for level, (task, own) in enumerate(zip(self._levels, calls)):
            if level:
                frame = frame.repartitionById(self._partitions[level], "target")
            frame = frame.mapInArrow(level_function(replace(task, calls=own), self._held, workers), self._schema)
        turn.sent = max(turn.sent, frame._plan.to_proto(session._client).ByteSize())
        found = frame.toArrow().column("frame").to_pylist()
        note(began)
        return found


def level_function(task: LevelTask, setup: Broadcasted, noted: str) -> Any:
    """What ``mapInArrow`` runs for a level."""
    schema, last, level = _FRAME, task.last, task.level

    def run(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        context = TaskContext.get()
        partition = context.partitionId()
        with open(noted, "a") as file:
            file.write(f"{level} {partition} {os.getpid()} {os.getppid()} {context.attemptNumber()}\n")
        given = (frame for batch in batches if level for frame in batch.column("frame").to_pylist())
        produced = task(partition, given, setup)
        for first in produced:
            target, frame = (0, first) if last else (int.from_bytes(first, "big"), next(produced))
            yield pyarrow.RecordBatch.from_arrays([pyarrow.array([target], "int32"), pyarrow.array([frame])], schema=schema)

    return run


def note(began: float) -> None:
    """Note the end of an epoch."""
    turn.seconds.append(time.perf_counter() - began)
    note_cpu()


def note_cpu() -> None:
    """Note what all processes have spent."""
    usage.sample(this_process())
    turn.cpu.append(sum(usage.cpu_s.values()))


class CountAll(KeyedProcessFunction[Any, Any, Any]):
    """Counts the records of a key; tells when all have come."""

    def __init__(self, expected: int) -> None:
        self.expected = expected

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        if count == self.expected:
            yield value[0]


def run_job(path: str, kind: str, directory: Path) -> Turn:
    """Run a job and check its results; returns what it measured."""
    global turn
    turn = Turn()
    of_epoch, epochs, size = SIZES[kind]
    executor.Stages = {"rdd": TimedStages, "connect": ConnectStages}[path]  # type: ignore[assignment, attr-defined]
    config = Configuration()
    for key, value in {
        "rest.port": "0",
        "execution.checkpointing.dir": f"file://{directory}/checkpoints",
        "io.tmp.dirs": str(directory / "local"),
        "holdfast.epoch.max-records": str(of_epoch),
        "state.backend.type": "hashmap",
    }.items():
        config.set_string(key, value)
    note_cpu()
    env = StreamExecutionEnvironment.get_execution_environment(config).set_parallelism(2)
    records = of_epoch * epochs
    numbers = env.from_source(NumberSequenceSource(0, records - 1), WatermarkStrategy.no_watermarks(), "numbers")
    keyed = numbers.map(lambda n: (n % KEYS, os.urandom(size))).key_by(lambda value: value[0])
    with keyed.process(CountAll(records // KEYS)).execute_and_collect(path) as results:
        found = sorted(results)
    assert found == list(range(KEYS)), found
    return turn


def figures(kind: str, done: Turn) -> dict[str, float]:
    """The figures of a turn."""
    of_epoch, epochs, size = SIZES[kind]
    if kind == "latency":
        spent = done.cpu[-1] - done.cpu[WARM]
        return {
            "ms": 1000 * statistics.median(done.seconds[WARM:]),
            "cpu ms": 1000 * spent / (len(done.seconds) - WARM),
        }
    megabytes = of_epoch * epochs * size / 1e6
    return {"MB/s": megabytes / sum(done.seconds), "cpu ms/MB": 1000 * (done.cpu[-1] - done.cpu[0]) / megabytes}


def where(noted: Path) -> dict[str, Any]:
    """Whether tasks found their workers again."""
    tasks = [tuple(map(int, line.split())) for line in noted.read_text().splitlines()]
    processes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for level, partition, process, parent, _ in tasks:
        processes.setdefault((level, partition), []).append((process, parent))
    pairs = [(a, b) for found in processes.values() for a, b in pairwise(found)]
    return {
        "tasks": len(tasks),
        "in the worker of the epoch before": sum(a[0] == b[0] for a, b in pairs) / max(1, len(pairs)),
        "on the executor of the epoch before": sum(a[1] == b[1] for a, b in pairs) / max(1, len(pairs)),
        "attempts": dict(Counter(task[4] for task in tasks)),
    }


def main(options: argparse.Namespace) -> None:
    """Run the pairs."""
    global session, workers
    settings = {"spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin", "spark.master": options.master}
    settings |= {"spark.connect.grpc.binding.port": str(options.port), "spark.connect.grpc.arrow.maxBatchSize": "64m"}
    context = spark_context("connect", settings)
    from pyspark.sql import SparkSession as Classic
    from pyspark.sql.connect.session import SparkSession

    assert java_session(Classic(context)) is not None
    session = SparkSession.builder.remote(f"sc://127.0.0.1:{options.port}").create()
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "64")
    with tempfile.TemporaryDirectory(prefix="connect-") as name:
        workers = f"{name}/workers"
        print(machine(), "load", os.getloadavg()[0], flush=True)
        found: dict[tuple[str, str], list[dict[str, float]]] = {}
        for pair in range(options.pairs):
            for kind in options.kinds:
                for path in ("rdd", "connect") if pair % 2 == 0 else ("connect", "rdd"):
                    result = run_job(path, kind, Path(name, f"{kind}-{pair}-{path}"))
                    found.setdefault((kind, path), []).append(figures(kind, result))
                    sent = f"{len(result.seconds)} epochs, {result.sent} bytes sent"
                    print(pair, kind, path, found[kind, path][-1], sent, flush=True)
        for (kind, path), each in found.items():
            medians = {key: round(statistics.median(one[key] for one in each), 1) for key in each[0]}
            print(kind, path, "median of", len(each), medians, flush=True)
        print("tasks of Connect:", where(Path(workers)), flush=True)
    session.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--port", type=int, default=15012)
    parser.add_argument("--master", default="local[2]")
    main(parser.parse_args())
