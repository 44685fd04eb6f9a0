"""Requests of a job to an object store, counted at the store: what a checkpoint takes, and what a month costs.

The store is moto's S3 behind a relay, both in a process of their own. The relay counts the requests, and lets each wait
for some ms, as in a store on another host.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from benchmarks import jobs, measure
from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment, ValueStateDescriptor
from holdfast.datastream.connectors.datagen import PaymentsSource
from holdfast.metrics.requests import KINDS, MONTH_S, RequestPrices, Requests

_PRICES = RequestPrices.of("s3://checkpoints/jobs", {})
"""Those of Amazon's S3."""
_STORE = """
import http.client, json, sys, threading, time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from moto.server import ThreadedMotoServer

moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
moto.start()
target, delay, counts, mine = "%s:%d" % moto.get_host_and_port(), float(sys.argv[1]), Counter(), threading.local()

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

relay = ThreadingHTTPServer(("127.0.0.1", 0), Relay)
print(relay.server_port, flush=True)
relay.serve_forever()
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--subtasks", type=int, default=2)
    parser.add_argument("--rate", type=int, default=1_000, help="records a second")
    parser.add_argument("--seconds", type=float, default=60, help="of the measurement")
    parser.add_argument("--delay-ms", type=float, default=30, help="of each request")
    parser.add_argument("--backend", default="rocksdb", choices=("rocksdb", "hashmap"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


class Counted(KeyedProcessFunction):
    """Counts the payments of a merchant."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state."""
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        """Count a payment."""
        self.count.update((self.count.value() or 0) + 1)
        return []


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the job for some seconds; returns its requests by kind, for a checkpoint and a month."""
    os.environ["PYTHONPATH"] = measure.environment()["PYTHONPATH"]  # of Spark's workers
    work = jobs.scratch()
    command = [sys.executable, "-c", _STORE, str(options.delay_ms / 1000)]
    store = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert store.stdout is not None
        url = f"http://127.0.0.1:{int(store.stdout.readline())}"
        _ask(url, "PUT", "/checkpoints")
        settings = [
            "execution.checkpointing.dir=s3://checkpoints/jobs",
            f"s3.endpoint={url}",
            "s3.access-key=access",
            "s3.secret-key=secret",
            f"holdfast.storage.price.writes={_PRICES.writes}",
            f"holdfast.storage.price.reads={_PRICES.reads}",
            *options.set,
        ]
        env = StreamExecutionEnvironment.get_execution_environment(jobs.settings(work, options.backend, settings))
        env.set_parallelism(options.subtasks)
        source = PaymentsSource(rate_per_second=options.rate)
        payments = env.from_source(source, WatermarkStrategy.no_watermarks(), "payments")
        payments.key_by(lambda payment: payment["merchant_id"]).process(Counted()).sink_to(jobs.Discard())
        job = jobs.RunningJob(env, "requests")
        job.until(lambda: job.records > 5 * options.rate)
        before, first, began = _counts(url), _epochs(job), time.perf_counter()
        time.sleep(options.seconds)
        after, last, seconds = _counts(url), _epochs(job), time.perf_counter() - began
        told = job.client.metrics.snapshot().values["storageCostPerMonth"]
        job.client.cancel().result(120)
    finally:
        store.kill()
        jobs.tidy(work)
    epochs = last - first
    asked = {kind: after.get(kind, 0) - before.get(kind, 0) for kind in KINDS}
    cost = _PRICES.cost(Requests(**asked)) / seconds * MONTH_S
    return {
        "subtasks": options.subtasks,
        "rate": options.rate,
        "delay_ms": options.delay_ms,
        "checkpoints_s": round(epochs / seconds, 2),
        "of_a_checkpoint": {kind: round(number / max(epochs, 1), 2) for kind, number in asked.items()},
        "dollars_a_month": round(cost, 2),
        "dollars_a_month_told": round(told, 2),
        "load": round(os.getloadavg()[0], 1),
        "ok": True,
    }


def _epochs(job: jobs.RunningJob) -> int:
    return int(job.client.metrics.snapshot().values["numEpochs"])


def _counts(url: str) -> dict[str, int]:
    counts: dict[str, int] = json.loads(_ask(url, "GET", "/counts"))
    return counts


def _ask(url: str, method: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.request(method, path)
    answer = connection.getresponse().read()
    connection.close()
    return answer
