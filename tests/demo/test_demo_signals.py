"""The demo's handler of signals."""

from __future__ import annotations

import os
import signal
import sys
import weakref
from typing import Any

import pytest

from holdfast.demo.interrupt import Interrupt


def a_signal_is_noted_where_python_drops_its_exception(monkeypatch: pytest.MonkeyPatch):
    dropped: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: dropped.append(each.exc_type))
    interrupt = Interrupt()
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        thing = type("Thing", (), {})()
        reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGUSR1))
        del thing
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert reference() is None
    assert dropped == [KeyboardInterrupt]
    assert interrupt.seen
