"""Standstill: what a task slot tells of a task that does not go on, and how the driver hears of it.

A task that stands still reports nothing: its function, a broker or the storage does not return. So a thread of the slot
looks at the task every few seconds, and puts what it sees into the checkpoint storage, which driver and slots reach on any
cluster. The driver looks there when an epoch lasts. In an epoch of a few seconds nothing is written.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType

import msgspec

from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import Storage
from holdfast.compiled import FRAMES
from holdfast.errors import StorageError
from holdfast.metrics.diagnosis import LASTS_S, SILENT_S, STANDS_S
from holdfast.metrics.job import RUNNING_EPOCH, JobMetrics
from holdfast.metrics.stats import StandingTask
from holdfast.runtime.async_io.event_loop import awaited
from holdfast.runtime.host.local_directory import host_name
from holdfast.runtime.records.user_code import place_of

__all__ = ["StandstillReader", "TaskWatch", "read_standstills"]

log = logging.getLogger("holdfast.slot")

LOOK_S = 3.0
"""A task is looked at every so many seconds, and what was seen is read as often."""
_TOLD_EVERY_S = 60.0
_MOST = 50
"""Slots that the driver reads of."""


class TaskWatch:
    """Watches the task that a slot runs, in a thread. Used by the slot's main thread.

    Args:
        storage: The checkpoint storage.
        path: Where to put what is seen.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._main = threading.get_ident()
        self._changed = threading.Condition()
        self._task: tuple[int, str, int, Callable[[], str]] | None = None
        self._base: CodeType | None = None
        """The code that runs the task; what it calls belongs to the task."""
        self._began = 0.0
        self._closed = False
        self._told = False
        threading.Thread(target=self._run, name="task-watch", daemon=True).start()

    def begin(self, epoch: int, vertex: str, subtask: int, operator: Callable[[], str]) -> None:
        """A task begins; ``operator`` returns the name of the operator that runs just then."""
        with self._changed:
            self._base = sys._getframe(1).f_code
            self._task, self._began = (epoch, vertex, subtask, operator), time.monotonic()
            self._changed.notify()

    def end(self) -> None:
        """The task has ended."""
        with self._changed:
            self._task = None
            self._changed.notify()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed, self._task = True, None
            self._changed.notify()

    def _run(self) -> None:
        while not self._closed:
            with self._changed:
                self._changed.wait_for(lambda: self._task is not None or self._closed)
                task, began = self._task, self._began
            if task is not None:
                self._watch(task, began)

    def _watch(self, task: tuple[int, str, int, Callable[[], str]], began: float) -> None:
        """Look at the task until it ends."""
        epoch, vertex, subtask, operator = task
        call: object | None = None
        """The call of a function, or the request, that the task is at."""
        since = 0.0
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._task is not task, LOOK_S):
                    break
            now = time.monotonic()
            innermost = sys._current_frames().get(self._main)
            function = _first_call(innermost, self._base)
            running: object | None = function
            where = _place(innermost, function)
            if running is None and (request := awaited(self._main)) is not None:
                running, where = request
            if running is None or running is not call:
                call, since = running, now
            seen = StandingTask(
                epoch=epoch,
                vertex=vertex,
                operator=operator() or vertex,
                subtask=subtask,
                host=host_name(),
                process=os.getpid(),
                seconds=now - began,
                same_call_seconds=now - since,
                where=where,
            )
            del innermost, function, running
            self._tell(seen)
        call = None
        if self._told:
            self._told = False
            try:
                self._storage.delete([self._path])
            except StorageError as error:
                log.debug("what was told of a task that stood still remains: %s", error)

    def _tell(self, seen: StandingTask) -> None:
        self._told = True
        try:
            self._storage.put(self._path, msgspec.json.encode(seen))
        except StorageError as error:
            log.warning("the driver cannot be told what lasts in a task, %s: %s", seen.where, error)


def _ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(FRAMES)


def _first_call(innermost: FrameType | None, base: CodeType | None) -> FrameType | None:
    """The outermost frame of the program's function that runs; None: none runs.

    While the same call runs, it is the same object: a function that is slow and goes on has another one each time.
    """
    found, frame = None, innermost
    while frame is not None and frame.f_code is not base:
        if not _ours(frame):
            found = frame
        frame = frame.f_back
    return found


def _place(innermost: FrameType | None, call: FrameType | None) -> str:
    """The line at which the task is, with its text: that of the program's function, or else the innermost one."""
    frame = call or innermost
    if frame is None:
        return "outside of Python"
    inner = innermost
    while inner is not None and inner.f_code.co_filename != frame.f_code.co_filename:
        inner = inner.f_back  # the deepest line of the file with the function
    frame = inner or frame
    return place_of(frame)


def read_standstills(storage: Storage, paths: JobPaths, epoch: int) -> list[StandingTask]:
    """What the slots have told of the tasks of an epoch, the longest standing call first.

    Raises:
        StorageError: the storage does not answer.
    """
    found = []
    for path in storage.list(paths.standstills_prefix)[:_MOST]:
        try:
            seen = msgspec.json.decode(storage.get(path), type=StandingTask)
        except (StorageError, msgspec.MsgspecError):
            continue  # it has just ended, or belongs to another release
        if seen.epoch == epoch:
            found.append(seen)
    return sorted(found, key=lambda seen: -seen.same_call_seconds)


class StandstillReader:
    """Reads in the driver what the slots tell of an epoch that lasts, in a thread, for the job's metrics and the log."""

    def __init__(self, storage: Storage, paths: JobPaths, metrics: JobMetrics) -> None:
        self._storage, self._paths, self._metrics = storage, paths, metrics
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-standstills", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and delete what slots have left behind."""
        self._over.set()
        self._thread.join()
        if self._metrics.snapshot().standing:
            try:
                self._storage.delete(self._storage.list(self._paths.standstills_prefix))
            except StorageError as error:
                log.debug("what slots told of tasks that lasted remains: %s", error)

    def _run(self) -> None:
        told = -_TOLD_EVERY_S
        while not self._over.wait(LOOK_S):
            job = self._metrics.snapshot()
            age, epoch = next(
                ((age, what) for what, age in job.activities.items() if what.startswith(RUNNING_EPOCH)), (0.0, "")
            )
            if age < LASTS_S:
                self._metrics.tasks_stand(())
                continue
            try:
                seen = read_standstills(self._storage, self._paths, int(epoch.removeprefix(RUNNING_EPOCH)))
            except StorageError as error:
                log.debug("it is not known what the task slots do: %s", error)
                continue
            self._metrics.tasks_stand(seen)
            now = time.monotonic()
            standing = [each for each in seen if each.same_call_seconds >= STANDS_S]
            if (standing or (not seen and age >= SILENT_S)) and now - told >= _TOLD_EVERY_S:
                told = now
                for each in standing[:3]:
                    log.warning(
                        "job %r: a call in operator %s, subtask %d on host %s, has not returned for %.0f s: it is at %s",
                        job.name, each.operator, each.subtask, each.host, each.same_call_seconds, each.where,
                    )  # fmt: skip
                if not seen:
                    log.warning("job %r: epoch has run for %.0f s, and no task slot tells what it does", job.name, age)
