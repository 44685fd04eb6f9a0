"""Traces of a job for OpenTelemetry: a span for each epoch, with its phases, and one for each start of the job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.errors import ConfigurationError
from holdfast.metrics.stats import EpochStats

__all__ = ["TraceReporter"]

_OF_TASKS = "task."
_TRACES_PATH = "/v1/traces"
_PATIENCE_S = 1.0


class TraceReporter:
    """Sends a job's spans to a collector (OTLP over HTTP), in the background. Behind it stands Flink's FLIP-385.

    Spans that cannot be sent are dropped: a collector that is away does not hold up the job.

    Args:
        job_id: The job's id.
        job_name: The job's name.
        endpoint: The URL of the collector; without a path, that of OTLP is appended.
        timeout_ms: How long to try to send a batch of spans.
        clock_ns: The time in ns since 1970.

    Raises:
        ConfigurationError: OpenTelemetry is not installed, or the endpoint is not a URL.
    """

    def __init__(
        self, job_id: str, job_name: str, endpoint: str, timeout_ms: int, clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import SERVICE_NAME, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise ConfigurationError("traces need OpenTelemetry: pip install 'holdfast[otel]'") from None
        url = urlsplit(endpoint)
        if url.scheme not in ("http", "https") or not url.netloc:
            raise ConfigurationError(
                f"traces.reporter.otel.exporter.endpoint must be the URL of a collector, such as http://localhost:4318, "
                f"not {endpoint!r}"
            )
        if url.path in ("", "/"):
            endpoint = f"{url.scheme}://{url.netloc}{_TRACES_PATH}"
        self._provider = TracerProvider(resource=Resource.create({SERVICE_NAME: "holdfast"}), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint, timeout=timeout_ms / 1000)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, export_timeout_millis=timeout_ms))
        self._tracer = self._provider.get_tracer("holdfast")
        self._job: dict[str, str] = {"jobId": job_id, "jobName": job_name}
        self._clock_ns = clock_ns
        self._initializing: int | None = clock_ns()
        """The start of the running initialization, ns since 1970."""

    def status(self, status: str) -> None:
        """Take note of the job's new status: its initialization lasts from its creation, or from RESTARTING, to RUNNING."""
        if status == "RUNNING" and self._initializing is not None:
            self._span("JobInitialization", self._initializing, {}).end(self._clock_ns())
            self._initializing = None
        elif status == "RESTARTING" and self._initializing is None:
            self._initializing = self._clock_ns()

    def epoch_finished(self, stats: EpochStats, delta_bytes: int, full_bytes: int) -> None:
        """Send the span of an epoch that has just been committed, and below it those of its phases."""
        end = self._clock_ns()
        start = end - round(stats.duration_ms * 1e6)
        span = self._span("Epoch", start, _attributes(stats, delta_bytes, full_bytes))
        from opentelemetry.trace import set_span_in_context

        within, at = set_span_in_context(span), start
        for phase, seconds in stats.phases.items():
            if not phase.startswith(_OF_TASKS):
                until = at + round(seconds * 1e9)
                self._span(phase, at, {}, within).end(until)
                at = until
        span.end(end)

    def epoch_failed(self, epoch: int, reason: str) -> None:
        """Send the span of an epoch that has just failed."""
        from opentelemetry.trace import Status, StatusCode

        now = self._clock_ns()
        span = self._span("Epoch", now, {"epoch": epoch})
        span.set_status(Status(StatusCode.ERROR, reason))
        span.end(now)

    def _span(self, name: str, start: int, attributes: dict[str, Any], within: Any = None) -> Any:
        return self._tracer.start_span(name, within, attributes={**self._job, **attributes}, start_time=start)

    def close(self) -> None:
        """Send what is left, if the collector takes it within a second."""
        closing = threading.Thread(target=self._provider.shutdown, name="holdfast-traces", daemon=True)
        closing.start()
        closing.join(_PATIENCE_S)


def _attributes(stats: EpochStats, delta_bytes: int, full_bytes: int) -> dict[str, Any]:
    """The figures of an epoch, under the names that Flink's span of a checkpoint has where it has them."""
    found: dict[str, Any] = {
        "epoch": stats.epoch,
        "checkpointId": stats.epoch,
        "checkpointedSize": delta_bytes,
        "fullSize": full_bytes,
        "recordsIn": stats.records_in,
        "recordsOut": stats.records_out,
        "pendingRecords": sum(stats.backlog.values()),
    }
    if MIN_TIMESTAMP < stats.watermark < MAX_TIMESTAMP:
        found["watermark"] = stats.watermark
    found |= {
        f"{phase.removeprefix(_OF_TASKS)}.longestTaskMs": 1000 * seconds
        for phase, seconds in stats.phases.items()
        if phase.startswith(_OF_TASKS)
    }
    if stats.straggler is not None:
        found["straggler"] = f"{stats.straggler.vertex} ({stats.straggler.subtask + 1})"
        found["straggler.busyMs"] = stats.straggler.busy_ms
    return found
