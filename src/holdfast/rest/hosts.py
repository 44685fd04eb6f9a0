"""The Host header of requests: a web page must not reach the API through a DNS name of its own."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["ALLOWED_HOSTS", "CheckedHosts", "names_of_this_host"]

ALLOWED_HOSTS = "rest.allowed-hosts"
"""The setting with further names, separated by commas."""


def names_of_this_host() -> tuple[str, ...]:
    """The names under which requests reach this host, as far as it knows them."""
    return ("localhost", socket.gethostname().lower(), socket.getfqdn().lower())


class CheckedHosts:
    """Refuses requests whose Host is neither one of these names nor an address: a page's own name could lead here.

    Args:
        app: What answers the others.
        names: Names of the server.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app = app
        self._names = frozenset(name.strip().lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        host = Headers(scope=scope).get("host", "")
        if self._is_known(host):
            await self._app(scope, receive, send)
            return
        said = f"Host {host!r} is not a name of this server: {ALLOWED_HOSTS} names further ones"
        await PlainTextResponse(said, status_code=400)(scope, receive, send)

    def _is_known(self, host: str) -> bool:
        name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        if name.lower() in self._names:
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True
