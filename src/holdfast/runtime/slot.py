"""Task slot: the process that holds subtasks' operators, state and connections between epochs.

Spark runs a task in any of its Python workers, but a subtask keeps an open store, hot rows, producers, a consumer that
reads ahead, and the user's function objects. So the worker forwards its frames to the slot of its partition, on the same
host, and returns the frames that the slot sends. A dead slot is started again and restores its state from the checkpoint.
A slot ends by itself when it is no longer needed or its executor has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigurationError
from holdfast.runtime.background import leave_running
from holdfast.runtime.local_directory import LocalDirectory, host_name, state_directory
from holdfast.runtime.shipping import REMEDY, install_files
from holdfast.runtime.wire import (
    DONE,
    END,
    ERROR,
    FRAME,
    NEED_SETUP,
    RESTORE,
    RETIRE,
    RUN,
    SETUP,
    Wire,
    WireClosed,
    socket_address,
)

if TYPE_CHECKING:  # Spark's workers import this module
    from holdfast.runtime.early_restore import EarlyRestore

__all__ = ["SlotClient", "SlotServer", "TaskHost"]

log = logging.getLogger("holdfast.slot")

_START_TIMEOUT = 60.0
_ANSWER_TIMEOUT = 20.0
"""A slot that accepts no call for this time (seconds) is stopped or hangs."""
_RETIRE_TIMEOUT = 4.0
"""The same at the end of the job, when nothing is lost with the slot: it may still work on what was cancelled."""
_ORPHAN_PATIENCE = 10.0
"""Grace period for the end of a slot whose executor has ended, in seconds."""
_COLLECT_EVERY = 32
"""Calls between two collections of young cyclic garbage (which also run while the slot is idle)."""
_COLLECT_ALL_EVERY = 4096
"""Calls between two full garbage collections, for cycles that a program drops late. They take 0.5 s for a million rows."""
_IDLE_LIMIT = 900.0
"""A slot without calls for this time (seconds) ends; the next call starts it again."""


class SlotClient:
    """A Spark task's connection to its slot; starts the slot if necessary."""

    def __init__(self, directory: LocalDirectory, slot: int) -> None:
        self._directory = directory
        self._slot = slot
        self._path = os.path.join(directory.path, f"slot-{slot}.sock")

    def run(self, started: str, setup: Any, call: bytes, frames: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
        """Run a task: yields the frames it sends with their partitions, last (-1, report).

        Args:
            started: Identifies the start of the job that ``setup`` belongs to.
            setup: Returns the pickled JobSetup; called only if the slot does not have it.
            call: The pickled (assignment, vertex, subtask).
            frames: The task's input.

        Raises:
            WireClosed: the slot died; its work in this epoch does not count.
        """
        try:
            yield from self._run(started, setup, call, frames)
        except WireClosed as error:
            raise WireClosed(
                f"the process of task slot {self._slot} on host {host_name()} has ended in the middle of its task: it was "
                f"killed (out of memory?), or the program's own code ended or crashed it; its log is {self._path}.log"
            ) from error

    def _run(self, started: str, setup: Any, call: bytes, frames: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
        wire = self._call(pickle.dumps((started, call), 5))
        try:
            kind, _, payload = wire.receive()
            if kind == NEED_SETUP:
                wire.send(SETUP, setup())
                wire.flush()
                kind, _, payload = wire.receive()
            if kind == ERROR:
                raise ConfigurationError(
                    f"the job cannot be loaded on host {host_name()} by {sys.executable}: {payload.decode()}. {REMEDY}"
                )
            for frame in frames:
                wire.send(FRAME, frame)
            wire.send(END)
            wire.flush()
            while True:
                kind, number, payload = wire.receive()
                if kind == FRAME:
                    yield number, payload
                else:
                    yield -1, payload
                    return
        finally:
            wire.close()

    def retire(self) -> None:
        """End the slot of a job that has ended, if there is one; kill it if it does not answer."""
        connection = self._try()
        if connection is None:
            return
        wire = Wire(connection)
        try:
            wire.send(RETIRE)
            wire.flush()
            if not wire.answers(_RETIRE_TIMEOUT):
                self._kill(wire.peer())
        except WireClosed:
            pass  # it has ended by itself
        finally:
            wire.close()

    def restore_early(self, request: bytes) -> None:
        """Let a slot that is starting restore state in the background, from a pickled `RestoreRequest`."""
        with open(f"{self._path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # it listens when it gives up the lock
        connection = self._try()
        if connection is None:
            return
        wire = Wire(connection)
        try:
            wire.send(RESTORE, request)
            wire.flush()
        finally:
            wire.close()

    def _call(self, request: bytes) -> Wire:
        """Ask the slot to run a task; returns the connection for its answer.

        A slot that is stopped, or hangs in a task that Spark has given up, does not answer: it is killed, so that it cannot
        do any harm later, and replaced.
        """
        while True:
            wire = self._connect()
            try:
                wire.send(RUN, request)
                wire.flush()
                if wire.answers(_ANSWER_TIMEOUT):
                    return wire
                process = wire.peer()
            except BaseException:
                wire.close()
                raise
            wire.close()
            self._kill(process)

    def _kill(self, process: int) -> None:
        log.warning("the task slot %s (process %d) does not answer; killing it", self._path, process)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)

    def _connect(self) -> Wire:
        self._directory.make()  # refuses a directory in which another user may be listening
        connection = self._try()
        if connection is None:
            with open(f"{self._path}.lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # two tasks may find the slot missing at the same time
                connection = self._try() or self._start()
        return Wire(connection)

    def _try(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with socket_address(self._path) as address:
                connection.connect(address)
        except OSError:
            connection.close()
            return None
        return connection

    def _start(self) -> socket.socket:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        environment.pop("SPARK_BUFFER_SIZE", None)
        with open(f"{self._path}.log", "ab") as output:
            process = subprocess.Popen(
                _command(self._path, _executor()),
                stdin=subprocess.DEVNULL,
                stderr=output,  # standard output, with the prints of user functions, goes where that of Spark's workers goes
                env=environment,
                start_new_session=True,
            )
        until = time.monotonic() + _START_TIMEOUT
        while time.monotonic() < until:
            connection = self._try()
            if connection is not None:
                leave_running(process)
                return connection
            if process.poll() is not None:
                break
            time.sleep(0.005)  # before the socket exists there is no event to wait for
        with open(f"{self._path}.log", errors="replace") as output_read:
            said = output_read.read()[-2000:]
        raise WireClosed(f"the task slot {self._path} does not start (exit code {process.poll()}): {said}")


def _executor() -> int:
    """The executor: Spark's JVM, the parent of the daemon that forked this worker."""
    daemon = os.getppid()
    if os.path.exists("/proc/self/stat"):
        with open(f"/proc/{daemon}/stat") as stat:
            return int(stat.read().rsplit(")", 1)[1].split()[1])
    return int(subprocess.run(["ps", "-o", "ppid=", "-p", str(daemon)], capture_output=True, check=True).stdout)


def _await_end(process: int) -> None:
    """Return when the process has ended."""
    try:
        watch = os.pidfd_open(process)  # type: ignore[attr-defined, unused-ignore]  # Linux only
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # not supported here: check every second
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(process, 0)
                time.sleep(1)
        return
    wait([watch])


def _command(path: str, executor: int) -> list[str]:
    return [sys.executable, "-m", "holdfast.runtime.slot_main", path, str(executor)]


class SlotServer:
    """The server in a slot; runs one task at a time."""

    def __init__(self, path: str, executor: int, lock: int | None = None) -> None:
        """``lock``: a descriptor that keeps others from starting the same slot; closed once this one listens."""
        self._lock = lock
        self._path = path
        self._executor = executor
        self._orphaned = False
        self._started = ""
        self._host: TaskHost | None = None
        self._early: EarlyRestore | None = None
        self._last_call = time.monotonic()
        self._retired = False
        self._calls = 0
        self._since_all = 0

    def serve(self) -> None:
        """Serve until the slot is no longer needed."""
        # Rows are many and long-lived: garbage is collected between calls, and mostly young objects only.
        gc.disable()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Bound under another name first: clients that can connect find a listening slot.
        with socket_address(f"{self._path}.new") as address:
            listener.bind(address)
        listener.listen(16)
        os.rename(f"{self._path}.new", self._path)
        if self._lock is not None:
            os.close(self._lock)
        listener.settimeout(1.0)
        inode = os.stat(self._path).st_ino
        threading.Thread(target=self._watch_executor, name="executor-watch", daemon=True).start()
        while self._wanted(inode):
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if self._calls:
                    self._calls = 0
                    gc.collect(1)
                continue
            connection.settimeout(None)
            wire = Wire(connection)
            try:
                self._call(wire)
            except WireClosed as error:
                log.info("the task went away: %s", error)
            finally:
                wire.close()
            self._last_call = time.monotonic()
        listener.close()
        self._forget()
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._path).st_ino == inode:
                os.unlink(self._path)

    def _wanted(self, inode: int) -> bool:
        if self._retired or self._orphaned:
            return False
        try:
            if os.stat(self._path).st_ino != inode:
                return False  # another slot has taken this one's place
        except FileNotFoundError:
            return False  # the job has ended and cleaned up
        return time.monotonic() - self._last_call < _IDLE_LIMIT

    def _watch_executor(self) -> None:
        """End with the executor, even during a call that hangs, to release locks and connections."""
        _await_end(self._executor)
        self._orphaned = True
        time.sleep(_ORPHAN_PATIENCE)
        os._exit(1)

    def _call(self, wire: Wire) -> None:
        kind, _, payload = wire.receive()
        if kind == RETIRE:
            self._retired = True
            self._forget()
            return
        if kind == RESTORE:
            from holdfast.runtime.early_restore import EarlyRestore

            self._early = self._early or EarlyRestore(pickle.loads(payload))
            return
        if kind != RUN:
            raise WireClosed(f"message {kind} instead of a call")
        started, call = pickle.loads(payload)
        try:
            if started != self._started or self._host is None:
                wire.send(NEED_SETUP)
                wire.flush()
                _, _, setup = wire.receive()
                if self._host is not None:
                    self._forget()
                    gc.collect()  # a full collection: the objects of an earlier start of the job are old
                self._host = TaskHost(setup, os.path.dirname(self._path), self._early)
                self._early = None
                self._started = started
            wire.send(END)
            wire.flush()
        except WireClosed:
            raise
        except Exception as error:
            log.exception("the job cannot be loaded")
            self._forget()
            wire.send(ERROR, f"{type(error).__name__}: {error}".encode())
            wire.flush()
            return
        report = self._host.run(call, _frames(wire), lambda number, frame: wire.send(FRAME, frame, number))
        wire.send(DONE, report)
        wire.flush()
        self._calls += 1
        self._since_all += 1
        if self._since_all >= _COLLECT_ALL_EVERY:
            self._since_all = 0
            gc.collect()
        elif self._calls % _COLLECT_EVERY == 0:
            gc.collect(1)

    def _forget(self) -> None:
        host, self._host = self._host, None
        early, self._early = self._early, None
        self._started = ""
        if host is not None:
            host.close()
        if early is not None:
            early.close()


def _frames(wire: Wire) -> Iterator[bytes]:
    while True:
        kind, _, payload = wire.receive()
        if kind != FRAME:
            return
        yield payload


class TaskHost:
    """The subtasks of a slot for one start of a job."""

    def __init__(self, setup: bytes, slots: str, early: EarlyRestore | None = None) -> None:
        """Load the job.

        Args:
            setup: The executor's broadcast.
            slots: The job's directory of sockets on this host.
            early: State that was restored before; closed with this object.
        """
        self._early = early
        python_path, files, dependencies, self._setup = pickle.loads(setup)
        sys.path.extend(path for path in python_path if path not in sys.path)
        dependencies.install(slots)
        install_files(files, slots)
        # Imported here: Spark workers, which only talk to slots, do not need these.
        import cloudpickle

        from holdfast.checkpoint.storage import Storage
        from holdfast.common.json_log import log_as_json
        from holdfast.runtime.task import Subtask, TaskResources

        first = cloudpickle.loads(self._setup)
        self._log_fields: dict[int, dict[str, str]] | None = None
        """The fields of messages by vertex id; None if the log is no JSON."""
        if first.plan.settings.log_as_json:
            log_as_json(logging.getLogger("holdfast"), sys.stderr)
            log_as_json(logging.getLogger(), sys.stdout)  # messages of the program's functions
            job = {"job": first.plan.name, "job_id": first.job.job_id}
            self._log_fields = {vertex.id: {**job, "operator": vertex.name} for vertex in first.plan.vertices}
        directory = state_directory(first.plan.settings.temporary_directory, first.job.job_name).make()
        storage = Storage.open(first.job.storage_uri, first.job.storage_config)
        self._uploads = ThreadPoolExecutor(1, thread_name_prefix="materialisation")
        resources = TaskResources(storage, directory, self._uploads, early=early)

        def create(vertex_id: int, number: int) -> Subtask:
            return Subtask(lambda: cloudpickle.loads(self._setup), vertex_id, number, resources)

        self._create = create
        self._subtasks: dict[tuple[int, int], Any] = {}

    def run(self, call: bytes, frames: Iterator[bytes], send: Any) -> bytes:
        """Run one task of an epoch; returns the pickled report."""
        import cloudpickle

        assignment, vertex_id, number = cloudpickle.loads(call)
        if self._log_fields is not None:
            from holdfast.common.json_log import set_process_log_fields

            set_process_log_fields(**self._log_fields[vertex_id], subtask=number, epoch=assignment.epoch)
        subtask = self._subtasks.get((vertex_id, number))
        if subtask is None:
            subtask = self._subtasks[(vertex_id, number)] = self._create(vertex_id, number)
        report = subtask.run(assignment, frames, send)
        for _ in frames:
            continue  # the Spark task waits until all are read, also after a failure
        try:
            return pickle.dumps(report, 5)
        except Exception:
            report.error = RuntimeError(f"{type(report.error).__name__}: {report.error}")
            return pickle.dumps(report, 5)

    def close(self) -> None:
        """Close all subtasks: the job has ended or starts anew."""
        for subtask in self._subtasks.values():
            subtask.close()
        if self._early is not None:
            self._early.close()
        self._uploads.shutdown(wait=True, cancel_futures=True)
