"""What needs no running job: a new program, the check of the machine, help and completion."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from cli.forked_commands import run_command
from holdfast.cli.commands import app
from holdfast.compiled import use

ROOT = Path(__file__).resolve().parents[2]


def holdfast(directory: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {"PYTHONPATH": str(ROOT / "src"), "XDG_STATE_HOME": str(directory / "state"), "COLUMNS": "200"}
    code, out, err = run_command(arguments, directory, {**os.environ, **own, **environment})
    return subprocess.CompletedProcess(arguments, code, out, err)


@pytest.mark.spark
def a_new_program_passes_its_own_test_and_the_linter(tmp_path: Path) -> None:
    made = holdfast(tmp_path, "new", "my shop")
    assert made.returncode == 0, made.stderr
    directory = tmp_path / "my shop"
    assert sorted(path.name for path in directory.iterdir()) == ["README.md", "program.py", "test_program.py"]
    assert 'env.execute("my-shop")' in (directory / "program.py").read_text()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert "2 passed" in tested.stdout, tested.stdout + tested.stderr
    linted = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), "--ignore", "D,I", "."],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert linted.returncode == 0, linted.stdout


def a_new_program_does_not_overwrite_anything(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("kept")
    refused = holdfast(tmp_path, "new", ".", "--json")
    assert refused.returncode == 2
    assert json.loads(refused.stdout) == {"error": ". is not empty. Name a new directory.", "exit_code": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def a_healthy_machine_has_no_fault(tmp_path: Path) -> None:
    done = holdfast(tmp_path, "doctor", "--json", "--storage", str(tmp_path / "checkpoints"), "-D", "rest.port=0")
    assert done.returncode == 0, done.stdout
    told = {finding["check"]: finding["found"] for finding in json.loads(done.stdout)}
    assert re.search(r"put [0-9]+ ms, put if free [0-9]+ ms, get [0-9]+ ms .* requests are free", told["Storage"])
    found = {finding["check"]: finding["verdict"] for finding in json.loads(done.stdout)}
    assert found["Compiled modules"] == ("warning" if use.reason else "ok")
    assert {found[check] for check in ("Python", "Java", "Spark", "Storage", "Port", "User directory")} == {"ok"}
    assert not any((tmp_path / "checkpoints").rglob("*.*")), "the storage is left as it was"


def test_each_fault_of_a_machine_comes_with_its_remedy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        busy.settimeout(0.1)
        port = str(busy.getsockname()[1])
        options = ["--storage", "/proc/checkpoints", "--kafka", "127.0.0.1:1", "-D", f"rest.port={port}", "-p", "5000"]
        done = holdfast(tmp_path, "doctor", "--json", *options, JAVA_HOME=str(tmp_path))
    assert done.returncode == 1, done.stderr
    found = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert (found["Java"]["verdict"], "unset it" in found["Java"]["found"]) == ("failed", True)
    assert found["Storage"]["verdict"] == "failed"
    assert (found["Kafka"]["verdict"], "holdfast kafka" in found["Kafka"]["remedy"]) == ("failed", True)
    assert (found["Port"]["verdict"], "another program" in found["Port"]["found"]) == ("warning", True)
    assert (found["Memory"]["verdict"], "parallelism" in found["Memory"]["remedy"]) == ("warning", True)
    assert "Traceback" not in done.stderr


def a_user_directory_that_others_can_write_is_refused_in_a_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "state").mkdir(mode=0o755)
    (tmp_path / "state" / "holdfast").mkdir()
    (tmp_path / "state" / "holdfast").chmod(0o777)
    refused = holdfast(tmp_path, "list")
    assert refused.returncode == 1
    assert "has mode 0777" in refused.stderr
    assert "Traceback" not in refused.stderr


def a_kafka_port_in_use_is_told_in_a_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        refused = holdfast(tmp_path, "kafka", "--host", "127.0.0.1", "--port", port)
    assert refused.returncode == 1
    assert f"Kafka cannot listen on 127.0.0.1:{port}" in refused.stderr
    assert "choose another one (--port)" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_without_a_job_every_command_says_how_to_start_one(tmp_path: Path) -> None:
    assert json.loads(holdfast(tmp_path, "list", "--json").stdout) == []
    for command in ("status", "cancel", "stop", "savepoint", "dashboard", "token"):
        refused = holdfast(tmp_path, command)
        assert (refused.returncode, "holdfast run PROGRAM" in refused.stderr) == (3, True), command


def test_control_c_while_the_command_line_starts_shows_no_traceback(tmp_path: Path) -> None:
    interrupted = """
import sys

class Interrupted:
    def find_spec(self, name, *_):
        if name == "rich":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
from holdfast.cli.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")


def test_what_the_user_gave_wrong_is_said_with_the_remedy(tmp_path: Path) -> None:
    found = holdfast(tmp_path, "doctor", "-D", "rest.port=http", "--kafka", "localhost:1")
    assert found.returncode == 1
    assert "rest.port is 'http'" in found.stdout
    assert "→ Set it to a number" in found.stdout
    assert "FAIL" not in found.stderr, "the Kafka client's own messages"
    refused = holdfast(tmp_path, "new", "/proc/shop")
    assert (refused.returncode, "Name a directory where you may write" in refused.stderr) == (1, True)
    nothing = holdfast(tmp_path, "dashboard", f"{tmp_path}/", "--no-open")
    assert (nothing.returncode, "name a checkpoint directory" in nothing.stderr) == (3, True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_commands(tmp_path: Path, shell: str) -> None:
    undetected = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # the tests' parent process is not a shell
    shown = holdfast(tmp_path, "--show-completion", shell, **undetected)
    assert "holdfast" in shown.stdout.lower()
    words = {"COMP_WORDS": "holdfast sav", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "holdfast sav"}
    completed = holdfast(
        tmp_path, **{"_HOLDFAST_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}, **words
    )
    assert "savepoint" in completed.stdout


def test_every_command_has_help_and_json() -> None:
    wide = {"COLUMNS": "200"}
    listed = CliRunner().invoke(app, ["--help"], env=wide).output
    names = [name for name in get_command(app).commands if name != "checkpoints"]  # type: ignore[attr-defined]
    commands = [[name] for name in names]
    commands += [["checkpoints", each] for each in ("list", "show", "keys", "verify", "diff", "orphans", "prune", "sign")]
    assert {"run", "new", "list", "status", "cancel", "stop", "savepoint", "logs", "doctor", "kafka"} <= set(names)
    assert {"dashboard", "token"} <= set(names)
    for command in commands:
        assert command[0] in listed
        shown = CliRunner().invoke(app, [*command, "--help"], env=wide)
        assert shown.exit_code == 0, shown.output
        assert "--json" in shown.output, command
