"""Whether the cost of an epoch stays constant: time and CPU per event, memory, threads and files, by tenths of a run."""

from __future__ import annotations

import argparse
import stat
import statistics
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks import jobs, stateful
from benchmarks.measure import Usage
from holdfast.metrics.stats import EpochStats


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("data", nargs="?", default="u10k-2m")
    parser.add_argument("--workload", default="fraud", choices=stateful.WORKLOADS)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--backend", default="rocksdb", choices=("rocksdb", "hashmap"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run a workload in small epochs; returns its figures by tenths."""
    n = stateful.expected(options.data)["n"]
    per_epoch = max(1, n // options.epochs)
    work = jobs.scratch()
    watch = Watch(n // 10, work)
    settings = [f"holdfast.epoch.max-records={per_epoch}", *options.set]
    try:
        outcome = stateful.measure(options.workload, options.data, options.backend, 2, settings, watch.epoch, work)
    finally:
        jobs.tidy(work)
    return {
        "label": f"holdfast-{options.backend}",
        "workload": options.workload,
        "data": options.data,
        "records_per_epoch": per_epoch,
        **outcome.summary(),
        "tenths": watch.points,
        "ok": stateful.check(options.workload, options.data, outcome.counters()),
    }


class Watch:
    """Measures the job's processes after every ``every`` events; the job's files are in ``work``."""

    def __init__(self, every: int, work: Path) -> None:
        self._every = every
        self._work = work
        self._usage = Usage()
        self._epochs: list[EpochStats] = []
        self._seen = self._events = 0
        self._at = time.time()
        self._cpu = 0.0
        self.points: list[dict[str, float]] = []

    def epoch(self, stats: EpochStats) -> None:
        """Handle the end of an epoch."""
        self._epochs.append(stats)
        self._seen += 1
        self._events += stats.records_in
        if self._events >= self._every * (len(self.points) + 1):
            self._point()

    def _point(self) -> None:
        cpu = rss = threads = files = 0.0
        self._usage.sample(psutil.Process())
        for process in self._usage.processes.values():
            try:
                times = process.cpu_times()
                cpu += times.user + times.system
                rss += process.memory_info().rss
                threads += process.num_threads()
                files += process.num_fds()
            except psutil.Error:
                continue
        now = time.time()
        events = sum(stats.records_in for stats in self._epochs) or 1
        self.points.append(
            {
                "epochs": self._seen,
                "events": self._events,
                "epoch_ms": round(statistics.median(stats.duration_ms for stats in self._epochs), 1),
                "us_per_event": round((now - self._at) / events * 1e6, 2),
                "cpu_us_per_event": round((cpu - self._cpu) / events * 1e6, 2),
                "rss_mb": round(rss / 2**20),
                "threads": int(threads),
                "files": int(files),
                "disk_mb": round(_bytes_in(self._work) / 2**20, 1),
            }
        )
        self._epochs.clear()
        self._at, self._cpu = now, cpu


def _bytes_in(directory: Path) -> int:
    """The bytes of the run's checkpoints and local state on the disk; a file with several names counts once."""
    sizes: dict[int, int] = {}
    for path in directory.rglob("*"):
        try:
            found = path.lstat()
        except OSError:
            continue  # removed meanwhile
        if stat.S_ISREG(found.st_mode):
            sizes[found.st_ino] = found.st_size
    return sum(sizes.values())
