"""Automaton: a pattern sequence as positions and the edges between them, compiled when the program is built. Pure.

A *position* accepts one event for a pattern. A pattern that repeats has a position for each of its first events; the last
one leads back to itself if there is no limit. A *partial match* has accepted the event of one position, and waits at one
edge for the event of the next; where several edges leave a position, it forks, and the forks go their own ways.

What the other patterns of a sequence demand is written on the edges:

- contiguity: whether the partial match survives an event that it does not accept,
- NOT patterns: their conditions stop every partial match that waits at an edge across them,
- greedy patterns: an edge that leaves one, or passes it by, is guarded: an event that the greedy pattern accepts ends the
  partial match, because a longer one goes on,
- ``until``: neither accepts nor waits; it lifts a guard.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import xxhash

from holdfast.cep.conditions import Condition
from holdfast.cep.pattern import Contiguity, GroupPattern, Pattern
from holdfast.errors import ConfigurationError

__all__ = ["ALWAYS", "AT_NEXT", "AT_TIMEOUT", "Automaton", "Edge", "Guard", "automaton"]

ALWAYS = -1
"""The number of the condition that accepts every event."""
AT_NEXT = -1
"""The target of an edge at whose end the next event completes the match, unless it stops it."""
AT_TIMEOUT = -2
"""The target of an edge at whose end the match completes when its time is over."""

Guard = tuple[int, int | None]
"""The condition of a greedy pattern, and the one that ends the pattern."""


@dataclass(frozen=True)
class Edge:
    """Where a partial match waits. Conditions are given by their numbers."""

    target: int
    """The position whose event is awaited; AT_NEXT or AT_TIMEOUT."""
    condition: int
    contiguity: Contiguity
    refused: tuple[int, ...] = ()
    """An event of these conditions is not accepted."""
    closed: tuple[int, ...] = ()
    """An event of these conditions is not waited past."""
    stops: tuple[int, ...] = ()
    """An event of these conditions ends the partial match."""
    stops_at_once: tuple[int, ...] = ()
    """The same, for the first event only."""
    guards: tuple[Guard, ...] = ()
    gap: int | None = None
    """The most time since the previous event, in ms."""


@dataclass(frozen=True)
class Automaton:
    """A compiled pattern sequence."""

    names: tuple[str, ...]
    """The names of the patterns."""
    conditions: tuple[Condition, ...]
    edges: tuple[Edge, ...]
    begin: tuple[int, ...]
    """The edges at which every event is offered to a new partial match."""
    patterns: tuple[int, ...]
    """By position: its pattern, an index of ``names``."""
    follow: tuple[tuple[int, ...], ...]
    """By position: the edges that leave it."""
    completes: tuple[tuple[tuple[Guard, ...], ...], ...]
    """By position: the ways to complete a match there; each holds unless the accepted event meets one of its guards."""
    after: tuple[int, ...]
    """By edge: the edge at which a partial match waits on after an event; its conditions are those of all later events."""
    lifted: tuple[tuple[int, ...], ...]
    """By edge and guard: the edge without the guard."""
    window: int | None
    """The most time between the first and the last event of a match, in ms."""
    negated: tuple[str, ...] = ()
    """The names of the NOT patterns."""

    @property
    def fingerprint(self) -> str:
        """A hash of the positions and edges: with the same one, the numbers in partial matches mean the same.

        What conditions do, and how much time a match may take, is no part of it.
        """
        edges = [
            (e.target, e.condition, e.contiguity.name, e.refused, e.closed, e.stops, e.stops_at_once, e.guards)
            for e in self.edges
        ]
        parts = (self.begin, self.patterns, self.follow, self.completes, self.after, self.lifted, edges)
        return xxhash.xxh3_64_hexdigest(repr(parts).encode())


@dataclass(frozen=True)
class _Open:
    """A way that has left a position (None: the beginning) and looks for the next one."""

    source: int | None
    guards: tuple[Guard, ...] = ()
    fresh: tuple[Guard, ...] = ()
    """Guards of the pattern that the way has just left or passed; they bind it once there is a pattern behind that one."""
    stops: tuple[int, ...] = ()
    at_once: tuple[int, ...] = ()
    gap: int | None = None
    """The most time since the event of the source, in ms."""

    def passing(self, guards: tuple[Guard, ...]) -> _Open:
        """The way, past an optional pattern with these guards."""
        return replace(self, guards=self.guards + self.fresh, fresh=guards)


def _is_negated(pattern: Pattern) -> bool:
    return pattern.negated


@dataclass
class _Positions:
    """The positions of one pattern, or of one round of a group, in order."""

    pattern: Pattern
    rounds: list[int | list[_Positions]] = field(default_factory=list)
    until: tuple[int, ...] = ()
    """The conditions that end the pattern and the groups around it."""
    around: tuple[int, ...] = ()
    """Those that end the groups around it."""


class _Compiler:
    def __init__(self) -> None:
        self.names: list[str] = []
        self.conditions: list[Condition] = []
        self.edges: list[Edge] = []
        self.patterns: list[int] = []
        self.leaving: dict[int | None, list[int]] = {None: []}
        self.completes: dict[int | None, list[tuple[Guard, ...]]] = {}

    # ---- positions --------------------------------------------------------------------------------------------------

    def place(self, sequence: Sequence[Pattern], around: tuple[int, ...]) -> list[_Positions]:
        """Create the positions of a sequence, in order."""
        return [self._place(pattern, around) for pattern in sequence]

    def _place(self, pattern: Pattern, around: tuple[int, ...]) -> _Positions:
        until = around if pattern.stop_condition is None else (*around, self.condition(pattern.stop_condition))
        placed = _Positions(pattern, until=until, around=around)
        if not pattern.negated:
            for _ in range(pattern.least if pattern.most is None else pattern.most):
                placed.rounds.append(
                    self.place(pattern.content, until) if isinstance(pattern, GroupPattern) else self._position(pattern.name)
                )
        return placed

    def _position(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
        position = len(self.patterns)
        self.patterns.append(self.names.index(name))
        self.leaving[position] = []
        return position

    def condition(self, condition: Condition | None) -> int:
        """The number of a condition."""
        if condition is None:
            return ALWAYS
        if condition not in self.conditions:
            self.conditions.append(condition)
        return self.conditions.index(condition)

    # ---- edges ------------------------------------------------------------------------------------------------------

    def link(self, sequence: list[_Positions], opens: list[_Open], contiguity: Contiguity) -> list[_Open]:
        """Lead open ways through a sequence, whose first pattern has this contiguity; returns those that leave it."""
        inside = self._inside(sequence)
        return inside + self._enter(sequence, opens, contiguity)

    def _enter(self, sequence: list[_Positions], opens: list[_Open], contiguity: Contiguity) -> list[_Open]:
        """Lead open ways to the first positions of a sequence; returns those that pass all of it by."""
        for number, placed in enumerate(sequence):
            opens = self._pass(placed, opens, placed.pattern.contiguity if number else contiguity)
        return opens

    def _pass(self, placed: _Positions, opens: list[_Open], contiguity: Contiguity) -> list[_Open]:
        """Lead open ways to a pattern; returns those that pass it by."""
        pattern = placed.pattern
        if pattern.negated:
            return [self._across(pattern, each) for each in opens]
        passed = [each.passing(self._guards(placed)) for each in opens] if pattern.is_optional else []
        return self._into(placed, 0, opens, contiguity) + passed

    def _across(self, pattern: Pattern, way: _Open) -> _Open:
        condition = (self.condition(pattern.condition),)
        if pattern.contiguity is Contiguity.STRICT:
            return replace(way, at_once=way.at_once + condition)
        return replace(way, stops=way.stops + condition)

    def _into(self, placed: _Positions, number: int, opens: list[_Open], contiguity: Contiguity) -> list[_Open]:
        """Lead open ways to one of a pattern's positions, or rounds; returns those that pass the round by."""
        position = placed.rounds[number]
        if isinstance(position, list):
            return self._enter(position, opens, contiguity)
        pattern = placed.pattern
        for way in opens:
            edge = Edge(
                target=position,
                condition=self.condition(pattern.condition),
                contiguity=contiguity,
                refused=placed.until,
                closed=placed.until if number or way.source == position else placed.around,
                stops=way.stops,
                stops_at_once=way.at_once,
                guards=way.guards + way.fresh,
                gap=_shortest(way.gap, pattern.gap if way.source is not None else None),
            )
            self._leave(way.source, edge)
        return []

    def _leave(self, source: int | None, edge: Edge) -> None:
        number = self.edge(edge)
        if number not in self.leaving[source]:
            self.leaving[source].append(number)

    def edge(self, edge: Edge) -> int:
        """The number of an edge."""
        if edge not in self.edges:
            self.edges.append(edge)
        return self.edges.index(edge)

    def _inside(self, sequence: list[_Positions], behind: Sequence[Pattern] = ()) -> list[_Open]:
        """Link the positions within a sequence, with NOT patterns behind it; returns the ways that leave it."""
        opens: list[_Open] = []
        for number, placed in enumerate(sequence):
            if placed.pattern.negated:
                opens = [self._across(placed.pattern, each) for each in opens]
            else:
                rest = [each.pattern for each in sequence[number + 1 :]]
                following = list(itertools.takewhile(_is_negated, rest))
                if len(following) == len(rest):
                    following += behind
                inside = self._repeats(placed, following)
                opens = inside + (self._pass(placed, opens, placed.pattern.contiguity) if number else [])
        return opens

    def _repeats(self, placed: _Positions, following: Sequence[Pattern]) -> list[_Open]:
        """Link the positions, or rounds, of one pattern; returns the ways that leave it.

        NOT patterns behind it stop the repetition, too: from the first event that could be the last one on. They stop that
        of the last pattern in a group, but what a greedy pattern takes does not count for ``not_next``.
        """
        pattern, exits = placed.pattern, []
        ways: list[_Open] = []
        for number, position in enumerate(placed.rounds):
            if isinstance(position, list):
                inside = self._inside(position, self._stopping(following, pattern, may_leave=number + 1 >= pattern.least))
            else:
                inside = [_Open(position)]
            stopped = self._again(ways, pattern, self._stopping(following, pattern, may_leave=number >= pattern.least))
            ways = inside + (self._into(placed, number, stopped, pattern.inner) if number else [])
            if number + 1 >= pattern.least:
                exits += ways
        if pattern.most is None:
            stopping = self._stopping(following, pattern, may_leave=True)
            self._into(placed, len(placed.rounds) - 1, self._again(ways, pattern, stopping), pattern.inner)
        guards = self._guards(placed)
        return [replace(each, fresh=each.fresh + guards) for each in exits]

    def _stopping(self, following: Sequence[Pattern], before: Pattern, may_leave: bool) -> list[Pattern]:
        """The NOT patterns behind a pattern that stop its repetition."""
        may_leave = may_leave and not before.is_greedy
        return [each for each in following if may_leave or each.contiguity is not Contiguity.STRICT]

    def _again(self, ways: list[_Open], pattern: Pattern, stopping: Sequence[Pattern]) -> list[_Open]:
        """The ways that repeat a pattern, across the NOT patterns that stop its repetition."""
        for each in stopping:
            ways = [self._across(each, way) for way in ways]
        return [replace(way, gap=_shortest(way.gap, pattern.inner_gap)) for way in ways]

    def _guards(self, placed: _Positions) -> tuple[Guard, ...]:
        pattern = placed.pattern
        if not pattern.is_greedy or pattern.least == pattern.most:
            return ()
        stop = None if pattern.stop_condition is None else self.condition(pattern.stop_condition)
        return ((self.condition(pattern.condition), stop),)

    # ---- the end ----------------------------------------------------------------------------------------------------

    def finish(self, opens: list[_Open], last: Pattern) -> None:
        """Complete the match at the end of open ways."""
        for way in opens:
            if way.source is None:
                continue  # without an event there is no match
            if not last.negated:
                ways = self.completes.setdefault(way.source, [])
                if way.guards not in ways:
                    ways.append(way.guards)
                continue
            if last.contiguity is Contiguity.STRICT:
                edge = Edge(AT_NEXT, ALWAYS, Contiguity.STRICT)
            else:
                edge = Edge(AT_TIMEOUT, ALWAYS, Contiguity.ANY, gap=last.gap)
            guards = way.guards + way.fresh
            self._leave(way.source, replace(edge, stops=way.stops, stops_at_once=way.at_once, guards=guards))

    def variants(self) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """Create the edges that a partial match moves to while it waits; returns them by edge."""
        after: list[int] = []
        lifted: list[tuple[int, ...]] = []
        number = 0
        while number < len(self.edges):
            edge = self.edges[number]
            after.append(self.edge(replace(edge, stops_at_once=())))
            guards = edge.guards
            lifted.append(tuple(self.edge(replace(edge, guards=guards[:n] + guards[n + 1 :])) for n in range(len(guards))))
            number += 1
        return tuple(after), tuple(lifted)


def automaton(pattern: Pattern) -> Automaton:
    """Compile the pattern sequence that ends with a pattern.

    Raises:
        ConfigurationError: the sequence is not valid.
    """
    sequence = pattern.sequence()
    window = min((each.window for each in sequence if each.window is not None), default=None)
    _check(sequence, window)
    compiler = _Compiler()
    placed = compiler.place(sequence, ())
    opens = compiler.link(placed, [_Open(None)], Contiguity.STRICT)
    compiler.finish(opens, sequence[-1])
    after, lifted = compiler.variants()
    positions = range(len(compiler.patterns))
    return Automaton(
        names=tuple(compiler.names),
        conditions=tuple(compiler.conditions),
        edges=tuple(compiler.edges),
        begin=tuple(compiler.leaving[None]),
        patterns=tuple(compiler.patterns),
        follow=tuple(tuple(compiler.leaving[each]) for each in positions),
        completes=tuple(tuple(compiler.completes.get(each, ())) for each in positions),
        after=after,
        lifted=lifted,
        window=window,
        negated=tuple(_negated(sequence)),
    )


def _negated(sequence: Sequence[Pattern]) -> Iterator[str]:
    for pattern in sequence:
        if pattern.negated:
            yield pattern.name
        elif isinstance(pattern, GroupPattern):
            yield from _negated(pattern.content)


def _check(sequence: Sequence[Pattern], window: int | None) -> None:
    names: list[str] = []
    _check_names(sequence, names)
    last = sequence[-1]
    if last.negated and last.contiguity is not Contiguity.STRICT and window is None and last.gap is None:
        raise ConfigurationError(
            f"A pattern sequence cannot end with not_followed_by({last.name!r}) without within(...): no event would ever "
            "complete a match."
        )
    skip = last.skip_strategy
    if skip.pattern_name is not None and skip.pattern_name not in names:
        raise ConfigurationError(
            f"{skip.kind.value}({skip.pattern_name!r}) names no pattern of the sequence, which has {', '.join(names)}."
        )
    _check_gaps(sequence, window, last)


def _check_names(sequence: Iterable[Pattern], names: list[str]) -> None:
    for pattern in sequence:
        if isinstance(pattern, GroupPattern):
            _check_names(pattern.content, names)
        elif pattern.name in names:
            raise ConfigurationError(f"Two patterns of the sequence are named {pattern.name!r}; matches need unique names.")
        else:
            names.append(pattern.name)


def _shortest(*gaps: int | None) -> int | None:
    return min((gap for gap in gaps if gap is not None), default=None)


def _check_gaps(sequence: Iterable[Pattern], window: int | None, last: Pattern) -> None:
    for pattern in sequence:
        if isinstance(pattern, GroupPattern):
            _check_gaps(pattern.content, window, last)
        if window is not None and pattern.inner_gap is not None and pattern.inner_gap > window:
            raise ConfigurationError(
                f"The time between two events of {pattern.name!r}, {pattern.inner_gap} ms, is longer than that of the whole "
                f"match, {window} ms."
            )
        if pattern.gap is None:
            continue
        if pattern.negated and (pattern is not last or pattern.contiguity is Contiguity.STRICT):
            raise ConfigurationError(
                f"within(PREVIOUS_AND_CURRENT) does not apply to the NOT pattern {pattern.name!r}: set it on the pattern "
                "after it."
            )
        if window is not None and pattern.gap > window:
            raise ConfigurationError(
                f"within(): the time of {pattern.name!r} since the previous event, {pattern.gap} ms, is longer than that of "
                f"the whole match, {window} ms."
            )
