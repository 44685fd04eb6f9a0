"""How jobs of the command line end, and go on: savepoints, signals, kills, standby drivers, errors."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from awaiting import until
from cli.shell import PAYMENTS, Shell
from started_programs import output_of

pytestmark = pytest.mark.spark


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
    _, err = output_of(running, shell.directory)
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


def a_job_that_crashes_in_a_loop_is_listed_with_its_error_and_can_be_cancelled_between_two_attempts(shell: Shell) -> None:
    text = """
    env.set_restart_strategy(RestartStrategies.no_restart())
    numbers = env.from_source(PaymentsSource(rate_per_second=100), WatermarkStrategy.no_watermarks(), "numbers")
    numbers.map(lambda payment: 1 // int("0" * (Path_exists()))).print()
    env.execute("loop")
    """.replace("Path_exists()", "__import__('os').path.exists('crashes')")
    (shell.directory / "crashes").touch()
    shell.run("run", "-d", "--restart", "always", "-p", "1", "-D", "rest.port=0", shell.program("loop.py", text))
    paused = until(lambda: [each for each in shell.json("list") if each["name"] == "loop" and each.get("attempts", 0) > 1])
    assert paused[0]["state"] == "RESTARTING"
    assert "ZeroDivisionError" in paused[0]["error"]
    assert shell.json("cancel", "loop")["state"] == "CANCELED"
    assert not [each for each in shell.json("list") if each["name"] == "loop"]


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
    address, _, token = runs["url_with_token"].partition("?token=")
    asked = urllib.request.Request(f"{address.partition('/#')[0]}/jobs/{runs['jobs'][0]['jid']}/view")
    asked.add_header("authorization", f"Bearer {token}")
    page = urllib.request.urlopen(asked).read()
    assert json.loads(page)["epochs"]
    history.send_signal(signal.SIGINT)
    output_of(history, other.directory)


def the_error_of_a_program_is_shown_without_the_frames_of_holdfast(shell: Shell) -> None:
    program = """
    env.set_restart_strategy(RestartStrategies.no_restart())
    env.from_collection([1, 0]).map(lambda n: 1 // n).print()
    env.execute("division")
    """
    process = shell.start("run", "-p", "1", "-D", "rest.port=0", shell.program("division.py", program))
    _, err = output_of(process, shell.directory)
    assert process.returncode == 1
    assert "ZeroDivisionError" in err
    assert 'division.py", line' in err
    assert "Job division: FAILED" in err
    assert "holdfast/datastream" not in err
    (ended,) = [each for each in shell.json("list", "--all") if each["name"] == "division"]
    assert ended["state"] == "FAILED"
    failure = json.loads(output_of(shell.start("status", "division", "--json"), shell.directory)[0])["failure"]
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
        _, err = output_of(process, own.directory)
        assert said in err
        assert process.returncode == (code if not detached else 1), err
        assert "holdfast/cli" not in err
