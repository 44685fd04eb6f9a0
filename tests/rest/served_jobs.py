"""Jobs behind a real server, for the tests of its pages."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import time, timezone
from typing import Any

from holdfast.checkpoint.holds import Hold, Holds
from holdfast.checkpoint.ids import CheckpointId
from holdfast.common import Row
from holdfast.errors import ConfigurationError
from holdfast.metrics import JobMetrics
from holdfast.rest.server import RestServer
from holdfast.runtime.records.samples import EdgeSample

ID, OTHER = "a" * 32, "b" * 32


@dataclass
class Visit:
    """A value of a state."""

    pages: dict[int, int]


class Kept:
    """Holds checkpoint 7."""

    def __init__(self) -> None:
        self.holds = Holds()

    def hold_newest(self, seconds: float) -> Hold:
        return self.holds.add(CheckpointId(7), "file:///c/payments/log/7", seconds)

    def renew(self, hold_id: str, seconds: float) -> Hold:
        return self.holds.renew(hold_id, seconds)


class Job:
    """All that the server wants of a job."""

    def __init__(self, metrics: JobMetrics) -> None:
        self.metrics = metrics
        self.retention = Kept()
        self.cancelled = threading.Event()
        self.savepoints: list[tuple[str, bool, bool, Future[str]]] = []
        self.rescalings: list[tuple[int, Future[None]]] = []
        self.paces: list[tuple[int | None, int | None]] = []
        self.samples: list[Future[EdgeSample]] = []

    def cancel(self, *, force: bool = False) -> None:
        self.cancelled.set()

    def query(self, uid: str, name: str, key: object, window: int | None = None) -> tuple[object, int]:
        if uid != "totals":
            raise ConfigurationError(f"there is no keyed state of an operator with uid {uid!r}")
        odd: dict[Any, Any] = {1: name}
        if name == "odd":
            odd = {
                "large": [1 << 80],
                "half": "\ud800",
                "\udfff": time(1, tzinfo=timezone.utc),
                "visit": Visit({2: 1 << 80}),
            }
        return [Row(key=key, window=window), odd], 7

    def begin_savepoint(self, directory: str | None, *, stop: bool, drain: bool) -> tuple[str, Future[str]]:
        if directory is None:
            raise ConfigurationError("there is no directory for savepoints")
        written: Future[str] = Future()
        self.savepoints.append((directory, stop, drain, written))
        return f"{directory}/savepoint-1", written

    def begin_sample(self, sender: str, receiver: str) -> Future[EdgeSample]:
        if sender != "v0":
            raise ConfigurationError(f"the job has no edge from vertex {sender!r}")
        self.samples.append(Future())
        return self.samples[-1]

    def savepoint_progress(self, uri: str) -> tuple[int, int] | None:
        return (1, 4) if "big" in uri else None

    def begin_largest_keys(self, uid: str) -> Future[object]:
        found: Future[object] = Future()
        found.set_result({"uid": uid, "keys": 3})
        return found

    def change_pace(self, interval_ms: int | None, min_pause_ms: int | None) -> None:
        self.paces.append((interval_ms, min_pause_ms))

    def begin_rescale(self, parallelism: int) -> Future[None]:
        if parallelism > 128:
            raise ConfigurationError("only 128 key groups")
        self.rescalings.append((parallelism, Future()))
        return self.rescalings[-1][1]


class Jobs:
    """Jobs on one server; what they were asked to do."""

    def __init__(self, config: dict[str, str] | None = None) -> None:
        self.server = RestServer(config or {"rest.port": "0"})
        self.by_id: dict[str, Job] = {}

    def add(self, job_id: str = ID, name: str = "payments", config: dict[str, str] | None = None) -> JobMetrics:
        job = self.by_id[job_id] = Job(JobMetrics(job_id, name))
        self.server.add(job, config)
        return job.metrics
