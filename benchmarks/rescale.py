"""The pause of a running job when its parallelism changes: 2, 4, 3, under full load, with a kilobyte of state a key.

Each event checks its key's count, so a rescaling that lost or duplicated an event would fail the job. The pause is the time
between the last epoch before the change and the first one after it; beside it stand the times between other epochs.

    python -m benchmarks rescale --keys 1000000
    python -m benchmarks rescale --keys 1000000 --engine flink-java

On Flink, a change of parallelism is a stop with a native savepoint and a start from it: ``stop_s`` and ``start_s`` (to the
first results of all subtasks; the JVM stays the same, so that it is warm) are what a user waits for, and ``read_mb`` is what
the JVM read in the second one.
"""

from __future__ import annotations

import argparse
import os
import statistics
from typing import Any

from benchmarks import jobs, measure, restart
from benchmarks.peers.run import flink_java

STEPS = (4, 3)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--keys", type=int, default=100_000, help="keys of 1 KiB each; a multiple of 8")
    parser.add_argument("--engine", default="holdfast", choices=("holdfast", "flink-java"))
    parser.add_argument("--backend", default="rocksdb", choices=("rocksdb", "hashmap"), help="of Holdfast")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Fill, rescale twice, cancel; returns the pauses in seconds."""
    return _run_flink(options) if options.engine == "flink-java" else _run(options)


def _run_flink(options: argparse.Namespace) -> dict[str, Any]:
    work = jobs.scratch()
    try:
        done = measure.run(flink_java("FlinkRescale", [str(options.keys), str(work)]), 3600)
    finally:
        jobs.tidy(work)
    figures = {"label": "flink-java-rocksdb", "workload": "rescale", "data": f"{options.keys} keys"} | measure.usage_of(done)
    if done.told is None:
        return {**figures, "ok": False, "error": done.output[-2000:]}
    return {**figures, **done.told, "ok": True}


def _run(options: argparse.Namespace) -> dict[str, Any]:
    os.environ["PYTHONPATH"] = measure.environment()["PYTHONPATH"]  # of Spark's workers
    work = jobs.scratch()
    figures: dict[str, Any] = {"label": f"holdfast-{options.backend}", "workload": "rescale", "data": f"{options.keys} keys"}
    try:
        settings = ["holdfast.epoch.target-duration=500 ms", *options.set]
        job = jobs.RunningJob(restart.program(work, options.keys, options.backend, settings), "rescale")
        client, outcome = job.client, job.outcome

        def epochs(number: int) -> None:
            job.until(lambda: len(outcome.epochs) >= number)

        job.until(lambda: job.records >= options.keys * 11 // 10)
        figures["state_mb"] = round(client.metrics.snapshot().completed[-1].full_bytes / 2**20)
        pauses = []
        for parallelism in STEPS:
            epochs(len(outcome.epochs) + 10)
            client.rescale(parallelism).result(120)
            before = len(outcome.epochs)
            epochs(before + 1)
            pauses.append(outcome.epochs[before][0] - outcome.epochs[before - 1][0])
        epochs(len(outcome.epochs) + 10)
        gaps = [later[0] - earlier[0] for earlier, later in zip(outcome.epochs[5:], outcome.epochs[6:])]
        client.cancel().result(120)
        figures["pauses_s"] = [round(pause, 2) for pause in pauses]
        figures["epoch_s"] = round(statistics.median(gaps), 2)
    finally:
        jobs.tidy(work)
    return {**figures, "ok": True}
