"""Runs an epoch as one Spark job: takes its assignment, returns the reports of its tasks.

Each level of the plan is a stage. Its tasks pass their frames through the task slots of their partitions; Spark moves frames
between stages, retries tasks that die, and prefers the host with a partition's slot.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pyspark import SparkContext

from holdfast.checkpoint.ids import CheckpointId
from holdfast.common.values import pickling
from holdfast.errors import SparkGone
from holdfast.metrics.stats import SparkTasks
from holdfast.runtime.host.dependencies import REQUIREMENTS, Dependencies
from holdfast.runtime.host.local_directory import LocalDirectory, slot_directory, state_directory
from holdfast.runtime.host.shipping import (
    COMPILED_WHEEL,
    PYTHON_FILES,
    is_local,
    pack_files,
    portable,
    ship_package,
    spark_failure,
)
from holdfast.runtime.host.slot import SlotClient
from holdfast.runtime.host.slot_starter import start_slots
from holdfast.runtime.jvm.pyspark_internals import is_stopped
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.plan.task_messages import EpochAssignment, JobOutline, JobSetup, TaskId, TaskReport
from holdfast.runtime.records.frame_header import HEADER_SIZE, REPORT, unpack_header
from holdfast.runtime.spark.level_task import LevelTask
from holdfast.runtime.spark.placement import Placement
from holdfast.runtime.spark.spark_context import advise, jvm_process
from holdfast.runtime.spark.stages import Stages
from holdfast.runtime.task.early_restore import RestoreRequest
from holdfast.runtime.task.keyed_states import KeyedSubtask
from holdfast.state.backends.backend import ROCKSDB

__all__ = ["IMPORTED_EARLY", "SparkExecutor", "begin_slots", "epoch_tasks", "pickled_calls", "restore_early"]

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

_VARIABLE = "spark.executorEnv."
_LONGEST_NAME = 200
"""The most characters in the name of a stage."""
_OF_THE_DRIVER = "security.ssl."
"""Settings that tasks do not need and must not know."""
IMPORTED_EARLY = ("holdfast.datastream", "holdfast.datastream.connectors.kafka", "holdfast.table", "holdfast.cep")
"""Modules that programs import; slots import them in advance, once for all slots of a host."""
_WITH_LIBRARIES = ("holdfast.datastream.connectors.kafka",)
"""Those among them that import libraries."""


def begin_slots(plan: JobPlan, job_id: str) -> None:
    """Start the job's slots while a local Spark starts; its workers would start one slot after the other."""
    executor = jvm_process()
    if executor is None or os.environ.get("PYSPARK_PYTHON") != sys.executable:
        return
    own = {key.removeprefix(_VARIABLE): value for key, value in plan.config.items() if key.startswith(_VARIABLE)}
    environment = {**os.environ, "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"), **own}
    try:
        directory = slot_directory(plan.settings.temporary_directory, job_id)
        start_slots(directory, max(_widths(plan)), executor, environment, _imported_early(plan))
    except OSError as error:
        log.debug("the task slots will be started by their first tasks: %s", error)


def _imported_early(plan: JobPlan) -> list[str]:
    own = any(plan.config.get(key) for key in (REQUIREMENTS, PYTHON_FILES))
    return [
        module
        for module in IMPORTED_EARLY
        if module in sys.modules and not (own and module in _WITH_LIBRARIES)  # the program may bring another version
    ]


def restore_early(plan: JobPlan, job_id: str, uri: str, newest: Callable[[], CheckpointId | None]) -> None:
    """Let slots that `begin_slots` has started restore state before the driver asks for it.

    Args:
        plan: The job.
        job_id: The job's id.
        uri: The checkpoint storage.
        newest: Looks up the checkpoint to restore; None: no checkpoint.
    """
    directory = slot_directory(plan.settings.temporary_directory, job_id)
    subtasks = _keyed_subtasks(plan)
    if plan.settings.changelog is not None:
        return  # an older driver's transactions may be open; its successor ends them at the take-over
    if not subtasks or plan.settings.state_backend.kind != ROCKSDB or not os.path.isdir(directory.path):
        return

    def restore() -> None:
        try:
            checkpoint = newest()
            if checkpoint is not None:
                _restore_early(plan, directory, uri, checkpoint, subtasks)
        except Exception:  # the take-over will meet the error again, and report it
            log.debug("no state was restored early", exc_info=True)

    threading.Thread(target=restore, name="early-restore", daemon=True).start()


def _keyed_subtasks(plan: JobPlan) -> dict[int, list[KeyedSubtask]]:
    """The subtasks with keyed state, by slot."""
    slots: dict[int, list[KeyedSubtask]] = {}
    for level in range(plan.levels):
        subtasks = [KeyedSubtask.of(vertex, n) for vertex in plan.at(level) for n in range(vertex.parallelism)]
        for slot, subtask in enumerate(subtasks):
            if subtask.operators:
                slots.setdefault(slot, []).append(subtask)
    return slots


def _restore_early(
    plan: JobPlan,
    directory: LocalDirectory,
    uri: str,
    checkpoint: CheckpointId,
    subtasks: Mapping[int, Sequence[KeyedSubtask]],
) -> None:
    settings = plan.settings
    local = state_directory(settings.temporary_directory, plan.name).make()
    for slot, own in subtasks.items():
        request = RestoreRequest(
            plan.name,
            uri,
            settings.storage_options,
            local,
            settings.state_backend,
            checkpoint,
            tuple(own),
        )
        SlotClient(directory, slot).restore_early(pickle.dumps(request, 5))


def _widths(plan: JobPlan) -> list[int]:
    """The number of partitions of each level."""
    return [sum(v.parallelism for v in plan.at(level)) for level in range(plan.levels)]


def pickled_calls(
    plan: JobPlan,
    assignment: EpochAssignment,
    neighbours: Callable[[int], Sequence[Sequence[int]]],
    keyed: Container[TaskId] = frozenset(),
) -> list[list[bytes]]:
    """By level and partition, the pickled (assignment, vertex, subtask) of an epoch's tasks.

    Args:
        plan: The job.
        assignment: The epoch.
        neighbours: Returns, for a number of slots, the slots for which each slot's host stands by.
        keyed: The tasks with keyed state, which have standby copies.
    """
    calls = []
    levels = [[(v.id, n) for v in plan.at(level) for n in range(v.parallelism)] for level in range(plan.levels)]
    for level, tasks in enumerate(levels):
        later = [[each[slot] for each in levels[level + 1 :] if slot < len(each)] for slot in range(len(tasks))]
        copied = [task in keyed for task in tasks]
        calls.append(
            [
                pickling.dumps((_part_of(assignment, task, after, {n: [tasks[n]] for n in beside if copied[n]}), *task))
                for task, after, beside in zip(tasks, later, neighbours(len(tasks)))
            ]
        )
    return calls


def _part_of(
    assignment: EpochAssignment, task: TaskId, later: Sequence[TaskId], standbys: dict[int, list[TaskId]]
) -> EpochAssignment:
    """The part of the assignment for one task, with its slot's later tasks and standby copies."""
    return replace(
        assignment,
        standbys=standbys,
        later=assignment.early(later),
        tokens={task: assignment.tokens[task]} if task in assignment.tokens else {},
        sources={task: assignment.sources[task]} if task in assignment.sources else {},
    )


def epoch_tasks(context: SparkContext, job_id: str) -> SparkTasks:
    """The running and waiting tasks of a job's epoch in Spark. Asks the JVM."""
    tracker = context.statusTracker()
    of_the_job = tracker.getJobIdsForGroup(_group(job_id))
    jobs = [tracker.getJobInfo(job) for job in set(tracker.getActiveJobsIds()).intersection(of_the_job)]
    active = set(tracker.getActiveStageIds())
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in active.intersection(job.stageIds)]
    running = sum(stage.numActiveTasks for stage in stages if stage)
    return SparkTasks(running, sum(stage.numTasks - stage.numCompletedTasks for stage in stages if stage) - running)


def _group(job_id: str) -> str:
    return f"holdfast-{job_id}"


class SparkExecutor:
    """Runs epochs as Spark jobs."""

    def __init__(self, context: SparkContext, setup: JobSetup) -> None:
        self._context = context
        given = setup.plan
        config = {key: value for key, value in setup.plan.config.items() if not key.startswith(_OF_THE_DRIVER)}
        setup = replace(setup, plan=replace(setup.plan, config=config))
        self._given = given
        self._plan: JobPlan = setup.plan
        self.root = setup.plan.settings.temporary_directory
        self.job_id = setup.job.job_id
        self.started = setup.started
        # On the driver's machine, tasks find the program's own modules where the driver finds them.
        python_path = sys.path if is_local(context.master) else []
        packed = (pack_files(setup.plan.config), Dependencies.pack(setup.plan.config))
        stored = pickle.dumps((python_path, *packed, pickling.dumps_program(setup), JobOutline.of(setup)), 5)
        self._name = setup.job.job_name
        self._widths = _widths(setup.plan)
        self._keyed = {(each.vertex, each.number) for own in _keyed_subtasks(setup.plan).values() for each in own}
        self._group = _group(setup.job.job_id)
        with self._clear_errors():
            advise(context)
            self._setup = self._context.broadcast(stored)
            ship_package(context, setup.plan.config.get(COMPILED_WHEEL, ""))
            changelog = None if self._plan.settings.batch else self._plan.settings.changelog
            replicas = 0 if changelog is None else changelog.standby_replicas
            self._placement = Placement(context, self._widths, self._name, replicas)
            last = self._plan.levels - 1
            shared = self.root, self.job_id, self.started
            modules = _imported_early(self._plan)
            tasks = [LevelTask(level, level == last, *shared, modules=modules) for level in range(self._plan.levels)]
            self._stages = Stages(context, tasks, self._widths, self._placement, self._setup, self._stage_names())

    def run(self, assignment: EpochAssignment) -> list[TaskReport]:
        """Run an epoch; returns the reports of its tasks."""
        with self._clear_errors():
            collected = self._collect(assignment)
        return [pickle.loads(memoryview(frame)[HEADER_SIZE:]) for frame in collected if unpack_header(frame).kind == REPORT]

    def _collect(self, assignment: EpochAssignment) -> list[bytes]:
        self._context.setJobGroup(self._group, self._describe(assignment), interruptOnCancel=True)
        self._placement.follow_executors()
        calls = pickled_calls(self._plan, assignment, self._placement.neighbours, self._keyed)
        return self._stages.collect(calls)

    def _describe(self, assignment: EpochAssignment) -> str:
        again = f", run {assignment.run + 1}" if assignment.run else ""
        return f"{self._name}: epoch {assignment.epoch}{again}: " + " => ".join(
            ", ".join(v.name for v in self._plan.at(level)) for level in range(self._plan.levels)
        )

    def _stage_names(self) -> list[str]:
        """The operators of each level, as Spark's UI shows them."""
        plan = self._plan
        names = (", ".join(v.name for v in plan.at(level)) for level in range(plan.levels))
        return [f"{self._name}: {each}"[:_LONGEST_NAME] for each in names]

    def abort(self) -> None:
        """Make the running epoch fail soon."""
        self._context.cancelJobGroup(self._group)

    def each(self, task: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Run a function for each item in Spark's workers, while epochs run, with at most half of the cores.

        Args:
            task: The function. The function, the items and the results are pickled.
            items: The arguments of its calls.
        """

        def run(_: int, pickled: Iterable[bytes]) -> Iterator[bytes]:
            for item in pickled:
                yield pickle.dumps(task(pickle.loads(item)), 5)

        if not items:
            return []
        context = self._context
        width = min(len(items), max(1, context.defaultParallelism // 2))
        with self._clear_errors():
            context.setJobGroup(f"{self._group}-savepoint", f"{self._name}: savepoint", interruptOnCancel=True)
            given = context.parallelize([pickle.dumps(item, 5) for item in items], width)
            return [pickle.loads(result) for result in given.mapPartitionsWithIndex(portable(run)).collect()]

    def stop_each(self) -> None:
        """Make `each` fail soon."""
        self._context.cancelJobGroup(f"{self._group}-savepoint")

    def close(self, successor: JobPlan | None = None) -> None:
        """End the job's slots and free its resources in Spark.

        Args:
            successor: The plan with which the job continues, if it does. If that differs from this executor's plan, the
                slots it needs keep their processes; after a failure, with the same plan, none does.
        """
        root, job_id, width, started = self.root, self.job_id, max(self._widths), self.started
        kept = 0 if successor is None or successor is self._given else max(_widths(successor))
        standbys = {slot for each in self._widths for beside in self._placement.neighbours(each) for slot in beside}

        def retire(partition: int, items: Iterable[Any]) -> Iterator[bytes]:
            for slot in {partition, *standbys}:
                client = SlotClient(slot_directory(root, job_id), slot)
                if slot < kept:
                    client.park(started)
                else:
                    client.retire()
            return iter(())

        try:
            self._context.setJobGroup(self._group, f"{self._name}: end of the job")
            self._stages.run_on_all(width, portable(retire))
        except Exception as error:
            failure = self._failure(error)
            log.warning("telling the task slots to end failed; they will end by themselves: %s", failure)
            log.debug("closing the slots failed", exc_info=True)
            if isinstance(failure, SparkGone):
                return
        self._placement.close()
        self._setup.destroy()

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        """Raise the reason why a Spark job fails, without Java's stack traces."""
        try:
            yield
        except Exception as error:
            log.debug("a Spark job failed", exc_info=True)
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> Exception:
        return spark_failure(error, is_local(self._context.master), stopped=is_stopped(self._context))
