"""Processes forked from one that has already imported their modules: they start at once, while imports take seconds."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path

__all__ = ["Fork"]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "holdfast.testing.chaos.driver",
        "holdfast.testing.chaos.programs.clocked",
        "holdfast.testing.chaos.programs.mixed",
        "holdfast.testing.chaos.programs.numbered",
    ]
)


class Fork:
    """A process that runs a main function, with the interface of `subprocess.Popen`.

    Args:
        main: A module-level function; its result is the process's exit code.
        arguments: The function's argument.
        log_file: The file for standard output and standard error.
    """

    def __init__(self, main: Callable[[list[str]], int], arguments: Sequence[str], log_file: Path) -> None:
        self._process = _context.Process(target=_run, args=(main, list(arguments), os.fspath(log_file)), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process; returns its exit code.

        Raises:
            subprocess.TimeoutExpired: the process did not end in time.
        """
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.terminate()


def _run(main: Callable[[list[str]], int], arguments: list[str], log_file: str) -> None:
    os.setsid()
    threading.Thread(target=_die_with_the_campaign, name="campaign", daemon=True).start()
    with open(log_file, "ab") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    sys.exit(main(arguments))


def _die_with_the_campaign() -> None:
    campaign = multiprocessing.parent_process()
    assert campaign is not None
    wait([campaign.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
