"""Exclusive access to a directory on this host."""

from __future__ import annotations

import fcntl
import os
import time
from typing import IO

__all__ = ["HostLock", "abandoned"]

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
