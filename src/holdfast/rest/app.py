"""The HTTP application: routes of the REST API. It reads job snapshots and requests changes of jobs."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, Protocol

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast import __version__
from holdfast.errors import HoldfastError
from holdfast.metrics.job import TERMINAL, JobMetrics, JobSnapshot
from holdfast.metrics.prometheus import JobCollector
from holdfast.rest import shapes
from holdfast.rest.holds import HoldsCheckpoints, begin_hold, holds_of, release_hold, renew_hold
from holdfast.rest.pages import page_routes
from holdfast.rest.queries import AnswersQueries, answer
from holdfast.rest.samples import TakesSamples, begin_sample
from holdfast.rest.savepoints import TakesSavepoints, begin_savepoint
from holdfast.rest.tokens import Tokens
from holdfast.rest.triggers import Triggers
from holdfast.rest.view import job_view

__all__ = ["JobView", "Json", "RateLimit", "Shown", "create_app", "epoch_number", "guarded", "http_error"]

_log = logging.getLogger(__name__)

Page = Callable[[Request], Awaitable[Response]]
_NUMBER = re.compile(r"[0-9]{1,15}")
_CLIENTS = 1000
"""Addresses whose requests are counted."""


class JobView(TakesSavepoints, TakesSamples, AnswersQueries, Protocol):
    """A job as the REST API sees it."""

    @property
    def metrics(self) -> JobMetrics:
        """A snapshot of the job."""

    @property
    def retention(self) -> HoldsCheckpoints:
        """What holds the job's checkpoints."""

    def cancel(self, *, force: bool = False) -> object:
        """Request cancellation; may block. ``force``: without waiting for the running epoch."""

    def begin_rescale(self, parallelism: int) -> Future[None]:
        """Run at another parallelism; may block.

        Raises:
            ConfigurationError: the job cannot run at this parallelism.
        """

    def change_pace(self, interval_ms: int | None, min_pause_ms: int | None) -> None:
        """Take checkpoints at another pace from the next one on."""


class Shown(NamedTuple):
    """A served job and its effective configuration."""

    job: JobView
    config: Mapping[str, str]


class Json(Response):
    """A JSON response."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode the content."""
        return orjson.dumps(content, default=str)


class RateLimit:
    """Limits requests per second; excess requests wait, then get status 429.

    A flood of requests thus slows itself down instead of starving the coordinator. Requests with a token have a limit of
    their own, and so has each address of a client: a flood does not turn the command line or a probe away.
    """

    def __init__(
        self, app: ASGIApp, tokens: Tokens, per_second: float = 200.0, burst: float = 400.0, delay_s: float = 1.0
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._per_second, self._burst, self._delay_s = per_second, burst, delay_s
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By client: the requests that it has left, and when they were counted; the latest client last."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if self._take(self._client(scope)):
            await self._app(scope, receive, send)
            return
        await asyncio.sleep(self._delay_s)
        turned_away = _errors(429, f"more than {self._per_second:g} requests a second: ask less often")
        turned_away.headers["retry-after"] = "1"
        await turned_away(scope, receive, send)

    def _client(self, scope: Scope) -> str:
        request = Request(scope)
        return "token" if self._tokens.may_read(request) else request.client.host if request.client is not None else ""

    def _take(self, client: str) -> bool:
        now = time.monotonic()
        left, counted = self._left.pop(client, (self._burst, now))
        left = min(self._burst, left + (now - counted) * self._per_second)
        self._left[client] = (left - 1 if left >= 1 else left), now
        if len(self._left) > _CLIENTS:
            self._left.popitem(last=False)
        return left >= 1


def create_app(
    jobs: Callable[[], Mapping[str, Shown]],
    token: str,
    middleware: Iterable[Middleware] = (),
    elsewhere: Callable[[], list[dict[str, Any]]] = list,
) -> Starlette:
    """Create the application over the jobs that ``jobs()`` returns at each request.

    Changes need the token; data of records needs it, too, or the token that only reads. ``elsewhere()`` returns the jobs of
    other drivers that the dashboard links to.
    """
    tokens = Tokens(token)
    pages = _Pages(jobs, elsewhere, tokens)
    readings = {
        "/overview": pages.overview,
        "/jobs": pages.jobs,
        "/jobs/overview": pages.jobs_overview,
        "/jobs/elsewhere": pages.jobs_elsewhere,
        "/jobs/{job_id}": pages.job,
        "/jobs/{job_id}/view": pages.view,
        "/jobs/{job_id}/metrics": pages.job_metrics,
        "/jobs/{job_id}/checkpoints": pages.checkpoints,
        "/jobs/{job_id}/checkpoints/config": pages.checkpoint_config,
        "/jobs/{job_id}/exceptions": pages.exceptions,
        "/jobs/{job_id}/plan": pages.plan,
        "/jobs/{job_id}/config": pages.config,
        "/jobs/{job_id}/savepoints/{request_id}": pages.savepoint,
        "/jobs/{job_id}/rescaling/{request_id}": pages.rescaling,
        "/jobs/{job_id}/samples/{request_id}": tokens.reading(pages.sample),
        "/jobs/{job_id}/largest-keys/{request_id}": tokens.reading(pages.largest_keys),
        "/jobs/{job_id}/holds": pages.holds,
        "/jobs/{job_id}/state/{uid:path}/{name}": tokens.reading(pages.state),
        "/jobs/{job_id}/vertices/{vertex_id}/metrics": pages.vertex_metrics,
        "/metrics": pages.prometheus,
    }
    routes = [Route(path, guarded(page), methods=["GET"]) for path, page in readings.items()]
    changes = [
        ("PATCH", "/jobs/{job_id}", pages.cancel),
        ("POST", "/jobs/{job_id}/savepoints", pages.trigger_savepoint),
        ("POST", "/jobs/{job_id}/stop", pages.stop),
        ("PATCH", "/jobs/{job_id}/rescaling", pages.rescale),
        ("PATCH", "/jobs/{job_id}/checkpoints/config", pages.change_pace),
        ("POST", "/jobs/{job_id}/samples", pages.trigger_sample),
        ("POST", "/jobs/{job_id}/state/{uid:path}/largest-keys", pages.trigger_largest_keys),
        ("POST", "/jobs/{job_id}/holds", pages.hold),
        ("PATCH", "/jobs/{job_id}/holds/{hold_id}", pages.renew_hold),
        ("DELETE", "/jobs/{job_id}/holds/{hold_id}", pages.release_hold),
    ]
    routes += [Route(path, guarded(tokens.changing(page)), methods=[method]) for method, path, page in changes]
    return Starlette(
        routes=[*routes, *page_routes()],
        middleware=[Middleware(RateLimit, tokens), *middleware],
        exception_handlers={HTTPException: http_error},
    )


def guarded(page: Page) -> Page:
    """A page that answers its own failures, so that they do not break the connection or the server."""

    async def answer(request: Request) -> Response:
        try:
            return await page(request)
        except HTTPException:
            raise
        except Exception as error:
            _log.exception("%s %s failed", request.method, request.url.path)
            return _errors(500, f"Internal server error: {error!r}")

    return answer


class _Pages:
    def __init__(
        self, jobs: Callable[[], Mapping[str, Shown]], elsewhere: Callable[[], list[dict[str, Any]]], tokens: Tokens
    ) -> None:
        self._jobs = jobs
        self._tokens = tokens
        self._elsewhere = elsewhere
        self._savepoints = Triggers("Savepoint")
        self._rescalings = Triggers("Rescaling")
        self._samples = Triggers("Sample", "sample")
        self._largest_keys = Triggers("Request for the largest keys", "keys")
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(JobCollector(self._snapshots))

    def _snapshots(self) -> list[JobSnapshot]:
        return [shown.job.metrics.snapshot() for shown in self._jobs().values()]

    def _shown(self, request: Request) -> Shown:
        job_id = request.path_params["job_id"]
        shown = self._jobs().get(job_id)
        if shown is None:
            raise HTTPException(404, f"Job {job_id} not found")
        return shown

    def _running(self, request: Request) -> JobView:
        job = self._shown(request).job
        snapshot = job.metrics.snapshot()
        if snapshot.status in TERMINAL:
            raise HTTPException(409, f"Job {snapshot.job_id} is over already: {snapshot.status}")
        return job

    def _snapshot(self, request: Request) -> JobSnapshot:
        """The job as this request may see it."""
        job = self._shown(request).job.metrics.snapshot()
        return job if self._tokens.may_read(request) else job.without_records()

    async def overview(self, request: Request) -> Response:
        states = [job.status for job in self._snapshots()]
        return Json(
            {
                "jobs-running": sum(state not in TERMINAL for state in states),
                "jobs-finished": states.count("FINISHED"),
                "jobs-cancelled": states.count("CANCELED"),
                "jobs-failed": states.count("FAILED"),
                "holdfast-version": __version__,
            }
        )

    async def jobs(self, request: Request) -> Response:
        return Json({"jobs": [{"id": job.job_id, "status": job.status} for job in self._snapshots()]})

    async def jobs_overview(self, request: Request) -> Response:
        return Json({"jobs": [shapes.job_overview(job) for job in self._snapshots()]})

    async def jobs_elsewhere(self, request: Request) -> Response:
        return Json({"jobs": await asyncio.to_thread(self._elsewhere)})

    async def job(self, request: Request) -> Response:
        return Json(shapes.job_details(self._snapshot(request)))

    async def view(self, request: Request) -> Response:
        return Json(job_view(self._snapshot(request), epoch_number(request)))

    async def job_metrics(self, request: Request) -> Response:
        job = self._snapshot(request)
        return _metrics(request, {**job.user_values, **job.values})

    async def vertex_metrics(self, request: Request) -> Response:
        vertex_id = request.path_params["vertex_id"]
        for vertex in self._snapshot(request).vertices:
            if vertex.id == vertex_id:
                return _metrics(request, vertex.values)
        raise HTTPException(404, f"Vertex {vertex_id} not found")

    async def checkpoints(self, request: Request) -> Response:
        return Json(shapes.checkpoints(self._snapshot(request)))

    async def checkpoint_config(self, request: Request) -> Response:
        return Json(shapes.checkpoint_config(self._snapshot(request)))

    async def change_pace(self, request: Request) -> Response:
        job = self._running(request)
        given = {name: request.query_params.get(name) for name in ("interval", "min_pause")}
        wrong = [
            f"{name} is {each[:20]!r}" for name, each in given.items() if each is not None and not _NUMBER.fullmatch(each)
        ]
        if wrong or not any(given.values()):
            said = ", ".join(wrong) or "nothing is given"
            raise HTTPException(400, f"{said}: PATCH /jobs/<id>/checkpoints/config?interval=10000&min_pause=0, in ms")
        times = [None if each is None else int(each) for each in given.values()]
        await asyncio.to_thread(job.change_pace, *times)
        return Json({}, status_code=202)

    async def exceptions(self, request: Request) -> Response:
        return Json(shapes.exceptions(self._snapshot(request)))

    async def plan(self, request: Request) -> Response:
        return Json(shapes.plan(self._snapshot(request)))

    async def config(self, request: Request) -> Response:
        job, config = self._shown(request)
        return Json(shapes.config(job.metrics.snapshot(), config))

    async def cancel(self, request: Request) -> Response:
        mode, force = request.query_params.get("mode", "cancel"), request.query_params.get("force", "false")
        if mode != "cancel" or force not in ("true", "false"):
            raise HTTPException(400, f"mode {mode!r}, force {force!r} is not known: PATCH /jobs/<id>?mode=cancel&force=true")
        job = self._running(request)
        cancel = partial(job.cancel, force=force == "true")
        threading.Thread(target=cancel, name=f"cancel-{request.path_params['job_id'][:8]}", daemon=True).start()
        return Json({}, status_code=202)

    async def trigger_savepoint(self, request: Request) -> Response:
        return await self._begin_savepoint(request, stop=False)

    async def stop(self, request: Request) -> Response:
        return await self._begin_savepoint(request, stop=True)

    async def _begin_savepoint(self, request: Request, *, stop: bool) -> Response:
        job = self._running(request)
        path, written = await begin_savepoint(request, job, stop=stop)
        number = self._savepoints.add(request, written, lambda: job.savepoint_progress(path))
        return Json({"request-id": number, "location": path}, status_code=202)

    async def state(self, request: Request) -> Response:
        return Json(await answer(request, self._shown(request).job))

    async def savepoint(self, request: Request) -> Response:
        return Json(await self._savepoints.status(request))

    async def rescale(self, request: Request) -> Response:
        job = self._running(request)
        wanted = request.query_params.get("parallelism", "")
        if not _NUMBER.fullmatch(wanted):
            raise HTTPException(400, f"parallelism is {wanted[:20]!r}: PATCH /jobs/<id>/rescaling?parallelism=4")
        try:
            rescaled = await asyncio.to_thread(job.begin_rescale, int(wanted))
        except HoldfastError as error:
            raise HTTPException(400, str(error)) from None
        return Json({"request-id": self._rescalings.add(request, rescaled)}, status_code=202)

    async def rescaling(self, request: Request) -> Response:
        return Json(await self._rescalings.status(request))

    async def trigger_sample(self, request: Request) -> Response:
        taken = await begin_sample(request, self._running(request))
        return Json({"request-id": self._samples.add(request, taken)}, status_code=202)

    async def sample(self, request: Request) -> Response:
        return Json(await self._samples.status(request))

    async def trigger_largest_keys(self, request: Request) -> Response:
        found = self._running(request).begin_largest_keys(request.path_params["uid"])
        return Json({"request-id": self._largest_keys.add(request, found)}, status_code=202)

    async def largest_keys(self, request: Request) -> Response:
        return Json(await self._largest_keys.status(request))

    async def holds(self, request: Request) -> Response:
        return Json(holds_of(self._shown(request).job.retention))

    async def hold(self, request: Request) -> Response:
        return Json(await begin_hold(request, self._running(request).retention), status_code=201)

    async def renew_hold(self, request: Request) -> Response:
        return Json(await renew_hold(request, self._running(request).retention))

    async def release_hold(self, request: Request) -> Response:
        release_hold(request, self._running(request).retention)
        return Json({})

    async def prometheus(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


def epoch_number(request: Request) -> int:
    """The newest epoch that the asker knows, by ``?since=``.

    Raises:
        HTTPException: it is not the number of an epoch.
    """
    since = request.query_params.get("since", "0")
    if not _NUMBER.fullmatch(since):
        raise HTTPException(400, f"since is {since[:20]!r}: give the sequence number of the newest epoch that you know")
    return int(since)


def _metrics(request: Request, values: Mapping[str, float]) -> Response:
    wanted = request.query_params.get("get")
    if wanted is None:
        return Json(shapes.metric_list(values))
    return Json(shapes.metric_values(values, wanted.split(",")))


def _errors(status: int, *messages: str) -> Response:
    return Json({"errors": list(messages)}, status_code=status)


def http_error(request: Request, error: Exception) -> Response:
    """The answer to a request that cannot be served."""
    assert isinstance(error, HTTPException)
    detail = error.detail
    if error.headers:
        refused = _errors(error.status_code, detail)
        refused.headers.update(error.headers)
        return refused
    if error.status_code == 404 and detail == "Not Found":
        detail = f"Not found: {request.url.path}"
    return _errors(error.status_code, detail)
