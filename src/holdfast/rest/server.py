"""The REST server of a driver process: one for all its jobs, in a daemon thread, while at least one job runs.

It shares only the process with the coordinator: a failure of the server does not affect the jobs.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import uvicorn
from starlette.middleware import Middleware

from holdfast.errors import ConfigurationError
from holdfast.rest.app import JobView, Shown, create_app
from holdfast.rest.connections import OncePerMinute, RestProtocol
from holdfast.rest.hosts import ALLOWED_HOSTS, CheckedHosts, names_of_this_host
from holdfast.rest.tls import Tls

__all__ = ["JobView", "RestServer", "bind"]

_log = logging.getLogger(__name__)

_DEFAULT_PORT = 8081
_DEFAULT_ADDRESS = "127.0.0.1"
_PORTS_TRIED = 100


@dataclass
class _Running:
    server: uvicorn.Server
    thread: threading.Thread
    socket: socket.socket


class RestServer:
    """Serves Flink's REST API for the jobs added to it. The first job starts it, the last one stops it.

    Configuration keys: ``rest.port`` (8081; the next free port is taken if it is busy; 0 takes any) and
    ``rest.bind-address`` (127.0.0.1: this machine only. Figures and settings need no login: bind it to another address only
    where everyone who can reach that address may see them); ``rest.allowed-hosts``: the names under which requests reach it
    beside those of this host, separated by commas; ``security.ssl.rest.*`` for TLS.

    A request that changes a job must show the server's token, which is made at its start; one that shows data of records
    must show it, too, or the token that only reads.

    Args:
        config: The job's configuration.

    Raises:
        ConfigurationError: the port or the address cannot be used.
    """

    _shared: ClassVar[RestServer | None] = None
    _shared_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, config: Mapping[str, str]) -> None:
        self._address = config.get("rest.bind-address", _DEFAULT_ADDRESS).strip()
        self._wanted_port = _port(config.get("rest.port", str(_DEFAULT_PORT)))
        self._hosts = [*names_of_this_host(), *config.get(ALLOWED_HOSTS, "").split(",")]
        self._tls = Tls.of(config)
        self._token = secrets.token_urlsafe(32)
        self._lock = threading.Lock()
        self._jobs: dict[str, Shown] = {}
        self._running: _Running | None = None
        self._port = self._wanted_port
        self.elsewhere: Callable[[], list[dict[str, Any]]] = list
        """Returns id, name and URL of the jobs of other drivers that the dashboard links to."""
        with self._lock:
            self._ensure_started()

    @classmethod
    def shared(cls, config: Mapping[str, str]) -> RestServer:
        """Return this process's running server, or a new one with this configuration."""
        with cls._shared_lock:
            if cls._shared is None or not cls._shared.alive:
                cls._shared = cls(config)
            return cls._shared

    @classmethod
    def running(cls) -> RestServer | None:
        """Return this process's server if it is running."""
        server = cls._shared
        return server if server is not None and server.alive else None

    @property
    def alive(self) -> bool:
        """Whether it answers requests."""
        running = self._running
        return running is not None and running.thread.is_alive()

    @property
    def url(self) -> str:
        """The URL of the server, e.g. ``http://localhost:8081``."""
        host = f"[{self._address}]" if ":" in self._address else self._address
        if _is_loopback(self._address) or self._address in ("0.0.0.0", "::"):
            host = "localhost" if self._address != "::1" else "[::1]"
        return f"{'https' if self._tls else 'http'}://{host}:{self._port}"

    @property
    def tls(self) -> Tls | None:
        """Its certificates; None: it serves HTTP."""
        return self._tls

    @property
    def token(self) -> str:
        """What a request must show to change a job, as ``Authorization: Bearer <token>``."""
        return self._token

    def add(self, job: JobView, config: Mapping[str, str] | None = None) -> None:
        """Serve this job with its effective configuration. Restarts a dead server."""
        with self._lock:
            self._jobs = {**self._jobs, job.metrics.job_id: Shown(job, config or {})}
            self._ensure_started()

    def remove(self, job_id: str) -> None:
        """Stop serving an ended job. The server stops with its last job."""
        with self._lock:
            self._jobs = {known: shown for known, shown in self._jobs.items() if known != job_id}
            running = None if self._jobs else self._running
            if running is not None:
                self._running = None
        if running is not None:
            _stop(running)

    def _ensure_started(self) -> None:
        if self.alive:
            return
        bound = bind(self._address, self._wanted_port)
        self._port = bound.getsockname()[1]
        if self._wanted_port not in (0, self._port):
            _log.warning("port %d of %s is busy; the REST API is on %s", self._wanted_port, self._address, self.url)
        else:
            _log.info("the REST API is on %s", self.url)
        for name in ("holdfast.rest.app", "uvicorn.error"):
            logger = logging.getLogger(name)
            if not any(isinstance(each, OncePerMinute) for each in logger.filters):
                logger.addFilter(OncePerMinute())
        hosts = ["localhost"] if _is_loopback(self._address) else self._hosts
        middleware = [Middleware(CheckedHosts, hosts)]
        config = uvicorn.Config(
            create_app(lambda: self._jobs, self._token, middleware, lambda: self.elsewhere()),
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            http=RestProtocol,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=1,
            server_header=False,
            **(self._tls.for_uvicorn() if self._tls else {}),
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=_serve, args=(server, bound), name="holdfast-rest", daemon=True)
        thread.start()
        self._running = _Running(server, thread, bound)


def _serve(server: uvicorn.Server, bound: socket.socket) -> None:
    try:
        server.run(sockets=[bound])
    except Exception:
        _log.exception("REST server failed; the jobs continue without it")
    finally:
        bound.close()


def _stop(running: _Running) -> None:
    running.server.should_exit = True
    if running.thread is not threading.current_thread():
        running.thread.join(timeout=5)


def _port(text: str) -> int:
    try:
        port = int(text)
    except ValueError:
        port = -1
    if not 0 <= port <= 65535:
        raise ConfigurationError(f"rest.port is {text!r}: give a port number from 0 (any free one) to 65535")
    return port


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def bind(address: str, port: int) -> socket.socket:
    """Open a listening socket on the port, or on the next free one."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigurationError(
            f"rest.bind-address is {address!r}, which is no address ({error.strerror}): give one of this machine's"
        ) from error
    host = where[0]
    last = min(port + _PORTS_TRIED, 65536) if port else 1
    for candidate in range(port, last):
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, candidate))
            bound.listen(128)  # from here on, requests queue until the thread accepts them
            return bound
        except OSError as error:
            bound.close()
            if error.errno == errno.EADDRINUSE:
                continue
            raise ConfigurationError(
                f"the REST API cannot listen on {address} port {candidate} ({error.strerror}): "
                "change rest.bind-address or rest.port"
            ) from error
    raise ConfigurationError(f"no port from {port} to {last - 1} of {address} is free: set rest.port (0 takes any)")
