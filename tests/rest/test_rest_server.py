"""Real requests to the real server."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from awaiting import until
from holdfast.common import Row
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.metrics import CheckpointStats, EpochStats, JobMetrics, VertexStats
from holdfast.rest.app import RateLimit, create_app
from holdfast.rest.server import RestServer
from holdfast.runtime.samples import EdgeSample

ID, OTHER = "a" * 32, "b" * 32


class Job:
    """All that the server wants of a job."""

    def __init__(self, metrics: JobMetrics) -> None:
        self.metrics = metrics
        self.cancelled = threading.Event()
        self.savepoints: list[tuple[str, bool, bool, Future[str]]] = []
        self.rescalings: list[tuple[int, Future[None]]] = []
        self.samples: list[Future[EdgeSample]] = []

    def cancel(self) -> None:
        self.cancelled.set()

    def query(self, uid: str, name: str, key: object, window: int | None = None) -> tuple[object, int]:
        if uid != "totals":
            raise ConfigurationError(f"there is no keyed state of an operator with uid {uid!r}")
        return [Row(key=key, window=window), {1: name}], 7

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


def the_metrics_answer_in_flinks_shape(client: httpx.Client, metrics: JobMetrics) -> None:
    wanted = "numRecordsIn,checkpointDuration,stateSizeBytes,lastCheckpointSize,noSuchMetric"
    assert client.get(f"/jobs/{ID}/metrics", params={"get": wanted}).json() == [
        {"id": "numRecordsIn", "value": "1000"},
        {"id": "checkpointDuration", "value": "1820"},
        {"id": "stateSizeBytes", "value": "412309504"},
        {"id": "lastCheckpointSize", "value": "28114432"},
    ]
    [rate] = client.get(f"/jobs/{ID}/metrics?get=numRecordsInPerSecond").json()
    assert rate["id"] == "numRecordsInPerSecond"
    assert float(rate["value"]) > 0


def a_sample_of_an_edge_needs_the_token_and_comes_with_the_next_records(client: httpx.Client, jobs: Jobs) -> None:
    jobs.add()
    page = f"/jobs/{ID}/samples"
    edge = {"from": "v0", "to": "v1"}
    assert httpx.post(f"{jobs.server.url}{page}", json=edge, timeout=300).status_code == 401
    assert client.post(page, json={"from": "v1", "to": "v0"}).json() == {"errors": ["the job has no edge from vertex 'v1'"]}
    assert client.post(page, content=b"[").status_code == 400
    begun = client.post(page, json=edge)
    assert begun.status_code == 202
    asked = f"{page}/{begun.json()['request-id']}"
    assert client.get(asked).json() == {"status": {"id": "IN_PROGRESS"}}
    sample = EdgeSample()
    sample.take([{"amount": 3}] * 4, [60_000] * 4, ["a", "b", "a", "a"])
    jobs.by_id[ID].samples[0].set_result(sample)
    taken = client.get(f"{asked}?wait=10").json()["operation"]["sample"]
    assert taken["records"][0] == {"timestamp": 60_000, "key": "'a'", "value": "{'amount': 3}"}
    assert (taken["passed"], taken["keys"]) == (4, [{"key": "'a'", "share": 0.75}, {"key": "'b'", "share": 0.25}])
    client.post(page, json=edge)
    jobs.by_id[ID].samples[1].set_exception(HoldfastError("the job has ended before a record passed"))


def the_largest_keys_of_an_operator_need_the_token(client: httpx.Client, jobs: Jobs) -> None:
    jobs.add()
    assert httpx.post(f"{jobs.server.url}/jobs/{ID}/state/totals/largest-keys", timeout=300).status_code == 401
    begun = client.post(f"/jobs/{ID}/state/totals/largest-keys").json()["request-id"]
    assert client.get(f"/jobs/{ID}/largest-keys/{begun}?wait=5").json()["operation"] == {
        "keys": {"uid": "totals", "keys": 3}
    }


def the_progress_of_a_savepoint_is_told_where_it_is_known(client: httpx.Client, metrics: JobMetrics) -> None:
    for directory, told in (("file:///big", {"progress": {"done": 1, "total": 4}}), ("file:///small", {})):
        begun = client.post(f"/jobs/{ID}/savepoints", json={"targetDirectory": directory}).json()
        answer = client.get(f"/jobs/{ID}/savepoints/{begun['request-id']}").json()
        assert answer == {"status": {"id": "IN_PROGRESS"}} | told


def test_a_key_of_a_state_is_queried_as_json(client: httpx.Client, metrics: JobMetrics) -> None:
    answer = client.get(f"/jobs/{ID}/state/totals/count", params={"key": '["anna", 3]', "window": "60000"})
    assert answer.json() == {"value": [{"key": ["anna", 3], "window": 60000}, [[1, "count"]]], "checkpoint-id": 7}
    unknown = client.get(f"/jobs/{ID}/state/other/count", params={"key": "1"})
    assert (unknown.status_code, "no keyed state" in unknown.text) == (404, True)
    for wrong in ({}, {"key": "anna"}, {"key": "1", "window": "x"}):
        assert client.get(f"/jobs/{ID}/state/totals/count", params=wrong).status_code == 400


def the_metrics_without_a_choice_are_their_names(client: httpx.Client, metrics: JobMetrics) -> None:
    names = [entry["id"] for entry in client.get(f"/jobs/{ID}/metrics").json()]
    assert {"numRecordsInPerSecond", "numRestarts", "src.pendingRecords", "count.rules.hits"} <= set(names)
    assert names == sorted(names)


def a_vertex_has_metrics_of_its_own(client: httpx.Client, metrics: JobMetrics) -> None:
    answer = client.get(f"/jobs/{ID}/vertices/v1/metrics?get=numRecordsOut,numLateRecordsDropped").json()
    assert answer == [{"id": "numRecordsOut", "value": "10"}, {"id": "numLateRecordsDropped", "value": "4"}]
    assert client.get(f"/jobs/{ID}/vertices/v9/metrics").json() == {"errors": ["Vertex v9 not found"]}


def the_jobs_are_listed(client: httpx.Client, jobs: Jobs, metrics: JobMetrics) -> None:
    jobs.add(OTHER, "second").status("FINISHED")
    assert client.get("/jobs").json() == {"jobs": [{"id": ID, "status": "RUNNING"}, {"id": OTHER, "status": "FINISHED"}]}
    first, second = client.get("/jobs/overview").json()["jobs"]
    assert (first["jid"], first["name"], first["state"], first["end-time"]) == (ID, "payments", "RUNNING", -1)
    assert (first["tasks"]["total"], first["tasks"]["running"]) == (4, 4)
    assert second["end-time"] >= second["start-time"]
    overview = client.get("/overview").json()
    assert (overview["jobs-running"], overview["jobs-finished"]) == (1, 1)


def a_job_shows_its_vertices_and_states(client: httpx.Client, metrics: JobMetrics) -> None:
    metrics.plan({"nodes": [{"id": "v0"}, {"id": "v1"}]})
    job = client.get(f"/jobs/{ID}").json()
    assert (job["jid"], job["name"], job["state"]) == (ID, "payments", "RUNNING")
    assert set(job["timestamps"]) == {"CREATED", "RUNNING"}
    assert [(v["name"], v["parallelism"], v["metrics"]["write-records"]) for v in job["vertices"]] == [
        ("source", 2, 1000),
        ("count", 2, 10),
    ]
    assert job["status-counts"]["RUNNING"] == 2
    assert job["plan"]["nodes"] == [{"id": "v0"}, {"id": "v1"}]
    assert client.get(f"/jobs/{ID}/plan").json()["plan"] == job["plan"]


def the_checkpoints_have_counts_summary_latest_and_history(client: httpx.Client, metrics: JobMetrics) -> None:
    metrics.checkpoint_failed(2, "the storage did not answer")
    metrics.checkpoint_restored(1, "file:///c/chk-1")
    answer = client.get(f"/jobs/{ID}/checkpoints").json()
    assert answer["counts"] == {"restored": 1, "total": 2, "in_progress": 0, "completed": 1, "failed": 1}
    assert answer["summary"]["end_to_end_duration"]["max"] == 1820
    assert answer["summary"]["checkpointed_size"]["avg"] == 28_114_432
    latest = answer["latest"]["completed"]
    assert (latest["id"], latest["status"], latest["external_path"]) == (1, "COMPLETED", "file:///c/chk-1")
    assert (latest["latest_ack_timestamp"], latest["state_size"]) == (2_820, 412_309_504)
    assert answer["latest"]["restored"]["external_path"] == "file:///c/chk-1"
    assert answer["latest"]["failed"]["failure_message"] == "the storage did not answer"
    assert [entry["status"] for entry in answer["history"]] == ["FAILED", "COMPLETED"]


def a_job_without_checkpoints_answers_in_the_same_shape(client: httpx.Client, jobs: Jobs) -> None:
    jobs.add()
    answer = client.get(f"/jobs/{ID}/checkpoints").json()
    assert answer["counts"]["total"] == 0
    assert answer["summary"]["state_size"]["p99"] == 0
    assert answer["latest"] == {"completed": None, "savepoint": None, "failed": None, "restored": None}
    assert answer["history"] == []


def the_exceptions_show_the_latest_first(client: httpx.Client, metrics: JobMetrics) -> None:
    assert client.get(f"/jobs/{ID}/exceptions").json()["root-exception"] is None
    metrics.failure(5, "ValueError: first", "map")
    metrics.failure(9, "Traceback (most recent call last):\nKeyError: 'amount'", "count")
    answer = client.get(f"/jobs/{ID}/exceptions").json()
    assert answer["root-exception"].endswith("KeyError: 'amount'")
    entries = answer["exceptionHistory"]["entries"]
    assert [(e["exceptionName"], e["timestamp"], e["taskName"]) for e in entries] == [
        ("KeyError", 9, "count"),
        ("ValueError", 5, "map"),
    ]


def the_configuration_is_shown_without_its_secrets(client: httpx.Client, jobs: Jobs) -> None:
    jobs.add(config={"s3.secret-key": "hush", "s3.access.key": "x", "rest.port": "0", "Kafka.PASSWORD": "hush"})
    shown = client.get(f"/jobs/{ID}/config").json()["execution-config"]["user-config"]
    assert shown["rest.port"] == "0"
    assert "hush" not in str(shown)


def a_job_is_cancelled_by_patch(client: httpx.Client, jobs: Jobs, metrics: JobMetrics) -> None:
    answer = client.patch(f"/jobs/{ID}?mode=cancel")
    assert (answer.status_code, answer.json()) == (202, {})
    assert jobs.by_id[ID].cancelled.wait(600)


def a_job_that_is_over_cannot_be_cancelled(client: httpx.Client, jobs: Jobs, metrics: JobMetrics) -> None:
    metrics.status("FINISHED")
    answer = client.patch(f"/jobs/{ID}")
    assert (answer.status_code, answer.json()) == (409, {"errors": [f"Job {ID} is over already: FINISHED"]})
    assert not jobs.by_id[ID].cancelled.is_set()


def a_savepoint_is_triggered_and_followed(client: httpx.Client, jobs: Jobs, metrics: JobMetrics) -> None:
    answer = client.post(f"/jobs/{ID}/savepoints", json={"target-directory": "file:///savepoints"})
    assert (answer.status_code, answer.json()["location"]) == (202, "file:///savepoints/savepoint-1")
    page = f"/jobs/{ID}/savepoints/{answer.json()['request-id']}"
    assert client.get(page).json() == {"status": {"id": "IN_PROGRESS"}}
    ((directory, stop, drain, written),) = jobs.by_id[ID].savepoints
    assert (directory, stop, drain) == ("file:///savepoints", False, False)
    written.set_result("file:///savepoints/savepoint-1")
    done = {"status": {"id": "COMPLETED"}, "operation": {"location": "file:///savepoints/savepoint-1"}}
    assert client.get(page).json() == done


def a_job_is_stopped_with_a_savepoint_that_may_fail(client: httpx.Client, jobs: Jobs, metrics: JobMetrics) -> None:
    answer = client.post(f"/jobs/{ID}/stop", json={"targetDirectory": "file:///savepoints", "drain": True})
    ((_, stop, drain, written),) = jobs.by_id[ID].savepoints
    assert (stop, drain) == (True, True)
    written.set_exception(OSError("No space left on device"))
    status = client.get(f"/jobs/{ID}/savepoints/{answer.json()['request-id']}").json()
    assert status["operation"]["failure-cause"] == {"class": "OSError", "stack-trace": "No space left on device"}


def a_job_is_rescaled(client: httpx.Client, jobs: Jobs, metrics: JobMetrics) -> None:
    answer = client.patch(f"/jobs/{ID}/rescaling", params={"parallelism": "4"})
    assert answer.status_code == 202
    page = f"/jobs/{ID}/rescaling/{answer.json()['request-id']}"
    assert client.get(page).json() == {"status": {"id": "IN_PROGRESS"}}
    ((parallelism, rescaled),) = jobs.by_id[ID].rescalings
    assert parallelism == 4
    rescaled.set_result(None)
    assert client.get(page).json()["status"] == {"id": "COMPLETED"}
    for wrong, told in (("many", "parallelism=4"), ("200", "only 128 key groups")):
        refused = client.patch(f"/jobs/{ID}/rescaling", params={"parallelism": wrong})
        assert refused.status_code == 400
        assert told in refused.json()["errors"][0]


def test_who_waits_for_a_savepoint_hears_of_its_end_at_once(client: httpx.Client, jobs: Jobs, metrics: JobMetrics) -> None:
    number = client.post(f"/jobs/{ID}/savepoints", json={"targetDirectory": "file:///s"}).json()["request-id"]
    ((_, _, _, written),) = jobs.by_id[ID].savepoints
    with ThreadPoolExecutor(1) as waiting:
        answer = waiting.submit(client.get, f"/jobs/{ID}/savepoints/{number}", params={"wait": "15"})
        written.set_result("file:///s/savepoint-1")
        assert answer.result().json()["status"] == {"id": "COMPLETED"}
    assert client.get(f"/jobs/{ID}/savepoints/{number}", params={"wait": "long"}).status_code == 400


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


@pytest.mark.parametrize(
    "body", [b"[", b"[1]", b'{"targetDirectory": 7}', b'{"targetDirectory": "x", "drain": "yes"}', b"{}"]
)
def a_savepoint_request_that_makes_no_sense_is_refused(
    client: httpx.Client, jobs: Jobs, metrics: JobMetrics, body: bytes
) -> None:
    answer = client.post(f"/jobs/{ID}/savepoints", content=body)
    assert answer.status_code == 400
    assert answer.json()["errors"]
    assert not jobs.by_id[ID].savepoints


def a_savepoint_that_nobody_asked_for_is_not_found(client: httpx.Client, jobs: Jobs, metrics: JobMetrics) -> None:
    assert client.get(f"/jobs/{ID}/savepoints/none").status_code == 404
    assert client.post(f"/jobs/{OTHER}/stop").status_code == 404
    metrics.status("FINISHED")
    assert client.post(f"/jobs/{ID}/stop", json={"targetDirectory": "file:///savepoints"}).status_code == 409


def an_unknown_mode_is_refused(client: httpx.Client, jobs: Jobs, metrics: JobMetrics) -> None:
    answer = client.patch(f"/jobs/{ID}?mode=explode")
    assert answer.status_code == 400
    assert "mode=cancel" in answer.json()["errors"][0]
    assert not jobs.by_id[ID].cancelled.is_set()


@pytest.mark.parametrize("page", ["", "/metrics", "/checkpoints", "/exceptions", "/plan", "/config"])
def an_unknown_job_is_not_found(client: httpx.Client, metrics: JobMetrics, page: str) -> None:
    answer = client.get(f"/jobs/{OTHER}{page}")
    assert (answer.status_code, answer.json()) == (404, {"errors": [f"Job {OTHER} not found"]})


def an_unknown_path_and_a_wrong_method_answer_in_json(client: httpx.Client, metrics: JobMetrics) -> None:
    assert client.get("/taskmanagers").json() == {"errors": ["Not found: /taskmanagers"]}
    wrong = client.delete(f"/jobs/{ID}")
    assert (wrong.status_code, wrong.json()) == (405, {"errors": ["Method Not Allowed"]})


def test_prometheus_reads_the_figures_by_flinks_names(client: httpx.Client, jobs: Jobs, metrics: JobMetrics) -> None:
    jobs.add(OTHER, 'a "quoted" name')
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = answer.text.splitlines()
    of_job = f'job_id="{ID}",job_name="payments"'
    for line in (
        f"flink_jobmanager_job_lastCheckpointSize{{{of_job}}} 2.8114432e+07",
        f'flink_taskmanager_job_task_numRecordsOut{{{of_job},task_id="v1",task_name="count"}} 10.0',
        f'flink_taskmanager_job_task_operator_pendingRecords{{{of_job},operator_id="src"}} 7.0',
        f'flink_taskmanager_job_task_operator_rules_hits{{{of_job},operator_name="count"}} 5.0',
    ):
        assert line in lines
    families = [line for line in lines if line.startswith("# TYPE")]
    assert len(families) == len(set(families))
    assert r'job_name="a \"quoted\" name"' in answer.text


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
