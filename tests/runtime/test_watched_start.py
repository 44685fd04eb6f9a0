"""A start that waits for a system says so in the log: no command can show a job that has not begun."""

from __future__ import annotations

import threading

import pytest

from awaiting import until
from holdfast.runtime.driver import watched_start
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


def a_start_that_comes_to_its_end_leaves_no_thread() -> None:
    with watched("payments"):
        watching = [each for each in threading.enumerate() if each.name == "holdfast-watches-start"]
        assert watching
    for each in watching:
        each.join()
