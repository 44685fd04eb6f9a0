"""Fixtures of a server with a job."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from holdfast.metrics import CheckpointStats, EpochStats, JobMetrics, VertexStats
from rest.served_jobs import ID, OTHER, Jobs


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    jobs = Jobs()
    yield jobs
    for job_id in (ID, OTHER, "none"):
        jobs.server.remove(job_id)
    assert not jobs.server.alive


@pytest.fixture
def metrics(jobs: Jobs) -> JobMetrics:
    metrics = jobs.add()
    metrics.status("RUNNING")
    metrics.epoch_finished(
        EpochStats(
            epoch=1,
            started_ms=0,
            duration_ms=250,
            records_in=1000,
            records_out=10,
            backlog={"src": 7},
            vertices=(VertexStats("v0", "source", 2, 1000, 1000, 100), VertexStats("v1", "count", 2, 1000, 10, 300, 4)),
            user_metrics={"count.rules.hits": ("counter", 5)},
        )
    )
    metrics.checkpoint_completed(CheckpointStats(1, 1_000, 1820, 3, 28_114_432, 412_309_504, "file:///c/chk-1", 4))
    return metrics


@pytest.fixture
def client(jobs: Jobs) -> Iterator[httpx.Client]:
    token = {"authorization": f"Bearer {jobs.server.token}"}
    with httpx.Client(base_url=jobs.server.url, headers=token, timeout=300) as client:
        yield client
