"""The dashboard's files. They need nothing from the net, and may load nothing from it."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

__all__ = ["page_routes"]

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def page_routes() -> list[Route]:
    """The routes of the dashboard: ``/`` and the files below ``/ui/``."""
    routes = []
    for file in (files("holdfast.rest") / "dashboard").iterdir():
        kind = _TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            path = "/" if file.name == "index.html" else f"/ui/{file.name}"
            routes.append(_route(path, Response(file.read_bytes(), media_type=kind, headers=_HEADERS)))
    return routes


def _route(path: str, response: Response) -> Route:
    async def answer(request: Request) -> Response:
        return response

    return Route(path, answer, methods=["GET"])
