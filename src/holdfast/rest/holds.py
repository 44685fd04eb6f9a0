"""Holds through the REST API: a reader in another process keeps a job's newest checkpoint for some time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, Protocol

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast.checkpoint.holds import LONGEST_S, Hold, Holds
from holdfast.checkpoint.ids import CheckpointId
from holdfast.common.job_client import HeldCheckpoint
from holdfast.errors import CheckpointError, HoldfastError
from holdfast.rest.client import Refused, RestClient

__all__ = ["HoldsCheckpoints", "begin_hold", "held_by_request", "holds_of", "release_hold", "renew_hold"]

_log = logging.getLogger("holdfast")

_SECONDS = 60.0
"""How long a hold lasts that names no time, and those of `held_by_request`, unless they are renewed."""
_LEAST_S = 1.0
_ENDED = 401, 404, 409
"""Answers of a driver that does not hold the checkpoint: it forgot the hold, the job has ended, or it is another one."""


class HoldsCheckpoints(Protocol):
    """What holds a job's checkpoints: `holdfast.checkpoint.retention.Retention`."""

    @property
    def holds(self) -> Holds:
        """The holds."""

    def hold_newest(self, seconds: float) -> Hold:
        """Hold the newest completed checkpoint. Never waits for the storage.

        Raises:
            CheckpointError: there is none yet, or too many are held.
        """


def holds_of(retention: HoldsCheckpoints) -> dict[str, Any]:
    """The answer to ``GET /jobs/<id>/holds``."""
    return {"holds": [_shown(hold, left) for hold, left in retention.holds.current()]}


async def begin_hold(request: Request, retention: HoldsCheckpoints) -> dict[str, Any]:
    """Answer ``POST /jobs/<id>/holds``.

    Raises:
        HTTPException: the request is invalid, there is no checkpoint yet, or too many are held.
    """
    seconds = await _seconds(request)
    try:
        return _shown(retention.hold_newest(seconds), seconds)
    except CheckpointError as error:
        raise HTTPException(503, str(error)) from None


async def renew_hold(request: Request, retention: HoldsCheckpoints) -> dict[str, Any]:
    """Answer ``PATCH /jobs/<id>/holds/<hold-id>``.

    Raises:
        HTTPException: the request is invalid, or the hold has ended.
    """
    seconds, hold_id = await _seconds(request), request.path_params["hold_id"]
    try:
        return _shown(retention.holds.renew(hold_id, seconds), seconds)
    except KeyError:
        raise HTTPException(404, f"Hold {hold_id} has ended, or was made by an earlier driver: hold again") from None


def release_hold(request: Request, retention: HoldsCheckpoints) -> None:
    """Answer ``DELETE /jobs/<id>/holds/<hold-id>``; a hold that has ended is no error."""
    retention.holds.remove(request.path_params["hold_id"])


async def _seconds(request: Request) -> float:
    body = await request.body()
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
def held_by_request(driver: RestClient, job_id: str, seconds: float = _SECONDS) -> Iterator[HeldCheckpoint]:
    """Hold a job's newest checkpoint from another process. A thread renews the hold, three times as often as needed.

    If this process dies, the hold ends after ``seconds``.

    Raises:
        Refused: the driver does not know the job or the token, or there is no checkpoint yet.
        ServiceUnavailable: no driver answers.
    """
    holds = f"/jobs/{job_id}/holds"
    begun = driver.change("POST", holds, {"seconds": seconds})
    own = f"{holds}/{begun['hold-id']}"
    released = threading.Event()

    def renew() -> None:
        while not released.wait(seconds / 3):
            try:
                driver.change("PATCH", own, {"seconds": seconds})
            except HoldfastError as error:
                if isinstance(error, Refused) and error.status in _ENDED:
                    _log.warning("%s is no longer held: %s. A read of it may fail now", begun["path"], error)
                    return
                _log.debug("the hold of %s was not renewed, the next try follows: %s", begun["path"], error)

    threading.Thread(target=renew, name="holdfast-hold", daemon=True).start()
    try:
        yield HeldCheckpoint(CheckpointId(begun["checkpoint-id"]), begun["path"], {})
    finally:
        released.set()
        with suppress(HoldfastError):  # it ends by itself
            driver.change("DELETE", own)
