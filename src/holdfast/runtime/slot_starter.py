"""Starts a job's task slots early: one process imports what they need and forks each of them.

``python -m holdfast.runtime.slot_starter EXECUTOR_PID MODULES [SOCKET LOCK]...`` ends after its slots.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from holdfast.runtime.background import leave_running
from holdfast.runtime.local_directory import LocalDirectory
from holdfast.runtime.slot_main import ignore_interrupts, run_slot

__all__ = ["start_slots"]


def start_slots(
    directory: LocalDirectory, slots: int, executor: int, environment: Mapping[str, str], modules: Sequence[str] = ()
) -> None:
    """Start a job's slots on this host before its first tasks ask for them; returns at once.

    Args:
        directory: The directory of the job's slots.
        slots: The number of slots.
        executor: The id of the executor's process; the slots end with it.
        environment: The environment variables of Spark's workers.
        modules: What the slots import meanwhile, besides the runtime.
    """
    made = directory.make()
    with contextlib.ExitStack() as stack:
        arguments: list[str] = []
        locks = []
        for number in range(slots):
            path = os.path.join(made, f"slot-{number}.sock")
            lock = stack.enter_context(open(f"{path}.lock", "w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a task that looks for the slot waits until it listens
            locks.append(lock.fileno())
            arguments += [path, str(lock.fileno())]
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.runtime.slot_starter", str(executor), ",".join(modules), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=2,
            stderr=stack.enter_context(open(os.path.join(made, "slot-0.sock.log"), "ab")),
            env={**environment, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            start_new_session=True,
            pass_fds=locks,
        )
    leave_running(process)


def main() -> None:
    """Import, fork, and wait for the slots."""
    ignore_interrupts()
    executor, modules, *rest = sys.argv[1:]
    slots = dict(zip(rest[::2], map(int, rest[1::2])))
    import holdfast.runtime.task_host  # noqa: F401, what the first task of each slot would import

    for module in filter(None, modules.split(",")):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # collections in the slots do not look at modules, and so do not copy their pages
    for path, lock in slots.items():
        if os.fork() == 0:
            for other in slots.values():
                if other != lock:
                    os.close(other)
            _be_slot(path, int(executor), lock)
    for lock in slots.values():
        os.close(lock)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _be_slot(path: str, executor: int, lock: int) -> None:
    os.setsid()
    log = os.open(f"{path}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 2)
    os.close(log)
    sys.argv = ["-m", path, str(executor)]
    _show_command([sys.executable, "-m", "holdfast.runtime.slot_main", path, str(executor)])
    run_slot(path, executor, lock)


def _show_command(command: Sequence[str]) -> None:
    """Let `ps` show this command line for the process, if it is not longer than the real one."""
    import ctypes

    with open("/proc/self/stat", "rb") as stat:
        start, end = map(int, stat.read().rsplit(b")", 1)[1].split()[45:47])  # arg_start and arg_end
    line = b"\0".join(map(os.fsencode, command)) + b"\0"
    if len(line) <= end - start:
        ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()
