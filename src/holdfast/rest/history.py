"""History: the pages of jobs that have ended or crashed, from what their checkpoint directories keep."""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections.abc import Mapping

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast import __version__
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import NotFound, Storage
from holdfast.errors import HoldfastError, StorageError
from holdfast.metrics.job import JobMetrics
from holdfast.rest import shapes
from holdfast.rest.app import Json, RateLimit, epoch_number, guarded, http_error
from holdfast.rest.archive import LOST, Archive, archived
from holdfast.rest.connections import RestProtocol
from holdfast.rest.hosts import CheckedHosts
from holdfast.rest.pages import page_routes
from holdfast.rest.tokens import Tokens

__all__ = ["HistoryWriter", "history_app", "read_history", "serve"]

log = logging.getLogger("holdfast")

RUNS_KEPT = 20
"""Runs of a job that are kept: each start of its program is one."""
_EVERY_S = 15.0
_PATH = re.compile(r"(?:(.+)/)?history/\d{15}-[0-9a-f]{32}")
_SILENT_MS = 4 * 1000 * int(_EVERY_S)
"""A run that was not stored for so long has died."""


class HistoryWriter:
    """Stores a running job's pages every quarter of a minute, and when it ends. Its failures do not affect the job."""

    def __init__(self, storage: Storage, paths: JobPaths, metrics: JobMetrics, config: Mapping[str, str]) -> None:
        self._storage, self._paths = storage, paths
        self._metrics, self._config = metrics, config
        self._path = paths.archive(metrics.snapshot().started_ms, metrics.job_id)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-history", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Store the pages of the ended job."""
        self.stop()
        self._store()

    def stop(self) -> None:
        """Store nothing more."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        self._store()
        self._forget_old()
        while not self._over.wait(_EVERY_S):
            self._store()

    def _store(self) -> None:
        try:
            self._storage.put(self._path, archived(self._metrics.snapshot(), self._config).encode())
        except StorageError as error:
            log.warning("the job's history was not stored: %s", error)
        except Exception:
            log.warning("the job's history was not stored", exc_info=True)

    def _forget_old(self) -> None:
        try:
            runs = sorted(path for path in self._storage.list(self._paths.history_prefix) if not JobPaths.is_part(path))
            self._storage.delete(runs[:-RUNS_KEPT])
        except StorageError as error:
            log.debug("old runs of the job's history stay: %s", error)


def read_history(directory: str, options: Mapping[str, str] | None = None) -> dict[str, Archive]:
    """Read what is kept of the runs of jobs, by job id, the latest first.

    Args:
        directory: A checkpoint directory, or a job's directory in it.
        options: The ``s3.*`` settings, and ``security.checkpoints.key-file``.

    Raises:
        ConfigurationError: the directory is on no usable storage.
        StorageError: the storage does not answer.
    """
    found: dict[str, Archive] = {}
    storage = Storage.open(directory, options)
    stores: dict[str, tuple[Storage, str]] = {}
    for path in sorted(storage.list(""), reverse=True):
        match = _PATH.fullmatch(path)
        if match is None:
            continue
        job = match.group(1) or ""
        if job not in stores:
            uri, _, name = (storage.locate(job) if job else storage.uri).rpartition("/")
            stores[job] = Storage.open(uri, options), name
        own, name = stores[job]
        at = f"{name}/{path[len(job) :].lstrip('/')}"
        try:
            archive = Archive.decode(own.get(at), own.locate(at))
        except NotFound:
            continue  # it has just been deleted
        except HoldfastError as error:
            log.warning("%s", error)
            continue
        silent = time.time_ns() // 1_000_000 - archive.written_ms > _SILENT_MS
        found[archive.job_id] = archive.lost() if silent and not archive.ended else archive
    return dict(sorted(found.items(), key=lambda item: -item[1].overview["start-time"]))


def history_app(archives: Mapping[str, Archive], token: str) -> Starlette:
    """The REST API and the dashboard over archives, for requests that show the token; nothing can be changed."""
    pages = _Pages(archives)
    tokens = Tokens(token)
    routes = {
        "/overview": pages.overview,
        "/jobs": pages.jobs,
        "/jobs/overview": pages.jobs_overview,
        "/jobs/{job_id}": pages.page,
        "/jobs/{job_id}/view": pages.view,
        "/jobs/{job_id}/metrics": pages.metrics,
        "/jobs/{job_id}/{page}": pages.page,
    }
    guards = [Route(path, guarded(tokens.reading(page)), methods=["GET"]) for path, page in routes.items()]
    return Starlette(
        routes=[*guards, *page_routes()],
        middleware=[Middleware(RateLimit, tokens), Middleware(CheckedHosts, ["localhost"])],
        exception_handlers={HTTPException: http_error},
    )


def serve(archives: Mapping[str, Archive], token: str, bound: socket.socket) -> None:
    """Serve archives on a listening socket of the loopback interface until Ctrl-C, to requests that show the token."""
    app = history_app(archives, token)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", ws="none", http=RestProtocol, server_header=False
    )
    uvicorn.Server(config).run(sockets=[bound])


class _Pages:
    def __init__(self, archives: Mapping[str, Archive]) -> None:
        self._archives = archives

    def _archive(self, request: Request) -> Archive:
        job_id = request.path_params["job_id"]
        archive = self._archives.get(job_id)
        if archive is None:
            raise HTTPException(404, f"Job {job_id} not found")
        return archive

    async def overview(self, request: Request) -> Response:
        states = [archive.overview["state"] for archive in self._archives.values()]
        return Json(
            {
                "jobs-running": 0,
                "jobs-finished": states.count("FINISHED"),
                "jobs-cancelled": states.count("CANCELED"),
                "jobs-failed": states.count("FAILED") + states.count(LOST),
                "holdfast-version": __version__,
            }
        )

    async def jobs(self, request: Request) -> Response:
        return Json({"jobs": [{"id": a.job_id, "status": a.overview["state"]} for a in self._archives.values()]})

    async def jobs_overview(self, request: Request) -> Response:
        return Json({"jobs": [archive.overview for archive in self._archives.values()]})

    async def page(self, request: Request) -> Response:
        page = self._archive(request).pages.get(request.path_params.get("page", ""))
        if page is None:
            raise HTTPException(404, f"{request.url.path} is not kept of jobs that have ended")
        return Json(page)

    async def view(self, request: Request) -> Response:
        view = self._archive(request).pages["view"]
        since = epoch_number(request)
        return Json(view | {"epochs": [epoch for epoch in view["epochs"] if epoch["sequence"] > since]})

    async def metrics(self, request: Request) -> Response:
        values = self._archive(request).metrics
        wanted = request.query_params.get("get")
        return Json(shapes.metric_list(values) if wanted is None else shapes.metric_values(values, wanted.split(",")))
