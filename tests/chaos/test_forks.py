"""Drivers that are forked from a process with their modules imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from awaiting import until

pytestmark = pytest.mark.fault

_MAIN = """
import pathlib, signal, time
def main(arguments):
    pathlib.Path(arguments[0]).touch()
    time.sleep(600)
"""
_CAMPAIGN = """
import os, pathlib, signal, sys, time
import sleeper
from holdfast.testing.chaos.forks import Fork
if __name__ == "__main__":
    begun = pathlib.Path(sys.argv[1])
    fork = Fork(sleeper.main, [str(begun)], begun.with_suffix(".log"))
    while not begun.exists():
        time.sleep(0.01)
    print(fork.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def a_forked_driver_dies_with_its_campaign(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(_MAIN)
    (tmp_path / "campaign.py").write_text(_CAMPAIGN)
    done = subprocess.run(
        [sys.executable, "campaign.py", str(tmp_path / "begun")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *(p for p in sys.path if p)])},
        stdout=subprocess.PIPE,
        check=False,
    )
    process = Path(f"/proc/{int(done.stdout)}")
    until(lambda: not process.exists())
