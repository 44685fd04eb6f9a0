"""Commands on running jobs: list, status, cancel, stop, savepoint, rescale, pace, token."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli.app import FAILED, NOT_FOUND, AsJson, CommandFailed, command
from holdfast.cli.drivers import (
    STANDBY,
    Address,
    DriverGone,
    JobName,
    RunningJob,
    find_job,
    known_jobs,
    paused_jobs,
    running_jobs,
    standbys,
)
from holdfast.cli.output import (
    console,
    count,
    duration,
    moment,
    note,
    print_json,
    size,
    state_text,
    table,
    working,
)
from holdfast.common.config_values import parse_duration
from holdfast.metrics.job import TERMINAL
from holdfast.rest.tokens import read_token
from holdfast.runtime.driver.job_registry import DIED, JobRecord, records

__all__: list[str] = []

RESTARTING = "RESTARTING"
"""The state of a job between two attempts of `holdfast run --restart always`, too."""
_TERMINAL = TERMINAL | {DIED}
_LIST_WAIT_S = 3.0
"""Seconds that a list waits for one driver, which may be stopped or overloaded."""
_WAIT_S = 1
"""Seconds between two looks at the progress of an operation."""


@command(name="list")
def list_jobs(
    all_jobs: Annotated[bool, typer.Option("--all", "-a", help="List ended jobs of this machine, too.")] = False,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """List the running jobs."""
    jobs = [_listed(job) for job in running_jobs(address)]
    if address is None:
        jobs += [_standing_by(record) for record in standbys()] + [_paused(record) for record in paused_jobs()]
    if all_jobs and address is None:
        jobs += [_ended(record) for record in records() if record.state]
    if json:
        print_json(jobs)
        return
    if not jobs:
        note("No job is running. Start one with `holdfast run PROGRAM`; `holdfast list --all` shows ended jobs.")
        return
    columns = ["NAME", "ID", "STATE", "SINCE", "FOR", "RECORDS/S", "BACKLOG", "DASHBOARD"]
    rows = [
        (
            job["name"],
            job["id"][:8],
            state_text(job["state"]),
            moment(job["start-time"]),
            duration(job["duration"]),
            *(("-", "-") if job["records-per-second"] is None else map(count, (job["records-per-second"], job["backlog"]))),
            job["dashboard"] or "-",
        )
        for job in jobs
    ]
    console.print(table(columns, rows, ["RECORDS/S", "BACKLOG"]))
    for job in jobs:
        for told in job.get("stands-still", ()):
            note(f"{job['name']}: {told}")
        if "error" in job:
            attempts = f" (attempt {job['attempts']})" if "attempts" in job else ""
            note(f"{job['name']}{attempts}: {job['error']}")


def _listed(job: RunningJob) -> dict[str, Any]:
    try:
        view = job.asked_for(_LIST_WAIT_S).get("/view")
    except DriverGone as error:
        return _shown(job.id, job.name, "NO ANSWER", 0, 0, job.driver.url) | {
            "driver-pid": job.record.pid if job.record is not None else None,
            "error": f"its driver does not answer: {error}",
        }
    except CommandFailed as error:  # it has ended meanwhile, or its server is overloaded
        return _shown(job.id, job.name, "UNKNOWN", 0, 0, job.driver.url) | {"error": str(error)}
    lasted = view["now"] - view["started"]
    return _shown(job.id, job.name, view["state"], view["started"], lasted, job.driver.url) | {
        "records-per-second": view["rates"]["in"],
        "backlog": view["backlog"],
        "driver-pid": job.record.pid if job.record is not None else None,
        "stands-still": view.get("stands_still", []),
    }


def _standing_by(record: JobRecord) -> dict[str, Any]:
    lasted = time.time_ns() // 1_000_000 - record.started_ms
    return _shown(record.job_id, record.name, STANDBY, record.started_ms, lasted, "")


def _paused(record: JobRecord) -> dict[str, Any]:
    lasted = time.time_ns() // 1_000_000 - record.started_ms
    return _shown(record.job_id, record.name, RESTARTING, record.started_ms, lasted, "") | {
        "attempts": record.attempts,
        "error": _last_line(record.failure),
    }


def _last_line(failure: str) -> str:
    """The line of a failure that tells most: that of the error, which ends the traceback."""
    lines = [line for line in failure.splitlines() if line.strip()]
    errors = [line for line in lines if not line.startswith((" ", "Traceback"))]
    if failure == DIED:
        return "its driver died without a word (kill -9, out of memory, power)"
    return (errors or lines or ["unknown"])[0]


def _ended(record: JobRecord) -> dict[str, Any]:
    lasted = record.ended_ms - record.started_ms
    return _shown(record.job_id, record.name, record.state, record.started_ms, lasted, "")


def _shown(job_id: str, name: str, state: str, start: int, lasted: int, url: str) -> dict[str, Any]:
    return {
        "id": job_id,
        "name": name,
        "state": state,
        "start-time": start,
        "duration": lasted,
        "records-per-second": None,
        "backlog": None,
        "driver-pid": None,
        "dashboard": f"{url}/#/jobs/{job_id}" if url else None,
    }


@command()
def status(job: JobName = None, address: Address = None, json: AsJson = False) -> None:
    """Show a job, running or ended: its state, throughput, vertices, what is slow and why, and its latest failure."""
    try:
        found = find_job(job, address)
    except CommandFailed as error:
        paused = [] if address else paused_jobs(job)
        if len(paused) == 1:
            _show_paused(paused[0], json)
            return
        waits = any(job in (None, each.name) or each.job_id.startswith(job or "") for each in standbys())
        record = None if address or waits or error.code != NOT_FOUND else _ended_record(job)
        if record is None:
            raise
        _show_ended(record, json)
        return
    view = found.get("/view")
    if json:
        print_json(view)
        return
    lasted = duration((view["now"] if view["ended"] < 0 else view["ended"]) - view["started"])
    console.print(state_text(view["state"]), f"{found.name} ({found.id}) for {lasted}")
    console.print(table(["", ""], _figures(found, view)))
    rows = [
        (
            vertex["name"],
            str(vertex["parallelism"]),
            f"{100 * vertex['busy']:.0f} %",
            count(vertex["in_rate"]),
            count(vertex["out_rate"]),
            "-" if vertex["lag"] is None else duration(vertex["lag"]),
            size(vertex["state_bytes"]),
        )
        for vertex in view["vertices"]
    ]
    columns = ["VERTEX", "PARALLELISM", "BUSY", "IN/S", "OUT/S", "LAG", "STATE"]
    console.print(table(columns, rows, columns[1:]))
    console.print("\n[bold]What is slow, and why[/bold]")
    for finding in view["findings"]:
        share = f" ({100 * finding['share']:.0f} % of the time)" if finding["share"] else ""
        console.print(f"- {finding['title']}{share}: {finding['detail']} {finding['remedy']}", markup=False)
    for failure in view["failures"][:1]:
        console.print(f"\n[bold]Latest failure[/bold], {moment(failure['time'])}:")
        console.print(failure["text"], markup=False)


def _figures(job: RunningJob, view: Mapping[str, Any]) -> list[tuple[str, str]]:
    shown = [("Dashboard", f"{job.driver.url}/#/jobs/{job.id}")]
    if job.record is not None:
        shown.append(("Driver", f"process {job.record.pid}, {job.record.program}"))
    shown += [
        ("Records/s", f"{count(view['rates']['in'])} in, {count(view['rates']['out'])} out"),
        ("Backlog", f"{count(view['backlog'])} records"),
    ]
    if view["watermark"] is not None:
        shown.append(("Watermark", f"{moment(view['watermark'])}, {duration(view['lag'])} behind this clock"))
    latest = view["checkpoint"]
    if latest is not None:
        age = duration(max(0, view["now"] - latest["at"]))
        shown.append(("Checkpoint", f"{latest['id']}, {age} ago, state of {size(latest['state_size'])}"))
    storage = view["storage"]
    if storage["cost_per_month"]:
        per_second = f"{storage['per_second']:.1f} requests/s"
        shown.append(("Storage", f"{per_second}, which cost {storage['cost_per_month']:.2f} dollars a month"))
    if storage["interval"]:
        shown.append(("Interval", f"a checkpoint every {duration(storage['interval'])}"))
    shown.append(("Failures", f"{count(view['failures_total'])}, {count(view['restarts'])} restarts"))
    if view["late"]:
        shown.append(("Late", f"{count(view['late'])} records dropped"))
    return shown


def _ended_record(wanted: str | None) -> JobRecord | None:
    """The latest ended job with this name or id; the latest of all without one."""
    return next((record for record in known_jobs(wanted) if record.state), None)


def _show_paused(record: JobRecord, as_json: bool) -> None:
    if as_json:
        print_json(_paused(record) | {"failure": record.failure, "log": record.log})
        return
    console.print(state_text(RESTARTING), f"{record.name} ({record.job_id}) after {record.attempts} failed attempts")
    console.print(record.failure, markup=False)
    console.print(f"`holdfast cancel {record.name}` ends it. Log: {record.log}", markup=False)


def _show_ended(record: JobRecord, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(record))
        return
    lasted = duration(record.ended_ms - record.started_ms)
    console.print(state_text(record.state), f"{record.name} ({record.job_id}), {moment(record.ended_ms)}, after {lasted}")
    if record.failure:
        console.print(record.failure, markup=False)
    if record.state == DIED:
        console.print("Its driver ended without a word (kill -9, out of memory, power). Start it again: it resumes.")
    if record.log:
        console.print(f"Log: {record.log}", markup=False)


@command(interrupted="The job was asked to end, and does so after its current epoch.")
def cancel(
    job: JobName = None,
    address: Address = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Do not wait for the running epoch, whose functions may not return. Nothing is lost."),
    ] = False,
    json: AsJson = False,
) -> None:
    """Cancel a job: it completes its epoch and commits its output. The next start resumes from its last checkpoint."""
    paused = [] if address else paused_jobs(job)
    if len(paused) == 1 and (job is not None or not running_jobs()):
        _cancel_paused(paused[0], json)
        return
    found = find_job(job, address)
    found.change("PATCH", f"?mode=cancel&force={str(force).lower()}")
    with working(f"{found.name}: {'aborting' if force else 'completing'} the epoch", json):
        state = _final_state(found)
    if state not in ("CANCELED", "FINISHED"):
        raise CommandFailed(f"Job {found.name} ended as {state}. `holdfast status {found.id}` tells why.")
    if json:
        print_json({"id": found.id, "name": found.name, "state": state})
    else:
        console.print(state_text(state), f"{found.name} ({found.id}). Start it again to resume.")


def _cancel_paused(paused: JobRecord, as_json: bool) -> None:
    """End the command that starts a job again and again."""
    os.kill(paused.pid, signal.SIGTERM)  # the record is locked by this process, so it lives
    with working(f"{paused.name}: ending its restarts", as_json):
        while any(not each.state and each.launch == paused.launch for each in known_jobs(paused.name)):
            time.sleep(0.1)  # another process ends the job, and an attempt that has just begun, and tells by files
    if as_json:
        print_json({"id": paused.job_id, "name": paused.name, "state": "CANCELED"})
    else:
        console.print(state_text("CANCELED"), f"{paused.name} ({paused.job_id}). Start it again to resume.")


def _final_state(job: RunningJob) -> str:
    """Wait until the job has ended."""
    while True:
        try:
            state: str = job.get()["state"]
            if state in _TERMINAL:
                return state
        except CommandFailed as error:
            if not isinstance(error, DriverGone) and error.code != NOT_FOUND:
                raise
            known = {record.job_id: record.state for record in records()} if job.record is not None else {}
            if known.get(job.id, "CANCELED"):
                return known.get(job.id, "CANCELED")
        time.sleep(0.1)  # another process ends the job, and tells nobody


@command(interrupted="The job goes on with the stop: `holdfast list` shows when it has ended.")
def stop(
    job: JobName = None,
    directory: Annotated[
        str | None,
        typer.Option(
            "--savepoint-path", "-p", metavar="DIR", help="Directory of the savepoint; default: the job's savepoint-dir."
        ),
    ] = None,
    drain: Annotated[
        bool, typer.Option("--drain", "-d", help="First end event time, so that all windows and timers fire.")
    ] = False,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Stop a job with a savepoint. `holdfast run --from-savepoint PATH` starts it again from there."""
    found = find_job(job, address)
    location = _write_savepoint(found, "/stop", {"targetDirectory": directory, "drain": drain}, json)
    with working(f"{found.name}: stopping", json):
        state = _final_state(found)
    if json:
        print_json({"id": found.id, "name": found.name, "state": state, "savepoint": location})
        return
    note(f"{found.name} has stopped. Its savepoint:")
    console.print(location, markup=False)


@command(interrupted="The job still writes the savepoint.")
def savepoint(
    job: JobName = None,
    directory: Annotated[
        str | None, typer.Argument(metavar="[DIR]", help="Directory of the savepoint; default: the job's savepoint-dir.")
    ] = None,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Write a savepoint of a job while it goes on. JOB may be left out, if DIR has a slash, e.g. ./savepoints."""
    if directory is None and job is not None and "/" in job:
        job, directory = None, job
    found = find_job(job, address)
    location = _write_savepoint(found, "/savepoints", {"targetDirectory": directory}, json)
    if json:
        print_json({"id": found.id, "name": found.name, "savepoint": location})
    else:
        console.print(location, markup=False)


def _write_savepoint(job: RunningJob, page: str, body: Mapping[str, Any], quiet: bool) -> str:
    """Begin a savepoint and wait for its end; returns its location."""
    begun = job.change("POST", page, body)
    try:
        done = _completed(job, f"/savepoints/{begun['request-id']}", "writing the savepoint", quiet)
    except DriverGone:
        raise CommandFailed(
            f"The driver of {job.name} ended before it confirmed the savepoint {begun['location']}: it is complete "
            f"if it has a file _metadata. `holdfast status {job.id}` tells how the job ended."
        ) from None
    failure = done.get("failure-cause")
    if failure is not None:
        raise CommandFailed(f"Job {job.name}: {failure['stack-trace']}", FAILED)
    location: str = done["location"]
    return location


def _completed(job: RunningJob, page: str, doing: str, quiet: bool) -> dict[str, Any]:
    """Wait for the end of an operation that a request began; returns its outcome."""
    with working(f"{job.name}: {doing}", quiet) as update:
        while (answer := job.get(f"{page}?wait={_WAIT_S}"))["status"]["id"] != "COMPLETED":
            known = answer.get("progress")
            parts = f", {known['done']} of {known['total']} parts" if known else ""
            update(f"{job.name}: {doing}{parts}", (known["done"], known["total"]) if known else None)
    outcome: dict[str, Any] = answer["operation"]
    return outcome


@command(interrupted="The job is still rescaled, after its current epoch.")
def rescale(
    parallelism: Annotated[int, typer.Argument(metavar="PARALLELISM", min=1, help="The new parallelism.")],
    job: JobName = None,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Run a job at another parallelism after its current epoch, without a restart."""
    found = find_job(job, address)
    begun = found.change("PATCH", f"/rescaling?parallelism={parallelism}")
    failure = _completed(found, f"/rescaling/{begun['request-id']}", "rescaling", json).get("failure-cause")
    if failure is not None:
        raise CommandFailed(f"{found.name} keeps its parallelism: {failure['stack-trace']}", FAILED)
    if json:
        print_json({"id": found.id, "name": found.name, "parallelism": parallelism})
    else:
        note(f"{found.name} runs at parallelism {parallelism}.")


@command()
def pace(
    job: JobName = None,
    interval: Annotated[
        str | None,
        typer.Option(
            "--interval", metavar="TIME", help='The time between two checkpoints, such as "10 s"; 0: as the budget allows.'
        ),
    ] = None,
    min_pause: Annotated[
        str | None, typer.Option("--min-pause", metavar="TIME", help="The least time from a checkpoint to the next epoch.")
    ] = None,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Change how often a job takes checkpoints, until its next start; without options, show it."""
    found = find_job(job, address)
    given = {"interval": interval, "min_pause": min_pause}
    times = {name: _milliseconds(name, text) for name, text in given.items() if text is not None}
    if times:
        found.change("PATCH", "/checkpoints/config?" + "&".join(f"{name}={ms}" for name, ms in times.items()))
    told = found.get("/checkpoints/config") | times
    if json:
        print_json({"id": found.id, "name": found.name, "interval": told["interval"], "min_pause": told["min_pause"]})
        return
    every = f"every {duration(told['interval'])}" if told["interval"] else "as its input and the budget for requests allow"
    pause = f", {duration(told['min_pause'])} after the one before at the earliest" if told["min_pause"] else ""
    note(f"{found.name} takes a checkpoint {every}{pause}.")


def _milliseconds(name: str, text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"--{name.replace('_', '-')}") from None


@command()
def token(
    job: JobName = None,
    read: Annotated[bool, typer.Option("--read", help="The token that only reads, also data of records.")] = False,
    json: AsJson = False,
) -> None:
    """Print the token of a job's driver, for requests to its REST API that change the job or show data of records."""
    found = find_job(job)
    shown = read_token(found.driver.token) if read else found.driver.token
    print_json({"url": found.driver.url, "token": shown}) if json else print(shown)
