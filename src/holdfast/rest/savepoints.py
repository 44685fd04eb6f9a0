"""Savepoints through the REST API: the request that begins one."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Protocol

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast.errors import HoldfastError
from holdfast.rest.bodies import body_of

__all__ = ["TakesSavepoints", "begin_savepoint"]


class TakesSavepoints(Protocol):
    """A job that writes savepoints."""

    def savepoint_progress(self, uri: str) -> tuple[int, int] | None:
        """The number of written parts of a savepoint, and of all; None if that is unknown. May block."""

    def begin_savepoint(self, directory: str | None, *, stop: bool, drain: bool) -> tuple[str, Future[str]]:
        """Begin a savepoint; returns its path and its completion. May block.

        Raises:
            ConfigurationError: the directory is not writable.
        """


async def begin_savepoint(request: Request, job: TakesSavepoints, *, stop: bool) -> tuple[str, Future[str]]:
    """Begin the savepoint that a request describes; returns its path and its completion.

    Raises:
        HTTPException: the request is invalid, or the savepoint cannot be written.
    """
    body = await body_of(request)
    try:
        wanted = orjson.loads(body or b"{}")
        directory = wanted.get("targetDirectory") or wanted.get("target-directory")
        drain = wanted.get("drain", False)
        stop = stop or bool(wanted.get("cancel-job", False))
        if not isinstance(directory, str | None) or not isinstance(drain, bool):
            raise ValueError("targetDirectory must be a string and drain must be true or false")
        if str(wanted.get("formatType", "CANONICAL")).upper() != "CANONICAL":
            raise ValueError("formatType must be CANONICAL, which any state backend and parallelism restores, or left out")
    except (ValueError, AttributeError) as error:
        raise HTTPException(400, f'The body must be JSON as {{"targetDirectory": "file:///savepoints"}}: {error}') from None
    try:
        return await asyncio.to_thread(job.begin_savepoint, directory, stop=stop, drain=drain)
    except HoldfastError as error:
        raise HTTPException(400, str(error)) from None
