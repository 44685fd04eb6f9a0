"""Child processes that outlive their use here and are reaped later."""

from __future__ import annotations

import subprocess

__all__ = ["leave_running"]

_left: list[subprocess.Popen[bytes]] = []


def leave_running(process: subprocess.Popen[bytes]) -> None:
    """Stop waiting for a child process. Reaps earlier ones that have ended."""
    _left[:] = [each for each in _left if each.poll() is None]
    _left.append(process)
