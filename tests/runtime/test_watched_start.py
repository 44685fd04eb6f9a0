"""A start that waits for a system says so in the log, as no command can show a job that has not begun, and can be ended."""

from __future__ import annotations

import _thread
import threading

import pytest

from awaiting import until
from holdfast.runtime.driver import watched_start
from holdfast.runtime.driver.watched_start import interruptibly
from holdfast.runtime.driver.watched_start import watched_start as watched


def a_start_that_waits_for_a_system_is_told_with_the_line_that_asks_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watched_start, "_FIRST_S", 0.01)
    with watched("payments"):
        until(lambda: caplog.messages)
    (said,) = caplog.messages
    assert said.startswith("job 'payments' has not begun: its start has lasted for")
    assert "until (" in said


def the_line_is_that_of_the_call_that_can_be_interrupted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watched_start, "_FIRST_S", 0.05)
    with watched("payments"):
        interruptibly(lambda: until(lambda: caplog.messages))
    assert "until (" in caplog.messages[0]


def a_start_that_comes_to_its_end_leaves_no_thread() -> None:
    with watched("payments"):
        watching = [each for each in threading.enumerate() if each.name == "holdfast-watches-start"]
        assert watching
    for each in watching:
        each.join()


def a_start_that_waits_is_ended_by_control_c_although_the_call_does_not_return() -> None:
    over = threading.Event()

    def waits() -> None:
        _thread.interrupt_main()
        over.wait()

    with pytest.raises(KeyboardInterrupt):
        interruptibly(waits)
    over.set()


def the_error_of_a_start_is_that_of_its_call() -> None:
    def refused() -> None:
        raise PermissionError("refused")

    with pytest.raises(PermissionError, match="refused"):
        interruptibly(refused)
