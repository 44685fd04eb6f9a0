"""Real requests to the real server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import awaiting
from holdfast.checkpoint.holds import MOST
from holdfast.errors import HoldfastError, ServiceUnavailable
from holdfast.metrics import JobMetrics
from holdfast.rest.client import Refused, RestClient
from holdfast.rest.holds import held_by_request
from holdfast.runtime.records.samples import EdgeSample
from rest.served_jobs import ID, OTHER, Jobs


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


ODD = {"large": [str(1 << 80)], "half": "\\ud800", "\\udfff": "01:00:00+00:00", "visit": {"pages": [[2, str(1 << 80)]]}}


def test_a_key_of_a_state_is_queried_as_json(client: httpx.Client, metrics: JobMetrics) -> None:
    answer = client.get(f"/jobs/{ID}/state/totals/count", params={"key": '["anna", 3]', "window": "60000"})
    assert answer.json() == {"value": [{"key": ["anna", 3], "window": 60000}, [[1, "count"]]], "checkpoint-id": 7}
    odd = client.get(f"/jobs/{ID}/state/totals/odd", params={"key": '"é"'})
    assert odd.json()["value"] == [{"key": "é", "window": None}, ODD]
    unknown = client.get(f"/jobs/{ID}/state/other/count", params={"key": "1"})
    assert (unknown.status_code, "no keyed state" in unknown.text) == (404, True)
    for given, shown in (("-5", -5), (str(1 << 80), str(1 << 80)), ('{"shop": ["anna"]}', {"shop": ["anna"]})):
        answer = client.get(f"/jobs/{ID}/state/totals/count", params={"key": given})
        assert answer.json()["value"][0]["key"] == shown
    slashed = client.get(f"/jobs/{ID}/state/shops%2Ftotals/count", params={"key": "1"})
    assert "uid 'shops/totals'" in slashed.text
    of_state = client.get(f"/jobs/{ID}/state/totals/per%2Fday", params={"key": "1"})
    assert of_state.json()["value"][1] == [[1, "per/day"]]
    for wrong in ({}, {"key": "anna"}, {"key": "NaN"}, {"key": "1", "window": "x"}):
        assert client.get(f"/jobs/{ID}/state/totals/count", params=wrong).status_code == 400


def test_a_checkpoint_is_held_renewed_and_released_with_the_token(client: httpx.Client, jobs: Jobs) -> None:
    jobs.add()
    page, kept = f"/jobs/{ID}/holds", jobs.by_id[ID].retention
    for method, path in (("POST", page), ("PATCH", f"{page}/x"), ("DELETE", f"{page}/x")):
        assert httpx.request(method, f"{jobs.server.url}{path}", timeout=300).status_code == 401
    begun = client.post(page, json={"seconds": 90})
    hold = begun.json()
    number = hold.pop("hold-id")
    assert (begun.status_code, hold) == (201, {"checkpoint-id": 7, "path": "file:///c/payments/log/7", "seconds": 90.0})
    assert client.patch(f"{page}/{number}", json={"seconds": 200}).json()["seconds"] == 200.0
    (shown,) = httpx.get(f"{jobs.server.url}{page}", timeout=300).json()["holds"]
    assert (shown["hold-id"], 190 < shown["seconds"] <= 200) == (number, True)
    assert kept.holds.checkpoints() == {7}
    for _ in range(2):
        assert client.delete(f"{page}/{number}").status_code == 200
    assert kept.holds.checkpoints() == set()
    ended = client.patch(f"{page}/{number}")
    assert (ended.status_code, "has ended" in ended.text) == (404, True)
    for wrong in (b"[", b"[]", b'{"seconds": 0}', b'{"seconds": "9"}', b'{"seconds": 1e9}'):
        assert client.post(page, content=wrong).status_code == 400
    for _ in range(MOST):
        assert client.post(page).json()["seconds"] == 60.0
    refused = client.post(page)
    assert (refused.status_code, "release a hold" in refused.text) == (503, True)


def test_a_hold_of_another_process_is_renewed_until_it_is_released(jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    jobs.add()
    driver, holds = RestClient(jobs.server.url, jobs.server.token), jobs.by_id[ID].retention.holds

    def until() -> float:
        return max(hold.until for hold, _ in holds.current())

    with held_by_request(driver, ID, 1.0) as held:
        assert (held.checkpoint_id, held.path) == (7, "file:///c/payments/log/7")
        begun = until()
        awaiting.until(lambda: until() > begun + 1)  # without renewals, it would have ended
    assert holds.current() == []
    with held_by_request(driver, ID, 1.0), caplog.at_level("WARNING"):
        holds.remove(holds.current()[0][0].id)  # as by a driver that begins anew
        awaiting.until(lambda: "is no longer held" in caplog.text)
    jobs.add(OTHER, "second")
    next_driver = jobs.by_id[OTHER].retention.holds
    with held_by_request(driver, ID, 1.0, later=lambda: (driver, OTHER)):
        hold = holds.current()[0][0]
        next_driver.adopt(hold, 600)
        holds.remove(hold.id)
        awaiting.until(lambda: next_driver.current()[0][1] <= 1)  # renewed there
    assert next_driver.current() == []
    with pytest.raises(Refused, match="refuses the token"), held_by_request(RestClient(jobs.server.url, "x"), ID):
        pass
    with pytest.raises(ServiceUnavailable, match="No driver answers"), held_by_request(RestClient("http://localhost:9"), ID):
        pass


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
    answer = client.post(
        f"/jobs/{ID}/stop", json={"targetDirectory": "file:///savepoints", "drain": True, "formatType": "canonical"}
    )
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


def the_pace_of_checkpoints_is_shown_and_changed(client: httpx.Client, jobs: Jobs, metrics: JobMetrics) -> None:
    page = f"/jobs/{ID}/checkpoints/config"
    assert client.get(page).json() == {"mode": "exactly_once", "interval": 0, "min_pause": 0, "max_concurrent": 1}
    assert client.patch(page, params={"interval": "10000"}).status_code == 202
    assert client.patch(page, params={"interval": "0", "min_pause": "500"}).status_code == 202
    assert jobs.by_id[ID].paces == [(10_000, None), (0, 500)]
    for wrong in ({}, {"interval": "-1"}, {"min_pause": "10 s"}, {"interval": "9" * 5000}):
        refused = client.patch(page, params=wrong)
        assert refused.status_code == 400
        assert "interval=10000&min_pause=0, in ms" in refused.json()["errors"][0]
    assert len(jobs.by_id[ID].paces) == 2


def test_who_waits_for_a_savepoint_hears_of_its_end_at_once(client: httpx.Client, jobs: Jobs, metrics: JobMetrics) -> None:
    number = client.post(f"/jobs/{ID}/savepoints", json={"targetDirectory": "file:///s"}).json()["request-id"]
    ((_, _, _, written),) = jobs.by_id[ID].savepoints
    with ThreadPoolExecutor(1) as waiting:
        answer = waiting.submit(client.get, f"/jobs/{ID}/savepoints/{number}", params={"wait": "15"})
        written.set_result("file:///s/savepoint-1")
        assert answer.result().json()["status"] == {"id": "COMPLETED"}
    assert client.get(f"/jobs/{ID}/savepoints/{number}", params={"wait": "long"}).status_code == 400


@pytest.mark.parametrize(
    "body",
    [
        b"[",
        b"[1]",
        b'{"targetDirectory": 7}',
        b'{"targetDirectory": "x", "drain": "yes"}',
        b'{"targetDirectory": "file:///s", "formatType": "NATIVE"}',
        b"{}",
    ],
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
