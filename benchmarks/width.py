"""What an epoch costs as the number of subtasks grows: in the driver, in the tasks, and in Spark.

A source and a keyed count, both with N subtasks; each epoch brings ten records to each. The first part runs the job's real
driver, tasks and frames in one process, with the calls and reports as the bytes that Spark would carry, so that the
processor time of the driver can be told from that of the tasks. The second part (``--cluster``, `benchmarks.width_cluster`)
runs the same job on a Spark cluster, beside plain Spark jobs with as many tasks.
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
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import jobs, measure
from benchmarks.width_program import RECORDS, declare
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.runtime.driver.coordinator import ClosableExecutor
from holdfast.runtime.driver.job import Job
from holdfast.runtime.plan.task_messages import EpochAssignment, JobSetup, TaskReport
from holdfast.runtime.records.frames import BARRIER, unpack_header
from holdfast.runtime.spark.level_task import packed_calls
from holdfast.runtime.spark.spark import pickled_calls
from holdfast.testing.executor import InProcessExecutor

WARM_UP = 5
"""Initial epochs that do not count."""
_CAP_S = 1800.0
"""The longest time for a width, in seconds."""


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


def driver(
    width: int, epochs: int, splits: int = 1, settings: Sequence[str] = (), backend: str = "hashmap"
) -> dict[str, Any]:
    """The costs of an epoch of this width, driver and tasks apart; the source has ``splits`` for each subtask."""
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
        env = Environment(jobs.settings(work, backend, settings))
        declare(env, width, WARM_UP + epochs, splits)
        outcome = jobs.run(env, "width", note)
        told = [stats for _, stats in outcome.epochs][WARM_UP:]
        count = len(outcome.epochs)
        steps = list(zip(taken[WARM_UP - 1 :], taken[WARM_UP:]))
        (executor,) = executors
        return {
            "driver_cpu_ms": median([1000 * (b[0] - a[0] - (b[1] - a[1])) for a, b in steps]),
            "tasks_cpu_ms": median([1000 * (b[1] - a[1]) for a, b in steps]),
            "driver_phases_ms": {
                name: median([1000 * stats.phases[name] for stats in told]) for name in ("plan", "commit", "metadata")
            },
            "frames": round(sum(executor.frames.values()) / count),
            "barrier_frames": round(executor.frames[True] / count),
            **{f"{name}_kib": round(size / count / 1024, 1) for name, size in executor.bytes.items()},
            "ok": outcome.events == max(RECORDS // splits, 1) * splits * width * count,
        }
    finally:
        jobs.tidy(work)


def median(values: Sequence[float]) -> float:
    """The median, with two decimals."""
    return round(statistics.median(values), 2)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--subtasks", type=int, nargs="+", default=[8, 32, 128, 512], help="numbers of subtasks")
    parser.add_argument("--epochs", type=int, default=10, help="measured epochs of each width")
    parser.add_argument("--cluster", action="store_true", help="also on a Spark cluster")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure each width in its own process."""
    figures: dict[str, Any] = {"label": "holdfast", "workload": "width"}
    for width in options.subtasks:
        shape = str(width), str(options.epochs)
        figures[f"{width}"] = measure.child("benchmarks.width", shape, _CAP_S)
        if options.cluster:
            warm_up = str(max(12, 512 // width))
            figures[f"{width}_cluster"] = measure.child("benchmarks.width_cluster", (*shape, warm_up, *options.set), _CAP_S)
    return {**figures, "ok": all(each.get("ok", True) for each in figures.values() if isinstance(each, dict))}


if __name__ == "__main__":
    n, times = map(int, sys.argv[1:])
    print(json.dumps(driver(n, times)))
