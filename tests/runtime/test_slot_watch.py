"""What a Spark worker sees of a task slot that cannot tell itself what its task does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from awaiting import until
from holdfast.runtime.records.places import place_in_dump
from holdfast.runtime.spark.slot_watch import fault_of

SLOT = """
import ctypes, sys
from holdfast.checkpoint.stores.storage import Storage
from holdfast.runtime.slots.standstill import TaskWatch

def run():
    watch = TaskWatch(Storage.open(sys.argv[1]), "job/slots/here", 0.2, stuck=sys.argv[1] + "/stuck")
    watch.begin(3, "Source, worker", 0, lambda: "worker")
    print("runs", flush=True)
    sys.stdin.readline()
    ctypes.PyDLL(None).pause()  # keeps Python's lock

run()
"""


@contextmanager
def running_slot(directory: Path) -> Iterator[subprocess.Popen[str]]:
    program = directory / "slot.py"
    program.write_text(SLOT)
    with subprocess.Popen(
        [sys.executable, str(program), str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as slot:
        try:
            assert slot.stdout is not None
            assert slot.stdout.readline() == "runs\n"
            yield slot
        finally:
            slot.kill()


def a_slot_that_is_stopped_is_seen_and_one_that_goes_on_has_no_fault(tmp_path: Path) -> None:
    with running_slot(tmp_path) as slot:
        stuck = str(tmp_path / "stuck")
        assert fault_of(slot.pid, stuck) is None
        os.kill(slot.pid, signal.SIGSTOP)
        fault, _ = until(lambda: fault_of(slot.pid, stuck))
        assert fault.startswith("its process is stopped")
        os.kill(slot.pid, signal.SIGCONT)
        until(lambda: fault_of(slot.pid, stuck) is None)
    assert fault_of(slot.pid, str(tmp_path / "none")) is None


def a_call_that_keeps_the_lock_of_python_is_seen_with_its_line(tmp_path: Path) -> None:
    with running_slot(tmp_path) as slot:
        print(file=slot.stdin, flush=True)
        fault, _ = until(lambda: fault_of(slot.pid, str(tmp_path / "stuck")))
        assert "the GIL" in fault
        where = place_in_dump((tmp_path / "stuck").read_text(), ("slot.py", "<module>"))
        assert where == f"run ({tmp_path}/slot.py:11): ctypes.PyDLL(None).pause()  # keeps Python's lock"


def the_line_of_the_program_is_found_between_the_frames_of_holdfast_and_of_libraries() -> None:
    import holdfast

    package = os.path.dirname(holdfast.__file__)
    dump = f"""Timeout (0:00:06)!
Thread 0x1 (most recent call first):
  File "{package}/runtime/slots/doorman.py", line 50 in _watch

Thread 0x2 (most recent call first):
  File "{os.path.dirname(os.__file__)}/re/__init__.py", line 166 in match
  File "/srv/job.py", line 8 in matches
  File "/srv/job.py", line 12 in work
  File "{package}/runtime/operators/calls.py", line 3 in process
  File "{package}/runtime/slots/task_host.py", line 99 in run
  File "{package}/runtime/slots/slot_server.py", line 120 in _call
"""
    assert place_in_dump(dump, ("task_host.py", "run")) == "matches (/srv/job.py:8)"
    assert place_in_dump(dump, ("other.py", "run")) == ""
