"""The commands against jobs that run on a real Spark, started by the command line itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from awaiting import until
from holdfast.checkpoint.files import unpack
from holdfast.common import Types
from holdfast.errors import HoldfastError
from holdfast.state_api import SavepointReader

SOURCES = Path(__file__).resolve().parents[2] / "src"
START = """
import sys
from holdfast.common import *
from holdfast.datastream import *
from holdfast.datastream.connectors.datagen import PaymentsSource
env = StreamExecutionEnvironment.get_execution_environment()
"""


@dataclass
class Shell:
    """A user's shell, in a home of its own."""

    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        own = {"PYTHONPATH": str(SOURCES), "XDG_STATE_HOME": str(self.directory / "state"), "TMPDIR": str(self.directory)}
        return {**os.environ, **own, "COLUMNS": "200"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.directory,
            env=self.environment,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=600)
        assert "Traceback" not in out + err, err
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def program(self, name: str, text: str) -> str:
        (self.directory / name).write_text(START + textwrap.dedent(text))
        return name


PAYMENTS = """
class Total(KeyedProcessFunction):
    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.DOUBLE()))

    def process_element(self, payment, ctx):
        self.total.update((self.total.value() or 0.0) + payment["amount"])
        if self.total.value() > 100_000:
            yield f"{ctx.get_current_key()} {self.total.value()}"

env.configure(Configuration.from_dict({"s3.secret-key": "hush-hush", "security.ssl.rest.key-password": "hush-hush"}))
payments = env.from_source(PaymentsSource(rate_per_second=200), WatermarkStrategy.no_watermarks(), "payments")
totals = payments.uid("payments").key_by(lambda payment: payment["merchant_id"]).process(Total()).uid("totals")
totals.filter(lambda line: False).print()
print("arguments", *sys.argv[1:], flush=True)
env.execute("payments")
"""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("home"))
    yield shell
    for job in shell.json("list"):
        shell.run("cancel", job["id"])


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
    absent = shell.run("query", "totals", "total", "7")
    assert (absent.returncode, absent.stdout) == (0, "")
    assert "the key 7 has no state total" in absent.stderr
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
    waiting.communicate(timeout=600)
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
        _, err = second.communicate(timeout=600)
    assert "Job payments: CANCELED" in err
    assert [each["id"] for each in shell.json("list")] == [job["id"]]


def a_stopped_job_goes_on_from_its_savepoint(shell: Shell) -> None:
    numbers = """
    source = PaymentsSource(rate_per_second=100)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    numbers.key_by(lambda p: 0).map(lambda p: 1).uid("ones").filter(lambda n: False).print()
    env.execute("moved")
    """
    program = shell.program("moved.py", numbers)
    options = ["-d", "-p", "1", "-D", "rest.port=0"]
    assert shell.run("run", *options, program).returncode == 0
    until(lambda: shell.json("status", "moved")["counts"]["completed"])
    stopped = shell.json("stop", "moved", "-p", str(shell.directory / "moved-savepoints"))
    assert stopped["state"] == "FINISHED"
    ended = [each for each in shell.json("list", "--all") if each["name"] == "moved"]
    assert [each["state"] for each in ended] == ["FINISHED"]
    assert shell.json("status", "moved")["state"] == "FINISHED"
    told = json.loads(shell.run("run", "--json", "--check-restore", "-s", stopped["savepoint"], program).stdout)
    assert told["restorable"] is True
    assert told["job_name"] == "moved"
    shown = shell.run("run", "--check-restore", "-s", stopped["savepoint"], program)
    assert "The program can restore from it." in shown.stdout, shown.stderr
    another = shell.program("another.py", numbers.replace('.uid("numbers")', '.uid("others")'))
    refused = shell.run("run", "--check-restore", "-s", stopped["savepoint"], another)
    assert refused.returncode == 4
    assert "has state of source 'numbers'" in refused.stderr
    others = shell.program("others.py", numbers.replace("rate_per_second=100", "rate_per_second=100, seed=7"))
    refused = shell.run("run", "--check-restore", "-s", stopped["savepoint"], others)
    assert refused.returncode == 4
    assert "go on from its position" in refused.stderr
    assert "numbers" in refused.stdout
    nowhere = shell.run("run", "--check-restore", "-s", str(shell.directory / "nowhere"), program)
    assert nowhere.returncode == 1
    assert "is not a savepoint" in nowhere.stderr
    misspelt = shell.run("run", "--check-restore", "-s", stopped["savepoint"], "--restored-job", "mvoed", program)
    assert misspelt.returncode == 1
    assert "job 'moved' does not start from the savepoint" in misspelt.stderr
    assert "names the job 'mvoed'. Is 'moved' meant?" in misspelt.stderr
    assert "The program has no job 'mvoed' to restore; its jobs: 'moved'." in misspelt.stderr
    broken = shell.program("broken.py", numbers.replace('env.execute("moved")', "raise SystemExit(5)"))
    failed = shell.run("run", "--check-restore", "-s", stopped["savepoint"], broken)
    assert failed.returncode == 1
    assert "ended without a job and with exit code 5" in failed.stderr
    assert [each["state"] for each in shell.json("list", "--all") if each["name"] == "moved"] == ["FINISHED"], "nothing ran"
    assert shell.run("run", *options, "-s", stopped["savepoint"], program).returncode == 0
    restored = until(lambda: shell.json("status", "moved")["restored"])
    assert restored["savepoint"] is True
    assert shell.json("cancel", "moved")["state"] == "CANCELED"


def test_control_c_completes_the_epoch_and_says_how_to_go_on(shell: Shell) -> None:
    checkpoints = (shell.directory / "interrupted").as_uri()
    program = shell.program("interrupted.py", PAYMENTS.replace('env.execute("payments")', 'env.execute("interrupted")'))
    running = shell.start("run", "-p", "1", "-D", "rest.port=0", "-D", f"execution.checkpointing.dir={checkpoints}", program)
    until(lambda: [each for each in shell.json("list") if each["name"] == "interrupted" and each["state"] == "RUNNING"])
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    _, err = running.communicate(timeout=600)
    assert running.returncode == 130, err
    assert "Traceback" not in err
    assert "Job interrupted: CANCELED after" in err
    assert "Run the program again to resume" in err


def a_program_whose_driver_is_killed_is_started_again(shell: Shell) -> None:
    program = shell.program("restarted.py", PAYMENTS.replace('env.execute("payments")', 'env.execute("restarted")'))
    checkpoints = (shell.directory / "restarted").as_uri()
    options = ["-d", "--restart", "always", "-D", "rest.port=0", "-D", f"execution.checkpointing.dir={checkpoints}"]
    first = json.loads(shell.run("run", *options, "-p", "1", "--json", program).stdout)
    until(lambda: shell.json("status", "restarted")["counts"]["completed"])
    (running,) = [each for each in shell.json("list") if each["name"] == "restarted"]
    assert running["driver-pid"] == first["driver_pid"]
    assert f"process {first['driver_pid']}, " in shell.run("status", "restarted").stdout
    os.kill(first["driver_pid"], signal.SIGKILL)
    again = until(
        lambda: [each for each in shell.json("list") if each["name"] == "restarted" and each["state"] == "RUNNING"]
    )
    assert again[0]["id"] != first["id"]
    assert shell.json("status", again[0]["id"])["restored"] is not None
    dead = shell.run("status", first["id"])
    assert "DIED" in dead.stdout
    assert shell.json("cancel", "restarted")["state"] == "CANCELED"
    until(lambda: not Path(f"/proc/{first['supervisor_pid']}").exists(), 30)


def test_standby_drivers_take_over_from_a_dead_and_from_a_leaving_one_and_end_with_the_job(tmp_path: Path) -> None:
    one, other = (Shell(tmp_path / name) for name in ("one", "other"))
    text = PAYMENTS.replace('env.execute("payments")', 'env.execute("kept")')
    checkpoints = f"execution.checkpointing.dir={(tmp_path / 'checkpoints').as_uri()}"

    def start(machine: Shell) -> dict[str, Any]:
        machine.directory.mkdir(exist_ok=True)
        started = machine.run(
            *("standby", "-d", "-p", "1", "-D", "rest.port=0", "-D", checkpoints, "--json"), machine.program("kept.py", text)
        )
        assert started.returncode == 0, started.stderr
        driver: dict[str, Any] = json.loads(started.stdout)
        return driver

    def state(machine: Shell) -> str:
        return "".join(job["state"] for job in machine.json("list"))

    def ended(driver: dict[str, Any]) -> bool:
        return not Path(f"/proc/{driver['supervisor_pid']}").exists()

    owner = start(one)
    until(lambda: one.json("status", "kept")["counts"]["completed"])
    second = start(other)
    assert (owner["state"], second["state"], state(other)) == ("RUNNING", "STANDBY", "STANDBY")
    elsewhere = other.run("cancel", "kept")
    assert elsewhere.returncode == 3
    assert "this machine stands by: one on" in elsewhere.stderr
    os.killpg(owner["supervisor_pid"], signal.SIGKILL)
    until(lambda: state(other) == "RUNNING")
    assert until(lambda: other.json("status", "kept")["restored"])
    third = start(one)
    assert third["state"] == "STANDBY"
    os.kill(second["supervisor_pid"], signal.SIGTERM)
    until(lambda: state(one) == "RUNNING")
    until(lambda: ended(second), 60)
    assert [job["state"] for job in other.json("list", "--all")] == ["SUSPENDED"]
    fourth = start(other)
    assert one.json("cancel", "kept")["state"] == "CANCELED"
    until(lambda: ended(third) and ended(fourth), 60)
    assert "CANCELED" in [job["state"] for job in other.json("list", "--all")]
    history = other.start("dashboard", str(tmp_path / "checkpoints"), "--no-open", "--json", "--port", "0")
    assert history.stdout is not None
    shown = ""
    while not shown.endswith("\n}\n"):
        shown += history.stdout.readline()
    runs = json.loads(shown)
    assert [job["name"] for job in runs["jobs"]] == 3 * ["kept"]
    page = urllib.request.urlopen(f"{runs['url'].partition('/#')[0]}/jobs/{runs['jobs'][0]['jid']}/view").read()
    assert json.loads(page)["epochs"]
    history.send_signal(signal.SIGINT)
    history.communicate(timeout=600)


def the_error_of_a_program_is_shown_without_the_frames_of_holdfast(shell: Shell) -> None:
    program = """
    env.set_restart_strategy(RestartStrategies.no_restart())
    env.from_collection([1, 0]).map(lambda n: 1 // n).print()
    env.execute("division")
    """
    process = shell.start("run", "-p", "1", "-D", "rest.port=0", shell.program("division.py", program))
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "ZeroDivisionError" in err
    assert 'division.py", line' in err
    assert "Job division: FAILED" in err
    assert "holdfast/datastream" not in err
    (ended,) = [each for each in shell.json("list", "--all") if each["name"] == "division"]
    assert ended["state"] == "FAILED"
    failure = json.loads(shell.start("status", "division", "--json").communicate(timeout=600)[0])["failure"]
    assert "ZeroDivisionError" in failure
    assert "holdfast/" not in failure


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("print('nothing to do')", 1, "ended without a job: call env.execute(NAME) at its end"),
        ("def broken(:", 1, "program.py:7: invalid syntax"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import sys; sys.exit(7)", 7, ""),
    ],
)
def a_program_that_runs_no_job_is_told_so(tmp_path: Path, text: str, code: int, said: str) -> None:
    own = Shell(tmp_path)
    program = own.program("program.py", text)
    for detached in ([], ["-d"]):
        process = own.start("run", *detached, program)
        _, err = process.communicate(timeout=600)
        assert said in err
        assert process.returncode == (code if not detached else 1), err
        assert "holdfast/cli" not in err
