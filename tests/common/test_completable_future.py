"""Waiting for a job: the wait ends with the result, with its time, and with Ctrl-C."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from holdfast.common.completable_future import CompletableFuture
from started_programs import output_of, surroundings

WAITS = """
import signal, threading, time
from concurrent.futures import Future
from holdfast.common.completable_future import CompletableFuture

def interrupt():
    time.sleep(0.5)  # the main thread waits by then
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    time.sleep(3600)

threading.Thread(target=interrupt, daemon=True).start()
CompletableFuture(Future()).result({timeout})
"""


@pytest.mark.parametrize("timeout", ["", "3600"])
def test_control_c_ends_a_wait_also_if_another_thread_gets_the_signal(tmp_path: Path, timeout: str) -> None:
    (tmp_path / "program.py").write_text(WAITS.format(timeout=timeout))
    waiting = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **surroundings(tmp_path)},
    )
    _, err = output_of(waiting, tmp_path, 60)
    assert err.splitlines()[-1] == "KeyboardInterrupt"


def a_wait_ends_with_the_result_or_with_its_time() -> None:
    future: Future[int] = Future()
    waited = CompletableFuture(future)
    for timeout in (0, 0.01, 0.3):
        with pytest.raises(TimeoutError):
            waited.result(timeout)
    threading.Timer(0.3, future.set_result, [7]).start()
    assert waited.result() == 7
    assert waited.result(0) == waited.result(5) == 7
    assert waited.exception() is None


def the_error_of_a_job_is_raised_without_an_earlier_traceback() -> None:
    future: Future[int] = Future()
    future.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        CompletableFuture(future).result()
    assert isinstance(CompletableFuture(future).exception(5), ValueError)
