"""Jobs of this machine are found by their records, which no other user can read."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.errors import ConfigurationError
from holdfast.runtime.driver import job_registry
from holdfast.runtime.driver.job_registry import DIED, JobRecord, records, register

SOURCES = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def record(number: int = 1, **more: str) -> JobRecord:
    here = os.uname().nodename
    return JobRecord(f"{number:032x}", f"job-{number}", os.getpid(), here, "http://localhost:1", "secret", number, **more)


def a_running_job_is_found_with_its_token() -> None:
    registration = register(record())
    assert registration is not None
    assert records() == [record()]
    registration.end("FINISHED")


def an_ended_job_keeps_its_state_and_failure_but_no_token() -> None:
    registration = register(record())
    assert registration is not None
    registration.end("FAILED", "ValueError: no amount")
    registration.end("FINISHED")
    (ended,) = records()
    assert (ended.state, ended.failure, ended.token) == ("FAILED", "ValueError: no amount", "")
    assert ended.ended_ms > 0


def test_nothing_of_a_record_is_open_to_other_users(home: Path) -> None:
    before = os.umask(0)
    try:
        registration = register(record())
    finally:
        os.umask(before)
    assert registration is not None
    directory = home / "holdfast" / "jobs"
    assert stat.S_IMODE((home / "holdfast").stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()] == [0o600]
    registration.end("FINISHED")
    assert [stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()] == [0o600]


def a_directory_that_others_can_write_is_refused(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    home.chmod(0o755)
    (home / "holdfast").mkdir()
    (home / "holdfast").chmod(0o777)
    assert register(record()) is None
    assert "the command line will not find job 'job-1'" in caplog.text
    with pytest.raises(ConfigurationError, match="mode 0777"):
        records()


def a_job_whose_driver_was_killed_has_died(home: Path) -> None:
    program = (
        "import sys, time\n"
        "from holdfast.runtime.driver.job_registry import JobRecord, register\n"
        "import socket, os\n"
        "kept = register(JobRecord('a' * 32, 'killed', os.getpid(), socket.gethostname(), 'u', 'secret', 1))\n"
        "print('ready', flush=True); time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "XDG_STATE_HOME": str(home)}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        (alive,) = records()
        assert (alive.state, alive.token) == ("", "secret")
        driver.send_signal(signal.SIGKILL)
        driver.wait(600)
    (dead,) = records()
    assert (dead.state, dead.token) == (DIED, "")


def test_records_of_other_hosts_and_torn_files_are_left_out(home: Path) -> None:
    registration = register(record())
    assert registration is not None
    directory = home / "holdfast" / "jobs"
    elsewhere = msgspec.structs.replace(record(2), host="elsewhere")
    (directory / f"{elsewhere.job_id}.json").write_bytes(msgspec.json.encode(elsewhere))
    (directory / "torn.json").write_bytes(b'{"job_id": "x')
    assert [each.name for each in records()] == ["job-1"]
    registration.end("FINISHED")


def test_only_the_latest_ended_jobs_are_remembered(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_registry, "_KEPT", 2)
    running = register(record(1))
    assert running is not None
    for number in range(2, 7):
        log = home / f"{number}.log"
        log.write_text("")
        ended = register(record(number, log=str(log)))
        assert ended is not None
        ended.end("FINISHED")
    assert [each.name for each in records()] == ["job-6", "job-5", "job-4", "job-1"]
    assert [path.name for path in sorted(home.glob("*.log"))] == ["4.log", "5.log", "6.log"]
    running.end("FINISHED")


def test_without_a_home_records_are_in_the_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file" / "state"))
    monkeypatch.setattr(job_registry.tempfile, "tempdir", str(tmp_path))
    registration = register(record())
    assert registration is not None
    assert [path.name for path in (tmp_path / f"holdfast-{os.getuid()}" / "user" / "jobs").iterdir()] == [f"{1:032x}.json"]
    registration.end("FINISHED")
