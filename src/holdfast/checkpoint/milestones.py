"""Finds the log's end without trusting a listing, although old entries are deleted.

Positions are taken in order without gaps, so the end could be found by probing 1, 2, 3, ... until an entry is missing.
Two things shorten the search: a listing may provide a starting point, and *milestones* bridge the gaps left by
deletions. For every power ``P`` of 32, the multiples of ``P`` are milestones while the log's end lies in the same block
of ``32 * P`` positions:

    end of the log at 2085:   1024 2048 | 2048 2080 | 2080 2081 2082 2083 2084 2085
                              P = 1024    P = 32      P = 1

At most 31 entries per power remain. A driver with an outdated end keeps more entries than needed, never fewer: an
existing milestone for a later end is also one for every end in between.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.checkpoint.ids import NO_POSITION, LogPosition

__all__ = ["find_tail", "has_successor", "is_milestone"]

_BASE = 32
_LEVELS = 8  # 32**8 positions: ten checkpoints a second for three thousand years


def is_milestone(position: LogPosition, tail: LogPosition) -> bool:
    """Whether the entry at ``position`` is needed to find the end of a log with the last position ``tail``.

    >>> [p for p in range(1, 2086) if is_milestone(p, 2085)]
    [1024, 2048, 2080, 2081, 2082, 2083, 2084, 2085]
    """
    power = 1
    for _ in range(_LEVELS):
        if position % power:  # neither is it a multiple of any higher power
            return False
        if position // (power * _BASE) == tail // (power * _BASE):
            return True
        power *= _BASE
    return True


def find_tail(exists: Callable[[LogPosition], bool], hint: LogPosition = NO_POSITION) -> LogPosition:
    """Find the last position of the log; 0 if it is empty.

    Args:
        exists: Whether the store has an entry at a position.
        hint: A position that is or once was taken (e.g. from an outdated listing).

    >>> log = {1024, 2048, 2080, 2081, 2082}
    >>> find_tail(log.__contains__), find_tail(log.__contains__, hint=700)
    (2082, 2082)
    """
    tail = hint
    for level in reversed(range(_LEVELS)):
        power = _BASE**level
        following = LogPosition((tail // power + 1) * power)
        while exists(following):
            tail = following
            following = LogPosition(following + power)
    return tail


def has_successor(exists: Callable[[LogPosition], bool], position: LogPosition) -> bool:
    """Whether the log continues after ``position``, which holds an entry.

    Probes milestones from the nearest to the farthest. Meanwhile, the log may grow and old milestones may be deleted; a
    deleted milestone implies one of the next power, which is probed afterwards. If the log continued before the first
    probe, the result is therefore True, however slow the probes are. (`find_tail` probes in the opposite order and may be
    overtaken.)

    >>> log = {1024, 2048, 2080, 2081, 2082}
    >>> has_successor(log.__contains__, 2082), has_successor(log.__contains__, 700)
    (False, True)
    """
    return any(exists(LogPosition((position // _BASE**level + 1) * _BASE**level)) for level in range(_LEVELS))
