"""Subtask: one subtask of a vertex in a task slot, epoch after epoch."""

from __future__ import annotations

import gc
import logging
import time
import traceback
from collections.abc import Callable, Iterable

from holdfast.checkpoint.paths import new_attempt
from holdfast.errors import HoldfastError
from holdfast.runtime.channels import Send
from holdfast.runtime.open_chain import TaskResources
from holdfast.runtime.open_subtask import OpenSubtask
from holdfast.runtime.plan import Vertex
from holdfast.runtime.subtask_life import SubtaskLife
from holdfast.runtime.task_messages import EpochAssignment, JobSetup, TaskReport

__all__ = ["Subtask", "TaskResources"]

log = logging.getLogger(__name__)


class Subtask:
    """One subtask of one vertex. Its operators stay open as long as each epoch continues the one before it.

    Args:
        load: Gives a copy of the job whose functions are unused.
        vertex_id: The vertex.
        subtask: The number of the subtask.
        resources: The storage and local directory.
    """

    def __init__(self, load: Callable[[], JobSetup], vertex_id: int, subtask: int, resources: TaskResources) -> None:
        self._load = load
        self._setup = load()
        self._task = (vertex_id, subtask)
        self._resources = resources
        self._life: SubtaskLife[OpenSubtask] = SubtaskLife(f"{subtask} of vertex {vertex_id}")
        self._processing_time = 0

    def run(self, assignment: EpochAssignment, frames: Iterable[bytes], send: Send) -> TaskReport:
        """Run the epoch: read the input, feed the operators, write the state; send frames, return the report.

        A failure is in the report, not raised; the next epoch then restores from the checkpoint.
        """
        started = time.perf_counter()
        report = TaskReport(self._task, new_attempt())
        try:
            opened = self._open(assignment)
            report.phases["prepare"] = time.perf_counter() - started
            try:
                opened.run(assignment, frames, send, self._processing_time, report)
            finally:
                self._processing_time = max(self._processing_time, opened.processing_time)
            self._life.prepared(report.attempt)
        except Exception as error:
            log.debug("task %s failed", self._task, exc_info=True)
            report.error = _portable(error)
            self.close()
        report.busy_seconds = time.perf_counter() - started
        return report

    def _open(self, assignment: EpochAssignment) -> OpenSubtask:
        """The operators with the state of the checkpoint that the epoch continues."""
        opened = self._life.resume(assignment.tokens.get(self._task, ""))
        if opened is None:
            self.close()
            opened = self._restore(assignment)
        else:
            opened.completed()
        return opened

    def _restore(self, assignment: EpochAssignment) -> OpenSubtask:
        if self._life.restore():
            if not gc.isenabled():
                gc.collect()  # in a slot, which collects only young objects by itself: the closed operators and their rows
            self._setup = self._load()  # the functions of a closed subtask may hold anything
        opened = OpenSubtask(self._setup, self._vertex(), self._task[1], self._resources, assignment)
        self._life.restored(opened)
        return opened

    def _vertex(self) -> Vertex:
        return next(vertex for vertex in self._setup.plan.vertices if vertex.id == self._task[0])

    def close(self) -> None:
        """Close the operators, if they are open; uncommitted state is dropped."""
        opened = self._life.close()
        if opened is not None:
            opened.close()


def _portable(error: Exception) -> BaseException:
    """The error in a form that can travel to the driver."""
    if isinstance(error, HoldfastError):
        return error
    return HoldfastError("".join(traceback.format_exception(error)).rstrip())
