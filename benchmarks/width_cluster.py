"""The epochs of `benchmarks.width` on a Spark cluster: the costs of each kind of process, and of the driver's threads.

A master, and workers that stand for hosts, run on this machine as separate processes; they have as many cores in name as
the job has subtasks. The processor time of one process cannot be shared by a cluster's cores: that of the driver's Python,
and of each thread of its JVM, is told apart. After the job, plain Spark jobs with as many tasks run in the same
SparkContext, on the same executors.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import jobs, measure, width
from benchmarks.width_program import declare
from holdfast.checkpoint.stores.directory_store import DirectoryStore
from holdfast.common import Configuration
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.runtime.spark.spark_context import PYTHON_DAEMON, spark_context
from holdfast.testing.cluster import LocalCluster

WORKERS = 4
"""Workers of the cluster."""
WARM_UP = 5
"""Runs of a plain job that do not count, after those of Holdfast's."""
PLAIN = ("plain", "plain_python")
"""The plain Spark jobs: with nothing in their tasks, and with a Python function in each."""
THREADS = {
    "dag-scheduler": "the scheduler's event loop",
    "dispatcher-Coar": "tasks out, states in",
    "task-result": "results of tasks",
    "rpc-": "network",
    "shuffle-": "network",
    "dispatcher": "other messages",
    "map-output": "other messages",
    "block-manager": "other messages",
    "spark-listener": "listeners",
    "Thread-": "calls from Python",
    "C1 ": "Java's compilers",
    "C2 ": "Java's compilers",
    "GC ": "Java's collector",
    "G1 ": "Java's collector",
    "VM ": "Java's collector",
}
"""What the threads of Spark's driver do, by the beginnings of their names, of which Linux keeps 15 characters."""


def thread_seconds(process: int) -> dict[str, float]:
    """The processor time of a process so far, by what its threads do, in seconds."""
    sums: dict[str, float] = {}
    for task in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):  # it has ended
            name = (task / "comm").read_text()
            kind = next((kind for begin, kind in THREADS.items() if name.startswith(begin)), "other threads")
            sums[kind] = sums.get(kind, 0.0) + int((task / "schedstat").read_text().split()[0]) / 1e9
    return sums


def _grown(before: Mapping[str, float], after: Mapping[str, float], times: int) -> dict[str, float]:
    """Milliseconds of the processor for each of so many epochs, the largest first."""
    grown = {name: round(1000 * (seconds - before.get(name, 0.0)) / times, 1) for name, seconds in after.items()}
    return dict(sorted(grown.items(), key=lambda entry: -entry[1]))


class Spent:
    """Processor time of the cluster's and the driver's processes, by role, and of the threads of the driver's JVM."""

    def __init__(self) -> None:
        self.usage = measure.Usage()
        self.roles: dict[str, float] = {}
        self.threads: dict[str, float] = {}

    def take(self) -> Spent:
        """Measure; returns this."""
        self.usage.sample(measure.this_process())
        self.roles = self.usage.by_role()
        self.threads = thread_seconds(next(pid for pid, role in self.usage.names.items() if role == "JVM"))
        return self

    def since(self, before: Spent, times: int) -> dict[str, dict[str, float]]:
        """Milliseconds of the processor for each of so many epochs."""
        return {
            "cpu_ms": _grown(before.roles, self.roles, times),
            "driver_jvm_threads_ms": _grown(before.threads, self.threads, times),
        }


def on_cluster(subtasks: int, epochs: int, warm_up: int, extra: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Run the job, then the plain Spark jobs, on a cluster with a core in name for each subtask; yields figures after each.

    Args:
        subtasks: The number of subtasks of each level.
        epochs: The number of epochs, and of runs of each plain job.
        warm_up: The number of epochs before them, which do not count: Java compiles what they run.
        extra: More settings, as ``key=value``.
    """
    cores = -(-subtasks // WORKERS)
    work = jobs.scratch()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    try:
        with LocalCluster([f"127.0.0.{2 + n}" for n in range(WORKERS)], cores, "1500m", "1g") as cluster:
            configuration = jobs.settings(work, "hashmap", extra)
            own = {
                "spark.executor.cores": str(cores),
                "spark.scheduler.minRegisteredResourcesRatio": "1.0",
                # As where Holdfast is installed on the hosts: Spark's workers share the memory of its modules, too.
                "spark.executorEnv.PYTHONPATH": f"{measure.ROOT}{os.pathsep}{measure.ROOT / 'src'}",
                "spark.python.daemon.module": PYTHON_DAEMON,
            }
            for key, value in {**cluster.settings(WORKERS * cores), **own}.items():
                configuration.set_string(key, value)
            figures: dict[str, Any] = {"ok": True}
            figures["holdfast"] = _holdfast(configuration, subtasks, epochs, warm_up)
            yield figures
            context = spark_context("width", configuration.to_dict())
            for name in PLAIN:
                figures[name] = _plain(context, name, subtasks, epochs)
                yield figures
    finally:
        jobs.tidy(work)


def _holdfast(configuration: Configuration, subtasks: int, epochs: int, first: int) -> dict[str, Any]:
    written = _metadata_written()
    spent: dict[int, Spent] = {}
    last = first + epochs
    memory: dict[str, int] = {}
    done = 0

    def note(_: Any) -> None:
        nonlocal done
        done += 1
        if done in (first, last):
            spent[done] = Spent().take()
            written[done] = written[0]
        if done == last:
            usage = spent[done].usage
            usage.sample_pss()
            memory.update(usage.pss_by_role())

    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    declare(env, subtasks, last)
    told = [stats for _, stats in jobs.run(env, "width", note).epochs][first:]
    names = [name for name in told[-1].phases if not name.startswith("task.")]
    return {
        "wall_ms": width.median([stats.duration_ms for stats in told]),
        "phases_ms": {name: width.median([1000 * stats.phases[name] for stats in told]) for name in names},
        "metadata_bytes": round((written[last] - written[first]) / epochs),
        **spent[last].since(spent[first], epochs),
        "pss_mib": memory,
    }


def _metadata_written() -> dict[int, int]:
    """Count the bytes that this process, the driver, stores from now on, in the entry of 0."""
    written = {0: 0}

    def counted(put: Callable[[DirectoryStore, str, Any], None]) -> Any:
        def count(store: DirectoryStore, path: str, data: Any) -> None:
            put(store, path, data)
            written[0] += len(data)

        return count

    for name in ("put", "put_new"):
        setattr(DirectoryStore, name, counted(getattr(DirectoryStore, name)))
    return written


def _plain(context: Any, name: str, subtasks: int, times: int) -> dict[str, Any]:
    """A plain Spark job of two levels with as many tasks."""

    def in_java() -> None:
        context._jsc.parallelize(list(range(subtasks)), subtasks).repartition(subtasks).count()

    def in_python() -> None:
        numbers = context.parallelize(range(subtasks), subtasks)
        numbers.map(lambda n: (n, n)).partitionBy(subtasks).mapPartitions(lambda part: [sum(1 for _ in part)]).collect()

    job = in_java if name == PLAIN[0] else in_python
    for _ in range(WARM_UP):
        job()
    before = Spent().take()
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        job()
        taken.append(1000 * (time.perf_counter() - began))
    return {"wall_ms": width.median(taken), **Spent().take().since(before, times)}


if __name__ == "__main__":
    given_subtasks, given_epochs, given_warm_up = map(int, sys.argv[1:4])
    for told in on_cluster(given_subtasks, given_epochs, given_warm_up, sys.argv[4:]):
        print(json.dumps(told), flush=True)
