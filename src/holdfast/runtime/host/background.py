"""Child processes that outlive their use here and are reaped later."""

from __future__ import annotations

import os
import subprocess

__all__ = ["leave_running"]

_left: list[int] = []
"""The process ids of these children."""


def leave_running(process: subprocess.Popen[bytes]) -> None:
    """Stop waiting for a child process, and reap earlier ones that have ended.

    The Popen object no longer knows whether the process is running.
    """
    _left[:] = [pid for pid in _left if _runs(pid)]
    if process.poll() is None:
        _left.append(process.pid)
        process.returncode = 0  # otherwise Popen warns of a running process when this process ends


def _runs(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:  # reaped elsewhere
        return False
