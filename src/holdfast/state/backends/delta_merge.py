"""Merges adjacent deltas into fewer ones with the same effect.

Only the newest version of each row and entry is kept, still encoded. Timers take a few bytes; their pieces are kept as they
are, in order. If nearly all of the first deltas would be kept, the others are concatenated instead: one file with the pieces
as they are stored.

Deltas are compressed, so they take many times their file size in memory. A reader holds much of a delta in memory, so a
merge of many deltas yields several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast.checkpoint.handles import Handle
from holdfast.state.cells.row_pieces import NewestRows
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.stored.delta import Change, Piece, StoredDelta, in_memory
from holdfast.state.stored.delta_files import DeltaFiles
from holdfast.state.stored.entry_pieces import newest_entries
from holdfast.state.stored.layout import Section
from holdfast.state.stored.schema import ENTRIES, ROWS, VALUES

__all__ = ["DeltaMerge", "merged"]

_AT_ONCE = 32 << 20
"""Limit of the memory of the deltas merged into one, in bytes; a larger merge yields several."""
_LEAST = 8
"""Minimum number of deltas merged into one, whatever their memory; so a merge leaves far fewer."""
_KEPT = 0.75
"""Merge deltas while at most this part of their content is kept; otherwise concatenate them."""
_ROW = 250
"""Overhead of a row in memory, in bytes: key, tuple, and place in a dictionary."""


def merged(
    log: DeltaFiles,
    deltas: Sequence[Handle],
    new_merge: Callable[[], DeltaMerge],
    new_path: Callable[[], str],
    pause: Callable[[], object],
) -> list[Handle]:
    """Merge adjacent deltas; returns those that replace them.

    Args:
        log: Reads and stores deltas.
        deltas: The deltas, in order.
        new_merge: Returns an empty merge.
        new_path: Returns a unique storage path for a delta.
        pause: Called after each delta; it may raise to cancel the merge.

    Raises:
        CorruptFile: a file is missing or altered.
        StorageError: the storage refused an access, or the retry budget ran out.
    """
    stored: list[Handle] = []
    at, kept = 0, 0.0
    while at < len(deltas):
        first, merge = at, new_merge() if kept <= _KEPT else DeltaJoin()
        while at < len(deltas) and (at < first + _LEAST or merge.memory <= _AT_ONCE):
            merge.read(log, deltas[at])
            at += 1
            pause()
        stored.append(merge.store(log, new_path()))
        kept = merge.kept
        pause()
    return stored


class DeltaJoin:
    """Concatenates deltas, added in order."""

    kept = 1.0

    def __init__(self) -> None:
        self._deltas: list[StoredDelta] = []
        self.memory = 0
        """The memory of the added deltas' content, in bytes: readers of the concatenated delta may hold all of it."""

    def read(self, log: DeltaFiles, delta: Handle) -> None:
        """Add the next delta."""
        self._deltas.append(log.stored(delta))
        self.memory += self._deltas[-1].memory

    def store(self, log: DeltaFiles, path: str) -> Handle:
        """Store the concatenated delta."""
        return log.join(self._deltas, path)


class DeltaMerge:
    """Merges the changes of deltas, added in order."""

    def __init__(self, kinds: Mapping[int, str], groups: KeyGroupRange) -> None:
        """``kinds``: the kind of each state, by id; ``groups``: the key groups to keep."""
        self._kinds = kinds
        self._groups = groups
        self._dropped: set[Section] = set()
        self._rows: dict[Section, NewestRows] = {}
        self._pieces: dict[Section, list[Piece]] = {}
        self._unpacked = 0
        self._added = 0
        """Bytes of the content of the added changes."""
        self.kept = 0.0
        """The share of it that was stored."""

    @property
    def memory(self) -> int:
        """Approximate memory of the added changes, in bytes, including the content of replaced rows."""
        return self._unpacked + _ROW * sum(map(len, self._rows.values()))

    def read(self, log: DeltaFiles, delta: Handle) -> None:
        """Add the changes of the next delta."""
        for change in log.replay(delta, self._groups):
            self.add(change)

    def add(self, change: Change) -> None:
        """Add the next change."""
        at, dropped, pieces, _ = change
        self._unpacked += sum(in_memory(piece.data) for piece in pieces)
        self._added += sum(len(piece.data) for piece in pieces)
        if dropped:
            self._dropped.add(at)
            self._rows.pop(at, None)
            self._pieces.pop(at, None)
        if self._kinds[at.state] in (ROWS, VALUES):
            rows = self._rows.setdefault(at, NewestRows(self._groups))
            for piece in pieces:
                rows.add(piece)
        else:
            self._pieces.setdefault(at, []).extend(pieces)

    def store(self, log: DeltaFiles, path: str) -> Handle:
        """Store the merged changes as a delta."""
        changes = self.drain()
        self.kept = sum(len(piece.data) for change in changes for piece in change.pieces) / max(self._added, 1)
        return log.append(changes, path)

    def drain(self) -> Sequence[Change]:
        """The merged changes."""
        merged = {at: rows.pieces() for at, rows in self._rows.items()}
        for at, pieces in self._pieces.items():
            merged[at] = newest_entries(pieces) if self._kinds[at.state] == ENTRIES else pieces
        sections = self._dropped.union(merged)
        return [Change(at, at in self._dropped, merged.get(at, [])) for at in sections]
