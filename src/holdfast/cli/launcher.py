"""Launcher: runs a program as a driver, waits for its job, and starts it again if that is wanted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from types import FrameType

from holdfast.cli.output import note
from holdfast.runtime.driver.job_registry import DIED, JobRecord, Registration, records, starts_again, user_directory
from holdfast.runtime.driver.launch import Launch
from holdfast.runtime.driver.restore_check import RestoreCheck, read_check

__all__ = ["Launcher", "Restart", "begin_daemon", "exit_code"]

_POLL_S = 0.2
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_PAUSE_GROWTH = 1.5
_STEADY_S = 600.0
"""A program that has run for so long is started again without a pause."""


class Restart(str, Enum):
    """When a program is started again."""

    NEVER = "never"
    ALWAYS = "always"
    """When its driver has died or its job has failed."""
    STANDBY = "standby"
    """When its driver has died or has lost the job; a failed job has failed for all standby drivers."""


class Launcher:
    """Starts one program.

    Args:
        program: The program's file.
        arguments: Its arguments.
        settings: The settings from the command line.
        detached: Whether it runs in the background.
        restart: When it is started again.
        checks: Whether it only checks whether it can restore: `checked` returns the result.
    """

    def __init__(
        self,
        program: Path,
        arguments: Sequence[str],
        settings: dict[str, str],
        detached: bool,
        restart: Restart,
        checks: bool = False,
    ) -> None:
        self._command = [sys.executable, str(program), *arguments]
        directory = Path(user_directory().make())
        for name in ("logs", "launches"):
            (directory / name).mkdir(mode=0o700, exist_ok=True)
        number = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
        self.log = directory / "logs" / f"{program.stem}-{number}.log"
        self._restart = restart
        self._check = directory / "launches" / f"{number}.check"
        self._seen = directory / "launches" / f"{number}.seen"
        self._launch = Launch(
            number,
            settings,
            str(self.log),
            detached,
            restarted=restart is not Restart.NEVER,
            restarts_failed=restart is Restart.ALWAYS,
            first_seen="" if restart is Restart.NEVER else str(self._seen),
            restore_check=str(self._check) if checks else "",
        )
        self._stored = self._launch.store(directory / "launches")
        self._process: subprocess.Popen[bytes] | None = None
        self._paused: tuple[JobRecord, Registration] | None = None
        """The record of the job that has failed, until the next attempt has one: `list` shows it, `cancel` finds it."""
        self._standing_by: set[str] = set()
        """Jobs of the program whose drivers stand by, as far as it is known."""
        self.interrupted = 0
        """The number of the signal that asked for the end; 0 for none."""

    def jobs(self) -> list[JobRecord]:
        """The jobs that the program has run so far, the latest first."""
        return [record for record in records() if record.launch == self._launch.id]

    def checked(self) -> RestoreCheck | str | None:
        """Whether the program can restore, or why that cannot be told; None: it has not asked for a job."""
        if not self._check.exists():
            return None
        try:
            return read_check(self._check)
        finally:
            self._check.unlink()

    def run(self, started: Callable[[JobRecord], None]) -> int:
        """Run the program until it ends and is not started again; returns its exit status.

        Ctrl-C and SIGTERM are left to the program, which completes the epoch of its job.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupt)
        try:
            return self._run(started)
        finally:
            self._end_pause()
            self._stored.unlink(missing_ok=True)
            self._seen.unlink(missing_ok=True)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = number
        if number == signal.SIGTERM and self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def _run(self, started: Callable[[JobRecord], None]) -> int:
        pause = _FIRST_PAUSE_S
        known: set[str] = set()
        attempts = 0
        while True:
            began = time.monotonic()
            status = self._run_once(known, started)
            self._end_pause()
            attempts += 1
            if self.interrupted or not self._begins_again(status):
                return status
            if time.monotonic() - began > _STEADY_S:
                pause, attempts = _FIRST_PAUSE_S, 1
            self._begin_pause(attempts)
            note(f"The program ended with {_told(status)}; it is started again in {pause:.0f} s.")
            if not self._slept(pause):
                return status
            pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE_S)

    def _begins_again(self, status: int) -> bool:
        latest = next(iter(self.jobs()), None)
        if status == 0 or latest is None:  # it fails before it runs a job: another start would change nothing
            return False
        lost = latest.state in (DIED, "SUSPENDED")
        return self._restart is Restart.ALWAYS or (self._restart is Restart.STANDBY and lost)

    def _begin_pause(self, attempts: int) -> None:
        job = self.jobs()[0]
        registration = starts_again(job, attempts)
        self._paused = None if registration is None else (job, registration)

    def _end_pause(self) -> None:
        if self._paused is not None:
            job, registration = self._paused
            self._paused = None
            registration.end("CANCELED" if self.interrupted else job.state, job.failure)

    def _slept(self, seconds: float) -> bool:
        """Pause; False if that was interrupted."""
        until = time.monotonic() + seconds
        while not self.interrupted and time.monotonic() < until:
            time.sleep(0.1)  # short, because a signal that sets `interrupted` does not end a sleep (PEP 475)
        return not self.interrupted

    def _run_once(self, known: set[str], started: Callable[[JobRecord], None]) -> int:
        self._process = process = subprocess.Popen(self._command, env=dict(Launch.environment(self._stored)))
        status = None
        owned = False
        while status is None and not owned:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(_POLL_S)
            for record in self.jobs():
                fresh = record.job_id not in known
                if fresh or (record.job_id in self._standing_by and not record.stands_by_for and not record.state):
                    known.add(record.job_id)
                    self._end_pause()
                    started(record)
                    self._standing_by.discard(record.job_id)
                    if record.stands_by_for:
                        self._standing_by.add(record.job_id)
                    else:
                        owned = True
        return process.wait()


def exit_code(status: int) -> int:
    """The exit code of a command for the status of a process."""
    return status if status >= 0 else 128 - status


def _told(status: int) -> str:
    if status >= 0:
        return f"exit code {status}"
    hint = " (out of memory?)" if status == -signal.SIGKILL else ""
    return f"{signal.Signals(-status).name}{hint}"


def begin_daemon(log: Path) -> None:
    """Leave the terminal: a session of its own, output to the log, no input."""
    os.setsid()
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((nothing, 0), (target, 1), (target, 2)):
        os.dup2(source, number)
