"""Core dumps would hold secrets and state: processes with them leave none."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.common.system.core_dumps import ALLOWED
from holdfast.runtime.driver.launch import Launch

SHOW = "import resource; print(resource.getrlimit(resource.RLIMIT_CORE))"


def limits(program: str, environment: dict[str, str]) -> str:
    """The limits (soft, hard) of a process in which these statements have run, if it begins with the highest ones."""
    most = resource.getrlimit(resource.RLIMIT_CORE)[1]

    def raised() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (most, most))

    command = [sys.executable, "-c", f"{program}\n{SHOW}"]
    return subprocess.run(
        command, preexec_fn=raised, env=os.environ | environment, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("allowed", ["", "1"])
def a_program_that_holdfast_run_starts_leaves_no_core_dump_unless_it_is_allowed(allowed: str, tmp_path: Path) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    environment = Launch.environment(Launch("id", {}, str(tmp_path / "log"), False).store(tmp_path))
    program = "from holdfast.runtime.driver.launch import launched; launched()"
    assert limits(program, {**environment, ALLOWED: allowed}) == str((most if allowed else 0, most))


def a_task_slot_leaves_no_core_dump() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    program = """
from holdfast.runtime.slots import slot_main
class Server:
    def __init__(self, *arguments): pass
    def serve(self):
        import resource, sys
        print(resource.getrlimit(resource.RLIMIT_CORE), flush=True)
slot_main.SlotServer = Server
slot_main.run_slot("path", 0, 0)
"""
    assert limits(program, {ALLOWED: ""}) == str((0, most))
