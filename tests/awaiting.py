"""Waiting for a condition, on a machine that may be slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_SHORTEST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 2.0
_PAUSES = 4
"""How many times as long as the condition takes a pause is: what is awaited needs the processor more."""


def until(condition: Callable[[], T], seconds: float = 600) -> T:
    """The condition's first true result; fail if it has none within a time that no sound run needs."""
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if found := condition():
            return found
        now = time.monotonic()
        assert now < deadline, "it takes too long"
        time.sleep(min(max(_PAUSES * (now - began), _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S))
