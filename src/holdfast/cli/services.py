"""Commands that open something: kafka (a broker for development) and dashboard."""

from __future__ import annotations

import os
import webbrowser
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from holdfast.cli.app import FAILED, AsJson, CommandFailed, command
from holdfast.cli.drivers import Address, JobName, RunningJob, find_job, running_jobs
from holdfast.cli.output import console, note, print_json
from holdfast.runtime.job_registry import user_directory

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


@command()
def dashboard(
    job: JobName = None,
    address: Address = None,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open it in the browser, or print its address.")
    ] = True,
    json: AsJson = False,
) -> None:
    """Open the dashboard of a job in the browser, with the right to change the job."""
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


def _shown_job(wanted: str | None, address: str | None) -> RunningJob:
    """The wanted job; without one, the latest: its driver shows all its jobs."""
    jobs = running_jobs(address) if wanted is None else []
    return jobs[0] if jobs else find_job(wanted, address)
