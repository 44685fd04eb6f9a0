"""What a test tells of a program that does not end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from awaiting import until
from started_programs import output_of, surroundings, wait_until

STUCK = """
import pathlib, subprocess, sys, time

def stuck(name):
    pathlib.Path(__file__).with_name(name).touch()
    time.sleep(3600)

if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, __file__, "slot"])
    print("begun", flush=True)
    {then}
stuck("slot")
"""


def start(directory: Path, *command: str) -> subprocess.Popen[str]:
    variables = {**os.environ, **surroundings(directory)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)


@pytest.mark.parametrize(
    ("then", "stuck"),
    [("stuck('program')", ["slot", "program"]), ("sys.exit()", ["slot"])],
    ids=["the program itself", "a process that outlives it"],
)
def a_program_that_does_not_end_is_killed_with_all_its_processes_and_shows_their_threads(
    tmp_path: Path, then: str, stuck: list[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(STUCK.format(then=then))
    running = start(tmp_path, sys.executable, str(program))
    for name in stuck:
        until((tmp_path / name).exists)
    with pytest.raises(AssertionError, match=r"does not end\nbegun\n(.|\n)*program.py\", line \d+ in stuck"):
        output_of(running, tmp_path, 1)
    assert running.returncode is not None


def a_program_that_does_not_do_what_is_awaited_is_killed_too(tmp_path: Path) -> None:
    running = start(tmp_path, sys.executable, "-c", "import time; time.sleep(3600)")
    with pytest.raises(AssertionError, match=r"it takes too long\n"):
        wait_until(lambda: False, running, tmp_path, 0.5)
    assert running.returncode is not None


@pytest.mark.spark
def the_threads_of_java_and_of_a_stuck_function_are_shown(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        f"""
import pathlib, time
from holdfast.datastream import StreamExecutionEnvironment

def stuck(value):
    pathlib.Path("{tmp_path}/begun").touch()
    time.sleep(3600)

env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
env.from_collection([1]).map(stuck).print()
env.execute("stuck")
"""
    )
    running = start(tmp_path, sys.executable, str(tmp_path / "program.py"))
    wait_until((tmp_path / "begun").exists, running, tmp_path)
    with pytest.raises(AssertionError) as failure:
        output_of(running, tmp_path, 1)
    assert "in stuck" in str(failure.value)
    assert "dag-scheduler-event-loop" in str(failure.value)
    assert "in execute" in str(failure.value)
