"""Where the log ends: found without trusting a listing, although old entries are deleted.

Positions are taken in order without gaps, so the end could be found by asking for 1, 2, 3, ... until nothing is
there. Two things keep that short: a listing may say where to begin, and *milestones* lead over the gaps that deletion
leaves. For every power ``P`` of 32, the multiples of ``P`` are milestones as long as the log's end lies in the same
block of ``32 * P`` positions:

    end of the log at 2085:   1024 2048 | 2048 2080 | 2080 2081 2082 2083 2084 2085
                              P = 1024    P = 32      P = 1

So at most 31 entries per power stay. A driver whose idea of the end is out of date keeps more than is needed, never
less: what is a milestone for a later end, and exists, is one for every end between.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.checkpoint.ids import NO_POSITION, LogPosition

__all__ = ["find_tail", "has_successor", "is_milestone"]

_BASE = 32
_LEVELS = 8  # 32**8 positions: ten checkpoints a second for three thousand years


def is_milestone(position: LogPosition, tail: LogPosition) -> bool:
    """Whether the entry at ``position`` is needed to find the end of a log that ends at ``tail``.

    >>> [p for p in range(1, 2086) if is_milestone(p, 2085)]
    [1024, 2048, 2080, 2081, 2082, 2083, 2084, 2085]
    """
    power = 1
    for _ in range(_LEVELS):
        if position % power:
            return False  # not a multiple of this power, so of no higher one either
        if position // (power * _BASE) == tail // (power * _BASE):
            return True
        power *= _BASE
    return True


def find_tail(exists: Callable[[LogPosition], bool], hint: LogPosition = NO_POSITION) -> LogPosition:
    """The last position of the log, 0 if it is empty.

    Args:
        exists: Whether there is an entry at a position, asked of the store itself.
        hint: A position that is or once was taken (from a listing, which may be out of date).

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
    """Whether the log goes on after ``position``, where there is an entry.

    Asks for milestones from the nearest to the farthest. The log may grow, and old milestones go, while it asks: a
    milestone that goes leaves one of the next power behind, which is asked for afterwards. So if the log went on
    before the first question, this says so, however slowly it asks (`find_tail` asks in the other order and may be
    overtaken).

    >>> log = {1024, 2048, 2080, 2081, 2082}
    >>> has_successor(log.__contains__, 2082), has_successor(log.__contains__, 700)
    (False, True)
    """
    return any(exists(LogPosition((position // _BASE**level + 1) * _BASE**level)) for level in range(_LEVELS))
