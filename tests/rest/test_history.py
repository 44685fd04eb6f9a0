"""Jobs that have ended or crashed, as their checkpoint directories keep them: the same pages as those of live ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from awaiting import until
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import Configuration, WatermarkStrategy
from holdfast.common.job_status import JobStatus
from holdfast.datastream.connectors.datagen import PaymentsSource
from holdfast.errors import HoldfastError
from holdfast.metrics.job import JobMetrics
from holdfast.rest import history as history_module
from holdfast.rest.archive import Archive
from holdfast.rest.history import RUNS_KEPT, HistoryWriter, history_app, read_history
from holdfast.rest.server import RestServer, bind
from holdfast.runtime.driver.job import Job
from holdfast.runtime.driver.presence import Presence
from holdfast.testing.in_process import InProcessEnvironment

PAGES = ("", "/view", "/checkpoints", "/exceptions", "/plan", "/config", "/metrics")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # A job in this process is shown to nobody, unless a test wants it.
    monkeypatch.setattr(InProcessEnvironment, "execute_async", shown_in_process(InProcessEnvironment.execute_async))


def shown_in_process(execute: Any) -> Any:
    """Let jobs in this process have the presence of those on Spark."""

    def execute_async(env: Any, name: str | None = None) -> Any:
        start = Job.start

        def starting(job: Job) -> None:
            job._presence = Job._new_presence(job)
            start(job)

        Job.start = starting  # type: ignore[method-assign]
        try:
            return execute(env, name)
        finally:
            Job.start = start  # type: ignore[method-assign]

    return execute_async


def environment(directory: Path, **more: str) -> InProcessEnvironment:
    config = {"execution.checkpointing.dir": str(directory), "rest.port": "0", "s3.secret-key": "hush-hush"}
    return InProcessEnvironment(Configuration.from_dict(config | more))


TOKEN = "token-of-the-history"


@contextmanager
def served(archives: dict[str, Archive]) -> Iterator[httpx.Client]:
    server = uvicorn.Server(uvicorn.Config(history_app(archives, TOKEN), log_config=None, lifespan="off"))
    with bind("127.0.0.1", 0) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        token = {"authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=f"http://localhost:{bound.getsockname()[1]}", headers=token) as client:
            yield client
        server.should_exit = True
        thread.join()


def live_pages(job_id: str) -> dict[str, Any]:
    server = RestServer.running()
    assert server is not None
    token = {"authorization": f"Bearer {server.token}"}
    return {page: httpx.get(f"{server.url}/jobs/{job_id}{page}", headers=token).json() for page in PAGES}


@pytest.fixture
def cancelled(tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """A job that has been cancelled, and its pages while it ran."""
    env = environment(tmp_path / "checkpoints")
    payments = env.from_source(PaymentsSource(rate_per_second=500), WatermarkStrategy.no_watermarks(), "payments")
    payments.key_by(lambda p: p["merchant_id"]).map(lambda p: 1).filter(lambda n: False).print()
    client: Any = env.execute_async("shop")
    until(lambda: client.metrics.snapshot().counts.completed >= 3)
    pages = live_pages(str(client.get_job_id()))
    client.cancel().result()
    client.get_job_execution_result().result()
    return str(client.get_job_id()), pages


def test_an_ended_job_has_the_pages_of_a_live_one(cancelled: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    job_id, live = cancelled
    archives = read_history(str(tmp_path / "checkpoints"))
    assert list(archives) == [job_id]
    with served(archives) as client:
        assert httpx.get(f"{client.base_url}/jobs/overview").status_code == 401
        (listed,) = client.get("/jobs/overview").json()["jobs"]
        assert (listed["name"], listed["state"]) == ("shop", "CANCELED")
        for page, was in live.items():
            kept = client.get(f"/jobs/{job_id}{page}").json()
            assert type(kept) is type(was)
            if isinstance(was, dict):
                assert kept.keys() == was.keys(), page
        view = client.get(f"/jobs/{job_id}/view").json()
        assert [vertex["name"] for vertex in view["vertices"]] == [vertex["name"] for vertex in live["/view"]["vertices"]]
        assert view["counts"]["completed"] >= 3
        assert view["epochs"]
        newest = view["epochs"][-1]["sequence"]
        assert client.get(f"/jobs/{job_id}/view?since={newest}").json()["epochs"] == []
        assert client.get(f"/jobs/{job_id}/checkpoints").json()["history"]
        values = client.get(f"/jobs/{job_id}/metrics?get=numRecordsIn").json()
        assert float(values[0]["value"]) > 0
        assert "hush-hush" not in client.get(f"/jobs/{job_id}/config").text
        assert client.get("/").status_code == 200
        assert client.patch(f"/jobs/{job_id}?mode=cancel").status_code == 405
        assert client.get("/jobs/nothing/view").status_code == 404
    assert read_history(str(tmp_path / "checkpoints" / "shop")).keys() == archives.keys()


def a_failed_job_keeps_the_users_traceback(tmp_path: Path) -> None:
    env = environment(tmp_path / "checkpoints", **{"restart-strategy.type": "none"})
    env.from_collection([1, 0]).map(lambda n: 1 // n).print()
    with pytest.raises(HoldfastError):
        env.execute("division")
    (archive,) = read_history(str(tmp_path / "checkpoints")).values()
    assert archive.overview["state"] == "FAILED"
    assert "ZeroDivisionError" in archive.pages["exceptions"]["root-exception"]


def a_driver_that_died_leaves_what_it_stored_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage.open(str(tmp_path))
    metrics = JobMetrics("a" * 32, "killed")
    metrics.status("RUNNING")
    metrics.failure(1, "Traceback ...\nValueError: " + "x" * 100_000)
    writer = HistoryWriter(storage, JobPaths.of("killed"), metrics, {})
    writer.stop()  # as kill -9 would: nothing more is stored
    (archive,) = read_history(str(tmp_path)).values()
    assert archive.overview["state"] == "RUNNING"
    assert len(archive.pages["exceptions"]["root-exception"]) < 25_000
    monkeypatch.setattr(history_module, "_SILENT_MS", -1)
    (archive,) = read_history(str(tmp_path)).values()
    assert {archive.overview["state"], archive.pages["view"]["state"], archive.pages[""]["state"]} == {"DIED"}
    assert archive.pages["view"]["ended"] == archive.written_ms


def test_the_last_runs_are_kept_and_their_size_is_bounded(tmp_path: Path) -> None:
    storage, paths = Storage.open(str(tmp_path)), JobPaths.of("job")
    for number in range(RUNS_KEPT + 5):
        metrics = JobMetrics(f"{number:032x}", "job", wall_clock=lambda n=number: float(n))  # type: ignore[misc]
        HistoryWriter(storage, paths, metrics, {}).end()
    kept = storage.list(paths.history_prefix)
    assert len(kept) == RUNS_KEPT
    assert min(kept).endswith(f"{5:032x}")


def a_storage_that_fails_does_not_fail_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = Storage.put

    def refused(storage: Storage, path: str, data: Any) -> None:
        if "/history/" in path:
            raise RuntimeError("a bug in the history")
        put(storage, path, data)

    monkeypatch.setattr(Storage, "put", refused)
    env = environment(tmp_path / "checkpoints")
    env.from_collection([1, 2]).print()
    client = env.execute_async("fine")
    client.get_job_execution_result().result()
    assert client.get_job_status().result() is JobStatus.FINISHED


def a_job_that_deletes_its_checkpoints_keeps_no_history(tmp_path: Path) -> None:
    key = "execution.checkpointing.externalized-checkpoint-retention"
    env = environment(tmp_path / "checkpoints", **{key: "DELETE_ON_CANCELLATION"})
    source = env.from_source(PaymentsSource(rate_per_second=100), WatermarkStrategy.no_watermarks(), "payments")
    source.filter(lambda p: False).print()
    client: Any = env.execute_async("brief")
    while client.metrics.snapshot().counts.completed < 1:
        time.sleep(0.02)
    assert isinstance(client._presence, Presence)
    client.cancel().result()
    assert read_history(str(tmp_path / "checkpoints")) == {}
    assert not [path for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()]
