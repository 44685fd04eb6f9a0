"""Holds through the REST API: a reader in another process keeps a job's newest checkpoint for some time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, Protocol

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast.checkpoint.holds import LONGEST_S, Hold, Holds
from holdfast.checkpoint.ids import CheckpointId
from holdfast.common.job_client import HeldCheckpoint
from holdfast.errors import CheckpointError, HoldfastError, StorageError
from holdfast.rest.bodies import body_of
from holdfast.rest.client import Refused, RestClient

__all__ = ["HoldsCheckpoints", "begin_hold", "held_by_request", "holds_of", "release_hold", "renew_hold"]

_log = logging.getLogger("holdfast")

_SECONDS = 60.0
"""How long a hold lasts that names no time, and those of `held_by_request`, unless they are renewed."""
_LEAST_S = 1.0
_ENDED = 401, 404, 409
"""Answers of a driver that does not hold the checkpoint: the hold or the job has ended, or it is another driver."""
_TRIES = 3
"""After so many of these answers in a row, a reader gives up: a later driver begins some time before it takes over."""


class HoldsCheckpoints(Protocol):
    """What holds a job's checkpoints: `holdfast.checkpoint.retention.Retention`."""

    @property
    def holds(self) -> Holds:
        """The holds."""

    def hold_newest(self, seconds: float) -> Hold:
        """Hold the newest completed checkpoint, and store the hold.

        Raises:
            CheckpointError: there is none yet, too many are held, or another driver has the job.
            StorageError: the storage does not answer.
        """

    def renew(self, hold_id: str, seconds: float) -> Hold:
        """Let a hold end so many seconds from now.

        Raises:
            KeyError: it has ended.
            StorageError: the storage does not answer.
        """


def holds_of(retention: HoldsCheckpoints) -> dict[str, Any]:
    """The answer to ``GET /jobs/<id>/holds``."""
    return {"holds": [_shown(hold, left) for hold, left in retention.holds.current()]}


async def begin_hold(request: Request, retention: HoldsCheckpoints) -> dict[str, Any]:
    """Answer ``POST /jobs/<id>/holds``.

    Raises:
        HTTPException: the request is invalid, there is no checkpoint yet, too many are held, or the storage is away.
    """
    seconds = await _seconds(request)
    try:
        return _shown(await run_in_threadpool(retention.hold_newest, seconds), seconds)
    except (CheckpointError, StorageError) as error:
        raise HTTPException(503, str(error)) from None


async def renew_hold(request: Request, retention: HoldsCheckpoints) -> dict[str, Any]:
    """Answer ``PATCH /jobs/<id>/holds/<hold-id>``.

    Raises:
        HTTPException: the request is invalid, the hold has ended, or the storage is away.
    """
    seconds, hold_id = await _seconds(request), request.path_params["hold_id"]
    try:
        return _shown(await run_in_threadpool(retention.renew, hold_id, seconds), seconds)
    except KeyError:
        raise HTTPException(404, f"Hold {hold_id} has ended: hold again") from None
    except StorageError as error:
        raise HTTPException(503, str(error)) from None


def release_hold(request: Request, retention: HoldsCheckpoints) -> None:
    """Answer ``DELETE /jobs/<id>/holds/<hold-id>``; a hold that has ended is no error."""
    retention.holds.remove(request.path_params["hold_id"])


async def _seconds(request: Request) -> float:
    body = await body_of(request)
    try:
        wanted = orjson.loads(body or b"{}").get("seconds", _SECONDS)
        if not isinstance(wanted, (int, float)) or not _LEAST_S <= wanted <= LONGEST_S:
            raise ValueError(f"seconds is {wanted!r}: give a number from {_LEAST_S:g} to {LONGEST_S:g}, and renew the hold")
    except (ValueError, AttributeError) as error:
        raise HTTPException(400, f'The body must be JSON as {{"seconds": 60}}: {error}') from None
    return float(wanted)


def _shown(hold: Hold, left: float) -> dict[str, Any]:
    seconds = None if left == inf else round(left, 1)
    return {"hold-id": hold.id, "checkpoint-id": hold.checkpoint_id, "path": hold.path, "seconds": seconds}


@contextmanager
def held_by_request(
    driver: RestClient,
    job_id: str,
    seconds: float = _SECONDS,
    later: Callable[[], tuple[RestClient, str] | None] = lambda: None,
) -> Iterator[HeldCheckpoint]:
    """Hold a job's newest checkpoint from another process. A thread renews the hold, three times as often as needed.

    If this process dies, the hold ends after ``seconds``. If the driver ends, the job's next driver adopts the hold, which
    is then renewed there.

    Args:
        driver: The driver of the job.
        job_id: The job's id.
        seconds: How long the hold lasts if it is not renewed.
        later: Finds the driver that runs the job now, and the job's id there; None: there is no other one.

    Raises:
        Refused: the driver does not know the job or the token, or there is no checkpoint yet.
        ServiceUnavailable: no driver answers.
    """
    begun = driver.change("POST", f"/jobs/{job_id}/holds", {"seconds": seconds})
    released = threading.Event()

    def own() -> str:
        return f"/jobs/{job_id}/holds/{begun['hold-id']}"

    def renew() -> None:
        nonlocal driver, job_id
        refused = 0
        while not released.wait(seconds / 3):
            try:
                driver.change("PATCH", own(), {"seconds": seconds})
                refused = 0
            except HoldfastError as error:
                driver, job_id = later() or (driver, job_id)
                refused += isinstance(error, Refused) and error.status in _ENDED
                if refused >= _TRIES:
                    _log.warning("%s is no longer held: %s. A read of it may fail now", begun["path"], error)
                    return
                _log.debug("the hold of %s was not renewed, the next try follows: %s", begun["path"], error)

    threading.Thread(target=renew, name="holdfast-hold", daemon=True).start()
    try:
        yield HeldCheckpoint(CheckpointId(begun["checkpoint-id"]), begun["path"], {})
    finally:
        released.set()
        with suppress(HoldfastError):  # it ends by itself
            driver.change("DELETE", own())
