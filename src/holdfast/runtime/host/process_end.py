"""Waits for the end of another process, which need not be a child of this one."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import wait

__all__ = ["await_end"]

_LOOK_EVERY = 0.1
"""Polling interval, in seconds, on systems that cannot wait for a process."""


def await_end(process: int, seconds: float | None = None) -> bool:
    """Wait until a process has ended (a zombie has); False if it still runs after this many seconds (None: no limit)."""
    try:
        watch = os.pidfd_open(process)  # type: ignore[attr-defined, unused-ignore]  # Linux only
    except ProcessLookupError:
        return True
    except (AttributeError, OSError):
        return _look_for_end(process, seconds)
    try:
        return bool(wait([watch], seconds))
    finally:
        os.close(watch)


def _look_for_end(process: int, seconds: float | None) -> bool:
    until = None if seconds is None else time.monotonic() + seconds
    while True:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        if until is not None and time.monotonic() >= until:
            return False
        time.sleep(_LOOK_EVERY)
