"""The drivers of the job under test, with their processes: JVM, Python workers, task slots."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.testing.chaos.forks import Fork

__all__ = ["BEGUN", "DriverProcess", "KINDS", "RESTARTS", "STEP"]

KINDS = ("driver", "jvm", "daemon", "worker", "slot")
"""The kinds of a driver's processes: itself, Spark's JVM, the daemon that forks Python workers, workers, and task slots."""
BEGUN = "the job has begun"
"""The driver's log message at its take-over."""
RESTARTS = "restarts so far: "
"""The driver's log message after a restart in place."""
STEP = "reached step "
"""The driver's log message before it kills or stops itself."""
_DAEMONS = (b"pyspark.daemon", b"holdfast.runtime.spark.pyspark_daemon")
_MARK = "HOLDFAST_CHAOS"
_PATIENCE_S = 120.0


class DriverProcess:
    """A driver in its own process, with all processes that it starts.

    Args:
        number: The driver's number in the campaign.
        directory: The directory for its settings and log.
        settings: The settings for the driver's main function.
        program: Python's arguments; the settings file is appended as the last one.
        kills: Counter of killed processes, by kind.
        main: Runs in a forked process instead of ``program``, if given. It must not start processes.
    """

    def __init__(
        self,
        number: int,
        directory: Path,
        settings: dict[str, Any],
        program: Sequence[str] = ("-m", "holdfast.testing.chaos.driver"),
        kills: Counter[str] | None = None,
        main: Callable[[list[str]], int] | None = None,
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise ConfigurationError("the fault campaign needs Linux: it finds a driver's processes in /proc")
        self.number = number
        self.kills: Counter[str] = Counter() if kills is None else kills
        self.log_file = directory / f"driver-{number}.log"
        self.log_file.touch()
        self._mark = f"{uuid.uuid4().hex}"
        path = directory / f"driver-{number}.json"
        path.write_text(json.dumps(settings, indent=1))
        self._alone = main is not None
        self._begun = False
        self._killed: set[int] = set()
        self.process: subprocess.Popen[bytes] | Fork = (
            self._start([*program, str(path)]) if main is None else Fork(main, [str(path)], self.log_file)
        )
        self.stopped: list[int] = []
        """Paused processes."""

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        setpriv = shutil.which("setpriv")
        die_with_us = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
        with self.log_file.open("wb") as log:
            return subprocess.Popen(
                [*die_with_us, sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, _MARK: self._mark, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
                start_new_session=True,
            )

    def members(self, kind: str) -> list[int]:
        """The process ids of one kind."""
        return [pid for pid, found in self._all() if found == kind]

    def _all(self) -> Iterator[tuple[int, str]]:
        if self._alone:
            if self.exit_code is None:
                yield self.process.pid, "driver"
            return
        mark = f"\0{_MARK}={self._mark}\0".encode()
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            with contextlib.suppress(OSError):
                if mark not in b"\0" + Path(f"/proc/{entry}/environ").read_bytes() + b"\0":
                    continue
                command = _command(int(entry))
                if int(entry) == self.process.pid:
                    yield int(entry), "driver"
                elif b"holdfast.runtime.slots.slot_main" in command:
                    yield int(entry), "slot"
                elif b"holdfast.runtime.slots.slot_starter_main" in command:
                    yield int(entry), "starter"
                elif _is_jvm(command):
                    yield int(entry), "jvm"
                elif (
                    b"pyspark.daemon" in command or b"pyspark_daemon" in command
                ):  # workers are forks of the daemon, and may outlive it
                    yield int(entry), "daemon" if _is_jvm(_command(_parent(int(entry)))) else "worker"

    def kill(self, *pids: int) -> None:
        """``kill -9``. Live processes are counted; a driver only if it has begun its work."""
        kinds = dict(self._all())
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                kind = kinds.get(pid)
                if kind is not None and pid not in self._killed and (kind != "driver" or self.begun):
                    self.kills[kind] += 1
                self._killed.add(pid)

    def pause(self, *pids: int) -> None:
        """SIGSTOP."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self.stopped.append(pid)

    def resume(self) -> None:
        """SIGCONT for all paused processes."""
        while self.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.stopped.pop(), signal.SIGCONT)

    def wake(self) -> None:
        """SIGCONT for the driver itself, if it is running."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.process.pid, signal.SIGCONT)

    @property
    def exit_code(self) -> int | None:
        """The driver's exit code; None while it runs."""
        return self.process.poll()

    def log(self) -> str:
        """The driver's log so far."""
        return self.log_file.read_text(errors="replace")

    def last_error(self) -> str:
        """The last line of the log that looks like an error."""
        lines = [line.strip() for line in self.log().splitlines() if "rror" in line or "Fenced" in line or "failed" in line]
        return lines[-1][:300] if lines else "nothing in its log"

    @property
    def begun(self) -> bool:
        """Whether the driver has begun to take over the job."""
        self._begun = self._begun or BEGUN in self.log()
        return self._begun

    @property
    def restarts(self) -> int:
        """The number of restarts in place."""
        return max((int(line.rsplit(RESTARTS, 1)[1]) for line in self.log().splitlines() if RESTARTS in line), default=0)

    @property
    def died_as_told(self) -> bool:
        """Whether the driver killed itself at its step."""
        return self.exit_code == -signal.SIGKILL and STEP in self.log()

    def kill_all(self) -> None:
        """Kill all remaining processes, counted; returns when they are gone."""
        self._sweep(self.kill)

    def end(self) -> None:
        """Kill all remaining processes without counting them; returns when they are gone."""
        self._sweep(_clear_away)

    def _sweep(self, kill: Callable[..., None]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            left = [pid for pid, _ in self._all()]
            kill(*left)
            if self.process.poll() is not None and not left:
                return
            if time.monotonic() > deadline:
                raise ConfigurationError(f"processes {left} of driver {self.number} cannot be killed")
            time.sleep(0.05)


def _clear_away(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def _is_jvm(command: bytes) -> bool:
    """Whether this is Spark's JVM, started directly or by Spark's scripts."""
    return b"PythonGatewayServer" in command or b"SparkSubmit" in command
