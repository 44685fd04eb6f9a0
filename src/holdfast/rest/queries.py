"""Queries of a job's state through the REST API."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import json
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Protocol
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast.common.types import Row
from holdfast.errors import HoldfastError

__all__ = ["AnswersQueries", "answer"]


class AnswersQueries(Protocol):
    """A job whose state can be queried."""

    def begin_largest_keys(self, uid: str) -> Future[Any]:
        """Find the largest keys of an operator; see `holdfast.state_api.snapshots.largest`."""

    def query(self, uid: str, name: str, key: Any, window: int | None = None) -> tuple[Any, int]:
        """Read a key's state from the newest completed checkpoint; returns it with the checkpoint's id. Blocks.

        Raises:
            HoldfastError: the job has no such state, or the storage does not answer.
        """


async def answer(request: Request, job: AnswersQueries) -> dict[str, Any]:
    """Answer ``/jobs/<id>/state/<uid>/<name>?key=<JSON>``.

    Raises:
        HTTPException: the request is invalid, or there is no such state.
    """
    given = request.query_params
    try:
        key = _key(json.loads(given["key"], parse_constant=_refuse))  # orjson makes floats of integers beyond 64 bits
        window = int(given["window"]) if "window" in given else None
    except (KeyError, ValueError) as error:
        raise HTTPException(
            400,
            'give the key as JSON, e.g. ?key="berlin" or ?key=7 (a list is a tuple, an object a Row), and window in ms: '
            f"{error}",
        ) from None
    uid, name = _place(request)
    try:
        value, checkpoint_id = await asyncio.to_thread(job.query, uid, name, key, window)
    except HoldfastError as error:
        raise HTTPException(404 if isinstance(error, ValueError) else 503, str(error)) from None
    return {"value": _plain(value), "checkpoint-id": checkpoint_id}


def _place(request: Request) -> tuple[str, str]:
    """The uid and the state's name of a request; slashes within them are escaped, where no proxy has undone that."""
    parts = request.scope.get("raw_path", b"").partition(b"/state/")[2].split(b"/")
    if len(parts) == 2:
        return unquote(parts[0]), unquote(parts[1])
    return request.path_params["uid"], request.path_params["name"]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _key(given: Any) -> Any:
    """A key from JSON: an object is a Row, a list a tuple.

    >>> _key(json.loads('{"shop": "anna", "numbers": [-5, 123456789012345678901]}'))
    Row(shop='anna', numbers=(-5, 123456789012345678901))
    """
    if isinstance(given, dict):
        return Row(**{name: _key(each) for name, each in given.items()})
    return tuple(map(_key, given)) if isinstance(given, list) else given


def _plain(value: Any) -> Any:
    """A value for JSON: a Row with names or a dataclass as an object, a map as a list of pairs if its keys are not strings.

    Whole numbers of more than 64 bits, strings that are not UTF-8 and times with a zone, which JSON's encoder refuses,
    become text.

    >>> _plain({Row(a=2**70): {"b": (1, 2)}})
    [[{'a': '1180591620717411303424'}, {'b': [1, 2]}]]
    """
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return str(value)
    if isinstance(value, str):
        text = str.__str__(value)
        return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, datetime.time):
        return value.isoformat()
    if isinstance(value, Row):
        return {name: _plain(each) for name, each in zip(value._names(), value, strict=True)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name, None)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {_plain(key): _plain(each) for key, each in value.items()}
        return [[_plain(key), _plain(each)] for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value
