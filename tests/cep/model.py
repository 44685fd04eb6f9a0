"""The matches of a pattern sequence by definition, in plain Python: all words of the pattern, all choices of events.

A *word* is a way through the sequence: which patterns are taken, how often. Each of its *slots* takes an event, and says
what may lie between that and the event of the slot before. A match is a word with an event for each slot, in order, so that
every slot holds. Nothing here knows of automata, partial matches or buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .patterns import Piece

Event = tuple[str, int]
"""Letters and time."""
Path = tuple[tuple[tuple[int, ...], int], ...]
"""For each slot of a match: its place in the pattern, and the number of its event."""

BEHIND = ((1 << 30,), 0)
"""Sorts behind every slot: of two paths that begin alike, the longer one comes first."""


@dataclass(frozen=True)
class Slot:
    place: tuple[int, ...]
    name: str
    letters: str
    contiguity: str
    refused: str
    closed: str
    gap: int | None
    nots: tuple[Piece, ...] = ()
    guards: tuple[tuple[str, str], ...] = ()


def words(pieces: Sequence[Piece], most: int) -> Iterator[tuple[list[Slot], list[Piece], list[Any]]]:
    """The words of at most so many slots: slots, the NOT patterns behind the last one, and the guards at the end."""
    for tokens in _sequences(pieces, most, "", (), ">", []):
        slots: list[Slot] = []
        nots: list[Piece] = []
        active: list[Any] = []
        fresh: list[Any] = []
        for kind, what in tokens:
            if kind == "not":
                nots.append(what)
            elif kind == "left":
                fresh += what
            elif kind == "passed":
                active, fresh = active + fresh, list(what)
            else:
                slots.append(Slot(*what, nots=tuple(nots), guards=tuple(active + fresh)))
                nots, active, fresh = [], [], []
        if slots:
            # An optional pattern at the end, greedy or not, completes the match also without an event.
            yield slots, nots, active + fresh if pieces[-1].negated else active


def _sequences(
    pieces: Sequence[Piece], most: int, around: str, place: tuple[int, ...], entry: str, behind: list[Piece]
) -> Iterator[list[Any]]:
    """``behind``: the NOT patterns right behind the sequence, which stop the repetition of its last pattern, too."""
    if not pieces:
        yield []
        return
    *before, last = pieces
    here = (*place, len(before))
    for first in _sequences(before, most, around, place, entry, [last, *behind] if last.negated else []):
        if last.negated:
            yield [*first, ("not", last)]
            continue
        how = last.how if before else entry
        if last.optional:
            yield [*first, ("passed", _guards(last))]
        taken = sum(kind == "slot" for kind, _ in first)
        yield from ([*first, *rest] for rest in _rounds(last, most - taken, around, here, how, behind))


def _rounds(
    piece: Piece, most: int, around: str, place: tuple[int, ...], how: str, behind: list[Piece]
) -> Iterator[list[Any]]:
    until = around + piece.until
    highest = most if piece.most is None else min(most, piece.most)
    for count in range(piece.least, highest + 1):
        for tokens in _repeat(piece, count, most, around, until, place, how, behind):
            yield [*tokens, ("left", _guards(piece))]


def _repeat(
    piece: Piece, count: int, most: int, around: str, until: str, place: tuple[int, ...], how: str, behind: list[Piece]
) -> Iterator[list[Any]]:
    if count == 0:
        yield []
        return
    last = piece.least if piece.most is None else piece.most
    for before in _repeat(piece, count - 1, most, around, until, place, how, behind):
        nots = [("not", each) for each in _stopping(piece, behind, count - 1)] if count > 1 else []
        contiguity = how if count == 1 else piece.inner
        here = (*place, min(count, last))
        if piece.group:
            for tokens in _sequences(piece.group, most, until, here, contiguity, _stopping(piece, behind, count)):
                if sum(kind == "slot" for kind, _ in [*before, *tokens]) <= most:
                    yield [*before, *nots, *(_sooner(tokens, piece.inner_gap) if count > 1 else tokens)]
        else:
            closed = around if count == 1 else until
            gap = piece.gap if count == 1 else _shortest(piece.gap, piece.inner_gap)
            yield [*before, *nots, ("slot", (here, piece.name, piece.letters, contiguity, until, closed, gap))]


def _sooner(tokens: list[Any], gap: int | None) -> list[Any]:
    """Limit the time before the first slot."""
    first = next(at for at, (kind, _) in enumerate(tokens) if kind == "slot")
    *slot, of_its_own = tokens[first][1]
    return [*tokens[:first], ("slot", (*slot, _shortest(of_its_own, gap))), *tokens[first + 1 :]]


def _shortest(*gaps: int | None) -> int | None:
    return min((each for each in gaps if each is not None), default=None)


def _stopping(piece: Piece, behind: list[Piece], count: int) -> list[Piece]:
    """The NOT patterns behind a pattern that stop its repetition, after so many events or rounds."""
    return [each for each in behind if each.how == "!~" or (count >= piece.least and not piece.greedy)]


def least(pieces: Sequence[Piece]) -> int:
    """The slots of a word that repeats no more than it must."""
    return sum(each.least * (least(each.group) or 1) for each in pieces)


def _guards(piece: Piece) -> list[tuple[str, str]]:
    return [(piece.letters, piece.until)] if piece.greedy and piece.least != piece.most else []


class Model:
    """The matches of a sequence in some events, which are followed by the end of time."""

    def __init__(self, pieces: Sequence[Piece], events: Sequence[Event], within: int | None) -> None:
        self.pieces = pieces
        self.events = events
        self.within = within
        self.matches: dict[Path, tuple[int, list[tuple[str, int]]]] = {}
        """By path: how many events had come when it was complete (one more: after the last), and its events by name."""
        self.timed_out: set[tuple[tuple[str, int], ...]] = set()
        for slots, nots, guards in words(pieces, len(events)):
            for path in self._paths(slots, (), 0):
                self._finish(slots, path, nots, guards)
        waiting = set()
        self.tells_time_outs = not any(piece.group and (piece.repeats or piece.optional) for piece in pieces)
        """Whether `timed_out` is found: groups that repeat have too many words."""
        if not self.tells_time_outs:
            return
        # A partial match may wait for an event that does not come, in a word that has to go on behind it.
        for slots, _, _ in words(pieces, len(events) + 1 + least(pieces)):
            waiting.update(tuple(slots[: at + 1]) for at in range(1, len(slots)))
            if pieces[-1].how == "!>" and within is not None:
                self._miss_the_next(slots)
        for some in waiting:
            self._time_out(some)

    def _has(self, number: int, letters: str) -> bool:
        return not set(letters).isdisjoint(self.events[number][0])

    def _time(self, number: int) -> int:
        return self.events[number][1]

    def _paths(self, slots: Sequence[Slot], taken: tuple[int, ...], at: int) -> Iterator[tuple[int, ...]]:
        if at == len(slots):
            yield taken
            return
        first = taken[-1] + 1 if taken else 0
        for number in range(first, len(self.events)):
            if self._holds(slots[at], taken, number):
                yield from self._paths(slots, (*taken, number), at + 1)

    def _holds(self, slot: Slot, taken: tuple[int, ...], number: int) -> bool:
        """Whether a slot may take an event after those that were taken."""
        if not self._has(number, slot.letters) or self._has(number, slot.refused):
            return False
        if not taken:
            return self._guarded(slot.guards, [number]) and not any(self._has(number, each.letters) for each in slot.nots)
        if self.within is not None and self._time(number) - self._time(taken[0]) >= self.within:
            return False
        if slot.gap is not None and self._time(number) - self._time(taken[-1]) >= slot.gap:
            return False
        passed = range(taken[-1] + 1, number)
        return (
            self._passes(slot, passed)
            and self._stopped(slot.nots, [*passed, number]) is False
            and self._guarded(slot.guards, [*passed, number])
        )

    def _passes(self, slot: Slot, passed: Sequence[int]) -> bool:
        """Whether events may lie before the one that a slot takes."""
        if slot.contiguity == ">" and len(passed) > 0:
            return False
        if slot.contiguity == "~" and any(self._has(each, slot.letters) for each in passed):
            return False
        return not any(self._has(each, slot.closed) for each in passed)

    def _stopped(self, nots: Sequence[Piece], seen: Sequence[int]) -> bool:
        """Whether a NOT pattern accepts one of the events behind the last one taken."""
        return any(self._has(each, piece.letters) for piece in nots for each in (seen[:1] if piece.how == "!>" else seen))

    def _guarded(self, guards: Sequence[tuple[str, str]], seen: Sequence[int]) -> bool:
        """Whether no greedy pattern, up to its until, accepts one of these events."""
        for letters, until in guards:
            for each in seen:
                if self._has(each, until):
                    break
                if self._has(each, letters):
                    return False
        return True

    def _until(self, taken: Sequence[int], gap: int | None) -> int | None:
        """When the time of a partial match is over."""
        times = [] if self.within is None else [self._time(taken[0]) + self.within]
        return min([*times, *([] if gap is None else [self._time(taken[-1]) + gap])], default=None)

    def _rest(self, taken: Sequence[int], end: int | None) -> list[int]:
        """The events behind the last one taken, before a time."""
        return [each for each in range(taken[-1] + 1, len(self.events)) if end is None or self._time(each) < end]

    def _finish(self, slots: Sequence[Slot], taken: tuple[int, ...], nots: Sequence[Piece], guards: Sequence[Any]) -> None:
        path: Path = tuple((slot.place, number) for slot, number in zip(slots, taken, strict=True))
        named = [(slot.name, number) for slot, number in zip(slots, taken, strict=True)]
        last = self.pieces[-1]
        if not last.negated:
            if self._guarded([(letters, "") for letters, _ in guards], [taken[-1]]):
                self.matches[path] = (taken[-1] + 1, named)
            return
        end = self._until(taken, last.gap if last.how == "!~" else None)
        rest = self._rest(taken, end)
        if last.how == "!>":
            if rest and not self._stopped(nots, rest[:1]) and self._guarded(guards, rest[:1]):
                self.matches[path] = (rest[0] + 1, named)
        elif not self._stopped(nots, rest) and self._guarded(guards, rest):
            come = next((at for at, event in enumerate(self.events) if end is not None and event[1] >= end), None)
            self.matches[path] = (len(self.events) + 1 if come is None else come, named)

    def _time_out(self, slots: Sequence[Slot]) -> None:
        """Find the partial matches that wait for the last of these slots until their time is over."""
        *before, slot = slots
        for taken in self._paths(before, (), 0):
            end = self._until(taken, slot.gap)
            if end is None:
                continue
            rest = self._rest(taken, end)
            if self._passes(slot, rest) and not self._stopped(slot.nots, rest) and self._guarded(slot.guards, rest):
                self.timed_out.add(tuple((each.name, number) for each, number in zip(before, taken, strict=True)))

    def _miss_the_next(self, slots: Sequence[Slot]) -> None:
        """Find the partial matches that only lack a next event, which would have to come in time."""
        for taken in self._paths(slots, (), 0):
            if not self._rest(taken, self._until(taken, None)):
                self.timed_out.add(tuple((each.name, number) for each, number in zip(slots, taken, strict=True)))

    def skipping(self, first_kept: Callable[[int, dict[str, list[int]]], int]) -> list[list[tuple[str, int]]]:
        """The matches with a skip strategy, in order, if every partial match has an end: a match drops those that begin
        before an event and are not told yet. They are told in the order of their first events.
        """
        told: list[list[tuple[str, int]]] = []
        kept = 0
        order = sorted(self.matches.items(), key=lambda each: (each[0][0][1], each[1][0], (*each[0], BEHIND)))
        for path, (_, named) in order:
            start = path[0][1] + 1
            if start < kept:
                continue
            told.append(named)
            grouped: dict[str, list[int]] = {}
            for name, number in named:
                grouped.setdefault(name, []).append(number + 1)
            kept = max(kept, first_kept(start, grouped))
        return told
