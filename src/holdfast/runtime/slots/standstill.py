"""Standstill: how a task slot reports a stuck task.

A stuck task reports nothing, because its function, a broker or the storage does not return. So a thread of the slot looks at
the task every few seconds, and writes what it sees to the checkpoint storage, which driver and slots reach on any cluster.
The driver looks there when an epoch takes long. An epoch of a few seconds writes nothing.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType

import msgspec

from holdfast.checkpoint.stores.storage import Storage
from holdfast.errors import StorageError
from holdfast.metrics.stats import StandingTask
from holdfast.runtime.async_io.event_loop import awaited
from holdfast.runtime.host.local_directory import host_name
from holdfast.runtime.records.places import is_programs, outside_of_libraries, place_of

__all__ = ["LOOK_S", "TaskWatch"]

log = logging.getLogger("holdfast.slot")

LOOK_S = 3.0
"""Seconds between two looks at a task."""
_COMPUTES = 0.1
"""A thread is computing if its share of a processor is larger, even if others want the processor too."""
_RESTS = 0.05
"""A process with a smaller share of a processor waits in all its threads: it neither computes nor receives or writes
anything.
"""
_WAITS_PER_S = 200.0
"""Above this number of waits per second, the task is not stuck in one of them, but progresses slowly. Kafka's client checks
100 times per second whether its records have arrived.
"""
_WAITS = "Holdfast waits"
_SYSTEMS = {
    os.path.join("checkpoint", "stores"): "the checkpoint storage",
    os.path.join("host", "wire.py"): "Spark, which moves its records",
    os.path.join("connectors", "kafka"): "Kafka",
}
"""The systems waited for, by the file of a waiting frame."""


class TaskWatch:
    """Watches the task that a slot runs, in a thread. Called by the slot's main thread.

    Args:
        storage: The checkpoint storage.
        path: Where to write what is seen.
        look_s: The seconds between two looks.
        stuck: A file that gets the current lines of all threads if the watching thread does not run, as during a call that
            keeps Python's lock (the GIL), and is empty otherwise. None: no file.
    """

    def __init__(self, storage: Storage, path: str, look_s: float = LOOK_S, stuck: str | None = None) -> None:
        self._storage = storage
        self._path = path
        self._look_s = look_s
        self._stuck = None if stuck is None else os.open(stuck, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self._main, self._main_id = threading.get_ident(), threading.get_native_id()
        self._changed = threading.Condition()
        self._task: tuple[int, str, int, Callable[[], str]] | None = None
        self._base: CodeType | None = None
        """The code that runs the task; the task consists of what it calls."""
        self._began = 0.0
        self._closed = False
        self._told = False
        threading.Thread(target=self._run, name="task-watch", daemon=True).start()

    def begin(self, epoch: int, vertex: str, subtask: int, operator: Callable[[], str]) -> None:
        """A task starts; ``operator`` returns the name of the operator that runs at the moment."""
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
                self._expect_turn()
                self._changed.wait_for(lambda: self._task is not None or self._closed, self._look_s)
                task, began = self._task, self._began
            if task is not None:
                self._watch(task, began)

        if self._stuck is not None:
            faulthandler.cancel_dump_traceback_later()
            os.close(self._stuck)

    def _expect_turn(self) -> None:
        """Have the lines of all threads written to the file unless this thread runs again in time."""
        if self._stuck is not None:
            if os.fstat(self._stuck).st_size:
                os.ftruncate(self._stuck, 0)
            faulthandler.dump_traceback_later(2 * self._look_s, file=self._stuck)

    def _watch(self, task: tuple[int, str, int, Callable[[], str]], began: float) -> None:
        """Look at the task until it ends."""
        epoch, vertex, subtask, operator = task
        call: object | None = None
        """What the task is doing: the call of a function, a request, or a wait of Holdfast's own."""
        since = looked = began
        spent = self._spent()
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._task is not task, self._look_s):
                    break
            self._expect_turn()
            now, spent_now = time.monotonic(), self._spent()
            share, of_all, often = ((after - before) / (now - looked) for before, after in zip(spent, spent_now))
            innermost = sys._current_frames().get(self._main)
            running, where = self._at(innermost, rests=of_all < _RESTS and often < _WAITS_PER_S)
            if running is None or running != call:
                call, since = running, now
            self._tell(
                StandingTask(
                    epoch=epoch,
                    vertex=vertex,
                    operator=operator() or vertex,
                    subtask=subtask,
                    host=host_name(),
                    process=os.getpid(),
                    seconds=now - began,
                    same_call_seconds=now - since,
                    where=where,
                    computes=share > _COMPUTES,
                    waits_for=_system(innermost, self._base) if running is _WAITS else "",
                )
            )
            looked, spent = now, spent_now
            del innermost, running
        call = None
        if self._told:
            self._told = False
            try:
                self._storage.delete([self._path])
            except StorageError as error:
                log.debug("what was told of a task that stood still remains: %s", error)

    def _at(self, innermost: FrameType | None, *, rests: bool) -> tuple[object | None, str]:
        """What the task is doing, equal while it continues (None: nothing lasting), and the line.

        While the same call of a function runs, its frame is the same object; a function that is slow but progresses has
        another frame each time. A wait of Holdfast's own may end and start again, e.g. with each attempt at a request.
        """
        function = _first_call(innermost, self._base)
        where = _place(innermost, function)
        if function is not None:
            return function, where
        request = awaited(self._main)
        if request is not None:
            return request
        return (_WAITS if rests else None), where

    def _spent(self) -> tuple[float, float, float]:
        """The processor seconds of the task's thread, and of all threads but this one; and the number of its waits."""
        used = time.clock_gettime(time.pthread_getcpuclockid(self._main))
        with open(f"/proc/self/task/{self._main_id}/status") as status:
            waits = next(int(line.split()[1]) for line in status if line.startswith("voluntary"))
        return used, time.process_time() - time.thread_time(), waits

    def _tell(self, seen: StandingTask) -> None:
        self._told = True
        try:
            self._storage.put(self._path, msgspec.json.encode(seen))
        except StorageError as error:
            log.warning("the driver cannot be told what lasts in a task, %s: %s", seen.where, error)


def _first_call(innermost: FrameType | None, base: CodeType | None) -> FrameType | None:
    """The frame of the program's outermost running function; None if none runs."""
    found, frame = None, innermost
    while frame is not None and frame.f_code is not base:
        if is_programs(frame.f_code.co_filename):
            found = frame
        frame = frame.f_back
    return found


def _system(innermost: FrameType | None, base: CodeType | None) -> str:
    """The system that Holdfast waits for; empty if unknown."""
    frame = innermost
    while frame is not None and frame.f_code is not base:
        for part, system in _SYSTEMS.items():
            if part in frame.f_code.co_filename:
                return system
        frame = frame.f_back
    return ""


def _place(innermost: FrameType | None, call: FrameType | None) -> str:
    """The line at which the task is, with its text: in the program's function, or else Holdfast's innermost line."""
    frame = call or innermost
    if frame is None:
        return "outside of Python"
    if call is None:
        return place_of(outside_of_libraries(frame))
    inner = innermost
    while inner is not None and inner.f_code.co_filename != frame.f_code.co_filename:
        inner = inner.f_back  # the deepest line of the file with the function
    frame = inner or frame
    return place_of(frame)
