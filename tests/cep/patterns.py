"""Pattern sequences as text, for cases and models.

A sequence is patterns with blanks between them, each

    how it follows   nothing (the first), > next, ~ followed_by, ~~ followed_by_any, !> not_next, !~ not_followed_by
    what             letters, any of which an event must have; or a group: a sequence in brackets
    how often        {2} times, {2,4} times, {2,} times_or_more, + one_or_more, ? optional (also behind the others)
    how              g greedy, s consecutive, c allow_combinations, u=x until an event has the letter x, t=3 less than 3 ms
                     from one to the next

and events are letters with a number: ``c ~a+g ~d`` looks for a ``c``, all ``a`` and a ``d`` in ``c1 a2 x3 a4 d5``. The name
of a pattern is its letters with its number, from 1: ``c1``, ``a2``, ``d3``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from holdfast.cep import AfterMatchSkipStrategy, Pattern, WithinType
from holdfast.cep.automaton import automaton
from holdfast.cep.buffer import SharedBuffer
from holdfast.cep.matcher import Matcher, MatchState
from holdfast.common import Time

HOW = {">": "next", "~": "followed_by", "~~": "followed_by_any", "!>": "not_next", "!~": "not_followed_by"}
PIECE = re.compile(
    r"(?P<how>!?[>~]~?)?(?:(?P<letters>[a-z]+?)|\[(?P<group>\d+)\])(?P<times>\{\d+(?:,\d*)?\}|\+)?(?P<optional>\?)?"
    r"(?P<greedy>(?<=[}+?])g)?(?P<inner>(?<=[}+?g])[sc])?(?P<until>u=[a-z])?(?P<inner_gap>t=\d+)?$"
)


@dataclass(frozen=True)
class Piece:
    """One pattern of a sequence."""

    how: str
    letters: str = ""
    group: tuple[Piece, ...] = ()
    name: str = ""
    least: int = 1
    most: int | None = 1
    optional: bool = False
    greedy: bool = False
    inner: str = "~"
    until: str = ""
    gap: int | None = None
    inner_gap: int | None = None

    @property
    def negated(self) -> bool:
        return self.how.startswith("!")

    @property
    def repeats(self) -> bool:
        return (self.least, self.most) != (1, 1)


def parse(text: str) -> tuple[Piece, ...]:
    """A sequence from its text."""
    return _parse(text, count(1))


def _parse(text: str, numbers: Any) -> tuple[Piece, ...]:
    groups: list[str] = []
    while (innermost := re.search(r"\(([^()]*)\)", text)) is not None:
        groups.append(innermost[1])
        text = f"{text[: innermost.start()]}[{len(groups) - 1}]{text[innermost.end() :]}"
    return _pieces(text, groups, numbers)


def _pieces(text: str, groups: list[str], numbers: Any) -> tuple[Piece, ...]:
    pieces = []
    for word in text.split():
        found = PIECE.match(word)
        assert found is not None, word
        times = found["times"]
        least, most = 1, 1
        if times == "+":
            most = None
        elif times is not None:
            first, _, last = times[1:-1].partition(",")
            least = int(first)
            most = least if "," not in times else int(last) if last else None
        inner = {"s": ">", "c": "~~", None: "~"}[found["inner"]]
        group = () if found["group"] is None else _pieces(groups[int(found["group"])], groups, numbers)
        pieces.append(
            Piece(
                how=found["how"] or "",
                letters=found["letters"] or "",
                group=group,
                name="" if group else f"{found['letters']}{next(numbers)}",
                least=max(least, 1),
                most=most,
                optional=found["optional"] is not None or least == 0,
                greedy=found["greedy"] is not None,
                inner=inner,
                until=(found["until"] or "")[2:],
                inner_gap=None if found["inner_gap"] is None else int(found["inner_gap"][2:]),
            )
        )
    return tuple(pieces)


def has(letters: str) -> Callable[[Any], bool]:
    """The condition that an event has one of these letters. The events are texts, or tuples of which the first is one."""
    return lambda event: not set(letters).isdisjoint(event if type(event) is str else event[0])


def build(pieces: tuple[Piece, ...], skip: AfterMatchSkipStrategy | None = None, within: int | None = None) -> Pattern:
    """The pattern of a sequence."""
    pattern: Pattern | None = None
    for piece in pieces:
        what: Any = build(piece.group) if piece.group else piece.name
        pattern = Pattern.begin(what, skip) if pattern is None else getattr(pattern, HOW[piece.how])(what)
        assert pattern is not None
        if not piece.group:
            pattern.where(has(piece.letters))
        if piece.repeats:
            _repeat(pattern, piece)
            if piece.greedy:
                pattern.greedy()
            if piece.inner != "~":
                pattern.consecutive() if piece.inner == ">" else pattern.allow_combinations()
            if piece.until:
                pattern.until(has(piece.until))
        if piece.optional:
            pattern.optional()
        if piece.gap is not None:
            pattern.within(Time.milliseconds(piece.gap), WithinType.PREVIOUS_AND_CURRENT)
    assert pattern is not None
    return pattern if within is None else pattern.within(Time.milliseconds(within))


def _repeat(pattern: Pattern, piece: Piece) -> None:
    time = None if piece.inner_gap is None else Time.milliseconds(piece.inner_gap)
    if piece.most is None:
        pattern.one_or_more(time) if piece.least == 1 else pattern.times_or_more(piece.least, time)
    elif piece.least == piece.most:
        pattern.times(piece.least, time)
    else:
        pattern.times(piece.least, piece.most, time)


class Run:
    """A matcher with the state of one key."""

    def __init__(self, pattern: Pattern) -> None:
        self.automaton = automaton(pattern)
        self.matcher = Matcher(self.automaton, pattern.skip_strategy)
        self.state = MatchState()
        self.nodes: dict[int, Any] = {}
        self.events: dict[int, Any] = {}
        self.buffer = SharedBuffer(self.nodes, self.events)
        self.fed: list[Any] = []
        self.matches: list[Any] = []
        self.timed_out: list[Any] = []

    def advance(self, now: int) -> None:
        matches, over, _ = self.matcher.advance(self.state, self.buffer, now)
        self.matches += matches
        self.timed_out += over

    def feed(self, event: Any, now: int) -> None:
        self.advance(now)
        self.fed.append(event)
        matches, _ = self.matcher.process(self.state, self.buffer, event, now)
        self.matches += matches

    def texts(self) -> list[str]:
        """The matches, as the texts of their events, which are unique, in the order of their coming."""
        return [" ".join(sorted(chain(*match.values()), key=self.fed.index)) for match in self.matches]
