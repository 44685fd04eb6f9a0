"""Matcher: from a key's partial matches and an event to its next partial matches, and the matches found. Pure.

The events of a key come in order, and time does not go back. The order of partial matches is that of their first events;
of those with one first event, the one that accepts more events earlier comes first. Matches are found in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from holdfast.cep.automaton import ALWAYS, AT_NEXT, AT_TIMEOUT, Automaton
from holdfast.cep.buffer import ROOT, SharedBuffer
from holdfast.cep.conditions import Context, tester
from holdfast.cep.pattern import Contiguity
from holdfast.cep.skip import AfterMatchSkipStrategy

__all__ = ["Match", "MatchState", "Matcher", "Partial", "TimedOut"]

Match = dict[str, list[Any]]
"""The events of a match by pattern; patterns in the order of their first events."""

Partial = tuple[int, int, int, int, int, bool]
"""A partial match: the edge where it waits, its node, the number and time of its first event, the time of its last one, and
whether its time has been over at another edge before, which was told.
"""

Found = tuple[int, int]
"""A match that is held back: the number of its first event, and its node."""

T = TypeVar("T")
_NO_PATTERN = -1
"""The number of NOT patterns, which accept no event."""
_RELAXED, _ANY = Contiguity.RELAXED, Contiguity.ANY


class TimedOut(NamedTuple):
    """A partial match whose time is over."""

    match: Match
    timestamp: int
    """When its time was over, in ms."""


@dataclass
class MatchState:
    """What a matcher remembers of a key, beside its shared buffer."""

    partial: list[Partial] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    """Matches held back by partial matches that began before them (skip strategies)."""
    next_number: int = ROOT + 1
    """The number of the next event or node."""

    def __bool__(self) -> bool:
        return bool(self.partial or self.found)


class _Look(Context):
    """What a condition sees: the event's times, and the events on the path to a node."""

    __slots__ = ("_clock", "_numbers", "buffer", "node", "stamp")

    buffer: SharedBuffer
    node: int
    stamp: int

    def __init__(self, names: Sequence[str], negated: Sequence[str], clock: Callable[[], int]) -> None:
        self._numbers = {**dict.fromkeys(negated, _NO_PATTERN), **{name: number for number, name in enumerate(names)}}
        self._clock = clock

    def get_events_for_pattern(self, name: str) -> list[Any]:
        wanted = self._numbers.get(name)
        if wanted is None:
            raise ValueError(f"the sequence has no pattern named {name!r}; it has {', '.join(self._numbers)}")
        buffer = self.buffer
        return [buffer.event(event) for pattern, event in buffer.path(self.node) if pattern == wanted]

    def timestamp(self) -> int:
        return self.stamp

    def current_processing_time(self) -> int:
        return self._clock()


class Matcher:
    """Finds the matches of one automaton, for any number of keys."""

    def __init__(
        self, automaton: Automaton, skip: AfterMatchSkipStrategy, current_processing_time: Callable[[], int] = lambda: 0
    ) -> None:
        self._automaton = automaton
        self._skip = skip
        self._skips = skip.is_skip_strategy()
        self._tests = [tester(condition) for condition in automaton.conditions]
        self._undecided: list[bool | None] = [None] * len(self._tests)
        self._look = _Look(automaton.names, automaton.negated, current_processing_time)
        self._gaps = any(edge.gap is not None for edge in automaton.edges)
        self._verdicts: list[bool | None] = []
        self._event: Any = None

    # ---- an event ---------------------------------------------------------------------------------------------------

    def process(self, state: MatchState, buffer: SharedBuffer, event: Any, timestamp: int) -> tuple[list[Match], bool]:
        """Process the next event of a key, whose time `advance` has reached.

        Returns:
            The matches that it completes, and whether the state has changed.
        """
        self._verdicts = self._undecided[:]
        self._event = event
        look = self._look
        look.buffer, look.stamp = buffer, timestamp
        begun = [edge for edge in self._automaton.begin if self._meet(edge, ROOT)[0]]
        if not begun and not state.partial:
            return [], False
        step = _Step(self._automaton, state, buffer, event, timestamp, self._skips)
        for partial in state.partial:
            edge, node, start, started, *_ = partial
            accepted, after = self._meet(edge, node)
            target = self._automaton.edges[edge].target
            if target == AT_NEXT and accepted:
                step.complete(start, node)
            elif accepted:
                step.accept(target, node, start, started, self._completes(target, node))
            if after is None:
                step.end(node)
            elif after == edge:
                step.partial.append(partial)
            else:
                step.move(partial, after)
        for edge in begun:
            target = self._automaton.edges[edge].target
            step.accept(target, ROOT, 0, timestamp, self._completes(target, ROOT))
        step.store()
        if not self._skips:
            return step.matches, step.changed
        return self._emit(state, buffer), step.changed

    def _meet(self, number: int, node: int) -> tuple[bool, int | None]:
        """Offer the event to a partial match that waits at an edge.

        Returns:
            Whether the event is accepted, and the edge where the partial match waits on without it; None: nowhere.
        """
        edge = self._automaton.edges[number]
        holds = self._holds
        for stop in edge.stops:
            if holds(stop, node):
                return False, None
        for stop in edge.stops_at_once:
            if holds(stop, node):
                return False, None
        after = number
        at = 0
        for guard, until in edge.guards:
            if until is not None and holds(until, node):
                after = self._automaton.lifted[after][at]
            elif holds(guard, node):
                return False, None
            else:
                at += 1
        if edge.target == AT_TIMEOUT:
            return False, self._automaton.after[after]
        fits = holds(edge.condition, node)
        accepted = fits and not (edge.refused and any(holds(each, node) for each in edge.refused))
        contiguity = edge.contiguity
        if contiguity is not _ANY and (fits or contiguity is not _RELAXED):
            return accepted, None
        if edge.closed and any(holds(each, node) for each in edge.closed):
            return accepted, None
        return accepted, self._automaton.after[after]

    def _holds(self, number: int, node: int) -> bool:
        """Whether the event meets a condition, for the partial match at a node."""
        if number == ALWAYS:
            return True
        verdict = self._verdicts[number]
        if verdict is None:
            test, iterates = self._tests[number]
            if iterates:
                self._look.node = node
                return bool(test(self._event, self._look))
            verdict = self._verdicts[number] = bool(test(self._event))
        return verdict

    def _completes(self, position: int, node: int) -> bool:
        """Whether a match may be complete with the event at this position, behind a node."""
        for guards in self._automaton.completes[position]:
            if not any(self._holds(guard, node) for guard, _ in guards):
                return True
        return False

    # ---- time -------------------------------------------------------------------------------------------------------

    def deadline(self, state: MatchState) -> int | None:
        """The time at which the next partial match is over; None if there is none."""
        window, partial = self._automaton.window, state.partial
        if not partial:
            return None
        first = None if window is None else partial[0][3] + window
        if self._gaps:
            edges = self._automaton.edges
            for edge, _, _, _, last, _ in partial:
                gap = edges[edge].gap
                if gap is not None and (first is None or last + gap < first):
                    first = last + gap
        return first

    def advance(self, state: MatchState, buffer: SharedBuffer, now: int) -> tuple[list[Match], list[TimedOut], bool]:
        """Advance a key's time: end the partial matches whose time is over.

        Returns:
            The matches that this completes, the partial matches that time out, and whether the state has changed.
        """
        deadline = self.deadline(state)
        if deadline is None or deadline > now:
            return [], [], False
        matches: list[Match] = []
        over: list[TimedOut] = []
        kept: list[Partial] = []
        told = set()
        ended = []
        for partial in state.partial:
            edge, node, start, _, _, was_told = partial
            when = self._over(partial)
            if when is None or when > now:
                kept.append(partial)
                continue
            if self._automaton.edges[edge].target == AT_TIMEOUT:
                if self._skips:
                    state.found.append((start, node))
                    continue
                matches.append(self._match(buffer, node))
            elif not was_told and node not in told:
                told.add(node)
                over.append(TimedOut(self._match(buffer, node), when))
            ended.append(node)
        for node in ended:
            buffer.release(node)
        state.partial = [(*each[:5], each[5] or each[1] in told) for each in kept]
        if self._skips:
            state.found.sort(key=_first)
            matches = self._emit(state, buffer)
        return matches, over, True

    def _over(self, partial: Partial) -> int | None:
        """When the time of a partial match is over."""
        edge, _, _, started, last, _ = partial
        gap, window = self._automaton.edges[edge].gap, self._automaton.window
        if gap is None:
            return None if window is None else started + window
        return last + gap if window is None else min(last + gap, started + window)

    # ---- matches ----------------------------------------------------------------------------------------------------

    def _match(self, buffer: SharedBuffer, node: int) -> Match:
        return _grouped(self._automaton.names, ((pattern, buffer.event(event)) for pattern, event in buffer.path(node)))

    def _emit(self, state: MatchState, buffer: SharedBuffer) -> list[Match]:
        """Take the matches that no partial match with an earlier beginning holds back, and skip what they discard."""
        matches = []
        while state.found and not (state.partial and state.partial[0][2] < state.found[0][0]):
            start, node = state.found.pop(0)
            first = self._skip.first_kept(start, _grouped(self._automaton.names, buffer.path(node)))
            matches.append(self._match(buffer, node))
            gone = [each[1] for each in state.partial if each[2] < first]
            gone += [each[1] for each in state.found if each[0] < first]
            state.partial = [each for each in state.partial if each[2] >= first]
            state.found = [each for each in state.found if each[0] >= first]
            for each in (node, *gone):
                buffer.release(each)
        return matches


def _first(found: Found) -> int:
    return found[0]


def _grouped(names: Sequence[str], path: Iterable[tuple[int, T]]) -> dict[str, list[T]]:
    """What is on a path, by the name of its pattern."""
    grouped: dict[str, list[T]] = {}
    for pattern, each in path:
        grouped.setdefault(names[pattern], []).append(each)
    return grouped


class _Step:
    """The transition of one key by one event: collects the partial matches, nodes and matches that come of it."""

    __slots__ = (
        "_automaton",
        "_buffer",
        "_ended",
        "_event",
        "_found",
        "_nodes",
        "_number",
        "_skips",
        "_state",
        "_timestamp",
        "changed",
        "matches",
        "partial",
    )

    def __init__(
        self, automaton: Automaton, state: MatchState, buffer: SharedBuffer, event: Any, timestamp: int, skips: bool
    ) -> None:
        self._automaton = automaton
        self._state = state
        self._buffer = buffer
        self._event = event
        self._timestamp = timestamp
        self._skips = skips
        self._number = 0
        self._nodes = 0
        self._found: list[Found] = []
        self._ended: list[int] = []
        self.partial: list[Partial] = []
        self.matches: list[Match] = []
        self.changed = False

    def accept(self, position: int, node: int, start: int, started: int, completes: bool) -> None:
        """Append the event to the path of a node; ``start`` 0: the event is its first one."""
        follow = self._automaton.follow[position]
        if self._number == 0:
            self._number = self._next()
        start = start or self._number
        held = completes and self._skips
        if completes and not held:
            path = [(pattern, self._buffer.event(event)) for pattern, event in self._buffer.path(node)]
            path.append((self._automaton.patterns[position], self._event))
            self.matches.append(_grouped(self._automaton.names, path))
        references = len(follow) + held
        if references == 0:
            return
        self.changed = True
        new = self._next()
        self._buffer.refer(node)
        self._buffer.add(new, self._automaton.patterns[position], self._number, node, references)
        self._nodes += 1
        for edge in follow:
            self.partial.append((edge, new, start, started, self._timestamp, False))
        if held:
            self._found.append((start, new))

    def complete(self, start: int, node: int) -> None:
        """Complete the match at a node, which the event does not belong to."""
        if self._skips:
            self._buffer.refer(node)
            self._found.append((start, node))
        else:
            buffer = self._buffer
            path = ((pattern, buffer.event(event)) for pattern, event in buffer.path(node))
            self.matches.append(_grouped(self._automaton.names, path))

    def end(self, node: int) -> None:
        """End a partial match at a node."""
        self.changed = True
        self._ended.append(node)

    def move(self, partial: Partial, edge: int) -> None:
        """Let a partial match wait at another edge."""
        self.changed = True
        self.partial.append((edge, *partial[1:]))

    def store(self) -> None:
        """Write the collected changes to the state and the buffer."""
        if self._nodes:
            self._buffer.hold(self._number, self._event, self._nodes)
        for node in self._ended:
            self._buffer.release(node)
        if self.changed:
            self._state.partial = self.partial
        if self._found:
            self._state.found = sorted(self._state.found + self._found, key=_first)

    def _next(self) -> int:
        number = self._state.next_number
        self._state.next_number += 1
        return number
