"""The timers of one service as a family of the key space: their changes in deltas and dumps.

A piece holds the timers of all buckets together, by key group (form: `holdfast.state.timers.timer_chunks`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from holdfast.checkpoint.parsing import parsing
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.store.ordered import OrderedStore, Writes
from holdfast.state.stored.delta import Change, Piece, cut
from holdfast.state.stored.layout import section
from holdfast.state.timers.timer_chunks import (
    GroupsOf,
    TimerChunks,
    TimerList,
    owners_of,
    pack_change,
    timers_by_group,
    unpack_change,
)
from holdfast.state.timers.timers import BUCKET_BITS, UNBOUNDED, Timer, TimerQueue

__all__ = ["TimerFamily"]

_PIECE = 4096
"""The most timers of one key group per piece."""
_ENOUGH = 512
"""Timers per piece of several key groups."""
_DENSE = 16_384
"""Number of timers from which a bucket gets pieces of its own."""
_DUMPED = 1 << 17
"""Timers held in memory at a time during a dump."""
_REPLAYED = 1 << 18
"""Changed timers held in memory at a time during a restore."""


class TimerFamily(TimerQueue):
    """The timers of one service, with their stored form."""

    def __init__(
        self, state: int, store: OrderedStore, groups_of: GroupsOf, *, namespaced: bool = False, bound: int = UNBOUNDED
    ) -> None:
        """``namespaced``: a timer's owner is a pair of key and namespace."""
        self._chunks = TimerChunks(state, store, groups_of, namespaced)
        super().__init__(self._chunks, bound)
        self._section = section(state)
        self.groups_of = groups_of
        """Returns the key groups of keys."""
        self._namespaced = namespaced
        self._none = TimerList.of((), namespaced)
        self._changed: dict[Timer, bool] = {}
        """In a restore: the timers that the applied changes touched, and whether they exist afterwards."""

    def collect(self) -> Sequence[Change]:
        """At the barrier: drain the changes since the last one, in stored form."""
        pieces: list[Piece] = []
        few_added: list[Timer] = []
        few_removed: list[Timer] = []
        for added, removed in self.drain():
            if len(added) + len(removed) < _DENSE:
                few_added += added
                few_removed += removed
            else:
                pieces += self._pieces(added, True)
                pieces += self._pieces(removed, False)
        pieces += self._pieces(few_added, True)
        pieces += self._pieces(few_removed, False)
        pieces.sort(key=lambda piece: piece.first)
        return [Change(self._section, False, pieces)] if pieces else []

    def apply(self, change: Change, groups: KeyGroupRange | None) -> None:
        """Apply a change of a completed epoch; with ``groups``, only timers of keys in these key groups."""
        for piece in change.pieces:
            with parsing(piece.where, "a piece of timers"):
                change_of_timers = unpack_change(piece.data)
                if any((each.namespaces is not None) != self._namespaced for each in change_of_timers):
                    raise ValueError("timers with namespaces, or without, of a state that has others")
                added, removed = (each.timers() for each in change_of_timers)
            if groups is not None and not (piece.first in groups and piece.last in groups):
                added, removed = self._clipped(added, groups), self._clipped(removed, groups)
            self._changed.update(dict.fromkeys(removed, False))
            self._changed.update(dict.fromkeys(added, True))
            if len(self._changed) > _REPLAYED:
                self.applied()

    def applied(self) -> None:
        """Complete the changes applied so far: only their result reaches the queue or the store."""
        changed, self._changed = self._changed, {}
        if self._bound < UNBOUNDED:
            self._store_all(changed)
            return
        self.replay([timer for timer, there in changed.items() if there], [t for t, there in changed.items() if not there])
        self.drain()

    def writes(self, change: Change) -> Iterator[Writes]:
        """The pieces of a change as writes to the store, one row per timer."""
        for piece in change.pieces:
            added, removed = unpack_change(piece.data)
            puts = [(key, b"") for key in self._chunks.single_rows(added)]
            yield Writes([], puts, self._chunks.single_rows(removed))

    def single_rows(self) -> list[bytes]:
        """The keys of all timers in order, one row per timer."""
        return sorted(self._chunks.single_rows(TimerList.of(list(self.all()), self._namespaced)))

    def _store_all(self, changed: dict[Timer, bool]) -> None:
        """Write changes of timers to the store: each timer exists afterwards (True), or does not."""
        buckets: defaultdict[int, tuple[list[Timer], list[Timer]]] = defaultdict(lambda: ([], []))
        for timer, there in changed.items():
            buckets[timer[0] >> BUCKET_BITS][not there].append(timer)
        for bucket, (added, removed) in buckets.items():
            if added or self.holds(bucket):
                self._chunks.write(bucket, added, removed if self.holds(bucket) else ())
                self.mark_stored(bucket)

    def migration(self) -> Iterator[None]:
        """Do nothing: timers have no types."""
        return iter(())

    def dump(self) -> Iterator[Change]:
        """All timers, in the form that `apply` takes."""
        return self.portions(self.groups_of)

    def portions(self, groups_of: GroupsOf) -> Iterator[Change]:
        """All timers like `dump`, some at a time, in the key groups that ``groups_of`` returns."""
        timers = self.all()
        while part := list(islice(timers, _DUMPED)):
            yield Change(self._section, False, list(self._pieces(part, True, groups_of)))

    def _pieces(self, timers: Collection[Timer], added: bool, groups_of: GroupsOf | None = None) -> Iterator[Piece]:
        keys, _ = owners_of(timers, self._namespaced)
        for runs, part in cut((groups_of or self.groups_of)(keys), timers, _ENOUGH, _PIECE):
            stored = TimerList.of(part, self._namespaced)
            data = pack_change(stored, self._none) if added else pack_change(self._none, stored)
            yield Piece(runs[0], runs[-2], data)

    def _clipped(self, timers: list[Timer], groups: KeyGroupRange) -> list[Timer]:
        """The timers of keys in these key groups."""
        by_group = timers_by_group(timers, self.groups_of, self._namespaced)
        return [timer for group, members in by_group.items() if group in groups for timer in members]
