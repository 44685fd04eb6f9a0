"""The process of a slot starter (see `holdfast.runtime.host.slot_starter`).

``python -m holdfast.runtime.slots.slot_starter_main EXECUTOR SOCKET LISTENER MODULES [SLOT_SOCKET LOCK]...``
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import re
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from holdfast.runtime.host.slot_starter import FORKS, Surroundings
from holdfast.runtime.slots.slot_main import ignore_interrupts, run_slot

_ASKED_WITHIN = 60.0
"""Seconds within which a starter must get its first request, and each request must arrive."""
_END_EVERY = 1.0
"""Interval in seconds at which a starter checks whether its slots have ended."""


_JOB = re.compile("[0-9a-f]{16}")
"""The name of a job's directory; see `slot_directory`."""


class _Starter:
    def __init__(self, address: str, listener: socket.socket, executor: int) -> None:
        self._address = address
        self._listener = listener
        self._executor = executor
        self._inode = os.stat(address).st_ino

    def fork_early(self, slots: Mapping[str, int]) -> None:
        """Fork slots that nothing has asked for yet, given by socket; each closes its lock when it listens."""
        for path, lock in slots.items():
            if os.fork() == 0:
                for other in slots.values():
                    if other != lock:
                        os.close(other)
                self._be_slot(path, lock)
        for lock in slots.values():
            os.close(lock)

    def serve(self) -> None:
        """Fork slots on request, until none is left."""
        self._listener.settimeout(_END_EVERY if _has_children() else _ASKED_WITHIN)
        while True:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                if not _has_children():
                    break
            else:
                with connection:
                    self._answer(connection)
                self._listener.settimeout(_END_EVERY)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._address).st_ino == self._inode:  # otherwise another starter has taken its place
                os.unlink(self._address)
        self._listener.close()  # clients that have connected meanwhile start another starter
        _leave(os.path.dirname(self._address))

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(_ASKED_WITHIN)
        try:
            with connection.makefile("rb") as asked:
                path, surroundings = pickle.loads(asked.read())
            connection.sendall(FORKS)
        except (EOFError, OSError, pickle.UnpicklingError):
            return  # the client only checked whether anyone listens, was killed, or stopped waiting
        if os.fork() == 0:
            self._be_slot(path, connection.detach(), surroundings)

    def _be_slot(self, path: str, lock: int, surroundings: Surroundings | None = None) -> NoReturn:
        self._listener.close()
        os.setsid()
        log = os.open(f"{path}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(log, 2)
        os.close(log)
        if surroundings is not None:
            os.environ.clear()
            os.environ.update(surroundings.environment)
            sys.path[:] = surroundings.python_path
            os.chdir(surroundings.directory)
        sys.argv = ["-m", path, str(self._executor)]
        _show_command([sys.executable, "-m", "holdfast.runtime.slots.slot_main", path, str(self._executor)])
        run_slot(path, self._executor, lock)


def _leave(directory: str) -> None:
    """Remove the directory of a job's slots on this host, unless another starter uses it or a log in it has content."""
    job = os.path.dirname(directory)
    if not _JOB.fullmatch(os.path.basename(job)):
        return
    with contextlib.suppress(OSError):  # another starter may remove it too, or start now and create it again
        entries = list(os.scandir(directory))
        used = any(entry.name.startswith("starter-") and entry.name.endswith(".sock") for entry in entries)
        if not used and not any(entry.name.endswith(".log") and entry.stat().st_size for entry in entries):
            shutil.rmtree(directory)
            os.rmdir(job)  # stays if another host's slots use it


def _has_children() -> bool:
    """Whether a child process is left; reaps those that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
        return True
    return False


def _show_command(command: Sequence[str]) -> None:
    """Let `ps` show this command line for the process, if it is not longer than the real one."""
    import ctypes

    with open("/proc/self/stat", "rb") as stat:
        start, end = map(int, stat.read().rsplit(b")", 1)[1].split()[45:47])  # arg_start and arg_end
    line = b"\0".join(map(os.fsencode, command)) + b"\0"
    if len(line) <= end - start:
        ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


def main() -> None:
    """Import, fork, and wait for the slots."""
    ignore_interrupts()
    executor, address, listener, modules, *early = sys.argv[1:]
    with contextlib.suppress(ImportError):  # the first task of each slot meets it again, and reports it
        for module in ("holdfast.runtime.slots.task_host", *filter(None, modules.split(","))):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # the slots' garbage collections then ignore modules, and so do not copy their pages
    starter = _Starter(address, socket.socket(fileno=int(listener)), int(executor))
    starter.fork_early(dict(zip(early[::2], map(int, early[1::2]))))
    starter.serve()


if __name__ == "__main__":
    main()
