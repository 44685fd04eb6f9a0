"""An object store for benchmarks: moto's S3 behind a relay, both in a process of their own.

The relay counts the requests, lets each wait for some ms, as in a store on another host, and answers a share of them by 503.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from holdfast.metrics.requests import KINDS, MONTH_S, RequestPrices, Requests

__all__ = ["ObjectStore", "asked_between", "dollars_a_month", "object_store"]

_PRICES = RequestPrices.of("s3://checkpoints/jobs", {})
"""Those of Amazon's S3."""
_STORE = """
import http.client, json, logging, random, sys, threading, time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
moto.start()
target, delay, refused = "%s:%d" % moto.get_host_and_port(), float(sys.argv[1]), float(sys.argv[2])
counts, mine, chance = Counter(), threading.local(), random.Random(1)

class Relay(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/counts":
            return self.answer(200, json.dumps(counts).encode(), {})
        listing = self.command == "GET" and "list-type" in self.path
        kind = {"POST": "delete", "DELETE": "delete"}.get(self.command, self.command.lower())
        counts["list" if listing else kind] += 1
        time.sleep(delay)
        if self.path.count("/") > 1 and chance.random() < refused:
            counts["throttled"] += 1
            return self.answer(503, b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>", {})
        upstream = mine.__dict__.setdefault("upstream", http.client.HTTPConnection(target))
        upstream.request(self.command, self.path, body, dict(self.headers.items()))
        found = upstream.getresponse()
        content = found.read()
        self.answer(found.status, content, found.headers)

    def answer(self, status, content, headers):
        self.send_response(status)
        length = str(len(content))
        for name, value in headers.items():
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            elif name.lower() not in ("content-length", "connection", "date", "server", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

    def log_message(self, *_):
        pass

class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

relay = Server(("127.0.0.1", 0), Relay)
relay.RequestHandlerClass.disable_nagle_algorithm = True
print(relay.server_port, flush=True)
relay.serve_forever()
"""


class ObjectStore:
    """The client of a running store."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ask("PUT", "/checkpoints")

    def settings(self, *, priced: bool) -> list[str]:
        """The settings of a job that keeps its checkpoints there; ``priced``: as if requests cost what Amazon's do."""
        settings = [
            "execution.checkpointing.dir=s3://checkpoints/jobs",
            f"s3.endpoint={self._url}",
            "s3.access-key=access",
            "s3.secret-key=secret",
        ]
        prices = [f"holdfast.storage.price.writes={_PRICES.writes}", f"holdfast.storage.price.reads={_PRICES.reads}"]
        return [*settings, *(prices if priced else [])]

    def counts(self) -> dict[str, int]:
        """The requests so far by kind, and those that were ``throttled``."""
        counts: dict[str, int] = json.loads(self._ask("GET", "/counts"))
        return counts

    def _ask(self, method: str, path: str) -> bytes:
        connection = http.client.HTTPConnection(urlsplit(self._url).netloc)
        connection.request(method, path)
        answer = connection.getresponse().read()
        connection.close()
        return answer


@contextmanager
def object_store(delay_ms: float, throttled: float = 0.0) -> Iterator[ObjectStore]:
    """A new store that lets each request wait, and refuses a share of them."""
    command = [sys.executable, "-c", _STORE, str(delay_ms / 1000), str(throttled)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield ObjectStore(f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.kill()


def asked_between(before: dict[str, int], after: dict[str, int]) -> Requests:
    """The requests between two counts."""
    return Requests(**{kind: after.get(kind, 0) - before.get(kind, 0) for kind in (*KINDS, "throttled")})


def dollars_a_month(asked: Requests, seconds: float) -> float:
    """What a month at this rate costs, by Amazon's prices."""
    return _PRICES.cost(asked) / seconds * MONTH_S
