"""Triggers: operations that one request begins and later ones ask about, as in Flink's REST API."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast.errors import HoldfastError

__all__ = ["Triggers"]

_REMEMBERED = 100
_LONGEST_WAIT_S = 30.0


Progress = Callable[[], tuple[int, int] | None]
"""Returns what is done of an operation, and the whole; None if that is unknown. May block."""


class _Trigger(NamedTuple):
    job_id: str
    done: Future[Any]
    progress: Progress


class Triggers:
    """The latest operations of one kind.

    Args:
        kind: Their name in errors, e.g. ``Savepoint``.
        outcome: The name of their result in the answer.
    """

    def __init__(self, kind: str, outcome: str = "location") -> None:
        self._kind = kind
        self._outcome = outcome
        self._triggers: dict[str, _Trigger] = {}

    def add(self, request: Request, done: Future[Any], progress: Progress = lambda: None) -> str:
        """Remember an operation that has begun, and how far it is; returns its request id."""
        number = uuid.uuid4().hex
        self._triggers[number] = _Trigger(request.path_params["job_id"], done, progress)
        while len(self._triggers) > _REMEMBERED:
            del self._triggers[next(iter(self._triggers))]
        return number

    async def status(self, request: Request) -> dict[str, Any]:
        """The status of the operation that the request's path names. With ``?wait=<seconds>``, wait for its end.

        Raises:
            HTTPException: the operation is unknown.
        """
        job_id, number = request.path_params["job_id"], request.path_params["request_id"]
        found = self._triggers.get(number)
        if found is None or found.job_id != job_id:
            raise HTTPException(404, f"{self._kind} request {number} of job {job_id} not found")
        try:
            wait_s = min(float(request.query_params.get("wait", "0")), _LONGEST_WAIT_S)
        except ValueError:
            raise HTTPException(400, "wait must be a number of seconds") from None
        if wait_s > 0 and not found.done.done():
            await asyncio.wait([asyncio.wrap_future(found.done)], timeout=wait_s)
        if not found.done.done():
            return {"status": {"id": "IN_PROGRESS"}} | await _progress(found.progress)
        error = found.done.exception()
        if error is None:
            return {"status": {"id": "COMPLETED"}, "operation": {self._outcome: found.done.result()}}
        cause = {"class": type(error).__name__, "stack-trace": str(error) or repr(error)}
        return {"status": {"id": "COMPLETED"}, "operation": {"failure-cause": cause}}


async def _progress(progress: Progress) -> dict[str, Any]:
    try:
        known = await asyncio.to_thread(progress)
    except HoldfastError:  # the operation itself reports a storage that does not answer
        known = None
    return {} if known is None else {"progress": {"done": known[0], "total": known[1]}}
