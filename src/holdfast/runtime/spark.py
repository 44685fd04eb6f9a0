"""From an epoch's order to the reports of its tasks, as one Spark job.

Each level of the plan is a stage. Its tasks pass their frames through the task slots of their partitions; Spark moves
the frames between the stages, retries tasks that die, and prefers the host where a partition's slot is.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import cloudpickle
from pyspark import Broadcast, SparkContext

from holdfast.errors import SparkGone
from holdfast.runtime.frames import HEADER_SIZE, REPORT, pack_frame, unpack_header
from holdfast.runtime.order import EpochOrder, JobSetup, TaskReport
from holdfast.runtime.placement import Placement
from holdfast.runtime.plan import JobPlan
from holdfast.runtime.shipping import is_local, pack_files, portable, ship_package, spark_failure
from holdfast.runtime.slot import SlotCannotLoad, SlotClient, slot_directory
from holdfast.runtime.spark_context import spark_context
from holdfast.runtime.worker import quicken

__all__ = ["SparkExecutor", "spark_context"]

log = logging.getLogger(__name__)


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
