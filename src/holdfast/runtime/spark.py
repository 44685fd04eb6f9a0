"""Spark: how it is started, and used. From an epoch's order to the reports of its tasks, as one Spark job.

Each level of the plan is a stage. Its tasks pass their frames through the task slots of their partitions; Spark moves
the frames between the stages, retries tasks that die, and prefers the host where a partition's slot is.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import cloudpickle
from pyspark import Broadcast, SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from holdfast.errors import SparkGone
from holdfast.runtime.frames import HEADER_SIZE, REPORT, pack_frame, unpack_header
from holdfast.runtime.order import EpochOrder, JobSetup, TaskReport
from holdfast.runtime.placement import Placement
from holdfast.runtime.plan import JobPlan
from holdfast.runtime.shipping import is_local, pack_files, portable, ship_package, spark_failure
from holdfast.runtime.slot import SlotCannotLoad, SlotClient, slot_directory
from holdfast.runtime.worker import quicken

__all__ = ["SparkExecutor", "spark_context"]

log = logging.getLogger(__name__)

_LONGEST_BASE = 40
_LOG_SETTINGS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log4j2.properties")


def spark_context(name: str, config: dict[str, str]) -> SparkContext:
    """The active Spark, or a new one: local, with as many cores as the machine has, unless ``spark.master`` is set.

    All ``spark.*`` keys of the configuration reach a new one, before those of spark-submit. It has no SQL session, which
    takes seconds to start.
    """
    active = SparkContext._active_spark_context
    if active is not None:
        return active
    given = _submitted() | {key: value for key, value in config.items() if key.startswith("spark.")}
    master = given.get("spark.master", "local[*,4]")
    # The workers are this Python, with its packages, unless the user says otherwise.
    os.environ.setdefault("PYSPARK_PYTHON", config.get("python.executable", sys.executable))
    settings = {
        "spark.ui.showConsoleProgress": "false",
        # One job an epoch for months: the past must go away by itself.
        "spark.cleaner.periodicGC.interval": "2min",
        "spark.ui.retainedJobs": "200",
        "spark.ui.retainedStages": "200",
        "spark.ui.retainedTasks": "2000",
        # Frames and tasks are small, and mostly stay on their host.
        "spark.shuffle.compress": "false",
        "spark.broadcast.compress": "false",
    }
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings["spark.locality.wait"] = "0s"
        # The job has its REST API; what Spark gathers for its own pages costs every epoch, and the start.
        settings["spark.ui.enabled"] = "false"
        # Spark 4.1 and later: between the JVM and its workers, instead of TCP.
        settings["spark.python.unix.domain.socket.enabled"] = "true"
        settings["spark.python.unix.domain.socket.dir"] = _socket_directory()
        # Java only passes frames on. Its optimising compiler would take a core for the first half minute to save little.
        settings["spark.driver.extraJavaOptions"] = (
            f"-XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile=file:{_LOG_SETTINGS}"
        )
    settings.update(given)
    conf = SparkConf().setAll(list(settings.items())).setAppName(name).setMaster(master)
    with _interrupts_later():
        _start_java(conf)
        return SparkContext.getOrCreate(conf)


def _socket_directory() -> str:
    """A new directory that nobody else can enter, with a path that leaves room in a socket's address for Spark's names."""
    base = tempfile.gettempdir()
    directory = tempfile.mkdtemp(prefix="holdfast-", dir=base if len(os.fsencode(base)) <= _LONGEST_BASE else "/tmp")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _submitted() -> dict[str, str]:
    """What spark-submit was told, by options and files; nothing if it did not start this program."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _start_java(conf: SparkConf) -> None:
    """Start Spark's JVM, unless there is one. What it says about its own modules, at every start, is left out."""
    if SparkContext._gateway is not None:
        return
    reading, writing = os.pipe()
    threading.Thread(target=_pass_on, args=(reading,), name="holdfast-java-output", daemon=True).start()
    try:
        gateway = launch_gateway(conf, {"stderr": writing})
    finally:
        os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block: a JVM left alone in its start would live on by itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def later(number: int, frame: Any) -> None:
        came.append(number)

    before = signal.signal(signal.SIGINT, later)
    try:
        yield
    finally:
        # Not PySpark's handler, which would cancel the epoch: it is completed before the job ends.
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def _pass_on(reading: int) -> None:
    """Copy what the JVM writes to standard error, line by line, for as long as it lives."""
    with open(reading, "rb") as lines:
        for line in lines:
            if not line.startswith(b"WARNING: Using incubator modules"):
                with contextlib.suppress(OSError):  # this process has none
                    os.write(2, line)  # not by sys.stderr, which a thread must not hold when the interpreter ends


class _LevelTask:
    """What Spark runs for one partition of a level: passes frames to the slot and back. Pickled with every epoch."""

    def __init__(self, executor: SparkExecutor, level: int, calls: list[bytes]) -> None:
        self._level = level
        self._calls = calls
        self._root = executor.root
        self._job_id = executor.job_id
        self._started = executor.started

    def __call__(self, partition: int, items: Iterable[Any], setup: Broadcast[bytes]) -> Iterator[tuple[int, bytes]]:
        """Run the task of ``partition``: its frames for the next stage, by partition; at last its report."""
        quicken()
        client = SlotClient(slot_directory(self._root, self._job_id), partition)
        passing: list[tuple[int, bytes]] = []

        def mine() -> Iterator[bytes]:
            for _, frame in items:
                if not frame:
                    continue
                header = unpack_header(frame)
                if header.kind != REPORT and header.level == self._level:
                    yield frame
                else:
                    passing.append((header.partition, frame))

        call = self._calls[partition]
        try:
            for target, payload in client.run(self._started, lambda: setup.value, call, mine()):
                yield (target, payload) if target >= 0 else _report_frame(payload)
        except SlotCannotLoad as error:
            # Told as the task's report: Spark would only try again, and show the error below its own.
            _, vertex, subtask = cloudpickle.loads(call)
            yield _report_frame(pickle.dumps(TaskReport((vertex, subtask), "", error), 5))
        yield from passing


def _report_frame(report: bytes) -> tuple[int, bytes]:
    return 0, pack_frame(REPORT, 0, 0, 0, 0, 0, report)


class SparkExecutor:
    """Runs epochs as Spark jobs."""

    def __init__(self, context: SparkContext, setup: JobSetup) -> None:
        self._context = context
        self._plan: JobPlan = setup.plan
        self.root = setup.plan.settings.temporary_directory
        self.job_id = setup.job.job_id
        self.started = setup.started
        # The program's own modules are found where the driver finds them, if the task is on the same machine.
        python_path = sys.path if is_local(context.master) else []
        stored = pickle.dumps((python_path, pack_files(setup.plan.config), cloudpickle.dumps(setup)), 5)
        self._name = setup.job.job_name
        self._widths = [sum(v.parallelism for v in setup.plan.at(level)) for level in range(setup.plan.levels)]
        self._group = f"holdfast-{setup.job.job_id}"
        with self._clear_errors():
            self._setup = self._context.broadcast(stored)
            ship_package(context)
            self._placement = Placement(context, self._widths, self._name)

    def run(self, order: EpochOrder) -> list[TaskReport]:
        """Run an epoch; returns the reports of all its tasks that got through."""
        with self._clear_errors():
            collected = self._collect(order)
        reports = []
        for _, frame in collected:
            if unpack_header(frame).kind == REPORT:
                reports.append(pickle.loads(memoryview(frame)[HEADER_SIZE:]))
        return reports

    def _collect(self, order: EpochOrder) -> list[tuple[int, bytes]]:
        self._context.setJobGroup(self._group, self._describe(order), interruptOnCancel=True)
        self._context.setLocalProperty("callSite.short", f"{self._name}: epoch {order.epoch}")
        self._placement.follow_executors()
        frames = None
        for level, width in enumerate(self._widths):
            calls = [
                cloudpickle.dumps((self._part_of(order, (v.id, n)), v.id, n))
                for v in self._plan.at(level)
                for n in range(v.parallelism)
            ]
            source = self._placement.anchor(width) if frames is None else self._placement.stage(width, frames)
            names = ", ".join(v.name for v in self._plan.at(level))
            task = portable(_LevelTask(self, level, calls), self._setup)
            frames = source.mapPartitionsWithIndex(task).setName(names[:200])
        assert frames is not None
        collected: list[tuple[int, bytes]] = frames.collect()
        return collected

    @staticmethod
    def _part_of(order: EpochOrder, task: tuple[int, int]) -> EpochOrder:
        """The order as one task needs it."""
        return replace(
            order,
            tokens={task: order.tokens[task]} if task in order.tokens else {},
            sources={task: order.sources[task]} if task in order.sources else {},
        )

    def _describe(self, order: EpochOrder) -> str:
        again = f", run {order.run + 1}" if order.run else ""
        return f"{self._name}: epoch {order.epoch}{again}: " + " => ".join(
            ", ".join(v.name for v in self._plan.at(level)) for level in range(self._plan.levels)
        )

    def cancel(self) -> None:
        """Stop the epoch that is running."""
        self._context.cancelJobGroup(self._group)

    def close(self) -> None:
        """End the job's slots and free what Spark keeps for it."""
        root, job_id = self.root, self.job_id

        def retire(partition: int, items: Iterable[Any]) -> Iterator[int]:
            SlotClient(slot_directory(root, job_id), partition).retire()
            return iter(())

        try:
            self._context.setJobGroup(self._group, f"{self._name}: end of the job")
            self._placement.anchor(max(self._widths)).mapPartitionsWithIndex(portable(retire)).collect()
        except Exception as error:
            failure = spark_failure(error, is_local(self._context.master))
            log.warning("the task slots could not be told that the job is over, and end by themselves: %s", failure)
            log.debug("closing the slots failed", exc_info=True)
            if isinstance(failure, SparkGone):
                return
        self._placement.close()
        self._setup.destroy()

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        """Say why a Spark job fails, without the pages that Java says about it."""
        try:
            yield
        except Exception as error:
            log.debug("a Spark job failed", exc_info=True)
            raise spark_failure(error, is_local(self._context.master)) from None
