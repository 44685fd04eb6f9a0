"""The time from the start of a program to the first line of its result: a small stateful job, each engine in turn.

Warm: Holdfast with its AOT cache, as in every run except a user's first. Cold: with an empty cache directory. For
comparison: plain PySpark with Spark's default settings (two stages, no state) and, with ``--peers``, the same job in Java
in Flink's local JVM.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks import measure
from benchmarks.peers import run as peers
from holdfast.runtime.jvm.aot_cache import AotCache
from holdfast.runtime.jvm.java import find_java
from holdfast.runtime.jvm.jvm import scripts_environment, spark_jars

PROGRAMS = {
    "holdfast": """
from holdfast.common import Configuration
from holdfast.datastream import StreamExecutionEnvironment
settings = Configuration().set_string("rest.port", "0")
env = StreamExecutionEnvironment.get_execution_environment(settings).set_parallelism(2)
env.from_collection([1, 2, 3, 4]).key_by(lambda n: n % 2).reduce(lambda a, b: a + b).print()
env.execute("start")
""",
    "spark": """
from pyspark import SparkContext
context = SparkContext(master="local[*]", appName="start")
pairs = context.parallelize([1, 2, 3, 4], 2).map(lambda n: (n % 2, n))
for total in pairs.partitionBy(2).mapPartitions(lambda part: [sum(n for _, n in part)]).collect():
    print(total, flush=True)
""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--rounds", type=int, default=5, help="starts of each engine, in turn")
    parser.add_argument("--peers", action="store_true", help="also start Flink")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start the engines in turn; returns the median seconds to the first line."""
    subprocess.run([sys.executable, "-m", "holdfast.runtime.spark.aot_training"], check=True, stdout=sys.stderr)
    java = find_java()
    assert AotCache.of(java, spark_jars()).to_use(), "the AOT cache could not be created"
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as scratch:
        work = Path(scratch)
        for name, program in PROGRAMS.items():
            (work / f"start_{name}.py").write_text(program)
        starts: dict[str, tuple[Sequence[str], dict[str, str]]] = {
            "warm": ([sys.executable, str(work / "start_holdfast.py")], {}),
            "cold": ([sys.executable, str(work / "start_holdfast.py")], {"XDG_CACHE_HOME": "/dev/null"}),
            "spark": ([sys.executable, str(work / "start_spark.py")], scripts_environment(find_java(own_first=True))),
        }
        if options.peers:
            starts["flink"] = peers.flink_start(), {}
        for _ in range(options.rounds):
            for name, (command, environment) in starts.items():
                taken.setdefault(name, []).append(_first_line(command, environment, work))
    figures: dict[str, Any] = {"label": "holdfast-rocksdb", "workload": "start", "java": java.version}
    for name, seconds in taken.items():
        figures[f"{name}_s"] = round(statistics.median(seconds), 2)
        figures[f"{name}_range_s"] = [round(min(seconds), 2), round(max(seconds), 2)]
    return {**figures, "ok": True}


def _first_line(command: Sequence[str], environment: dict[str, str], work: Path) -> float:
    """Seconds until the program prints its first line; its processes are killed then."""
    surroundings = {**measure.environment(), **environment}
    with open(work / "errors", "w+") as errors:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=surroundings, cwd=work)
        assert process.stdout is not None
        first = process.stdout.readline()
        taken = time.perf_counter() - began
        try:
            process.communicate(timeout=60)
        finally:
            for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
                child.kill()
            process.kill()
        errors.seek(0)
        if not first:
            raise RuntimeError(f"{' '.join(command)} printed nothing: {errors.read()[-2000:]}")
    return taken
