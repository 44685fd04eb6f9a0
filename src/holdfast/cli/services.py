"""Commands that open something: kafka (a broker for development) and dashboard."""

from __future__ import annotations

import os
import secrets
import sys
import webbrowser
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import storage_options
from holdfast.cli.app import FAILED, NOT_FOUND, AsJson, CommandFailed, command
from holdfast.cli.drivers import Address, RunningJob, find_job, known_jobs, running_jobs
from holdfast.cli.options import Settings, parse_settings
from holdfast.cli.output import console, note, print_json, working
from holdfast.runtime.driver.job_registry import DIED, records, user_directory

__all__: list[str] = []


@command(interrupted="Kafka has stopped.")
def kafka(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "localhost",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port for clients.")] = 9092,
    directory: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the data here; default: a temporary directory, removed at the end."),
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="NAME[:PARTITIONS]", help="Create this topic; may be repeated.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Start a Kafka broker for development, on this machine, until Ctrl-C."""
    if find_spec("confluent_kafka") is None:
        raise CommandFailed("Kafka's client is not installed: pip install 'holdfast[kafka]'", FAILED)
    from holdfast.testing.kafka import run_broker  # needs the client

    def ready(where: str, version: str, log: Path) -> None:
        if json:
            print_json({"bootstrap_servers": where, "version": version, "log": str(log)})
        else:
            note(f"Kafka {version} listens on {where}; its log is {log}. Ctrl-C stops it.")

    note("Starting Kafka ...")
    run_broker(directory, host, port, topic or [], ready)


@command(interrupted="The history is no longer shown.")
def dashboard(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB|DIR]",
            help="Id or name of a job, also of one that has ended; or a checkpoint directory, for jobs that ended there.",
        ),
    ] = None,
    address: Address = None,
    settings: Settings = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page of ended jobs; 0: any free one.")] = 8082,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open it in the browser, or print its address.")
    ] = True,
    json: AsJson = False,
) -> None:
    """Open the dashboard of a job in the browser, with the right to change the job.

    Of jobs that have ended or crashed, their checkpoint directory keeps the last runs; they are shown until Ctrl-C.
    """
    kept = None if address else _kept(job)
    if kept is not None:
        _show_history(*kept, settings, port, open_browser, json)
        return
    found = _shown_job(job, address)
    page = f"{found.driver.url}/#/jobs/{found.id}"
    with_token = f"{page}?token={quote(found.driver.token)}" if found.driver.token else page
    if json:
        print_json({"id": found.id, "name": found.name, "url": page, "url_with_token": with_token})
        return
    if open_browser and webbrowser.open(_redirection(with_token)):
        note(f"The dashboard of {found.name} opens in the browser: {page}")
        return
    note("Open this address in a browser; it holds the token, so keep it to yourself:")
    console.print(with_token, markup=False)


def _redirection(address: str) -> str:
    """A page of this user that leads to the address: a browser's command line, which all users can read, has no token."""
    path = Path(user_directory().make(), "dashboard.html")
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(address)}"><title>Holdfast</title>')
    return path.as_uri()


def _kept(wanted: str | None) -> tuple[str, str] | None:
    """The checkpoint directory of ended jobs, and the id of the job to show, if one is named; None for a running job."""
    if wanted is None:
        return None
    if "/" in wanted or wanted in (".", ".."):
        return wanted, ""
    known = known_jobs(wanted)
    if not known or any(not record.state for record in known) or not known[0].checkpoints:
        return None
    return f"{known[0].checkpoints.rstrip('/')}/{JobPaths.of(known[0].name).directory}", known[0].job_id


def _show_history(directory: str, job_id: str, settings: list[str] | None, port: int, browser: bool, json: bool) -> None:
    from holdfast.rest.history import read_history, serve
    from holdfast.rest.server import bind

    with working("reading what is kept of ended jobs", json):
        archives = read_history(directory, storage_options(parse_settings(settings)))
    died = {record.job_id for record in records() if record.state == DIED}
    archives = {key: each.lost() if key in died and not each.ended else each for key, each in archives.items()}
    if not archives:
        said = f"{directory} keeps no history of jobs: name a checkpoint directory of jobs that have run."
        raise CommandFailed(said, NOT_FOUND)
    token = secrets.token_urlsafe(32)
    with bind("127.0.0.1", port) as bound:
        page = f"http://localhost:{bound.getsockname()[1]}/#/" + (f"jobs/{job_id}" if job_id in archives else "")
        with_token = f"{page}?token={quote(token)}"
        if json:
            print_json(
                {"url": page, "url_with_token": with_token, "jobs": [archive.overview for archive in archives.values()]}
            )
            sys.stdout.flush()
        else:
            note(f"{len(archives)} {'run is' if len(archives) == 1 else 'runs are'} shown at {page}, until Ctrl-C.")
            if not (browser and webbrowser.open(_redirection(with_token))):
                note("Open this address in a browser; it holds the token, so keep it to yourself:")
                console.print(with_token, markup=False)
        serve(archives, token, bound)


def _shown_job(wanted: str | None, address: str | None) -> RunningJob:
    """The wanted job; without one, the latest: its driver shows all its jobs."""
    jobs = running_jobs(address) if wanted is None else []
    return jobs[0] if jobs else find_job(wanted, address)
