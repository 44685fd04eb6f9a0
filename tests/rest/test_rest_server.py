"""The server: its token, its address, its life, and what it bears."""

from __future__ import annotations

import asyncio
import logging
import socket

import httpx
import pytest

from awaiting import until
from holdfast.errors import ConfigurationError
from holdfast.metrics import EpochStats, JobMetrics
from holdfast.rest.app import RateLimit, create_app
from holdfast.rest.server import RestServer
from rest.served_jobs import ID, OTHER, Job, Jobs


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (None, "shows no token"),
        ("Bearer", "shows no token"),
        ("Bearer guess", "shows a wrong token"),
        ("Basic {token}", "shows a wrong token"),
        ("Bearer {token}x", "shows a wrong token"),
        ("Bearer t\u00f6ken", "shows a wrong token"),
    ],
)
def a_request_that_changes_a_job_needs_the_token(jobs: Jobs, metrics: JobMetrics, shown: str | None, said: str) -> None:
    headers = {} if shown is None else {"authorization": shown.format(token=jobs.server.token).encode("latin-1")}
    with httpx.Client(base_url=jobs.server.url, headers=headers, timeout=300) as stranger:
        for method, path in [
            ("PATCH", ""),
            ("POST", "/savepoints"),
            ("POST", "/stop"),
            ("PATCH", "/rescaling?parallelism=2"),
        ]:
            refused = stranger.request(method, f"/jobs/{ID}{path}", content=b'{"targetDirectory": "file:///s"}')
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert said in refused.json()["errors"][0]
            assert jobs.server.token not in refused.text
        assert stranger.get(f"/jobs/{ID}").status_code == 200
    assert not jobs.by_id[ID].cancelled.is_set()
    assert not jobs.by_id[ID].savepoints


def test_every_server_has_a_token_of_its_own(jobs: Jobs) -> None:
    other = RestServer({"rest.port": "0"})
    try:
        assert other.token != jobs.server.token
        assert len(other.token) > 40
    finally:
        other.remove("none")


def a_busy_port_gives_way_to_the_next_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy, caplog.at_level(logging.INFO):
        port = busy.getsockname()[1]
        jobs = Jobs({"rest.port": str(port)})
        try:
            jobs.add()
            taken = int(jobs.server.url.rsplit(":", 1)[1])
            assert taken > port
            assert httpx.get(f"{jobs.server.url}/jobs", timeout=300).status_code == 200
            assert f"port {port} of 127.0.0.1 is busy; the REST API is on {jobs.server.url}" in caplog.text
        finally:
            jobs.server.remove(ID)


@pytest.mark.parametrize("port", ["http", "-1", "65536", "80.5", ""])
def a_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(ConfigurationError, match=r"rest\.port is"):
        RestServer({"rest.port": port})


@pytest.mark.parametrize("address", ["203.0.113.7", "no such host.invalid"])
def an_address_that_is_not_this_machines_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"rest\.bind-address"):
        RestServer({"rest.port": "0", "rest.bind-address": address})


def test_only_loopback_is_served_by_default_and_by_no_other_name(jobs: Jobs, metrics: JobMetrics) -> None:
    assert jobs.server.url.startswith("http://localhost:")
    assert jobs.server._running is not None
    assert jobs.server._running.socket.getsockname()[0] == "127.0.0.1"
    rebound = httpx.get(f"{jobs.server.url}/jobs", headers={"host": "evil.example"}, timeout=300)
    assert rebound.status_code == 400


def test_all_jobs_of_a_process_share_one_server_that_ends_with_the_last() -> None:
    server = RestServer.shared({"rest.port": "0"})
    assert RestServer.shared({"rest.port": "0"}) is server
    server.add(Job(JobMetrics(ID, "one")))
    server.add(Job(JobMetrics(OTHER, "two")))
    server.remove(ID)
    assert httpx.get(f"{server.url}/jobs", timeout=300).json()["jobs"][0]["id"] == OTHER
    server.remove(OTHER)
    assert not server.alive
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/jobs", timeout=300)
    later = RestServer.shared({"rest.port": "0"})
    later.add(Job(JobMetrics(ID, "one")))
    assert httpx.get(f"{later.url}/jobs/{ID}", timeout=300).json()["name"] == "one"
    later.remove(ID)


def a_server_that_died_is_started_again_by_the_next_job(jobs: Jobs, metrics: JobMetrics) -> None:
    running = jobs.server._running
    assert running is not None
    running.server.force_exit = running.server.should_exit = True
    running.thread.join(600)
    assert not jobs.server.alive
    metrics.epoch_finished(EpochStats(2, 0, 1, 1, 1))
    jobs.add(OTHER)
    assert len(httpx.get(f"{jobs.server.url}/jobs", timeout=300).json()["jobs"]) == 2


def a_page_that_fails_answers_500_and_the_server_lives(jobs: Jobs, client: httpx.Client) -> None:
    broken = jobs.add()
    good = jobs.add(OTHER)
    broken.snapshot = lambda: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    answer = client.get(f"/jobs/{ID}")
    assert answer.status_code == 500
    assert "ZeroDivisionError" in answer.json()["errors"][0]
    assert client.get(f"/jobs/{good.job_id}").status_code == 200


def a_flood_is_slowed_down_and_turned_away() -> None:
    async def run() -> list[int]:
        app = RateLimit(create_app(lambda: {}, "token"), per_second=0.001, burst=5, delay_s=0.01)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answers = await asyncio.gather(*(client.get("/jobs") for _ in range(20)))
        assert all(answer.headers["retry-after"] == "1" for answer in answers if answer.status_code == 429)
        return sorted(answer.status_code for answer in answers)

    assert asyncio.run(run()) == [200] * 5 + [429] * 15


def test_more_connections_than_the_server_takes_hear_503_and_do_no_harm(jobs: Jobs, metrics: JobMetrics) -> None:
    host, port = "127.0.0.1", int(jobs.server.url.rsplit(":", 1)[1])
    idle = [socket.create_connection((host, port)) for _ in range(100)]
    try:
        until(lambda: httpx.get(f"{jobs.server.url}/jobs", timeout=300).status_code == 503)
        metrics.epoch_finished(EpochStats(2, 0, 1, 1, 1))
        assert metrics.snapshot().values["numRecordsIn"] == 1001
    finally:
        for connection in idle:
            connection.close()
    until(lambda: httpx.get(f"{jobs.server.url}/jobs", timeout=300).status_code == 200)
