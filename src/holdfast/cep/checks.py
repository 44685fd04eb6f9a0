"""Warnings about pattern sequences that are valid but cannot serve: none of their matches can occur, or their state grows.

They are found by the functions themselves: a condition that is given twice is one condition.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence

from holdfast.cep.automaton import Automaton
from holdfast.cep.conditions import Both, Condition, Either
from holdfast.cep.pattern import Contiguity, GroupPattern, Pattern

__all__ = ["PatternWarning", "warn_of"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class PatternWarning(UserWarning):
    """A pattern sequence can never match, or its state would grow without end."""


def warn_of(pattern: Pattern, automaton: Automaton) -> None:
    """Warn of a pattern sequence that can never match or whose state would grow without end, at the program's line."""
    sequence = pattern.sequence()
    for text in (*_never(sequence), *_grows(sequence, automaton)):
        warnings.warn(text, PatternWarning, stacklevel=_program_level())


def _program_level() -> int:
    """How many frames above `warn_of` the program's call is."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level


def _never(sequence: Sequence[Pattern]) -> Iterator[str]:
    for number, pattern in enumerate(sequence):
        if isinstance(pattern, GroupPattern):
            if not pattern.is_optional:
                yield from _never(pattern.content)
            continue
        behind = sequence[number + 1 :]
        if pattern.negated:
            yield from _never_behind_not(pattern, behind)
        elif pattern.stop_condition is not None and not pattern.is_optional and _covers(pattern.stop_condition, pattern):
            yield (
                f"The pattern sequence can never match: every event that {pattern.name!r} accepts also meets its until() "
                "condition, which ends it first."
            )
        elif pattern.is_greedy and pattern.stop_condition is None and pattern.least != pattern.most:
            following = _next_mandatory(behind)
            if following is not None and _covers(pattern.condition, following):
                yield (
                    f"The pattern sequence can never match: {pattern.name!r} is greedy and accepts every event that "
                    f"{following.name!r} accepts, so it leaves none to that one. Give it another condition, or an until()."
                )


def _never_behind_not(pattern: Pattern, behind: Sequence[Pattern]) -> Iterator[str]:
    what = f"The pattern sequence can never match: the NOT pattern {pattern.name!r}"
    following = _next_mandatory(behind)
    if pattern.condition is None:
        yield f"{what} has no condition, so every event ends the match. Call where(...) on it."
    elif following is None or (pattern.contiguity is Contiguity.STRICT and following.contiguity is not Contiguity.STRICT):
        return  # other events may lie between
    elif _covers(pattern.condition, following):
        yield f"{what} excludes every event that {following.name!r} accepts."


def _next_mandatory(behind: Sequence[Pattern]) -> Pattern | None:
    """The pattern whose event must come next; None if there are several that could, or none."""
    following = next((each for each in behind if not each.negated), None)
    return None if following is None or following.is_optional or isinstance(following, GroupPattern) else following


def _covers(condition: Condition | None, pattern: Pattern) -> bool:
    """Whether every event that a pattern accepts meets a condition, as far as the functions tell."""
    return condition is None or (pattern.condition is not None and _follows(pattern.condition, condition))


def _follows(given: Condition, wanted: Condition) -> bool:
    """Whether an event that meets one condition meets another."""
    if given == wanted:
        return True
    if isinstance(given, Either):
        return _follows(given.left, wanted) and _follows(given.right, wanted)
    if isinstance(wanted, Both):
        return _follows(given, wanted.left) and _follows(given, wanted.right)
    if isinstance(wanted, Either) and (_follows(given, wanted.left) or _follows(given, wanted.right)):
        return True
    return isinstance(given, Both) and (_follows(given.left, wanted) or _follows(given.right, wanted))


def _grows(sequence: Sequence[Pattern], automaton: Automaton) -> Iterator[str]:
    if automaton.window is not None or sequence[-1].skip_strategy.is_skip_strategy():
        return
    begin = set(automaton.begin)
    waiting = [
        edge
        for number, edge in enumerate(automaton.edges)
        if number not in begin and edge.contiguity is not Contiguity.STRICT and edge.gap is None
    ]
    repeated = [each.name for each in _all(sequence) if each.most is None and each.stop_condition is None]
    if waiting or repeated:
        names = {automaton.names[automaton.patterns[edge.target]] for edge in waiting if edge.target >= 0}
        what = "waits for " + " or ".join(sorted(map(repr, names))) if names else f"repeats {repeated[0]!r}"
        yield (
            f"The state of the pattern sequence grows without end: a partial match that {what} is kept for ever. Set "
            "within(...) on the sequence, or a skip strategy, which drops partial matches at a match."
        )


def _all(sequence: Sequence[Pattern]) -> Iterator[Pattern]:
    for pattern in sequence:
        yield pattern
        if isinstance(pattern, GroupPattern):
            yield from _all(pattern.content)
