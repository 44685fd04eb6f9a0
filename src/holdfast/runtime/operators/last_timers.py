"""Timers at the end of the input: all of them fire, including those that are registered meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from holdfast.state.timers.timers import TimerQueue

__all__ = ["last_rounds"]

log = logging.getLogger(__name__)

_ROUNDS = 1000
"""Limit of the rounds in which firing timers register new ones at the end of the input."""


def last_rounds(timers: TimerQueue, where: str, who: str) -> Iterator[int]:
    """Yield rounds in which the caller fires all timers; a warning ends endless registration after a thousand rounds.

    Args:
        timers: The timers.
        where: The operator, for messages.
        who: The function or trigger that registers timers, for messages.
    """
    for number in range(_ROUNDS):
        if not timers:
            return
        yield number
    if timers:
        log.warning(
            "%s: the input has ended, and %s keeps setting timers: %d are dropped. It can tell the end by "
            "current_watermark() == 2**63 - 1",
            where,
            who,
            sum(1 for _ in timers.all()),
        )
