"""An executor without Spark: runs an epoch's tasks sequentially in this process. For tests and profiling.

Tasks, frames, state and coordinator are the same as on Spark; only the transport differs.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.values.pickling import dumps_program
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.plan.task_messages import EpochAssignment, JobSetup, TaskId, TaskReport
from holdfast.runtime.records.frames import unpack_header
from holdfast.runtime.task.early_restore import EarlyRestore
from holdfast.runtime.task.open_chain import TaskResources
from holdfast.runtime.task.task import Subtask
from holdfast.runtime.task.time_slices import Slices, TimeSlices

__all__ = ["InProcessExecutor"]


class InProcessExecutor:
    """Runs epochs in this process.

    Args:
        setup: The job.
        storage: The checkpoint storage.
        directory: The local directory for state.
        seconds: The clock of processing time.
        early: State that was restored before.
        slices: Cuts the work before a deadline into parts.
        early_slices: Cuts the work of a subtask that starts early, if it returns any.
    """

    def __init__(
        self,
        setup: JobSetup,
        storage: Storage,
        directory: str,
        seconds: Callable[[], float] = time.monotonic,
        early: EarlyRestore | None = None,
        slices: Callable[[float], Slices] = TimeSlices,
        early_slices: Callable[[], Slices | None] = lambda: None,
    ) -> None:
        self._early_slices = early_slices
        self._plan = setup.plan
        stored = dumps_program(setup)

        def load() -> JobSetup:
            copy: JobSetup = pickle.loads(stored)
            return copy

        self._uploads = ThreadPoolExecutor(1)
        resources = TaskResources(storage, directory, self._uploads, seconds, slices, early)
        self._vertices = {(vertex.id, n): vertex for vertex in setup.plan.vertices for n in range(vertex.parallelism)}
        self._subtasks: dict[TaskId, Subtask] = {
            # Every subtask gets its own copy of the user's functions, as in a separate process.
            (vertex.id, n): Subtask(load, vertex.id, n, resources)
            for vertex in setup.plan.vertices
            for n in range(vertex.parallelism)
        }

    def run(self, assignment: EpochAssignment) -> list[TaskReport]:
        """Run all tasks, level by level."""
        reports = []
        frames: dict[tuple[int, int], list[bytes]] = {}

        def send(_: int, frame: bytes) -> None:
            header = unpack_header(frame)
            frames.setdefault((header.level, header.partition), []).append(frame)

        for level in range(self._plan.levels):
            partition = 0
            for vertex in self._plan.at(level):
                for n in range(vertex.parallelism):
                    subtask = self._subtasks[(vertex.id, n)]
                    reports.append(subtask.run(assignment, frames.pop((level, partition), []), send))
                    self.start_early(assignment, level)
                    partition += 1
        return reports

    def start_early(self, assignment: EpochAssignment, level: int) -> None:
        """Let tasks of the levels behind ``level`` begin with their channel state."""
        tasks = [task for task, vertex in self._vertices.items() if vertex.level > level]
        later = assignment.early(tasks)
        for task in later:
            slices = self._early_slices()
            if slices is not None:
                self._subtasks[task].start_early(replace(assignment, later=later), slices)

    def abort(self) -> None:
        """Do nothing: the epoch comes to its end."""

    def each(self, task: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Run a function for each item, all in this thread."""
        return [task(item) for item in items]

    def stop_each(self) -> None:
        """`each` comes to its end."""

    def close(self, successor: JobPlan | None = None) -> None:
        """End all operators."""
        for subtask in self._subtasks.values():
            subtask.close()
        self._uploads.shutdown()
