"""Temporary directories for data that exceeds memory; they are deleted even after their process was killed."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from holdfast.state.store.host_lock import HostLock

__all__ = ["scratch_directory"]

_PREFIX = "holdfast-scratch-"
_NEW_S = 60.0
"""Seconds; a younger directory may not be locked yet."""


@contextmanager
def scratch_directory(within: str) -> Iterator[str]:
    """A new directory, deleted at the end; first deletes those that killed processes left in ``within``."""
    _sweep(within)
    directory = tempfile.mkdtemp(prefix=_PREFIX, dir=within)
    lock = HostLock(directory)
    try:
        lock.acquire()
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        lock.release()


def _sweep(within: str) -> None:
    for name in os.listdir(within):
        if name.startswith(_PREFIX):
            path = os.path.join(within, name)
            with suppress(OSError):  # it is gone already
                status = os.lstat(path)
                if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                    continue  # planted by another user: its lock may be a link to a file of this user
                if time.time() - status.st_mtime > _NEW_S:
                    lock = HostLock(path)
                    if lock.acquire(patience=-1):
                        shutil.rmtree(path, ignore_errors=True)
                    lock.release()
