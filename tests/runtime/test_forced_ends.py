"""A job that is ended by force ends, and so does its program, although a thread of the driver waits for ever."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
from holdfast.runtime.driver.ends import end_anyway

over, left = threading.Event(), threading.Event()
threading.Thread(target=threading.Event().wait).start()  # the driver waits for a system that does not answer
end_anyway("payments", over, left.set, 0.0)
left.wait()
print("left", flush=True)
if sys.argv[1] == "fails":
    raise ValueError("the program fails afterwards")
"""


@pytest.mark.parametrize(("ends", "code"), [("well", 0), ("fails", 1)])
def a_program_ends_with_its_code_although_a_thread_of_its_driver_never_does(ends: str, code: int) -> None:
    program = subprocess.run([sys.executable, "-c", PROGRAM, ends], capture_output=True, text=True, timeout=300)
    assert (program.stdout, program.returncode) == ("left\n", code), program.stderr


def a_job_that_comes_to_its_end_in_time_is_not_left() -> None:
    program = PROGRAM.replace("0.0)", "300.0)").replace("left.wait()", "over.set()").replace(".start()", "")
    ended = subprocess.run([sys.executable, "-c", program, "well"], capture_output=True, text=True, timeout=200)
    assert (ended.stdout, ended.returncode, ended.stderr) == ("left\n", 0, "")
