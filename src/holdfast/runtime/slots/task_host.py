"""TaskHost: the subtasks in a task slot, and those for which it stands by."""

from __future__ import annotations

import logging
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.system.json_log import log_as_json, set_process_log_fields
from holdfast.runtime.host.local_directory import host_name, slot_directory, state_directory
from holdfast.runtime.host.shipping import install_files
from holdfast.runtime.plan.task_messages import EpochAssignment, JobSetup, TaskId
from holdfast.runtime.slots.standbys import StandbyNeighbours, StandbyRequest, Standbys
from holdfast.runtime.slots.standstill import TaskWatch
from holdfast.runtime.task.early_restore import EarlyRestore
from holdfast.runtime.task.task import Subtask, TaskResources
from holdfast.runtime.task.time_slices import InterruptedSlices, TimeSlices

__all__ = ["TaskHost"]

_EARLY_PATIENCE = 10.0
"""Seconds between two calls of an epoch for which a subtask that was started early stays open."""


class TaskHost:
    """The subtasks of a slot for one start of a job."""

    def __init__(
        self,
        setup: bytes,
        slots: str,
        early: EarlyRestore | None = None,
        started: str = "",
        executor: int = 0,
        stuck: str | None = None,
    ) -> None:
        """Load the job.

        Args:
            setup: The executor's broadcast.
            slots: The job's directory of sockets on this host.
            early: State restored in advance; closed with this object.
            started: Identifies the start of the job.
            executor: The process with which the host's slots end.
            stuck: See `TaskWatch`.
        """
        self._early = early
        python_path, files, dependencies, self._setup, _ = pickle.loads(setup)
        sys.path.extend(path for path in python_path if path not in sys.path)
        dependencies.install(slots)
        install_files(files, slots)
        first: JobSetup = pickle.loads(self._setup)
        self._generation = first.job.generation
        self._log_fields: dict[int, dict[str, str]] | None = None
        """The log fields of messages, by vertex id; None if the log is not JSON."""
        if first.plan.settings.log_as_json:
            log_as_json(logging.getLogger("holdfast"), sys.stderr)
            log_as_json(logging.getLogger(), sys.stdout)  # for messages of the program's functions
            job = {"job": first.plan.name, "job_id": first.job.job_id}
            self._log_fields = {vertex.id: {**job, "operator": vertex.name} for vertex in first.plan.vertices}
        directory = state_directory(first.plan.settings.temporary_directory, first.job.job_name).make()
        assert first.job.storage_uri is not None
        storage = Storage.open(first.job.storage_uri, first.job.storage_config)
        self._requests = storage.requests
        self._uploads = ThreadPoolExecutor(1, thread_name_prefix="materialisation")
        resources = TaskResources(storage, directory, self._uploads, early=early)

        def create(vertex_id: int, number: int) -> Subtask:
            return Subtask(lambda: pickle.loads(self._setup), vertex_id, number, resources)

        self._create = create
        paths = JobPaths.of(first.job.job_name)
        self._names = {vertex.id: vertex.name for vertex in first.plan.vertices}
        self._watch = TaskWatch(storage, paths.standstill(host_name(), os.getpid()), stuck=stuck)
        self._subtasks: dict[TaskId, Subtask] = {}
        self._later: dict[TaskId, EpochAssignment] = {}
        """Later tasks of the running epoch, by task."""
        self._last_call = time.monotonic()
        self._longest_early = first.plan.settings.epoch_target_ms / 1000
        self._standbys = Standbys(first, directory)
        sockets = slot_directory(first.plan.settings.temporary_directory, first.job.job_id)
        self._neighbours = StandbyNeighbours(sockets, executor, started, setup, first.job.generation)

    def run(self, call: bytes, frames: Iterator[bytes], send: Any) -> bytes:
        """Run one task of an epoch; returns the pickled report."""
        assignment, vertex_id, number = pickle.loads(call)
        self._log_as(vertex_id, number, assignment)
        task = vertex_id, number
        self._later = dict.fromkeys(assignment.later, assignment)
        self._last_call = time.monotonic()
        for each in self._subtasks.values():
            each.give_up_early(assignment)
        stood_by = self._standbys.take(task, assignment.epoch, assignment.run)
        subtask = self._subtasks.get(task)
        if subtask is None:
            subtask = self._subtasks[task] = self._create(vertex_id, number)
        self._watch.begin(assignment.epoch, self._names[vertex_id], number, lambda: subtask.running)
        try:
            report = subtask.run(assignment, frames, send)
        finally:
            self._watch.end()
        report.stood_by = stood_by
        report.requests = self._requests.drain()
        if assignment.standbys:
            report.standbys = self._neighbours.refresh(assignment.standbys, assignment.epoch)
        for _ in frames:
            continue  # the Spark task waits until all frames are read, even after a failure
        try:
            return pickle.dumps(report, 5)
        except Exception:
            report.error = RuntimeError(f"{type(report.error).__name__}: {report.error}")
            return pickle.dumps(report, 5)

    @property
    def can_start_early(self) -> bool:
        """Whether a later task of the slot can start the epoch on channel state."""
        return any(task in self._subtasks and self._subtasks[task].can_start_early(at) for task, at in self._later.items())

    def start_early(self, stop: Callable[[], bool]) -> None:
        """Let later tasks of the slot start the epoch on channel state.

        Args:
            stop: Whether there is something else to do.
        """
        for (vertex_id, number), assignment in list(self._later.items()):
            subtask = self._subtasks.get((vertex_id, number))
            if subtask is not None:
                self._log_as(vertex_id, number, assignment)
                subtask.start_early(assignment, InterruptedSlices(TimeSlices(self._longest_early), stop))
            if stop():
                return
            del self._later[(vertex_id, number)]

    def give_up_early(self) -> None:
        """Abort tasks started early if the rest of the epoch does not come: its run may have failed, or moved elsewhere."""
        if time.monotonic() - self._last_call > _EARLY_PATIENCE:
            for subtask in self._subtasks.values():
                subtask.give_up_early(None)

    def _log_as(self, vertex_id: int, number: int, assignment: EpochAssignment) -> None:
        if self._log_fields is not None:
            set_process_log_fields(**self._log_fields[vertex_id], subtask=number, epoch=assignment.epoch)

    def may_stand_by(self, request: bytes) -> bool:
        """Whether the loaded start of the job is not later than that of the request."""
        wanted: StandbyRequest = pickle.loads(request)
        return wanted.generation >= self._generation

    def stand_by(self, request: bytes) -> bytes:
        """Stand by for subtasks that run on other hosts; returns the pickled list of `StandbyStatus`."""
        wanted: StandbyRequest = pickle.loads(request)
        found = []
        for task in wanted.tasks:
            if self._standbys.ran_lately(task, wanted.epoch):
                continue  # the subtask has moved to this host
            subtask = self._subtasks.pop(task, None)
            if subtask is not None:
                subtask.close()  # the subtask has moved to another host; this host keeps its copy
            found.append(self._standbys.stand_by(task))
        return pickle.dumps(found, 5)

    def close(self) -> None:
        """Close all subtasks: the job has ended or starts anew."""
        self._watch.close()
        self._neighbours.close()
        self._standbys.close()
        for subtask in self._subtasks.values():
            subtask.close()
        if self._early is not None:
            self._early.close()
        self._uploads.shutdown(wait=True, cancel_futures=True)
