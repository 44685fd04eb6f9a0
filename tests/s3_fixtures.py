"""Pytest plugin: S3 on moto's server, a real HTTP server in this process, and a relay in front of it that injects faults."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from moto.server import ThreadedMotoServer


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    connection = http.client.HTTPConnection(host, port)
    connection.request("PUT", "/checkpoints")
    assert connection.getresponse().status == 200
    connection.close()
    yield f"http://{host}:{port}"
    server.stop()
    server._server.server_close()  # stop() leaves the socket open


@pytest.fixture
def s3_config(s3_server: str) -> dict[str, str]:
    return {
        "s3.endpoint": s3_server,
        "s3.access-key": "access",
        "s3.secret-key": "secret",
        "s3.path.style.access": "true",
    }


class Relay(BaseHTTPRequestHandler):
    """Between the client and moto: answers 503, answers too late, or closes the connection after the effect.

    ``watch`` is called with each request, before and after its effect, as ``"PUT /bucket/path"``.
    """

    target = ""
    faults: ClassVar[list[str]] = []
    release = threading.Event()
    watch: ClassVar[Callable[[str, bool], None]] = staticmethod(lambda request, done: None)

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.faults.pop(0) if self.faults else ""
        if fault in ("503", "403"):
            self.send_error(int(fault), "injected")
            return
        if fault == "hang":
            self.release.wait(20)
            return
        request = f"{'COPY' if 'x-amz-copy-source' in self.headers else self.command} {self.path}"
        self.watch(request, False)
        upstream = http.client.HTTPConnection(self.target)
        upstream.request(self.command, self.path, body, self.translated(dict(self.headers.items())))
        answer = upstream.getresponse()
        content, answered = answer.read(), answer.headers
        upstream.close()
        self.watch(request, True)
        if fault == "lost":
            self.close_connection = True
            return
        self.send_response(answer.status)
        length = answered["Content-Length"] if self.command == "HEAD" else str(len(content))
        for name, value in answered.items():
            if name.lower() not in ("content-length", "connection", "date", "server", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def translated(self, headers: dict[str, str]) -> dict[str, str]:
        """The headers as moto gets them."""
        return headers

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def log_message(self, *_: object) -> None:
        pass


class GoogleRelay(Relay):
    """Google's XML API in front of moto: the requests of S3, but for the headers that Google names differently.

    As Google does, it refuses a conditional put by 412 and knows the headers of no other service.
    """

    def translated(self, headers: dict[str, str]) -> dict[str, str]:
        own = {name.lower(): value for name, value in headers.items()}
        assert not [name for name in own if name.startswith("x-amz-") or name == "if-none-match"], own
        own["authorization"] = "AWS4-HMAC-SHA256 Credential=access/20261123/us-east-1/s3/aws4_request"  # not verified
        if "x-goog-copy-source" in own:
            own["x-amz-copy-source"] = own.pop("x-goog-copy-source")
        if own.pop("x-goog-if-generation-match", "") == "0":
            own["if-none-match"] = "*"
        return own


@pytest.fixture
def relay(s3_server: str, s3_config: dict[str, str]) -> Iterator[tuple[type[Relay], dict[str, str]]]:
    with served(Relay, s3_server) as (own, url):
        yield own, {**s3_config, "s3.endpoint": url}


@pytest.fixture
def google(s3_server: str) -> Iterator[tuple[type[Relay], dict[str, str]]]:
    """Google Cloud Storage's XML API, by a relay to moto, with the bucket ``checkpoints``."""
    with served(GoogleRelay, s3_server) as (own, url):
        yield own, {"gs.storage.root.url": url}


@contextmanager
def served(kind: type[Relay], server_url: str) -> Iterator[tuple[type[Relay], str]]:
    """A relay in front of a server: its class, whose ``faults`` it has, and its URL."""

    class Own(kind):  # type: ignore[misc,valid-type]
        target = server_url.removeprefix("http://")
        faults: ClassVar[list[str]] = []
        release = threading.Event()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Own, f"http://127.0.0.1:{server.server_port}"
    Own.release.set()
    server.shutdown()
    server.server_close()
    thread.join()
