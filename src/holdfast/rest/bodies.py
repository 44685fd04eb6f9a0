"""The bodies of requests: small JSON objects, of which no client can send more than the driver has memory for."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request

__all__ = ["MOST_BYTES", "body_of"]

MOST_BYTES = 64 << 10


async def body_of(request: Request) -> bytes:
    """The body of a request.

    Raises:
        HTTPException: it is larger than any that a page asks for.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"The body has more than {MOST_BYTES} bytes", {"connection": "close"})
    return bytes(body)
