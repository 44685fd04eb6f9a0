"""Processes that are left running: no warning at the end of the program, and no zombie while it runs."""

from __future__ import annotations

import os
import subprocess
import sys

from holdfast.runtime.host.background import leave_running

LEAVES = """
import subprocess
from holdfast.runtime.host.background import leave_running
for _ in range(2):
    process = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(process.pid)
    leave_running(process)
"""


def a_program_that_leaves_processes_running_ends_without_a_warning():
    done = subprocess.run([sys.executable, "-X", "dev", "-c", LEAVES], capture_output=True, text=True, timeout=600)
    for pid in map(int, done.stdout.split()):
        os.kill(pid, 9)
    assert done.stderr == ""
    assert len(done.stdout.split()) == 2


def a_process_that_has_ended_is_reaped_when_the_next_one_is_left():
    first = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    assert first.stdin is not None
    leave_running(first)
    first.stdin.close()
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
    with subprocess.Popen(["true"]) as second:
        leave_running(second)
    assert not os.path.exists(f"/proc/{first.pid}")
