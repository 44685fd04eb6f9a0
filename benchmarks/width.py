"""What an epoch costs as the number of subtasks grows: in the driver, in the tasks, and in Spark.

A source and a keyed count, both with N subtasks; each epoch brings ten records to each. The first part runs the job's real
driver, tasks and frames in one process, with the calls and reports as the bytes that Spark would carry, so that the
processor time of the driver can be told from that of the tasks. The second part (``--spark``) runs the same job on Spark
with N task slots on few cores, beside a plain Spark job with as many tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks import jobs, measure
from benchmarks.lone import Count
from holdfast.common import WatermarkStrategy
from holdfast.connectors.base import Batch, EpochInput, JobInfo, ReaderContext, SplitRange
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.runtime.frames import BARRIER, unpack_header
from holdfast.runtime.job import ClosableExecutor, Job
from holdfast.runtime.level_task import packed_calls
from holdfast.runtime.spark import pickled_calls
from holdfast.runtime.task_messages import EpochAssignment, JobSetup, TaskReport
from holdfast.testing.executor import InProcessExecutor

RECORDS = 10
"""Records of a subtask in an epoch."""
WARM_UP = 5
"""Initial epochs that do not count."""
PARALLELISM = 1024
"""The max parallelism of the job: more than any width."""
_CAP_S = 580.0


class Splits:
    """A source with one split per subtask, and records in each of them in every epoch."""

    bounded = True

    def __init__(self, width: int, epochs: int) -> None:
        self.width = width
        self.epochs = epochs

    def create_enumerator(self, job: JobInfo, uid: str) -> _SplitsEnumerator:
        return _SplitsEnumerator(self.width, self.epochs)

    def create_reader(self, context: ReaderContext) -> _SplitsReader:
        return _SplitsReader(self.width)


class _SplitsEnumerator:
    def __init__(self, width: int, epochs: int) -> None:
        self._width = width
        self._epochs = epochs
        self._next = 0

    def start(self, state: Any | None) -> None:
        self._next = state or 0

    def plan(self, max_records: int) -> EpochInput:
        epoch, self._next = self._next, self._next + 1
        ranges = [SplitRange(f"split-{n}", epoch, epoch + 1, RECORDS) for n in range(self._width)]
        return EpochInput(tuple(ranges), finished=self._next >= self._epochs)

    def snapshot(self) -> int:
        return self._next

    def checkpoint_completed(self, checkpoint_id: int, state: Any) -> None:
        pass

    def wait(self, timeout: float) -> None:
        time.sleep(timeout)

    def close(self) -> None:
        pass


class _SplitsReader:
    def __init__(self, width: int) -> None:
        self._width = width

    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch]:
        first = (part.start * self._width + int(part.split.removeprefix("split-"))) * RECORDS
        yield Batch([first + n for n in range(RECORDS)])

    def close(self) -> None:
        pass


def _declare(env: StreamExecutionEnvironment, width: int, epochs: int) -> None:
    env.set_parallelism(width)
    env.set_max_parallelism(PARALLELISM)
    records = env.from_source(Splits(width, epochs), WatermarkStrategy.no_watermarks(), "splits")
    records.key_by(lambda n: n % (RECORDS * width)).process(Count()).sink_to(jobs.Discard())


# ---- driver and tasks in one process -----------------------------------------------------------------------------------


class Carried(InProcessExecutor):
    """Runs the tasks in this process, with calls, frames and reports as bytes; measures their part of the processor time."""

    def __init__(self, setup: JobSetup, storage: Any, directory: str) -> None:
        super().__init__(setup, storage, directory)
        self._plan = setup.plan
        self.tasks_s = 0.0
        """The processor time of the tasks, in seconds."""
        self.frames: Counter[bool] = Counter()
        """The number of frames, and of those that are barriers alone (True)."""
        self.bytes: Counter[str] = Counter()
        for name in ("put", "put_new"):
            setattr(storage, name, self._counted(getattr(storage, name)))

    def _counted(self, put: Callable[[str, Any], None]) -> Callable[[str, Any], None]:
        def counted(path: str, data: Any) -> None:
            put(path, data)
            if not path.endswith(".delta"):
                self.bytes["metadata"] += len(data)

        return counted

    def run(self, assignment: EpochAssignment) -> list[TaskReport]:
        """Run all tasks, level by level."""
        calls = pickled_calls(self._plan, assignment, lambda width: [()] * width)
        self.bytes["calls"] += len(packed_calls(calls))
        began = time.thread_time()
        reports: list[bytes] = []
        frames: dict[tuple[int, int], list[bytes]] = {}

        def send(_: int, frame: bytes) -> None:
            header = unpack_header(frame)
            self.frames[header.kind == BARRIER] += 1
            self.bytes["frames"] += len(frame)
            frames.setdefault((header.level, header.partition), []).append(frame)

        for level, own in enumerate(calls):
            for partition, call in enumerate(own):
                part, vertex, n = pickle.loads(call)
                report = self._subtasks[(vertex, n)].run(part, frames.pop((level, partition), []), send)
                reports.append(pickle.dumps(report, 5))
        self.tasks_s += time.thread_time() - began
        self.bytes["reports"] += sum(map(len, reports))
        return [pickle.loads(report) for report in reports]


def driver(width: int, epochs: int) -> dict[str, Any]:
    """The costs of an epoch of this width, driver and tasks apart."""
    work = jobs.scratch()
    executors: list[Carried] = []

    class Here(Job):
        def _begin(self, session: Any, uri: str, continues: bool) -> None:
            """Start no Spark."""

        def _cores(self) -> int:
            return os.cpu_count() or 1

        def _new_presence(self) -> None:
            """Start no REST server."""

        def _new_executor(self, setup: JobSetup) -> ClosableExecutor:
            executors.append(Carried(setup, self._storage, str(work / "local")))
            return executors[-1]

    class Environment(StreamExecutionEnvironment):
        def execute_async(self, job_name: str | None = None) -> Any:
            plan = self._plan(job_name)
            job = Here(plan, None, self._replan(plan))
            self._operators.clear()
            job.start()
            return job

    taken: list[tuple[float, float]] = []

    def note(_: Any) -> None:
        running = executors[-1]
        taken.append((time.process_time(), running.tasks_s))

    try:
        env = Environment(jobs.settings(work, "hashmap"))
        _declare(env, width, WARM_UP + epochs)
        outcome = jobs.run(env, "width", note)
        told = [stats for _, stats in outcome.epochs][WARM_UP:]
        count = len(outcome.epochs)
        steps = list(zip(taken[WARM_UP - 1 :], taken[WARM_UP:]))
        (executor,) = executors
        return {
            "driver_cpu_ms": _median([1000 * (b[0] - a[0] - (b[1] - a[1])) for a, b in steps]),
            "tasks_cpu_ms": _median([1000 * (b[1] - a[1]) for a, b in steps]),
            "driver_phases_ms": {
                name: _median([1000 * stats.phases[name] for stats in told]) for name in ("plan", "commit", "metadata")
            },
            "frames": round(sum(executor.frames.values()) / count),
            "barrier_frames": round(executor.frames[True] / count),
            **{f"{name}_kib": round(size / count / 1024, 1) for name, size in executor.bytes.items()},
            "ok": outcome.events == RECORDS * width * count,
        }
    finally:
        jobs.tidy(work)


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 2)


# ---- on Spark ----------------------------------------------------------------------------------------------------------


def _cpu_by_role() -> dict[str, float]:
    """The processor time of this process and its descendants so far, in seconds by role."""
    usage = measure.Usage()
    usage.sample(measure.this_process())
    return usage.by_role()


def _grown(before: Mapping[str, float], after: Mapping[str, float], times: int) -> dict[str, float]:
    """Milliseconds of the processor per epoch, by role."""
    return {role: round(1000 * (seconds - before.get(role, 0.0)) / times, 1) for role, seconds in after.items()}


def on_spark(width: int, epochs: int, extra: Sequence[str]) -> None:
    """Holdfast's process: prints milliseconds per epoch, on the clock and of the processor by kind of process."""
    work = jobs.scratch()
    cpu: dict[int, dict[str, float]] = {}
    last = WARM_UP + epochs

    def note(_: Any) -> None:
        seen[0] += 1
        if seen[0] in (WARM_UP, last):
            cpu[seen[0]] = _cpu_by_role()

    seen = [0]
    try:
        env = StreamExecutionEnvironment.get_execution_environment(jobs.settings(work, "hashmap", extra))
        _declare(env, width, last)
        told = [stats for _, stats in jobs.run(env, "width", note).epochs][WARM_UP:]
        names = [name for name in told[-1].phases if not name.startswith("task.")]
        figures = {
            "ms": [stats.duration_ms for stats in told],
            "phases_ms": {name: _median([1000 * stats.phases[name] for stats in told]) for name in names},
            "cpu_ms": {
                role: round(1000 * (seconds - cpu[WARM_UP].get(role, 0.0)) / epochs, 1)
                for role, seconds in cpu[last].items()
            },
        }
        print(json.dumps(figures))
    finally:
        jobs.tidy(work)


def plain_spark(width: int, times: int) -> None:
    """The plain PySpark process: two stages of as many tasks, without anything in them."""
    from pyspark import SparkContext

    from holdfast.runtime.java import find_java
    from holdfast.runtime.jvm import scripts_environment

    os.environ.update(scripts_environment(find_java(own_first=True)))
    context = SparkContext(master="local[*]", appName="plain")
    taken = []
    cpu: dict[str, float] = {}
    for turn in range(WARM_UP + times):
        if turn == WARM_UP:
            cpu = _cpu_by_role()
        began = time.perf_counter()
        # Both stages in the JVM alone: what is left is Spark's own part of a task.
        context._jsc.parallelize(list(range(width)), width).repartition(width).count()
        taken.append(1000 * (time.perf_counter() - began))
    spent = _grown(cpu, _cpu_by_role(), times)
    context.stop()
    print(json.dumps({"ms": taken[WARM_UP:], "cpu_ms": spent}))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--subtasks", type=int, nargs="+", default=[8, 32, 128, 512], help="numbers of subtasks")
    parser.add_argument("--epochs", type=int, default=10, help="measured epochs of each width")
    parser.add_argument("--spark", action="store_true", help="also on Spark, up to 128 task slots")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure each width in its own process."""
    figures: dict[str, Any] = {"label": "holdfast", "workload": "width"}
    for width in options.subtasks:
        figures[f"{width}"] = _child("driver", width, options.epochs)
        if options.spark and width <= 128:
            figures[f"{width}_spark"] = _child("on_spark", width, options.epochs, *options.set)
            figures[f"{width}_plain"] = _child("plain_spark", width, options.epochs)
    return {**figures, "ok": all(each.get("ok", True) for each in figures.values() if isinstance(each, dict))}


def _child(part: str, *arguments: Any) -> dict[str, Any]:
    said = measure.child("benchmarks.width", (part, *map(str, arguments)), _CAP_S)
    told = {name: value for name, value in said.items() if name not in ("ms", "cpu_s")}
    return {**({"wall_ms": _median(said["ms"])} if "ms" in said else {}), **told}


if __name__ == "__main__":
    part, n, times, *extra = sys.argv[1:]
    if part == "driver":
        print(json.dumps(driver(int(n), int(times))))
    elif part == "on_spark":
        on_spark(int(n), int(times), extra)
    else:
        plain_spark(int(n), int(times))
