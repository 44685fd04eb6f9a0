"""Finds jobs and talks to their drivers: by the records of this machine, or at an address."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from holdfast.cli.app import FAILED, NOT_FOUND, USAGE, CommandFailed
from holdfast.errors import ServiceUnavailable
from holdfast.rest.client import Refused, RestClient
from holdfast.runtime.driver.job_registry import JobRecord, records

__all__ = [
    "STANDBY",
    "Address",
    "Driver",
    "DriverGone",
    "JobName",
    "RunningJob",
    "find_job",
    "known_jobs",
    "paused_jobs",
    "running_jobs",
    "standbys",
]


def _completions(incomplete: str) -> list[str]:
    """The names of the running jobs that begin like this, for the shell."""
    return sorted({record.name for record in records() if not record.state and record.name.startswith(incomplete)})


JobName = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]",
        help="Id (or its beginning) or name; may be left out if one job runs.",
        autocompletion=_completions,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--jobmanager",
        "-m",
        metavar="HOST:PORT",
        help="Address of a driver's REST API, for jobs on other machines; its token is taken from HOLDFAST_TOKEN.",
    ),
]


STANDBY = "STANDBY"
"""The state of a job in a driver that waits for another one to end."""


class DriverGone(CommandFailed):
    """No driver answers at the address."""


class Driver:
    """The REST API of a driver.

    Args:
        url: Its address.
        token: What its requests for changes show.
        record: The record of a job of it, if it is on this machine; tells which certificate it has.
        timeout: Seconds to wait for an answer.
    """

    def __init__(self, url: str, token: str, record: JobRecord | None = None, timeout: float = 60.0) -> None:
        self.url = url
        self.token = token
        certificate, keystore = (record.certificate, record.keystore) if record else ("", "")
        self.client = RestClient(url, token, certificate, keystore, timeout)

    def get(self, path: str) -> Any:
        """The answer to a request.

        Raises:
            CommandFailed: the driver refuses it, or does not answer.
        """
        with _told():
            return self.client.get(path)

    def change(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer to a request that changes a job.

        Raises:
            CommandFailed: the driver refuses it, or does not answer.
        """
        with _told():
            return self.client.change(method, path, body)


@contextmanager
def _told() -> Iterator[None]:
    """Failed requests as failed commands."""
    try:
        yield
    except Refused as error:
        raise CommandFailed(str(error), {404: NOT_FOUND, 0: USAGE}.get(error.status, FAILED)) from None
    except ServiceUnavailable as error:
        raise DriverGone(str(error)) from None


@dataclass(frozen=True)
class RunningJob:
    """A job whose driver can be asked."""

    id: str
    name: str
    driver: Driver
    record: JobRecord | None
    """None for a job of another machine."""

    def asked_for(self, seconds: float) -> RunningJob:
        """This job, whose driver is waited for at most so long."""
        return replace(self, driver=Driver(self.driver.url, self.driver.token, self.record, seconds))

    def get(self, page: str = "") -> Any:
        """The answer of the driver to ``/jobs/<id><page>``."""
        return self.driver.get(f"/jobs/{self.id}{page}")

    def change(self, method: str, page: str = "", body: Mapping[str, Any] | None = None) -> Any:
        """The answer of the driver to a request that changes the job."""
        return self.driver.change(method, f"/jobs/{self.id}{page}", body)


def running_jobs(address: str | None = None) -> list[RunningJob]:
    """The running jobs: of this user on this machine, or of the driver at an address."""
    known = [each for each in records() if not each.state and not each.stands_by_for and not each.attempts]
    if address is None:
        return [RunningJob(each.job_id, each.name, Driver(each.url, each.token, each), each) for each in known]
    url = next((each.url for each in known if _url(each.url.partition("://")[2]) == _url(address)), _url(address))
    by_id = {record.job_id: record for record in known}
    token = os.environ.get("HOLDFAST_TOKEN") or next((each.token for each in known if each.url == url), "")
    driver = Driver(url, token, next((each for each in known if each.url == url), None))
    jobs = driver.get("/jobs/overview")["jobs"]
    return [RunningJob(job["jid"], job["name"], driver, by_id.get(job["jid"])) for job in jobs]


def standbys() -> list[JobRecord]:
    """The jobs of this user for which drivers on this machine stand by."""
    return [record for record in records() if not record.state and record.stands_by_for]


def paused_jobs(wanted: str | None = None) -> list[JobRecord]:
    """The jobs whose drivers have died or failed, and that `holdfast run --restart always` starts again."""
    return [each for each in known_jobs(wanted) if each.attempts and not each.state]


def known_jobs(wanted: str | None) -> list[JobRecord]:
    """The jobs of this user on this machine, running or ended, with this name or beginning of an id; the latest first."""
    return [each for each in records() if wanted is None or wanted == each.name or each.job_id.startswith(wanted)]


def find_job(wanted: str | None, address: str | None = None) -> RunningJob:
    """The running job with this id, beginning of an id, or name.

    Raises:
        CommandFailed: there is none, or several.
    """
    jobs = running_jobs(address)
    found = jobs if wanted is None else [job for job in jobs if wanted in (job.id, job.name)]
    if not found and wanted:
        found = [job for job in jobs if job.id.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{job.name} ({job.id})" for job in found or jobs)
    if not jobs:
        raise CommandFailed(_none_runs(wanted, address), NOT_FOUND)
    if not found:
        raise CommandFailed(f"No running job has the name or id {wanted!r}. Running: {listed}.", NOT_FOUND)
    several = f"{len(found)} jobs are running" if wanted is None else f"{len(found)} running jobs match {wanted!r}"
    raise CommandFailed(f"{several}: name one by its id: {listed}.", USAGE)


def _none_runs(wanted: str | None, address: str | None) -> str:
    if address is not None:
        return f"The driver at {address} runs no job."
    for record in standbys():
        if wanted is None or wanted == record.name or record.job_id.startswith(wanted):
            return (
                f"The driver of job {record.name} on this machine stands by: one on {record.stands_by_for} owns the job. "
                "Ask there, or name its address with -m HOST:PORT."
            )
    for record in paused_jobs(wanted):
        return (
            f"Job {record.name} ({record.job_id}) has failed {record.attempts} times, and is started again: "
            f"`holdfast status` tells why, `holdfast cancel` ends it, `holdfast logs` shows its log."
        )
    for record in known_jobs(wanted) if wanted else ():
        return f"Job {record.name} ({record.job_id}) no longer runs: {record.state}. `holdfast status {wanted}` tells more."
    named = f"No job has the name or id {wanted!r}: no" if wanted else "No"
    return f"{named} job of this user is running on this machine. Start one with `holdfast run PROGRAM`."


def _url(address: str) -> str:
    """The URL of an address as people write it.

    >>> _url("8081"), _url("host:8081/"), _url("http://host:1")
    ('http://localhost:8081', 'http://host:8081', 'http://host:1')
    """
    if address.isdigit():
        address = f"localhost:{address}"
    return (address if "://" in address else f"http://{address}").rstrip("/")
