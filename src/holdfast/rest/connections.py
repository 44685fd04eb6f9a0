"""The connections of a REST server: none of them can keep others out, by silence, slowness or number."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["MOST", "REQUEST_S", "OncePerMinute", "RestProtocol"]

MOST = 128
"""Connections at a time. A new one beyond them ends the oldest."""
REQUEST_S = 10.0
"""A whole request arrives in this time after its connection was made, or after the answer before it."""
_MINUTE = 60.0


class RestProtocol(H11Protocol):
    """HTTP with a limit of time for each request, and of connections. Who exceeds them is cut off, nobody else."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection; the oldest one goes if there are too many."""
        super().connection_made(transport)
        made: dict[RestProtocol, None] = self.app_state.setdefault("holdfast.connections", {})
        made[self] = None
        if len(made) > MOST:
            next(iter(made)).transport.abort()
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._request_arrived()
        self.app_state["holdfast.connections"].pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body:
            self._request_arrived()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._await_request()

    def _await_request(self) -> None:
        self._request_arrived()
        self._deadline = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _request_arrived(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class OncePerMinute(logging.Filter):
    """Passes a message once a minute, however often a client causes it."""

    def __init__(self) -> None:
        super().__init__()
        self._next: dict[Any, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        now = time.monotonic()
        if now < self._next.get(record.msg, 0.0):
            return False
        self._next[record.msg] = now + _MINUTE
        return True
