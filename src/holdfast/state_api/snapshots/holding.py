"""Holds: a checkpoint of a running job, kept while another program reads it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

from holdfast.common.job_client import HeldCheckpoint, JobClient
from holdfast.errors import ConfigurationError
from holdfast.rest.client import RestClient
from holdfast.rest.holds import held_by_request
from holdfast.runtime.driver.job_registry import JobRecord, records

__all__ = ["driver_now", "hold_checkpoint"]


def hold_checkpoint(job: JobClient | str, token: str | None = None) -> AbstractContextManager[HeldCheckpoint]:
    """Keep the newest completed checkpoint of a running job, for the time of a ``with``, while it is read.

    The job goes on, completes checkpoints and deletes old ones, but not this one. If this process dies, the hold ends a
    minute later. It outlasts the job's driver: the next one keeps the checkpoint for another minute, and the hold is renewed
    there if that driver runs as the same user on the same machine. The hold of a `JobClient` ends with its job.

    Args:
        job: The client of a job of this process; the name or id of a job of this user on this machine; or the URL of a job
            in a driver's REST API, such as ``http://driver:8081/jobs/3fbc1056029140959225dda4802fce5c``.
        token: The token of the driver at a URL; None: that of the driver's record on this machine, or ``HOLDFAST_TOKEN``.

    Raises:
        CheckpointError: the job of this process has no checkpoint yet.
        ConfigurationError: there is no such job.
        Refused: the driver refuses it: there is no checkpoint yet, or the token is wrong.
        ServiceUnavailable: no driver answers.
    """
    if isinstance(job, JobClient):
        return job.hold_checkpoint()
    known = [record for record in records() if record.url and not record.state and not record.stands_by_for]
    if "://" not in job:
        found = [each for each in known if job in (each.name, each.job_id)]
        if len(found) != 1:
            running = ", ".join(f"{each.name} ({each.job_id})" for each in found or known) or "none"
            raise ConfigurationError(
                f"{'several running jobs have' if found else 'no running job of this user on this machine has'} the name or "
                f"id {job!r}: {running}. Give the id, or a job's URL as http://driver:8081/jobs/<id>"
            )
        return held_by_request(_client(found[0].url, found[0], token), found[0].job_id, later=driver_now(found[0].name))
    url, found_id, job_id = job.rstrip("/").partition("/jobs/")
    if not found_id or "/" in job_id:
        raise ConfigurationError(f"{job!r} is not the URL of a job: give it as http://driver:8081/jobs/<id>")
    record = next((each for each in known if each.job_id == job_id), None)
    later = driver_now("" if record is None else record.name)
    return held_by_request(_client(url, record, token), job_id, later=later)


def driver_now(name: str) -> Callable[[], tuple[RestClient, str] | None]:
    """Finds the driver on this machine that runs the job of this name, with the job's id; None if there is not just one."""

    def find() -> tuple[RestClient, str] | None:
        running = [
            each for each in records() if each.name == name and each.url and not each.state and not each.stands_by_for
        ]
        return (_client(running[0].url, running[0], None), running[0].job_id) if len(running) == 1 else None

    return find


def _client(url: str, record: JobRecord | None, token: str | None) -> RestClient:
    if token is None:
        token = record.token if record is not None else os.environ.get("HOLDFAST_TOKEN", "")
    return RestClient(url, token, record.certificate if record else "", record.keystore if record else "")
