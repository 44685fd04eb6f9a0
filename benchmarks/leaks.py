"""Detects leaks of a long-running job: ``python -m benchmarks.leaks --epochs 2000``.

Runs a job with one key and one record per epoch, so that it does nothing but epochs, and repeatedly measures the driver,
its JVM, the task slots, Spark's Python workers and the local disk. Prints a line per sample and, at the end, the growth
of each quantity from the first third of the samples to the last; exits with 1 if any growth exceeds its allowance.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from holdfast.common import Configuration, Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.runtime.driver.job import Job

ALLOWED = {
    "driver_rss_mb": 8.0,
    "driver_threads": 2,
    "driver_files": 4,
    "driver_java_objects": 50,
    "jvm_heap_mb": 8.0,
    "jvm_threads": 8,
    "jvm_files": 8,
    "slots_rss_mb": 6.0,
    "slots_threads": 2,
    "slots_files": 4,
    "workers_rss_mb": 8.0,
    "workers": 2,
    "shuffle_files": 400,
    "local_mb": 8.0,
    "cached_rdds": 0,
    "checkpoint_files": 80,
}
"""Allowed growth, independent of the number of epochs: caches and pools need it to fill up."""


class Counting(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        return ()


def files(directory: Path) -> tuple[int, float]:
    """The number of files, and their total size in MB."""
    sizes = []
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(root, name)).st_size)
            except FileNotFoundError:
                continue
    return len(sizes), sum(sizes) / 2**20


def sums(processes: Sequence[psutil.Process]) -> tuple[float, int, int]:
    """Total memory in MB, threads and open files of the processes."""
    rss = threads = fds = 0
    for process in processes:
        try:
            with process.oneshot():
                rss += process.memory_info().rss
                threads += process.num_threads()
                fds += process.num_fds()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return rss / 2**20, threads, fds


def measure(context: Any, directory: Path) -> dict[str, float]:
    """Take one sample of all quantities."""
    from py4j.finalizer import ThreadSafeFinalizer

    jvm = context._jvm
    gc.collect()
    jvm.System.gc()
    runtime = jvm.Runtime.getRuntime()
    heap = (runtime.totalMemory() - runtime.freeMemory()) / 2**20
    me = psutil.Process()
    java, slots, workers = [], [], []
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
            if "holdfast.runtime.slots.slot_main" in command and str(directory) in command:
                slots.append(process)
            elif process in me.children(recursive=True):
                if "java" in process.name():
                    java.append(process)
                elif "pyspark.daemon" in command or "holdfast.runtime" in command:
                    workers.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    rss, threads, fds = sums([me])
    _, java_threads, java_fds = sums(java)
    slot_rss, slot_threads, slot_fds = sums(slots)
    worker_rss, _, _ = sums(workers)
    shuffle_files, shuffle_mb = files(directory / "spark")
    _, slot_mb = files(directory / "disk")
    checkpoint_files, _ = files(directory / "checkpoints")
    return {
        "driver_rss_mb": rss,
        "driver_threads": threads,
        "driver_files": fds,
        "driver_java_objects": len(ThreadSafeFinalizer.finalizers),
        "jvm_heap_mb": heap,
        "jvm_threads": java_threads,
        "jvm_files": java_fds,
        "slots_rss_mb": slot_rss,
        "slots_threads": slot_threads,
        "slots_files": slot_fds,
        "workers_rss_mb": worker_rss,
        "workers": len(workers),
        "shuffle_files": shuffle_files,
        "local_mb": shuffle_mb + slot_mb,
        "cached_rdds": context._jsc.getPersistentRDDs().size(),
        "checkpoint_files": checkpoint_files,
    }


def run(epochs: int, every: int, directory: Path, settings: dict[str, str]) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Run this many epochs; yields the number of epochs, the seconds and a sample after every ``every`` epochs."""
    from pyspark import SparkContext

    config = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(directory / "spark"),
        "spark.driver.memory": "512m",
        "io.tmp.dirs": str(directory / "disk"),
        "execution.checkpointing.dir": f"file://{directory}/checkpoints",
        "holdfast.epoch.max-records": "1",
        "rest.port": "0",
        **settings,
    }
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(config)).set_parallelism(1)
    numbers = env.from_source(NumberSequenceSource(0, epochs - 1), WatermarkStrategy.no_watermarks(), "numbers")
    numbers.key_by(lambda _: 1).process(Counting())
    began = time.monotonic()
    client = env.execute_async("leaks")
    assert isinstance(client, Job)
    result = client.get_job_execution_result()
    due = every
    while not result.done():
        done = int(client.metrics.snapshot().values.get("numEpochs", 0))
        if done >= due:
            yield done, time.monotonic() - began, measure(SparkContext._active_spark_context, directory)
            due += every
        time.sleep(0.05)
    result.result()


def growth(samples: Sequence[dict[str, float]]) -> dict[str, float]:
    """The growth of each quantity's mean from the first third of the samples to the last."""
    third = max(len(samples) // 3, 1)
    return {
        name: sum(s[name] for s in samples[-third:]) / third - sum(s[name] for s in samples[:third]) / third
        for name in samples[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2000)
    parser.add_argument("--every", type=int, help="epochs between two samples (default: a twentieth of all)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the job")
    options = parser.parse_args()
    every = options.every or max(options.epochs // 20, 10)
    directory = Path(tempfile.mkdtemp(prefix="hfl-"))
    samples = []
    try:
        for done, seconds, sample in run(options.epochs, every, directory, dict(s.split("=", 1) for s in options.set)):
            rounded = {name: round(value, 1) for name, value in sample.items()}
            print(json.dumps({"epochs": done, "seconds": round(seconds), **rounded}), flush=True)
            samples.append(sample)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    # During the first sample, pools and caches are still filling.
    grown = growth(samples[1:])
    too_much = {name: value for name, value in grown.items() if value > ALLOWED[name]}
    print(json.dumps({"growth": {name: round(value, 2) for name, value in grown.items()}, "too_much": list(too_much)}))
    sys.exit(1 if too_much else 0)


if __name__ == "__main__":
    main()
