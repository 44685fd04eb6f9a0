"""Savepoints through the REST API, as in Flink: one request triggers a savepoint, later ones query it."""

from __future__ import annotations

import asyncio
import json
import uuid
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast.errors import HoldfastError

__all__ = ["SavepointTriggers", "TakesSavepoints"]

_REMEMBERED = 100


class TakesSavepoints(Protocol):
    """A job that writes savepoints."""

    def begin_savepoint(self, directory: str | None, *, stop: bool, drain: bool) -> tuple[str, Future[str]]:
        """Begin a savepoint; returns its path and its completion. May block.

        Raises:
            ConfigurationError: the directory is not writable.
        """


class _Trigger(NamedTuple):
    job_id: str
    written: Future[str]


class SavepointTriggers:
    """The latest savepoints triggered by requests."""

    def __init__(self) -> None:
        self._triggers: dict[str, _Trigger] = {}

    async def trigger(self, request: Request, job: TakesSavepoints, *, stop: bool) -> dict[str, str]:
        """Begin the requested savepoint; returns its request id and its future path.

        Raises:
            HTTPException: the request is invalid, or the savepoint cannot be written.
        """
        body = await request.body()
        try:
            wanted = json.loads(body or b"{}")
            directory = wanted.get("targetDirectory") or wanted.get("target-directory")
            drain = wanted.get("drain", False)
            stop = stop or bool(wanted.get("cancel-job", False))
            if not isinstance(directory, str | None) or not isinstance(drain, bool):
                raise ValueError("targetDirectory must be a string and drain must be true or false")
        except (ValueError, AttributeError) as error:
            raise HTTPException(
                400, f'The body must be JSON as {{"targetDirectory": "file:///savepoints"}}: {error}'
            ) from None
        try:
            path, written = await asyncio.to_thread(job.begin_savepoint, directory, stop=stop, drain=drain)
        except HoldfastError as error:
            raise HTTPException(400, str(error)) from None
        number = uuid.uuid4().hex
        self._triggers[number] = _Trigger(request.path_params["job_id"], written)
        while len(self._triggers) > _REMEMBERED:
            del self._triggers[next(iter(self._triggers))]
        return {"request-id": number, "location": path}

    async def status(self, job_id: str, number: str, wait_s: float = 0) -> dict[str, Any]:
        """The status of a savepoint.

        Args:
            job_id: The job.
            number: The id of the request.
            wait_s: The longest time to wait for the end of the savepoint, in seconds.

        Raises:
            HTTPException: the request is unknown.
        """
        found = self._triggers.get(number)
        if found is None or found.job_id != job_id:
            raise HTTPException(404, f"Savepoint request {number} of job {job_id} not found")
        if wait_s > 0 and not found.written.done():
            await asyncio.wait([asyncio.wrap_future(found.written)], timeout=wait_s)
        if not found.written.done():
            return {"status": {"id": "IN_PROGRESS"}}
        error = found.written.exception()
        if error is None:
            return {"status": {"id": "COMPLETED"}, "operation": {"location": found.written.result()}}
        cause = {"class": type(error).__name__, "stack-trace": str(error) or repr(error)}
        return {"status": {"id": "COMPLETED"}, "operation": {"failure-cause": cause}}
