"""Samples of records through the REST API."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Protocol

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast.errors import HoldfastError
from holdfast.rest.bodies import body_of

__all__ = ["Sample", "TakesSamples", "begin_sample", "sample_shape"]


class Sample(Protocol):
    """What has passed on an edge; see `holdfast.runtime.records.samples.EdgeSample`."""

    records: list[Any]
    passed: int
    keys: Mapping[str, int]
    counted: int


class TakesSamples(Protocol):
    """A job that takes samples of its records."""

    def begin_sample(self, sender: str, receiver: str) -> Future[Any]:
        """Take a sample of the records on an edge, named by the ids of its vertices.

        Raises:
            HoldfastError: there is no such edge, or the job has ended.
        """


async def begin_sample(request: Request, job: TakesSamples) -> Future[Any]:
    """Begin the sample that the body ``{"from": vertex, "to": vertex}`` asks for.

    Raises:
        HTTPException: the request is invalid, or there is no such edge.
    """
    try:
        wanted = orjson.loads(await body_of(request))
        sender, receiver = str(wanted["from"]), str(wanted["to"])
    except (ValueError, KeyError, TypeError):
        raise HTTPException(
            400, 'The body must be JSON with the ids of two vertices: {"from": "...", "to": "..."}'
        ) from None
    try:
        taken = await asyncio.to_thread(job.begin_sample, sender, receiver)
    except HoldfastError as error:
        raise HTTPException(400, str(error)) from None
    shown: Future[Any] = Future()
    taken.add_done_callback(lambda done: _pass_on(done, shown))
    return shown


def _pass_on(taken: Future[Any], shown: Future[Any]) -> None:
    error = taken.exception()
    if error is None:
        shown.set_result(sample_shape(taken.result()))
    else:
        shown.set_exception(error)


def sample_shape(sample: Sample) -> dict[str, Any]:
    """A sample as plain data: its records, and its most frequent keys with their share of the records."""
    return {
        "passed": sample.passed,
        "records": [{"timestamp": each.timestamp, "key": each.key, "value": each.value} for each in sample.records],
        "keys": [
            {"key": key, "share": number / sample.counted}
            for key, number in sorted(sample.keys.items(), key=lambda each: -each[1])
        ],
        "counted": sample.counted,
    }
