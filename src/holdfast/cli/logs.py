"""The command logs: the log of a job's driver, and of its task slots on this machine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TextIO

import typer

from holdfast.cli.app import NOT_FOUND, AsJson, CommandFailed, command
from holdfast.cli.drivers import JobName, known_jobs
from holdfast.cli.output import console, print_json
from holdfast.runtime.driver.job_registry import JobRecord, records

__all__: list[str] = []

_POLL_S = 0.2


@command(interrupted=" ")
def logs(
    job: JobName = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until the job has ended.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of lines from the end.")] = 50,
    slots: Annotated[bool, typer.Option(help="Show the logs of the task slots on this machine instead.")] = False,
    json: AsJson = False,
) -> None:
    """Show the log of a job, also of one that has ended. Without JOB: of the latest."""
    record = _record(job)
    files = _slot_logs(record) if slots else [_driver_log(record)]
    if json:
        print_json([{"file": str(path), "lines": _tail(path, lines)} for path in files])
        return
    for path in files:
        if len(files) > 1:
            console.rule(str(path))
        with path.open(errors="replace") as file:
            for line in deque(file, lines):
                print(line, end="")
            if follow and path is files[-1]:
                for line in _new_lines(file, record.job_id):
                    print(line, end="", flush=True)


def _record(wanted: str | None) -> JobRecord:
    found = known_jobs(wanted)
    if not found:
        raise CommandFailed(
            f"No job of this machine has the name or id {wanted!r}; `holdfast list --all` shows the jobs."
            if wanted
            else "No job has run on this machine yet.",
            NOT_FOUND,
        )
    return next((record for record in found if not record.state), found[0])


def _driver_log(record: JobRecord) -> Path:
    if not record.log:
        raise CommandFailed(
            f"Job {record.name} was not started by `holdfast run`: its log is where its program writes it (logger "
            "holdfast). `holdfast logs --slots` shows the logs of its task slots.",
            NOT_FOUND,
        )
    path = Path(record.log)
    if not path.exists():
        raise CommandFailed(f"Job {record.name} has logged nothing so far, or its log {path} was deleted.", NOT_FOUND)
    return path


def _slot_logs(record: JobRecord) -> list[Path]:
    found = sorted(Path(record.slots).glob("slot-*.log"))
    if not found:
        raise CommandFailed(f"There are no logs of task slots in {record.slots} on this machine.", NOT_FOUND)
    return found


def _tail(path: Path, lines: int) -> list[str]:
    with path.open(errors="replace") as file:
        return [line.rstrip("\n") for line in deque(file, lines)]


def _new_lines(file: TextIO, job_id: str) -> Iterator[str]:
    """The lines that are added to a file while the job runs."""
    while True:
        runs = any(record.job_id == job_id and not record.state for record in records())
        while line := file.readline():
            yield line
        if not runs:
            return
        time.sleep(_POLL_S)  # another process writes the file, and tells nobody
