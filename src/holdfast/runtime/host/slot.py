"""Task slot: the process that holds subtasks' operators, state and connections between epochs.

Spark runs a task in any of its Python workers, but a subtask keeps an open store, hot rows, producers, a consumer that reads
ahead, and the user's function objects. So the worker forwards its frames to the slot of its partition, on the same host, and
returns the frames that the slot sends. A dead slot is replaced, and the new one restores its state from the checkpoint. A
slot ends by itself when it is no longer needed or its executor has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.runtime.host.local_directory import LocalDirectory, host_name
from holdfast.runtime.host.process_end import await_end
from holdfast.runtime.host.slot_starter import fork_slot
from holdfast.runtime.host.wire import (
    DONE,
    END,
    ERROR,
    FRAME,
    NEED_SETUP,
    PARK,
    RESTORE,
    RETIRE,
    RUN,
    SETUP,
    STAND_BY,
    WORKING,
    Wire,
    WireClosed,
    connect,
)

__all__ = ["SlotClient", "stuck_file"]

log = logging.getLogger("holdfast.slot")

_ANSWER_TIMEOUT = 20.0
"""Seconds after which a slot that accepts no call counts as stopped or hung."""
_END_TIMEOUT = 1.0
"""Seconds that a killed process may take to end after its connections have closed."""
_LOAD_TIMEOUT = 60.0
"""Seconds that a slot may take to load a job for which it will stand by."""
_RETIRE_TIMEOUT = 4.0
"""The answer timeout at the end of the job: the slot may still work on a cancelled task, and killing it loses nothing."""


def stuck_file(path: str) -> str:
    """The file to which the slot with this socket writes its stacks when it is stuck."""
    return f"{path}.stuck"


class SlotClient:
    """A Spark task's connection to its slot; starts the slot if necessary."""

    def __init__(
        self, directory: LocalDirectory, slot: int, executor: int | None = None, modules: Sequence[str] = ()
    ) -> None:
        """Connect when needed.

        Args:
            directory: The directory of the job's slots on this host.
            slot: The slot's number.
            executor: The process with which a newly started slot ends; None: the executor of this Spark worker.
            modules: What the first slot on the host imports for all of them.
        """
        self._directory = directory
        self._slot = slot
        self._executor = executor
        self._modules = modules
        self._path = os.path.join(directory.path, f"slot-{slot}.sock")
        self.stuck = stuck_file(self._path)
        self.process = 0
        """The process of the slot called last; 0 before the first call."""

    def run(self, started: str, setup: Any, call: bytes, frames: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
        """Run a task: yields the frames that it sends with their partitions, and at the end (-1, report).

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
        wire, kind, payload = self._call(pickle.dumps((started, call), 5))
        try:
            if kind == WORKING:
                kind, _, payload = wire.receive()
            if kind == NEED_SETUP:
                wire.send(SETUP, setup())
                wire.flush()
                kind, _, payload = wire.receive()
            if kind == ERROR:
                from holdfast.runtime.host.shipping import REMEDY  # slow to import, and rarely needed

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
        """End the slot, if any, of a job that has ended; kill it if it does not answer."""
        self._dismiss(RETIRE, b"")

    def park(self, started: str) -> None:
        """Let the slot, if any, close what a start of the job has opened; its process waits for the next start.

        Args:
            started: Identifies the start that has ended; the slot refuses tasks of it from now on.
        """
        self._dismiss(PARK, started.encode())

    def _dismiss(self, kind: int, payload: bytes) -> None:
        connection = connect(self._path)
        if connection is None:
            return
        wire = Wire(connection)
        try:
            wire.send(kind, payload)
            wire.flush()
            if not wire.answers(_RETIRE_TIMEOUT):
                self._kill(wire.peer())
        except WireClosed:
            pass  # it ended by itself
        finally:
            wire.close()

    def stand_by(self, started: str, setup: bytes, request: bytes) -> bytes:
        """Let the slot stand by for subtasks that run on other hosts.

        Args:
            started: Identifies the start of the job that ``setup`` belongs to.
            setup: The pickled JobSetup.
            request: The pickled `StandbyRequest`.

        Returns:
            The pickled list of its `StandbyStatus`, or nothing if the slot is busy.

        Raises:
            OSError: the slot cannot be started, or has ended.
        """
        wire = self._connect()
        try:
            wire.send(STAND_BY, pickle.dumps((started, request), 5))
            wire.flush()
            if not wire.answers(_ANSWER_TIMEOUT):
                return b""
            kind, _, payload = wire.receive()
            if kind == NEED_SETUP:
                wire.send(SETUP, setup)
                wire.flush()
                if not wire.answers(_LOAD_TIMEOUT):
                    return b""
                kind, _, payload = wire.receive()
            return payload if kind == DONE else b""
        finally:
            wire.close()

    def restore_early(self, request: bytes) -> None:
        """Let a slot that is starting restore state in the background, from a pickled `RestoreRequest`."""
        with open(f"{self._path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the slot listens by the time it releases the lock
        connection = connect(self._path)
        if connection is None:
            return
        wire = Wire(connection)
        try:
            wire.send(RESTORE, request)
            wire.flush()
        finally:
            wire.close()

    def _call(self, request: bytes) -> tuple[Wire, int, bytes]:
        """Ask the slot to run a task; returns the connection, and the kind and payload of its first answer.

        A slot that does not answer, because it is stopped or hangs in a task that Spark has given up, is killed and
        replaced, so that it cannot do harm later. So is a slot that ends before it answers: a killed process accepts
        connections for some milliseconds more. If that happens twice, something ends every slot.

        Raises:
            WireClosed: the slot has refused the call, or two have ended before they answered.
        """
        one_has_ended = False
        while True:
            wire = self._connect()
            process = self.process = wire.peer()
            try:
                wire.send(RUN, request)
                wire.flush()
                if wire.answers(_ANSWER_TIMEOUT):
                    kind, _, payload = wire.receive()
                    return wire, kind, payload
            except WireClosed:
                wire.close()
                if one_has_ended or not await_end(process, _END_TIMEOUT):
                    raise
                one_has_ended = True
                continue
            except BaseException:
                wire.close()
                raise
            wire.close()
            self._kill(process)

    def _kill(self, process: int) -> None:
        log.warning("the task slot %s (process %d) does not answer; killing it", self._path, process)
        for file in (self._path, self.stuck):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)

    def _connect(self) -> Wire:
        self._directory.make()  # refuses a directory in which another user may be listening
        connection = connect(self._path)
        if connection is None:
            with open(f"{self._path}.lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # two tasks may find the slot missing at the same time
                connection = connect(self._path) or self._start()
        return Wire(connection)

    def _start(self) -> socket.socket:
        fork_slot(self._directory, self._path, self._executor or _executor(), self._modules)
        connection = connect(self._path)
        if connection is None:
            with open(f"{self._path}.log", errors="replace") as said:
                raise WireClosed(f"the task slot {self._path} does not start: {said.read()[-2000:]}")
        return connection


def _executor() -> int:
    """The executor's process: Spark's JVM, the parent of the daemon that forked this worker."""
    daemon = os.getppid()
    if os.path.exists("/proc/self/stat"):
        with open(f"/proc/{daemon}/stat") as stat:
            return int(stat.read().rsplit(")", 1)[1].split()[1])
    return int(subprocess.run(["ps", "-o", "ppid=", "-p", str(daemon)], capture_output=True, check=True).stdout)
