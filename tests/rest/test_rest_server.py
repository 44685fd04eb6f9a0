"""The server: its token, its address, its life, and what it bears."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from awaiting import until
from holdfast.errors import ConfigurationError
from holdfast.metrics import EpochStats, JobMetrics
from holdfast.metrics.stats import LateRecord
from holdfast.rest import connections
from holdfast.rest.app import RateLimit, create_app
from holdfast.rest.connections import MOST, OncePerMinute
from holdfast.rest.hosts import CheckedHosts
from holdfast.rest.server import RestServer
from holdfast.rest.tokens import Tokens, read_token
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
            ("PATCH", "/checkpoints/config?interval=0"),
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
        app = RateLimit(create_app(lambda: {}, "token"), Tokens("token"), per_second=0.001, burst=5, delay_s=0.01)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answers = await asyncio.gather(*(client.get("/jobs") for _ in range(20)))
        assert all(answer.headers["retry-after"] == "1" for answer in answers if answer.status_code == 429)
        return sorted(answer.status_code for answer in answers)

    assert asyncio.run(run()) == [200] * 5 + [429] * 15


def _connections(jobs: Jobs, count: int) -> list[socket.socket]:
    port = int(jobs.server.url.rsplit(":", 1)[1])
    return [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]


def test_idle_connections_keep_nobody_out(jobs: Jobs, metrics: JobMetrics) -> None:
    idle = _connections(jobs, 2 * MOST)
    try:
        assert httpx.get(f"{jobs.server.url}/jobs", timeout=300).status_code == 200
        idle[0].settimeout(300)
        assert _ended(idle[0]), "the oldest is ended"
    finally:
        for connection in idle:
            connection.close()


def _ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "begun", [b"", b"GET /jobs HTTP/1.1\r\nHost: local", b"GET /jobs HTTP/1.1\r\nHost: localhost\r\n\r\nGET"]
)
def a_client_that_sends_no_whole_request_is_cut_off(
    jobs: Jobs, metrics: JobMetrics, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.2)
    (silent,) = _connections(jobs, 1)
    with silent:
        silent.settimeout(300)
        silent.sendall(begun)
        until(lambda: _ended(silent))


@pytest.mark.parametrize("path", ["state/count/total?key=1", "samples/1", "largest-keys/1"])
def a_page_with_data_of_records_needs_the_token_or_the_one_that_only_reads(
    jobs: Jobs, metrics: JobMetrics, path: str
) -> None:
    url = f"{jobs.server.url}/jobs/{ID}/{path}"
    assert httpx.get(url, timeout=300).status_code == 401
    for token in (jobs.server.token, read_token(jobs.server.token)):
        assert httpx.get(url, headers={"authorization": f"Bearer {token}"}, timeout=300).status_code != 401


def test_late_records_and_texts_of_errors_are_shown_with_a_token_only(jobs: Jobs, metrics: JobMetrics) -> None:
    metrics.failure(0, "Traceback\nValueError: no amount in ('card 4711', None)", "map")
    metrics.epoch_finished(EpochStats(2, 0, 1, 1, 1, late=(LateRecord("count", 5, 10, "card 4711"),)))
    metrics.event("restart", "map failed: card 4711")
    for path in ("view", "exceptions", "checkpoints", ""):
        url = f"{jobs.server.url}/jobs/{ID}/{path}".rstrip("/")
        assert "card 4711" not in httpx.get(url, timeout=300).text
    reading = {"authorization": f"Bearer {read_token(jobs.server.token)}"}
    assert httpx.get(f"{jobs.server.url}/jobs/{ID}/view", headers=reading, timeout=300).text.count("card 4711") == 3
    assert "ValueError" in httpx.get(f"{jobs.server.url}/jobs/{ID}/exceptions", timeout=300).text


def the_token_that_only_reads_changes_nothing(jobs: Jobs, metrics: JobMetrics) -> None:
    reading = {"authorization": f"Bearer {read_token(jobs.server.token)}"}
    refused = httpx.patch(f"{jobs.server.url}/jobs/{ID}", headers=reading, timeout=300)
    assert (refused.status_code, "only reads" in refused.text) == (403, True)


@pytest.mark.parametrize("page", ["savepoints", "stop", "holds", "samples"])
def a_body_that_is_huge_or_nested_is_refused_before_it_takes_memory(
    page: str, jobs: Jobs, client: httpx.Client, metrics: JobMetrics
) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 1 << 30:
            sent += 1 << 20
            yield bytes(1 << 20)

    with suppress(httpx.WriteError):  # the server does not wait for the rest
        assert client.post(f"/jobs/{ID}/{page}", content=endless()).status_code == 413
    assert sent < 1 << 29
    assert client.post(f"/jobs/{ID}/{page}", content=b"[" * 50_000).status_code == 400


def a_number_of_thousands_of_digits_is_a_bad_request(jobs: Jobs, client: httpx.Client, metrics: JobMetrics) -> None:
    assert client.get(f"/jobs/{ID}/view", params={"since": "9" * 5000}).status_code == 400
    assert client.patch(f"/jobs/{ID}/rescaling", params={"parallelism": "9" * 5000}).status_code == 400


def a_failing_page_is_logged_once_a_minute(jobs: Jobs, client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    broken = jobs.add()
    broken.snapshot = lambda: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    logging.getLogger("holdfast.rest.app").filters.clear()
    logging.getLogger("holdfast.rest.app").addFilter(OncePerMinute())
    for _ in range(10):
        assert client.get(f"/jobs/{ID}").status_code == 500
    assert len([each for each in caplog.records if each.exc_info]) == 1


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8081", 200),
        ("10.1.2.3:8081", 200),
        ("[::1]:8081", 200),
        ("jobs.example", 200),
        ("evil.example:8081", 400),
        ("", 400),
    ],
)
def a_request_under_a_foreign_host_name_is_refused(host: str, status: int) -> None:
    async def run() -> int:
        app = CheckedHosts(create_app(lambda: {}, "token"), ["localhost", "Jobs.example"])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client:
            return (await client.get("/jobs", headers={"host": host})).status_code

    assert asyncio.run(run()) == status
