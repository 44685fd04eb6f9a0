"""A lone epoch: the cost of a nearly empty epoch, compared with a plain PySpark job of as many stages.

Twenty records arrive at a time, each batch after the previous one is complete and a pause has passed. Holdfast keeps a
count per key and completes a checkpoint in every epoch. The PySpark job, in a session with Spark's default settings, only
sums the records. Both run in their own processes, in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import jobs, measure
from holdfast.common import Types, WatermarkStrategy
from holdfast.connectors.base import Batch, EpochInput, JobInfo, ReaderContext, SplitRange
from holdfast.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.runtime.jvm.java import find_java
from holdfast.runtime.jvm.jvm import scripts_environment

RECORDS = 20
PAUSE_S = 0.1
_CAP_S = 900.0
"""Time limit of a run, which a busy machine needs."""
WARM_UP = 20
"""Initial epochs and jobs that do not count."""


class Lots:
    """A source of twenty numbers per epoch, with a pause before each epoch."""

    bounded = True

    def __init__(self, lots: int) -> None:
        self.lots = lots

    def create_enumerator(self, job: JobInfo, uid: str) -> _LotEnumerator:
        return _LotEnumerator(self.lots)

    def create_reader(self, context: ReaderContext) -> _LotReader:
        return _LotReader()


class _LotEnumerator:
    def __init__(self, lots: int) -> None:
        self._lots = lots
        self._next = 0
        self._due = 0.0

    def start(self, state: Any | None) -> None:
        self._next = state or 0

    def plan(self, max_records: int) -> EpochInput:
        if time.monotonic() < self._due:
            return EpochInput()
        lot, self._next = self._next, self._next + 1
        ranges = [SplitRange(f"half-{n}", lot, lot + 1, RECORDS // 2) for n in range(2)]
        return EpochInput(tuple(ranges), finished=self._next >= self._lots)

    def snapshot(self) -> int:
        return self._next

    def checkpoint_completed(self, checkpoint_id: int, state: Any) -> None:
        self._due = time.monotonic() + PAUSE_S

    def wait(self, timeout: float) -> None:
        time.sleep(max(0.0, min(timeout, self._due - time.monotonic())))

    def close(self) -> None:
        pass


class _LotReader:
    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch]:
        yield Batch([part.start * RECORDS + n for n in range(RECORDS // 2)])

    def close(self) -> None:
        pass


class Count(KeyedProcessFunction):
    """Counts a key's records."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: int, ctx: Any) -> Iterator[int]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield count


def holdfast(stages: int, epochs: int, extra: Sequence[str]) -> None:
    """Holdfast's process: prints the milliseconds of each epoch."""
    work = jobs.scratch()
    try:
        env = StreamExecutionEnvironment.get_execution_environment(jobs.settings(work, "rocksdb", extra))
        env.set_parallelism(2)
        lots = env.from_source(Lots(WARM_UP + epochs), WatermarkStrategy.no_watermarks(), "lots")
        stream = lots.key_by(lambda n: n % 10).process(Count()) if stages == 2 else lots.map(lambda n: n + 1)
        stream.sink_to(jobs.Discard())
        outcome = jobs.run(env, "lone")
        told = [stats for _, stats in outcome.epochs]
        assert sum(stats.records_in for stats in told) == RECORDS * (WARM_UP + epochs)
        phases = {
            name: round(1000 * statistics.median(stats.phases.get(name, 0.0) for stats in told[WARM_UP:]), 1)
            for name in told[-1].phases
        }
        print(json.dumps({"ms": [stats.duration_ms for stats in told][WARM_UP:], "phases_ms": phases}))
    finally:
        jobs.tidy(work)


def spark(stages: int, times: int) -> None:
    """The plain PySpark process: prints the milliseconds of each job."""
    from pyspark import SparkContext

    os.environ.update(scripts_environment(find_java(own_first=True)))
    context = SparkContext(master="local[*]", appName="plain")
    taken = []
    for turn in range(WARM_UP + times):
        time.sleep(PAUSE_S)
        began = time.perf_counter()
        records = context.parallelize(range(turn * RECORDS, (turn + 1) * RECORDS), 2)
        if stages == 2:
            records = records.map(lambda n: (n % 10, n)).partitionBy(2).mapPartitions(lambda part: [sum(n for _, n in part)])
        else:
            records = records.map(lambda n: n + 1)
        records.collect()
        taken.append(1000 * (time.perf_counter() - began))
    context.stop()
    print(json.dumps({"ms": taken[WARM_UP:]}))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--epochs", type=int, default=50, help="measured epochs (and jobs) per run")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each engine, in turn")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run both engines in turn; returns the medians."""
    taken: dict[str, list[float]] = {}
    figures: dict[str, Any] = {"label": "holdfast-rocksdb", "workload": "lone"}
    for _ in range(options.rounds):
        for stages in (2, 1):
            for engine in ("holdfast", "spark"):
                said = _run(engine, str(stages), str(options.epochs), *(options.set if engine == "holdfast" else ()))
                taken.setdefault(f"{engine}_{stages}", []).extend(said["ms"])
                if "phases_ms" in said:
                    figures[f"phases_{stages}_ms"] = said["phases_ms"]
    medians = {name: round(statistics.median(times), 1) for name, times in taken.items()}
    for name, median in medians.items():
        figures[f"{name}_ms"] = median
        figures[f"{name}_p90_ms"] = round(statistics.quantiles(taken[name], n=10)[-1], 1)
    figures |= {f"ratio_{n}": round(medians[f"holdfast_{n}"] / medians[f"spark_{n}"], 2) for n in (2, 1)}
    return {**figures, "lone_epoch_ms": round(medians["holdfast_2"]), "ok": True}


def _run(*arguments: str) -> Any:
    return measure.child("benchmarks.lone", arguments, _CAP_S)


if __name__ == "__main__":
    engine, stages, times, *extra = sys.argv[1:]
    if engine == "holdfast":
        holdfast(int(stages), int(times), extra)
    else:
        spark(int(stages), int(times))
