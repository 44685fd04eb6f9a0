"""The slot starter: a process on each host that imports what a job's task slots need, and forks each slot.

Slots share the memory of what was imported before the fork, and start without importing it. An executor has one starter
(`holdfast.runtime.slots.slot_starter_main`), which ends after its slots.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.runtime.host.background import leave_running
from holdfast.runtime.host.local_directory import LocalDirectory
from holdfast.runtime.host.wire import WireClosed, connect, listen

__all__ = ["FORKS", "Surroundings", "fork_slot", "start_slots"]

log = logging.getLogger("holdfast.slot")

FORKS = b"+"
"""The answer of a starter that forks the slot."""
_TIMEOUT = 60.0
"""Seconds that a starter's imports and a slot's start may take."""


@dataclass(frozen=True)
class Surroundings:
    """The settings that a slot takes over from the task that asks for it."""

    environment: Mapping[str, str]
    python_path: Sequence[str]
    directory: str


def start_slots(
    directory: LocalDirectory, slots: int, executor: int, environment: Mapping[str, str], modules: Sequence[str] = ()
) -> None:
    """Start a job's slots on this host before its first tasks need them; returns at once.

    Args:
        directory: The directory of the job's slots.
        slots: The number of slots.
        executor: The id of the executor's process; the slots end with it.
        environment: The environment variables of Spark's workers.
        modules: What the slots import in advance, besides the runtime.
    """
    made = directory.make()
    with contextlib.ExitStack() as stack:
        early = []
        for number in range(slots):
            path = os.path.join(made, f"slot-{number}.sock")
            lock = stack.enter_context(open(f"{path}.lock", "w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a task that looks for the slot waits until it listens
            early.append((path, lock.fileno()))
        leave_running(_launch(_address(made, executor), executor, environment, modules, early, output=2))


def fork_slot(directory: LocalDirectory, path: str, executor: int, modules: Sequence[str]) -> None:
    """Have a slot forked; returns when it listens, or has ended.

    Args:
        directory: The directory of the job's slots.
        path: The slot's socket.
        executor: The id of the executor's process; the slot ends with it.
        modules: What a newly started starter imports, besides the runtime.

    Raises:
        WireClosed: the starter does not start or does not answer.
    """
    address = _address(directory.make(), executor)
    environment = dict(os.environ)
    environment.pop("SPARK_BUFFER_SIZE", None)
    request = pickle.dumps((path, Surroundings(environment, sys.path, os.getcwd())), 5)
    launched: subprocess.Popen[bytes] | None = None
    while not _forks(address, request):
        if launched is not None:
            launched.kill()  # in case it hangs
            code = launched.wait()
            raise WireClosed(f"the starter of task slots does not start (exit code {code}): {_said(address)}")
        with open(f"{address}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two tasks may find the starter missing at the same time
            connection = connect(address)
            if connection is None:
                launched = _launch(address, executor, environment, modules)
            else:
                connection.close()
    if launched is not None:
        leave_running(launched)


def _address(made: str, executor: int) -> str:
    """The socket of an executor's starter."""
    return os.path.join(made, f"starter-{executor}.sock")


def _said(address: str) -> str:
    with open(f"{address}.log", errors="replace") as log:
        return log.read()[-2000:]


def _launch(
    address: str,
    executor: int,
    environment: Mapping[str, str],
    modules: Iterable[str],
    early: Sequence[tuple[str, int]] = (),
    output: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a starter, with slots that it forks unasked (socket and lock of each). It accepts connections at once."""
    with listen(address) as listener, open(f"{address}.log", "ab") as log:
        slots = [argument for path, lock in early for argument in (path, str(lock))]
        name = "holdfast.runtime.slots.slot_starter_main"
        return subprocess.Popen(
            [sys.executable, "-m", name, str(executor), address, str(listener.fileno()), ",".join(modules), *slots],
            stdin=subprocess.DEVNULL,
            stdout=output,  # where Spark's workers print: the slots' functions print there, too
            stderr=log,
            env={**environment, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            start_new_session=True,
            pass_fds=[listener.fileno(), *(lock for _, lock in early)],
        )


def _forks(address: str, request: bytes) -> bool:
    """Ask a starter for a slot and wait until it listens or has ended; False if no starter answers."""
    connection = connect(address)
    if connection is None:
        return False
    with connection, connection.makefile("rb") as answer:
        connection.settimeout(_TIMEOUT)
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            return answer.read() == FORKS
        except TimeoutError:
            log.warning("the starter of task slots at %s does not answer: it is replaced", address)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(address)
            return False
        except OSError:
            return False
