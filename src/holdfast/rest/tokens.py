"""Tokens: who may change a job, and who may see data of its records."""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

__all__ = ["Tokens", "read_token"]

Page = Callable[[Request], Awaitable[Response]]
_FIND = "On the driver's host, as the driver's user, `holdfast token` prints the right one"


def read_token(token: str) -> str:
    """The token that only reads, which follows from the one that changes jobs, and does not tell it."""
    return base64.urlsafe_b64encode(hmac.digest(token.encode(), b"read", "sha256")).decode().rstrip("=")


class Tokens:
    """The two tokens of a server: one changes jobs and reads, the other reads only.

    Args:
        token: The one that changes jobs.
    """

    def __init__(self, token: str) -> None:
        self._change = token
        self._read = read_token(token)

    def may_read(self, request: Request) -> bool:
        """Whether the request may see data of records."""
        shown = _shown(request)
        return _same(shown, self._change) or _same(shown, self._read)

    def changing(self, page: Page) -> Page:
        """The page for requests that may change jobs. Browsers send the token only from the dashboard's own pages."""

        async def answer(request: Request) -> Response:
            if _same(_shown(request), self._change):
                return await page(request)
            if self.may_read(request):
                raise _refusal(403, "changes a job and shows the token that only reads")
            raise _refusal(401, f"changes a job and shows {_which(request)} token")

        return answer

    def reading(self, page: Page) -> Page:
        """The page for requests that may see data of records."""

        async def answer(request: Request) -> Response:
            if self.may_read(request):
                return await page(request)
            raise _refusal(401, f"asks for data of records and shows {_which(request)} token", " --read")

        return answer


def _refusal(status: int, what: str, option: str = "") -> HTTPException:
    return HTTPException(
        status,
        f"The request {what}. {_FIND.replace('token`', f'token{option}`')}, for the header 'Authorization: Bearer <token>'; "
        "other commands find it by themselves",
        {"www-authenticate": "Bearer"},
    )


def _shown(request: Request) -> str:
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    return shown.strip() if scheme.lower() == "bearer" else ""


def _which(request: Request) -> str:
    return "a wrong" if request.headers.get("authorization", "").partition(" ")[2].strip() else "no"


def _same(shown: str, token: str) -> bool:
    return secrets.compare_digest(shown.encode(), token.encode())
