"""Presence: makes a job visible through this machine's records, the REST server of its owner, and its history."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.runtime.driver.job_registry import JobRecord, Registration, records, register
from holdfast.runtime.driver.launch import launched
from holdfast.runtime.host.local_directory import slot_directory
from holdfast.runtime.plan.plan import JobPlan

if TYPE_CHECKING:
    from holdfast.checkpoint.paths import JobPaths
    from holdfast.checkpoint.stores.storage import Storage
    from holdfast.rest.history import HistoryWriter
    from holdfast.rest.server import JobView, RestServer

__all__ = ["Presence"]

log = logging.getLogger("holdfast")


class Presence:
    """A job of this driver, as the command line and the REST API know it.

    Args:
        plan: The job.
        job_id: The job's id.
        storage: The job's checkpoint storage; None if its checkpoints end with it.
        paths: The job's paths there.
    """

    def __init__(self, plan: JobPlan, job_id: str, storage: Storage | None, paths: JobPaths) -> None:
        launch = launched()
        self._config = plan.config
        self._record = JobRecord(
            job_id=job_id,
            name=plan.name,
            pid=os.getpid(),
            host=socket.gethostname(),
            url="",
            token="",
            started_ms=time.time_ns() // 1_000_000,
            program=os.path.abspath(sys.argv[0]) if sys.argv[0] else "",
            checkpoints="" if storage is None else storage.uri,
            slots=slot_directory(plan.settings.temporary_directory, job_id).path,
            log=launch.log if launch else "",
            launch=launch.id if launch else "",
        )
        self._storage, self._paths = storage, paths
        self._history: HistoryWriter | None = None
        self._registration: Registration | None = None
        self._server: RestServer | None = None

    def stand_by(self, owner: str) -> None:
        """Make the driver known while another driver, on the host ``owner``, owns the job."""
        self._registration = register(msgspec.structs.replace(self._record, stands_by_for=owner))

    def show(self, job: JobView) -> None:
        """Show the job of this driver.

        Raises:
            ConfigurationError: the REST server cannot be started.
        """
        from holdfast.rest.server import RestServer

        self._server = server = RestServer.shared(self._config)
        server.elsewhere = _jobs_elsewhere
        server.add(job, self._config)
        tls = server.tls
        shown = msgspec.structs.replace(
            self._record,
            url=server.url,
            token=server.token,
            certificate=tls.certificate if tls else "",
            keystore=tls.keystore if tls and tls.truststore else "",
        )
        if self._registration is None:
            self._registration = register(shown)
        else:
            self._registration.change(shown)
        if self._storage is not None:
            from holdfast.rest.history import HistoryWriter

            self._history = HistoryWriter(self._storage, self._paths, job.metrics, self._config)
        log.info("job %r (%s) is shown at %s/jobs/%s", shown.name, shown.job_id, server.url, shown.job_id)

    def forget(self) -> None:
        """Stop storing history: the job's checkpoint directory is about to be deleted."""
        if self._history is not None:
            self._history.stop()
            self._history = None

    def store(self) -> None:
        """Store the history of the ended job."""
        if self._history is not None:
            self._history.end()

    def end(self, state: str, failure: str) -> None:
        """Record the job's final state, and end its visibility."""
        if self._registration is not None:
            self._registration.end(state, failure)
        if self._server is not None:
            self._server.remove(self._record.job_id)


def _jobs_elsewhere() -> list[dict[str, Any]]:
    """Jobs of this user's other drivers on this machine, for the dashboard."""
    try:
        running = [each for each in records() if not each.state and not each.attempts and each.pid != os.getpid()]
    except (OSError, ConfigurationError):  # without records, jobs are found by their addresses only
        return []
    return [{"id": each.job_id, "name": each.name, "url": each.url, "owner": each.stands_by_for} for each in running]
