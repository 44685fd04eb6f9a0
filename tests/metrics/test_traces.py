"""Traces, as a collector receives them."""

from __future__ import annotations

import gzip
import itertools
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

from holdfast.common import Configuration
from holdfast.errors import ConfigurationError
from holdfast.metrics.traces import TraceReporter
from holdfast.testing import InProcessEnvironment

ENDPOINT = "traces.reporter.otel.exporter.endpoint"
FAILED: list[int] = []


class Collector(BaseHTTPRequestHandler):
    """A collector of OTLP over HTTP."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.requests.append((self.path, ExportTraceServiceRequest.FromString(body)))  # type: ignore[attr-defined]
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        server.requests = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def environment(endpoint: str) -> InProcessEnvironment:
    return InProcessEnvironment(Configuration.from_dict({"traces.reporters": "otel", ENDPOINT: endpoint}))


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def fails_once(value: int) -> int:
    if not FAILED:
        FAILED.append(value)
        raise ValueError("out of order")
    return value


def an_epoch_is_a_span_and_so_is_a_start(collector):
    FAILED.clear()
    env = environment(f"http://127.0.0.1:{collector.server_port}")
    env.from_collection([1, 2, 3]).map(fails_once).print()
    job = env.execute_async("traced")
    job.get_job_execution_result().result(600)
    assert {path for path, _ in collector.requests} == {"/v1/traces"}
    resources = [resource for _, request in collector.requests for resource in request.resource_spans]
    assert {attributes(each.resource)["service.name"] for each in resources} == {"holdfast"}
    spans = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    assert {(attributes(s)["jobName"], attributes(s)["jobId"]) for s in spans} == {("traced", str(job.get_job_id()))}
    assert [s.name for s in spans].count("JobInitialization") == 2, "the start and the restart"

    failed, finished = (
        [s for s in spans if s.name == "Epoch" and (s.status.code == s.status.STATUS_CODE_ERROR) is error]
        for error in (True, False)
    )
    assert [attributes(s)["epoch"] for s in failed] == [2]
    assert "ValueError" in failed[0].status.message or "Traceback" in failed[0].status.message
    by_epoch = {attributes(s)["epoch"]: s for s in finished}
    epoch = by_epoch[2]
    figures = attributes(epoch)
    assert (figures["recordsIn"], figures["recordsOut"], figures["pendingRecords"]) == (3, 3, 0)
    assert figures["checkpointedSize"] >= 0
    assert "process.longestTaskMs" in figures
    phases = [s for s in spans if s.parent_span_id == epoch.span_id]
    assert [s.name for s in phases] == ["plan", "job", "commit", "metadata"]
    assert phases[0].start_time_unix_nano == epoch.start_time_unix_nano
    for before, after in itertools.pairwise(phases):
        assert before.end_time_unix_nano == after.start_time_unix_nano


def a_collector_that_is_away_holds_nothing_up_and_fails_nothing(caplog):
    env = environment("http://127.0.0.1:9")
    with env.from_collection([1, 2]).map(lambda value: value + 1).execute_and_collect() as results:
        assert list(results) == [2, 3]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"traces.reporters": "jaeger"}, "the only reporter of traces is otel"),
        ({"traces.reporters": "otel"}, f"{ENDPOINT} is not set: the URL of the collector"),
        ({"traces.reporters": "otel", ENDPOINT: "localhost:4318"}, "must be the URL of a collector, such as http://"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_the_start(settings, says):
    env = InProcessEnvironment(Configuration.from_dict(settings))
    env.from_collection([1]).print()
    with pytest.raises(ConfigurationError, match=says):
        env.execute()


def the_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'holdfast\[otel\]'"):
        TraceReporter("id", "name", "http://localhost:4318", 1000)
