"""Subtask: one subtask of a vertex in a task slot, epoch after epoch."""

from __future__ import annotations

import gc
import logging
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdfast.checkpoint.paths import new_attempt
from holdfast.errors import HoldfastError
from holdfast.runtime.channels.channels import Send
from holdfast.runtime.plan.plan import Vertex
from holdfast.runtime.plan.task_messages import EpochAssignment, JobSetup, TaskReport
from holdfast.runtime.task.open_chain import TaskResources
from holdfast.runtime.task.open_subtask import OpenSubtask
from holdfast.runtime.task.subtask_life import SubtaskLife
from holdfast.runtime.task.time_slices import Slices

__all__ = ["Subtask", "TaskResources"]

log = logging.getLogger(__name__)


class Subtask:
    """One subtask of one vertex. Its operators stay open as long as each epoch continues the previous one.

    Args:
        load: Returns a copy of the job whose functions are unused.
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
        self._head_start: _HeadStart | None = None

    def can_start_early(self, assignment: EpochAssignment) -> bool:
        """Whether it can start an epoch on channel state, before the frames arrive: only if it need not restore."""
        opened = self._life.held(assignment.later[self._task])
        return opened is not None and opened.has_channel_state

    def start_early(self, assignment: EpochAssignment, slices: Slices) -> None:
        """Start the epoch on channel state, before the frames arrive; `run` continues it.

        After a failure, `run` restores the subtask and processes the same input again.

        Args:
            assignment: The epoch, for an earlier task of this slot.
            slices: Tells when to stop.
        """
        began = time.perf_counter()
        run = _run_of(assignment, assignment.later[self._task])
        try:
            if self.can_start_early(assignment):
                self._head_start = self._begin_early(assignment, run)
            early = self._head_start
            if early is not None and early.run == run:
                early.opened.start_early(slices, early.report)
                self._processing_time = max(self._processing_time, early.opened.processing_time)
                early.report.busy_seconds += time.perf_counter() - began
        except Exception:
            log.debug("task %s failed before its frames arrived", self._task, exc_info=True)
            self.close()

    def give_up_early(self, assignment: EpochAssignment | None) -> None:
        """Abort an epoch that was started early, and output that others may wait for, unless it is the assigned one."""
        early = self._head_start
        if early is not None and (assignment is None or early.run[:-1] != _run_of(assignment, "")[:-1]):
            self.close()

    def _begin_early(self, assignment: EpochAssignment, run: _Run) -> _HeadStart:
        opened = self._life.resume(assignment.later[self._task])
        assert opened is not None
        opened.completed()
        early = _HeadStart(run, opened, TaskReport(self._task, new_attempt()), [])
        opened.begin(assignment, lambda *frame: early.frames.append(frame), self._processing_time, early.report)
        return early

    def run(self, assignment: EpochAssignment, frames: Iterable[bytes], send: Send) -> TaskReport:
        """Run the epoch: read the input, feed the operators, write the state; send frames, return the report.

        A failure is in the report, not raised; the next epoch then restores from the checkpoint.
        """
        started = time.perf_counter()
        early, self._head_start = self._head_start, None
        if early is not None and early.run != _run_of(assignment, assignment.tokens.get(self._task, "")):
            early = None  # it belongs to a run that failed; `_open` will restore
        report = TaskReport(self._task, new_attempt()) if early is None else early.report
        try:
            opened = self._open(assignment) if early is None else early.opened
            report.phases["prepare"] = time.perf_counter() - started
            try:
                if early is None:
                    opened.begin(assignment, send, self._processing_time, report)
                else:
                    opened.send_to(send, early.frames)
                opened.run(assignment, frames, report)
            finally:
                self._processing_time = max(self._processing_time, opened.processing_time)
            self._life.prepared(report.attempt)
        except Exception as error:
            log.debug("task %s failed", self._task, exc_info=True)
            report.error = _portable(error)
            self.close()
        report.busy_seconds += time.perf_counter() - started
        return report

    @property
    def running(self) -> str:
        """The name of the running operator; empty if none runs. Thread-safe."""
        opened = self._life.opened
        return "" if opened is None else opened.running

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
                gc.collect()  # a slot collects only young objects by itself: collect the closed operators and their rows
            self._setup = self._load()  # a closed subtask's functions may hold anything
        opened = OpenSubtask(self._setup, self._vertex(), self._task[1], self._resources, assignment)
        self._life.restored(opened)
        return opened

    def _vertex(self) -> Vertex:
        return next(vertex for vertex in self._setup.plan.vertices if vertex.id == self._task[0])

    def close(self) -> None:
        """Close the operators, if they are open; uncommitted state is dropped."""
        self._head_start = None
        opened = self._life.close()
        if opened is not None:
            opened.close()


_Run = tuple[int, int, int, int, str]


def _run_of(assignment: EpochAssignment, token: str) -> _Run:
    """Identify a run of an epoch on the state of ``token``, within a start of the job."""
    return assignment.generation, assignment.restarts, assignment.epoch, assignment.run, token


@dataclass
class _HeadStart:
    """A run of an epoch that was started before its frames arrived."""

    run: _Run
    opened: OpenSubtask
    report: TaskReport
    frames: list[tuple[int, bytes]]
    """The frames that it has sent, with their partitions."""


def _portable(error: Exception) -> BaseException:
    """The error in a form that can travel to the driver."""
    if isinstance(error, HoldfastError):
        return error
    return HoldfastError("".join(traceback.format_exception(error)).rstrip())
