"""Processes that run on by themselves: no one waits for them."""

from __future__ import annotations

import subprocess

__all__ = ["leave_running"]

_left: list[subprocess.Popen[bytes]] = []


def leave_running(process: subprocess.Popen[bytes]) -> None:
    """Let a child process run on. Those left earlier that have ended are reaped."""
    _left[:] = [each for each in _left if each.poll() is None]
    _left.append(process)
