"""Exclusive access to a directory on this host, and the paths of the stores in it.

A store never has the path that another one had. Whoever deletes the directory also deletes its lock, so that two processes
may have one: a task slot of an older driver, and its successor's. RocksDB writes its files by their paths, with numbers as
names. At the same path it would write into the successor's files, and into those of checkpoints that are links to them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from typing import IO

from holdfast.checkpoint.paths import new_attempt

__all__ = ["HostLock", "abandoned", "new_path", "path_of", "renewed"]

_PATIENCE = 3.0
"""Seconds to wait for a task slot that is shutting down."""


class HostLock:
    """An exclusive lock on a directory, held until `release` or the end of the process."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, "lock")
        self._file: IO[str] | None = None

    def acquire(self, patience: float = _PATIENCE) -> bool:
        """Take the lock; False if another process keeps it for this time, in seconds."""
        self._file = open(self._path, "w")  # noqa: SIM115  (held until release)
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() > until:
                    return False
                time.sleep(0.05)  # flock has no timeout and no notification

    def release(self) -> None:
        """Release the lock, if held."""
        if self._file is not None:
            self._file.close()
            self._file = None


def abandoned(path: str) -> bool:
    """Whether no process has the RocksDB in this directory open."""
    try:
        with open(os.path.join(path, "LOCK"), "r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def path_of(directory: str, name: str) -> str:
    """The path of the store that the last owner of a directory left under this name; if there is none, that of a new one.

    Only the owner may call it. With several stores it is unknown which is the last one; all are deleted.
    """
    left = [each for each in os.listdir(directory) if each == name or each.startswith(f"{name}-")]
    if len(left) == 1:
        return os.path.join(directory, left[0])
    for each in left:
        shutil.rmtree(os.path.join(directory, each), ignore_errors=True)
    return new_path(directory, name)


def new_path(directory: str, name: str) -> str:
    """A path for a new store of this name."""
    return os.path.join(directory, f"{name}-{new_attempt()}")


def renewed(path: str) -> str:
    """Delete a store; returns the path for the one that takes its place."""
    shutil.rmtree(path, ignore_errors=True)
    directory, name = os.path.split(path)
    return new_path(directory, name.partition("-")[0])
