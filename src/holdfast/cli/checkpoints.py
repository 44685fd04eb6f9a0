"""The commands `holdfast checkpoints ...`: stored state, with or without a running job."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

import holdfast.state_api as stored
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import storage_options
from holdfast.cli.app import FAILED, NOT_FOUND, USAGE, AsJson, CommandFailed, app, command, until_the_end
from holdfast.cli.drivers import Address, find_job, known_jobs
from holdfast.cli.options import Settings, parse_settings
from holdfast.cli.output import console, count, duration, moment, note, print_json, reading, size, table, working
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.rest.client import RestClient
from holdfast.rest.holds import held_by_request
from holdfast.runtime.driver.job_registry import JobRecord, records
from holdfast.state_api.snapshots.holding import driver_now

__all__: list[str] = []

checkpoints = typer.Typer(help="Look at, verify and clean up checkpoints and savepoints.", no_args_is_help=True)
app.add_typer(checkpoints, name="checkpoints")

_PLACE = "A checkpoint's path, a savepoint's directory, or a job (its directory, name or id) for its newest checkpoint."
Place = Annotated[str | None, typer.Argument(metavar="[PATH|JOB]", help=_PLACE)]


@command(checkpoints, name="list")
def list_checkpoints(
    directory: Annotated[
        str | None,
        typer.Argument(
            metavar="[DIR|JOB]", help="A directory of checkpoints or savepoints, or a job; default: the latest job."
        ),
    ] = None,
    settings: Settings = None,
    json: AsJson = False,
) -> None:
    """List checkpoints and savepoints below a directory."""
    with working("looking", json):
        found = stored.list_snapshots(_place(directory), _options(settings))
    if json:
        print_json([asdict(each) for each in found])
        return
    if not found:
        note(f"There is no checkpoint and no savepoint below {_place(directory)}.")
        raise typer.Exit(NOT_FOUND)
    rows = [
        (
            each.kind,
            each.job_name or "-",
            str(each.checkpoint_id or "-"),
            moment(each.created_at) if each.created_at else "-",
            size(each.size),
            each.problem or "ok",
            each.path,
        )
        for each in found
    ]
    console.print(table(["KIND", "JOB", "ID", "TIME", "SIZE", "STATE", "PATH"], rows, ["ID", "SIZE"]))


@command(checkpoints)
def show(path: Place = None, settings: Settings = None, json: AsJson = False) -> None:
    """Show what a checkpoint or savepoint holds: operators, their states, types and sizes."""
    snapshot = _opened(path, _options(settings))
    with working("reading the indexes", json):
        operators = stored.describe(snapshot)
    if json:
        print_json(_shown(snapshot) | {"operators": [asdict(each) | {"size": each.size} for each in operators]})
        return
    checkpoint = snapshot.checkpoint
    console.print(f"[bold]{snapshot.kind}[/bold] {snapshot.path}")
    console.print(f"job {checkpoint.job_name}, {moment(checkpoint.created_at)}, {size(checkpoint.full_size)}", markup=False)
    for operator in operators:
        given = "" if operator.uid_given else " (made by Holdfast)"
        console.print(f"\n{operator.name}, uid {operator.uid}{given}, {size(operator.size)}", markup=False, style="bold")
        rows = [
            (
                state.name,
                state.kind,
                state.type or "-",
                "yes" if state.ttl else "no",
                "-" if state.elements is None else count(state.elements),
            )
            for state in operator.states
        ]
        console.print(table(["STATE", "KIND", "TYPE", "TTL", "ELEMENTS"], rows, ["ELEMENTS"]))
        for family, bytes_stored in operator.sizes.items():
            console.print(f"  {size(bytes_stored)} {family}", markup=False)


@command(checkpoints)
def keys(
    path: Place = None,
    uid: Annotated[str | None, typer.Option("--uid", metavar="UID", help="The operator; default: all of them.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Number of keys of each operator.")] = 20,
    settings: Settings = None,
    json: AsJson = False,
) -> None:
    """Show the size of each keyed state, and the keys and key groups with the most; of a large state, in some key groups."""
    from holdfast.state_api.snapshots.largest import largest_keys  # decodes rows, which no other command does

    snapshot = _opened(path, _options(settings))
    uids = [uid] if uid else [each for each, operator in snapshot.checkpoint.operators.items() if operator.schemas]
    with working("reading the state", json):
        found = [largest_keys(snapshot, each, limit) for each in uids]
    if json:
        print_json(_shown(snapshot) | {"operators": [asdict(each) for each in found]})
        return
    if not found:
        note("No operator has keyed state.")
    for each in found:
        part = "" if each.groups_read == each.groups else f", in {each.groups_read} of {each.groups} key groups"
        told = f"{count(each.keys)} keys, {size(each.bytes)} before compression{part}"
        console.print(f"\n{each.name}, uid {each.uid}: {told}", markup=False, style="bold")
        rows = [(one.key, size(one.bytes), f"{100 * one.bytes / max(each.bytes, 1):.1f} %") for one in each.largest]
        console.print(table(["KEY", "BYTES", "SHARE"], rows, ["BYTES", "SHARE"]))
        states = ", ".join(f"{name} ({size(bytes)})" for name, bytes in each.states)
        console.print(f"States: {states}", markup=False)
        groups = ", ".join(f"{group} ({size(bytes)})" for group, bytes in each.largest_groups[:5])
        console.print(f"Largest key groups: {groups}", markup=False)


@command(checkpoints, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def hold(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The running job: its name, id, or the beginning of its id.")],
    reader: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND...]", help="The command that reads it; {} stands for the checkpoint's path."),
    ] = None,
    address: Address = None,
) -> None:
    """Keep the newest checkpoint of a running job while a command reads it, or until Ctrl-C. The job goes on."""
    found = find_job(job, address)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with held_by_request(found.driver.client, found.id, later=driver_now(found.name)) as held:
        if not reader:
            with contextlib.suppress(KeyboardInterrupt):  # which may come as soon as the path is printed
                print(held.path, flush=True)
                note(f"Checkpoint {held.checkpoint_id} of {found.name} is held until Ctrl-C.")
                while True:
                    time.sleep(0.2)  # short, because another thread may get the signal, which does not end a sleep
            return
        ended = subprocess.run([each.replace("{}", held.path) for each in reader], check=False)
    if ended.returncode:
        raise typer.Exit(ended.returncode if ended.returncode > 0 else 128 - ended.returncode)


@command(checkpoints, name="verify")
def verify_checkpoint(path: Place = None, settings: Settings = None, json: AsJson = False) -> None:
    """Read all files of a checkpoint or savepoint and verify their checksums."""
    snapshot = _opened(path, _options(settings))
    files = {file.path: file.size for file in snapshot.checkpoint.files()}
    with reading("verifying", sum(files.values()), json) as verified:
        damaged = stored.verify(snapshot, verified)
    if json:
        print_json(_shown(snapshot) | {"files": len(files), "damaged": [asdict_error(error) for error in damaged]})
    elif not damaged:
        console.print(f"{snapshot.path}: all {len(files)} files are intact.", markup=False)
    for error in damaged:
        note(str(error))
    if damaged:
        raise typer.Exit(FAILED)


def asdict_error(error: Any) -> dict[str, str]:
    """A damaged file as plain data."""
    return {"path": error.path, "reason": error.reason}


@command(checkpoints, name="diff")
def diff_checkpoints(
    first: Annotated[str, typer.Argument(metavar="PATH|JOB", help=_PLACE)],
    second: Annotated[str, typer.Argument(metavar="PATH|JOB", help="Another one.")],
    settings: Settings = None,
    json: AsJson = False,
) -> None:
    """Compare two checkpoints or savepoints: operators, states, types, sizes and source positions."""
    options = _options(settings)
    with working("reading the indexes", json):
        lines = stored.diff(_opened(first, options), _opened(second, options))
    if json:
        print_json([asdict(line) for line in lines])
    elif lines:
        rows = [(line.where, line.what or "operator", line.before or "-", line.after or "-") for line in lines]
        console.print(table(["OPERATOR", "WHAT", "FIRST", "SECOND"], rows))
    else:
        note("They are equal.")


@command(checkpoints)
def orphans(
    directory: Annotated[str | None, typer.Argument(metavar="[DIR|JOB]", help="A job: its directory, name or id.")] = None,
    settings: Settings = None,
    json: AsJson = False,
) -> None:
    """List the state files of a job that no retained checkpoint needs. Deletes nothing: prune does."""
    options = _options(settings)
    snapshot = _opened(directory, options, hold=False)
    if snapshot.kind != "checkpoint":
        raise CommandFailed(f"{snapshot.path} is a savepoint: name the directory of a job that keeps checkpoints.", USAGE)
    job = snapshot.path.rpartition("/log/")[0]
    with working("comparing the files with the checkpoints", json):
        found = stored.find_orphans(job, options)
    if json:
        print_json([asdict(each) for each in found])
    elif found:
        rows = [(size(each.size), "maybe" if each.in_use else "no", each.path) for each in found]
        console.print(table(["SIZE", "IN USE", "PATH"], rows, ["SIZE"]))
    else:
        note(f"{job} has no orphans.")


@command(checkpoints, name="prune", interrupted="Interrupted: run it again, or start the job, to complete it.")
def prune_checkpoints(
    directory: Annotated[str, typer.Argument(metavar="DIR|JOB", help="The directory, name or id of a stopped job.")],
    keep: Annotated[int, typer.Option(min=1, help="Number of newest checkpoints to keep.")] = 1,
    settings: Settings = None,
    json: AsJson = False,
) -> None:
    """Delete all but the newest checkpoints of a stopped job, and files that no checkpoint needs."""
    place = _place(directory)
    _refuse_running(place, "deletes old checkpoints itself. To prune,")
    with working("verifying the checkpoints to keep, and deleting the others", json):
        done = stored.prune(place, keep, _options(settings))
    if json:
        print_json(asdict(done))
    else:
        console.print(f"Kept {done.kept} checkpoints, deleted {done.deleted} objects.")


@command(checkpoints, name="sign", interrupted="Interrupted: run it again to sign the other files.")
def sign_checkpoints(
    directory: Annotated[str, typer.Argument(metavar="DIR|JOB", help="A savepoint, or the directory of a stopped job.")],
    adopt_unsigned: Annotated[
        bool,
        typer.Option(
            "--adopt-unsigned",
            help="Also sign unsigned files, which may run code: only if nobody else could write them.",
        ),
    ] = False,
    settings: Settings = None,
    json: AsJson = False,
) -> None:
    """Sign the files of a stopped job or a savepoint with the first key of security.checkpoints.key-file.

    Each file is verified with the key that signed it. An unsigned file ends the command, unless it is told to adopt them.
    """
    place = _place(directory)
    _refuse_running(place, "signs its files itself. To sign those it has,")
    with working("verifying and signing", json):
        count = stored.sign(place, _options(settings), adopt_unsigned=adopt_unsigned)
    if json:
        print_json({"signed": count})
    else:
        console.print(f"Signed {count} files.")


def _refuse_running(place: str, why: str) -> None:
    for record in records():
        if not record.state and record.checkpoints and _directory(record).rstrip("/") == place.rstrip("/"):
            raise CommandFailed(
                f"Job {record.name} ({record.job_id}) is running and {why} first stop it with `holdfast stop` or "
                "`holdfast cancel`.",
            )


def _options(settings: list[str] | None) -> dict[str, str]:
    return storage_options(parse_settings(settings))


def _shown(snapshot: stored.Snapshot) -> dict[str, Any]:
    checkpoint = snapshot.checkpoint
    return {
        "path": snapshot.path,
        "kind": snapshot.kind,
        "job_name": checkpoint.job_name,
        "checkpoint_id": checkpoint.checkpoint_id,
        "created_at": checkpoint.created_at,
        "duration": duration(checkpoint.duration_ms),
        "size": checkpoint.full_size,
    }


def _opened(wanted: str | None, options: dict[str, str], *, hold: bool = True) -> stored.Snapshot:
    """A checkpoint or savepoint; that of a running job is held until the command ends."""
    place = (_held(wanted) if hold else "") or _place(wanted)
    try:
        return stored.open_snapshot(place, options)
    except ConfigurationError as error:
        listed = stored.list_snapshots(place, options)
        if str(error) in (each.problem for each in listed):
            raise
        if listed:
            said = f"{place} is a directory above several. `holdfast checkpoints list {place}` shows their paths."
            raise CommandFailed(said, USAGE) from None
        said = f"There is no checkpoint and no savepoint at {place}. `holdfast checkpoints list DIR` finds them."
        raise CommandFailed(said, NOT_FOUND) from None


def _held(wanted: str | None) -> str:
    """The newest checkpoint of a running job, which is held from now on; empty: no job runs, or it has none."""
    record = None if wanted is not None and _is_path(wanted) else next(iter(known_jobs(wanted)), None)
    if record is None or record.state or not record.url or not record.checkpoints:
        return ""
    client = RestClient(record.url, record.token, record.certificate, record.keystore)
    try:
        return until_the_end(held_by_request(client, record.job_id, later=driver_now(record.name))).path
    except HoldfastError:
        return ""


def _is_path(wanted: str) -> bool:
    return "/" in wanted or wanted in (".", "..")


def _place(wanted: str | None) -> str:
    """The URI of a path, or the directory of a job."""
    if wanted is not None and _is_path(wanted):
        return wanted
    found = known_jobs(wanted)
    if not found:
        said = f"No job of this machine has the name or id {wanted!r}." if wanted else "No job has run on this machine."
        raise CommandFailed(f"{said} Name a directory, e.g. file:///checkpoints or ./checkpoints.", NOT_FOUND)
    if not found[0].checkpoints:
        raise CommandFailed(f"Job {found[0].name} keeps no checkpoints: set execution.checkpointing.dir.", NOT_FOUND)
    return _directory(found[0])


def _directory(record: JobRecord) -> str:
    return f"{record.checkpoints.rstrip('/')}/{JobPaths.of(record.name).directory}"
