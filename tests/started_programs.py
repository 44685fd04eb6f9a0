"""Programs that tests start: what they write until they end, and what their threads do if they do not end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that lives for seconds: what its second compiler takes, it does not get back."""
CLUSTER_JVM = f"{QUICK_JVM} -Xshare:auto"
"""The same for a driver of a cluster, whose Java has no AOT cache yet: making one beside the tests takes a minute."""


def surroundings(directory: Path) -> dict[str, str]:
    """The variables by which the processes of a program are found, and Python's among them show their threads at the end."""
    return {"TMPDIR": str(directory), "PYTHONFAULTHANDLER": "1"}


def output_of(program: subprocess.Popen[str], directory: Path, seconds: float = 600) -> tuple[str, str]:
    """What it writes to its standard output and error until it ends; fail if it does not end.

    Args:
        program: The program.
        directory: That of its `surroundings`.
        seconds: A time that no sound program needs.
    """
    try:
        return program.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"the program does not end\n{_kill(program, directory)}") from None


def wait_until(condition: Callable[[], bool], program: subprocess.Popen[str], directory: Path, seconds: float = 600) -> None:
    """Wait for something that the program does; fail if it ends or does not do it."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert program.poll() is None, program.communicate()[1]
        assert time.monotonic() < deadline, f"it takes too long\n{_kill(program, directory)}"
        time.sleep(0.05)


def _kill(program: subprocess.Popen[str], directory: Path) -> str:
    """Kill the program; returns what its processes have written, with their threads."""

    def others() -> dict[int, str]:
        return {process: command for process, command in _processes(directory) if process != program.pid}

    found = others()
    java = {process for process, command in found.items() if command == "java"}
    for process in java:
        _send(process, signal.SIGQUIT)
    if java:
        time.sleep(1)  # it shows its threads soon, and does not say when it has
    for process in found.keys() - java:
        _send(process, signal.SIGABRT)
    deadline = time.monotonic() + 10
    while set(others().values()) - {"java"} and time.monotonic() < deadline:
        time.sleep(0.05)  # they write through Java and the program, so they come first
    logs = [log.read_text(errors="replace") for log in sorted(directory.rglob("*.log"))]  # those of the slots
    _send(program.pid, signal.SIGABRT)
    try:
        out, err = program.communicate(timeout=5)
    except subprocess.TimeoutExpired:  # Java has shown its threads, and goes on
        for process in others():
            _send(process, signal.SIGKILL)
        program.kill()
        out, err = program.communicate()
    return "\n".join([out, err, *logs])


def _send(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def _processes(directory: Path) -> Iterator[tuple[int, str]]:
    """The processes of a program and the names of their commands, also if the program itself has ended."""
    mark = f"TMPDIR={directory}".encode()
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (each / "environ").read_bytes().split(b"\0"):
                yield int(each.name), (each / "comm").read_text().strip()
