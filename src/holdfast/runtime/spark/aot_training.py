"""Creates the AOT cache: ``python -m holdfast.runtime.spark.aot_training [PROCESS [JAVA]]``.

A JVM runs a small Spark job and writes the cache when it ends. Given the id of a process, the work starts when that process
has ended, or after a minute. It has the lowest priority and may be killed at any time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.errors import ConfigurationError
from holdfast.runtime.host.process_end import await_end
from holdfast.runtime.jvm.aot_cache import AotCache
from holdfast.runtime.jvm.java import Java, find_java
from holdfast.runtime.jvm.jvm import spark_jars, start_jvm
from holdfast.runtime.jvm.pyspark_internals import ensure_initialized, java_rdd, jvm

__all__ = ["create", "make"]

_PATIENCE_S = 60.0
_EPOCHS = 30
"""Number of jobs of two stages that the JVM runs; the cache also holds what it then knows about their methods."""
_END_S = 300.0
"""Timeout for the JVM to write the cache, in seconds."""


def make(java: Java) -> str:
    """Create the cache for this Java if it is missing; returns a sentence about the outcome. The caller holds the lock.

    Raises:
        OSError: the disk is full, or the directory is not writable.
        ConfigurationError: the JVM does not start.
    """
    return create(AotCache.of(java, spark_jars()), _train)


def create(cache: AotCache, train: Callable[[Java, list[str]], None]) -> str:
    """Create the cache if it is missing; returns a sentence about the outcome. The caller holds the lock.

    Args:
        cache: The cache.
        train: Runs the program once with the given JVM options, and ends it gracefully.

    Raises:
        OSError: the disk is full, or the directory is not writable.
    """
    if cache.path is None:
        return "There is no cache directory that only you can write; programs start without an AOT cache"
    if cache.to_use():
        return f"{cache.path} is there"
    scratch = Path(tempfile.mkdtemp(prefix="making-", dir=cache.path.parent))
    try:
        made = scratch / "made.aot"
        train(cache.java, cache.to_make(made))
        if not made.exists():
            return f"Java {cache.java.version} has written no AOT cache; programs start without"
        made.chmod(0o600)
        cache.store(made)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return f"{cache.path} is made ({cache.path.stat().st_size >> 20} MB)"


def _train(java: Java, options: list[str]) -> None:
    """Run a Spark job of two stages, as programs do, and end the JVM gracefully."""
    from holdfast.runtime.spark.spark_context import local_settings

    settings = {**local_settings(), "spark.master": "local[2]", "spark.app.name": "holdfast-aot"}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    process = start_jvm(java, settings, options)
    gateway = process.connect()
    from pyspark import SparkConf, SparkContext

    ensure_initialized(gateway)
    context = SparkContext(conf=SparkConf().setAll(list(settings.items())))
    view = jvm(context)
    for _ in range(_EPOCHS):
        sent = context.broadcast(b"x")
        context.setJobGroup("holdfast", "training", interruptOnCancel=True)
        numbers = context.parallelize(range(100), 2).map(lambda n, sent=sent: (n % 2, n + len(sent.value)))
        sums = numbers.partitionBy(2).mapPartitions(lambda part: [sum(n for _, n in part)])
        collected = java_rdd(sums).collectAsync().get()
        view.PythonRDD.serveIterator(view.scala.jdk.javaapi.CollectionConverters.asScala(collected.iterator()), "frames")
        sent.destroy()
    context.stop()
    gateway.shutdown()
    process.end(_END_S)


@contextlib.contextmanager
def _quiet_processes() -> Iterator[None]:
    """Show the output of this process and its JVM only if the work fails: a JVM names each class that it leaves out."""
    sys.stdout.flush()
    shown = [os.dup(1), os.dup(2)]
    with tempfile.TemporaryFile() as said:
        try:
            for descriptor in (1, 2):
                os.dup2(said.fileno(), descriptor)
            try:
                yield
            finally:
                sys.stdout.flush()
                for descriptor, before in zip((1, 2), shown, strict=True):
                    os.dup2(before, descriptor)
                    os.close(before)
        except BaseException:
            said.seek(0)
            sys.stderr.write(said.read().decode(errors="replace"))
            raise


def _main(arguments: list[str]) -> int:
    if arguments:
        await_end(int(arguments[0]), _PATIENCE_S)
        os.nice(19)
    try:
        java = find_java()
        if len(arguments) > 1 and str(java.executable) != arguments[1]:
            java = find_java(own_first=True)
        cache = AotCache.of(java, spark_jars())
        lock = None if arguments or cache.path is None else cache.lock()  # inherited from the program
        if cache.path is not None and not arguments and lock is None:
            print("Another process makes the AOT cache")
            return 0
        with _quiet_processes():
            made = make(java)
        print(f"Java {java.version} ({java.origin}: {java.executable}). {made}")
        if arguments:
            cache.log.unlink()
    except (ConfigurationError, OSError) as error:
        print(error, file=sys.stderr)
        return 1 if isinstance(error, ConfigurationError) else 0
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
