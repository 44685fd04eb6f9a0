"""The commands against jobs that run on a real Spark, started by the command line itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from awaiting import until
from cli.shell import PAYMENTS, Shell
from holdfast.checkpoint.container import unpack
from holdfast.common import Types
from holdfast.errors import HoldfastError
from holdfast.state_api import SavepointReader
from started_programs import output_of


@pytest.fixture(scope="module")
def job(shell: Shell) -> dict[str, Any]:
    """A job that runs in the background and keeps checkpoints."""
    program = shell.program("payments.py", PAYMENTS)
    checkpoints = (shell.directory / "checkpoints").as_uri()
    options = ["-d", "-p", "1", "-D", "rest.port=0", "-D", f"execution.checkpointing.dir={checkpoints}"]
    done = shell.run("run", *options, "--json", program, "one", "--two")
    assert done.returncode == 0, done.stderr
    started: dict[str, Any] = json.loads(done.stdout)
    until(lambda: shell.json("status", "payments")["counts"]["completed"] > 1)
    return started


pytestmark = pytest.mark.spark


def a_job_in_the_background_is_listed_and_described(shell: Shell, job: dict[str, Any]) -> None:
    (listed,) = shell.json("list")
    assert (listed["id"], listed["name"], listed["state"]) == (job["id"], "payments", "RUNNING")
    assert listed["dashboard"] == f"{job['url']}/#/jobs/{job['id']}"
    for name in ([], ["payments"], [job["id"][:6]], [job["id"], "-m", job["url"]]):
        status = shell.json("status", *name)
        assert (status["id"], status["state"]) == (job["id"], "RUNNING")
    said = shell.run("status").stdout
    assert "RUNNING payments" in said
    assert "Checkpoint" in said
    assert "The job keeps up with its input" in said
    assert "payments" in shell.run("list").stdout


def test_options_before_the_program_are_settings_and_those_after_it_its_own(shell: Shell, job: dict[str, Any]) -> None:
    details = shell.json("status", "payments")
    assert {vertex["parallelism"] for vertex in details["vertices"]} == {1}
    assert "arguments one --two" in shell.run("logs").stdout.splitlines()


def the_log_has_the_programs_output_and_the_slots_have_theirs(shell: Shell, job: dict[str, Any]) -> None:
    (log,) = shell.json("logs", "payments", "-n", "1000")
    assert any("the REST API is on" in line for line in log["lines"])
    assert log["file"] == job["log"]
    assert len(shell.json("logs", "-n", "2")[0]["lines"]) <= 2
    assert [Path(each["file"]).name for each in shell.json("logs", "--slots")] == ["slot-0.sock.log"]


def a_job_is_rescaled_while_it_runs(shell: Shell, job: dict[str, Any]) -> None:
    for parallelism in (2, 1):
        assert shell.json("rescale", str(parallelism), "payments")["parallelism"] == parallelism
        until(lambda n=parallelism: {vertex["parallelism"] for vertex in shell.json("status")["vertices"]} == {n})
    refused = shell.run("rescale", "1000", "payments")
    assert refused.returncode == 1
    assert "only 128 key groups" in refused.stderr
    assert shell.json("status")["restarts"] == 0


def the_pace_of_checkpoints_is_changed_while_the_job_runs(shell: Shell, job: dict[str, Any]) -> None:
    assert shell.json("pace", "payments", "--interval", "200 ms", "--min-pause", "1 ms")["interval"] == 200
    told = until(lambda: (found := shell.json("pace", "payments"))["interval"] == 200 and found)
    assert told["min_pause"] == 1
    assert shell.json("status")["storage"]["requests"]["put"] > 0
    assert "every 200 ms, 1 ms after" in shell.run("pace", "payments").stderr
    assert shell.json("pace", "payments", "--interval", "0", "--min-pause", "0")["interval"] == 0
    refused = shell.run("pace", "payments", "--interval", "soon")
    assert refused.returncode == 2
    assert "--interval" in refused.stderr


def test_the_shell_completes_the_names_of_running_jobs(shell: Shell, job: dict[str, Any]) -> None:
    words = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": "holdfast status pay", "COMP_CWORD": "2"}
    command = [sys.executable, "-c", "from holdfast.cli.__main__ import main; main()"]
    done = subprocess.run(command, env=shell.environment | words, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["payments"], done.stderr


def the_state_of_a_key_is_queried_while_the_job_runs(
    shell: Shell, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", shell.environment["XDG_STATE_HOME"])
    with SavepointReader.scan_arrow("payments") as scanned:
        first = next(scanned.read_keyed_state("totals", key_type=Types.STRING()))
    key, total = first["key"][0].as_py(), first["total"][0].as_py()
    for written in (key, json.dumps(key)):
        assert float(shell.run("query", "totals", "total", written, "payments").stdout) >= total > 0
    absent = shell.run("query", "totals", "total", "nobody")
    assert (absent.returncode, absent.stdout) == (0, "")
    assert "the key nobody has no state total" in absent.stderr
    number = shell.run("query", "totals", "total", "-7")
    assert number.returncode == 3
    assert "has no key of type number: its keys are of type str" in number.stderr
    unknown = shell.run("query", "totals", "count", "7")
    assert unknown.returncode == 3
    assert "has no state 'count' to query; it has total" in unknown.stderr


def the_newest_checkpoint_is_held_while_a_command_or_another_process_reads_it(
    shell: Shell, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = [sys.executable, "-m", "holdfast.cli", "checkpoints", "verify", "{}"]
    verified = shell.run("checkpoints", "hold", job["id"][:6], *reader)
    assert verified.returncode == 0, verified.stderr
    assert shell.run("checkpoints", "hold", "payments", "sh", "-c", "exit 7").returncode == 7
    assert shell.run("checkpoints", "hold", "nobody's", "true").returncode == 3
    waiting = shell.start("checkpoints", "hold", "payments")
    path = waiting.stdout.readline().strip()
    monkeypatch.setenv("XDG_STATE_HOME", shell.environment["XDG_STATE_HOME"])
    with SavepointReader.scan_arrow("payments") as scanned:
        held = urllib.request.urlopen(f"{job['url']}/jobs/{job['id']}/holds").read()
        assert {path, scanned.snapshot.path} == {each["path"] for each in json.loads(held)["holds"]}
        assert [batch for batch in scanned.read_keyed_state("totals", key_type=Types.STRING())]
    waiting.send_signal(signal.SIGINT)
    output_of(waiting, shell.directory)
    assert waiting.returncode == 0
    assert json.loads(urllib.request.urlopen(f"{job['url']}/jobs/{job['id']}/holds").read()) == {"holds": []}


def a_savepoint_is_written_while_the_job_goes_on(shell: Shell, job: dict[str, Any]) -> None:
    done = shell.json("savepoint", "payments", str(shell.directory / "savepoints"))
    assert Path(done["savepoint"].removeprefix("file://"), "_metadata").exists()
    assert shell.json("status")["state"] == "RUNNING"
    unnamed = shell.run("savepoint", "./savepoints-of-the-only-job")
    assert "/savepoints-of-the-only-job/savepoint-" in unnamed.stdout, unnamed.stderr
    (listed,) = [
        each for each in shell.json("checkpoints", "list", str(shell.directory / "savepoints")) if not each["problem"]
    ]
    assert (listed["kind"], listed["job_name"]) == ("savepoint", "payments")


def the_checkpoints_are_listed_shown_verified_and_compared(shell: Shell, job: dict[str, Any]) -> None:
    listed = [each for each in shell.json("checkpoints", "list") if each["kind"] == "checkpoint"]
    assert {each["job_name"] for each in listed} == {"payments"}
    shown = shell.json("checkpoints", "show", "payments")
    assert [operator["uid"] for operator in shown["operators"]] == ["totals"]
    assert "total" in [state["name"] for state in shown["operators"][0]["states"]]
    savepoint = shell.json("savepoint", "payments", str(shell.directory / "verified"))["savepoint"]
    verified = shell.json("checkpoints", "verify", savepoint)
    assert verified["damaged"] == []
    assert verified["files"] > 0
    assert shell.json("checkpoints", "diff", savepoint, savepoint) == []
    dump = next(Path(savepoint.removeprefix("file://")).glob("*.dump"))
    content = bytearray(dump.read_bytes())
    content[len(content) // 2] ^= 1
    dump.write_bytes(content)
    found = shell.run("checkpoints", "verify", savepoint)
    assert found.returncode == 1
    assert dump.name in found.stderr


def test_secrets_are_in_no_answer_log_checkpoint_or_process_list(shell: Shell, job: dict[str, Any]) -> None:
    token = shell.run("token").stdout.strip()
    pages = ["", "/view", "/metrics", "/checkpoints", "/exceptions", "/plan", "/config"]
    urls = [f"{job['url']}/jobs/{job['id']}{page}" for page in pages] + [
        f"{job['url']}/{p}" for p in ("metrics", "overview")
    ]
    seen = {url: urllib.request.urlopen(url).read() for url in urls}
    assert b'"s3.secret-key":"******"' in seen[urls[6]]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            seen[str(process)] = process.read_bytes()
    files = [path for path in shell.directory.rglob("*") if path.is_file() and path.name != "payments.py"]
    # Spark keeps broadcasts on the disk, the plan among them, where only the job's user can enter.
    files = [path for path in files if "/spark/spark-" not in str(path)]
    assert any("/history/" in str(path) for path in files)
    for path in files:
        with contextlib.suppress(OSError):
            seen[str(path)] = data = path.read_bytes()
            with contextlib.suppress(HoldfastError):
                seen[f"{path}, unpacked"] = unpack(data, str(path))
    assert len(seen) > 30
    for where, content in seen.items():
        assert b"hush-hush" not in content, where
        own = Path(where).parent.name == "jobs" and Path(where).suffix == ".json"  # the record, with mode 0600
        assert own or where.endswith("dashboard.html") or token.encode() not in content, where


def a_running_job_is_not_pruned(shell: Shell, job: dict[str, Any]) -> None:
    refused = shell.run("checkpoints", "prune", "payments")
    assert refused.returncode == 1
    assert "is running" in refused.stderr


def test_the_token_opens_the_dashboard_and_changes_need_it(shell: Shell, job: dict[str, Any]) -> None:
    token = shell.run("token").stdout.strip()
    opened = shell.json("dashboard", "--no-open")
    assert opened["url_with_token"] == f"{job['url']}/#/jobs/{job['id']}?token={token}"
    seen = shell.directory / "seen"
    browser = f'{sys.executable} -c \'import sys; open("{seen}", "w").write(sys.argv[1])\' %s'
    shell_environment = {**shell.environment, "BROWSER": browser}
    opening = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "dashboard"],
        env=shell_environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert opening.returncode == 0, opening.stderr
    address = until(lambda: seen.exists() and seen.read_text())
    assert token not in address, "all users can read a browser's command line"
    page = Path(address.removeprefix("file://"))
    assert f"?token={token}" in page.read_text()
    assert page.stat().st_mode & 0o077 == 0
    shell_environment = {**shell.environment, "HOLDFAST_TOKEN": "guess"}
    refused = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "cancel", "-m", job["url"], "--json"],
        env=shell_environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert "refuses the token" in json.loads(refused.stdout)["error"]
    assert "holdfast token" in refused.stderr
    assert shell.json("status")["state"] == "RUNNING"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["status", "unknown"], 3, "No running job has the name or id 'unknown'. Running: payments ("),
        (["cancel", "unknown"], 3, "No running job has the name"),
        (["logs", "unknown"], 3, "`holdfast list --all` shows the jobs"),
        (["stop", "-p", "/proc/nothing"], 1, "no savepoint can be written into /proc/nothing"),
        (["stop"], 1, "execution.checkpointing.savepoint-dir"),
        (["status", "-m", "localhost:1"], 1, "No driver answers at http://localhost:1"),
        (["savepoint", "payments", "ftp://somewhere"], 1, "ftp"),
        (["checkpoints", "show", "/nowhere"], 3, "There is no checkpoint and no savepoint at /nowhere"),
        (["checkpoints", "list", "nobody"], 3, "No job of this machine has the name or id 'nobody'"),
        (["run", "missing.py"], 2, "There is no program missing.py"),
        (["run", "-D", "port", "payments.py"], 2, "write -D KEY=VALUE"),
        (["new", "."], 2, "is not empty"),
        (["explode"], 2, "No such command"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    shell: Shell, job: dict[str, Any], arguments: list[str], code: int, said: str
) -> None:
    done = shell.run(*arguments)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert shell.json("status")["state"] == "RUNNING"


def a_list_names_a_driver_that_does_not_answer_and_does_not_wait_for_it(shell: Shell, job: dict[str, Any]) -> None:
    (driver,) = [each["driver-pid"] for each in shell.json("list")]
    os.kill(driver, signal.SIGSTOP)
    try:
        (listed,) = shell.json("list")
        shown = shell.run("list")
    finally:
        os.kill(driver, signal.SIGCONT)
    assert (listed["state"], listed["driver-pid"]) == ("NO ANSWER", driver)
    assert "does not answer" in listed["error"]
    assert "does not answer" in shown.stderr


def the_error_of_a_wrong_option_is_json_if_asked_for(tmp_path: Path) -> None:
    done = Shell(tmp_path).run("list", "--json", "--no-such-option")
    assert done.returncode == 2
    assert json.loads(done.stdout)["exit_code"] == 2
    assert "--no-such-option" in json.loads(done.stdout)["error"]


def test_two_jobs_of_one_name_are_told_apart_by_their_ids_and_cancelled(shell: Shell, job: dict[str, Any]) -> None:
    checkpoints = (shell.directory / "others").as_uri()
    options = ["-p", "1", "-D", "rest.port=0", "-D", f"execution.checkpointing.dir={checkpoints}"]
    second = shell.start("run", *options, "payments.py")
    try:
        both = until(lambda: [each for each in shell.json("list") if each["state"] == "RUNNING"][1:] and shell.json("list"))
        ids = {each["id"] for each in both}
        for command in ("stop", "status"):
            unclear = shell.run(command, "payments")
            assert unclear.returncode == 2, unclear.stdout
        assert all(each in unclear.stderr for each in ids)
        (other,) = ids - {job["id"]}
        assert shell.json("cancel", other)["state"] == "CANCELED"
    finally:
        second.send_signal(signal.SIGTERM)
        _, err = output_of(second, shell.directory)
    assert "Job payments: CANCELED" in err
    assert [each["id"] for each in shell.json("list")] == [job["id"]]
