"""Writes and reads a savepoint through the State Processor API, and measures the memory of the processes that do it.

    python -m benchmarks savepoints --gb 1
    python -m benchmarks savepoints --gb 10 --directory /large/disk
    python -m benchmarks savepoints --gb 2.5 --key-groups 1

Steps: ``write`` bootstraps keyed state from a generated DataFrame; ``scan`` reads all columns and adds them up; ``repair``
writes a savepoint in which one key in a thousand has another value, and ``scan-repaired`` reads it; ``rewrite`` writes one
with twice as many key groups; ``function`` reads every key of that by a function. Each prints its time, the largest
memory (PSS, which shares out pages that several processes have) of one Python worker, of all workers, of Spark's JVM and of
this process, and the largest resident memory of each process.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks import measure

VALUE = 400
"""Characters of a value. Random hexadecimal digits: zstd halves them."""
_EVERY_S = 0.5
_REPAIRED = 1000
"""One key in so many is repaired."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--gb", type=float, default=1.0, help="size of the state before compression")
    parser.add_argument("--key-groups", type=int, default=128, help="with 1, all keys are in one key group")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--jvm-memory", default="1g", help="heap of Spark's JVM")
    parser.add_argument("--directory", default="", help="where the savepoints go; by default a temporary directory")


class Peaks:
    """The largest memory of the processes below this one, sampled in a thread."""

    def __init__(self) -> None:
        self.mb = {"worker": 0, "workers": 0, "jvm": 0, "driver": 0}
        self._resident: dict[tuple[str, int], int] = {}
        """By kind and id of a process, with the pages that it shares with others."""

    @property
    def resident(self) -> dict[str, list[int]]:
        """The largest resident memory of each process in MB, by their kind, the largest first."""
        found: dict[str, list[int]] = {}
        for (kind, _), memory in self._resident.items():
            found.setdefault(kind, []).append(memory)
        return {kind: sorted(each, reverse=True) for kind, each in sorted(found.items())}

    def __enter__(self) -> Peaks:
        self._sampler = measure.Repeated(self._sample, _EVERY_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._sampler.close()

    def _sample(self) -> None:
        own = psutil.Process()
        workers, jvm = [0], 0
        for process in own.children(recursive=True):
            try:
                memory = self._seen(process, "jvm" if process.name() == "java" else "worker")
                if process.name() == "java":
                    jvm += memory
                else:
                    workers.append(memory)
            except psutil.Error:
                continue  # it has ended
        found = {"worker": max(workers), "workers": sum(workers), "jvm": jvm, "driver": self._seen(own, "driver")}
        self.mb = {name: max(most, found[name]) for name, most in self.mb.items()}

    def _seen(self, process: psutil.Process, kind: str) -> int:
        """Note the resident memory of a process; returns its PSS in MB."""
        memory = process.memory_full_info()
        at = kind, process.pid
        self._resident[at] = max(self._resident.get(at, 0), memory.rss >> 20)
        pss: int = memory.pss
        return pss >> 20


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all steps."""
    with _directory(options.directory) as directory:
        return _measured(options, directory)


@contextmanager
def _directory(given: str) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="savepoints-", dir=given or None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _measured(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    from holdfast.common import Types
    from holdfast.datastream import ValueStateDescriptor
    from holdfast.state_api import KeyedStateReaderFunction, OperatorTransformation, SavepointReader, SavepointWriter

    class Lengths(KeyedStateReaderFunction):
        def open(self, runtime_context: Any) -> None:
            self.text = runtime_context.get_state(ValueStateDescriptor("text", Types.STRING()))

        def read_key(self, key: Any, ctx: Any) -> Any:
            yield key, len(self.text.value())

    session = SparkSession.builder.master(f"local[{options.cores}]").config("spark.driver.memory", options.jvm_memory)
    session = session.config("spark.ui.enabled", "false").config("spark.local.dir", str(directory / "spark"))
    spark = session.getOrCreate()
    rows = round(options.gb * 2**30 / (VALUE + 8))
    groups: int = options.key_groups
    figures: dict[str, Any] = {"gb": options.gb, "rows": rows, "key_groups": groups, "cores": options.cores}
    first, repaired, second = directory / "first", directory / "repaired", directory / "second"

    def step(name: str, do: Any) -> Any:
        began = time.monotonic()
        with Peaks() as peaks:
            result = do()
        took = time.monotonic() - began
        figures[name] = {"s": round(took, 1), "mb_s": round(options.gb * 1024 / took, 1), "peak_mb": peaks.mb}
        figures[name]["resident_mb"] = peaks.resident
        print(name, figures[name], file=sys.stderr, flush=True)
        return result

    digits = F.concat(*[F.md5(F.concat(F.col("id"), F.lit(f"-{n}"))) for n in range(-(-VALUE // 32))])
    data = spark.range(rows, numPartitions=max(options.cores, rows // 500_000)).select(
        F.col("id").alias("key"), F.substring(digits, 1, VALUE).alias("text")
    )
    keyed = OperatorTransformation.bootstrap_with(data).key_by("key", Types.LONG())
    state = keyed.transform(ValueStateDescriptor("text", Types.STRING()))
    empty = SavepointWriter.new_savepoint(spark, groups)
    step("write", lambda: empty.with_operator("keyed", state).write(str(first)))
    figures["stored_mb"] = sum(file.stat().st_size for file in first.iterdir()) >> 20

    def check(name: str, frame: Any, length: int) -> None:
        (found,) = step(name, frame.collect)
        if tuple(found) != (rows, length):
            raise RuntimeError(f"{name} found {tuple(found)} instead of {(rows, length)}")

    def scanned(path: Path) -> Any:
        return SavepointReader.read(spark, str(path)).read_keyed_state("keyed").agg(F.count("*"), F.sum(F.length("text")))

    check("scan", scanned(first), rows * VALUE)
    wrong = spark.range(0, rows, _REPAIRED).select(F.col("id").alias("key"), F.lit("").alias("text"))
    right = OperatorTransformation.bootstrap_with(wrong).key_by("key", Types.LONG())
    repair = right.transform(ValueStateDescriptor("text", Types.STRING()))
    old = SavepointWriter.from_existing_savepoint(spark, str(first)).with_operator("keyed", repair)
    step("repair", lambda: old.write(str(repaired)))
    length = (rows - -(-rows // _REPAIRED)) * VALUE
    check("scan-repaired", scanned(repaired), length)
    shutil.rmtree(first)
    other = SavepointWriter.from_existing_savepoint(spark, str(repaired)).change_max_parallelism(2 * groups)
    step("rewrite", lambda: other.write(str(second)))
    shutil.rmtree(repaired)
    named = Types.ROW_NAMED(["key", "length"], [Types.LONG(), Types.LONG()])
    reader = SavepointReader.read(spark, str(second))
    by_function = reader.read_keyed_state("keyed", Lengths(), output_type=named).agg(F.count("*"), F.sum("length"))
    check("function", by_function, length)
    spark.stop()
    return figures
