"""DeltaMerge: several deltas become one with the same effect.

Of each row and entry only the newest version is kept, still encoded. Timers take a few bytes; their pieces are kept as they
are, in order. Deltas are compressed, so in memory they are many times as large as their files: `DeltaMerge.memory` tells
when to begin another merged delta.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.state.delta import Change, Piece, in_memory
from holdfast.state.entry_pieces import newest_entries
from holdfast.state.key_groups import KeyGroupRange
from holdfast.state.layout import Section
from holdfast.state.row_pieces import NewestRows
from holdfast.state.schema import ENTRIES, ROWS, VALUES

__all__ = ["DeltaMerge"]

_ROW = 250
"""Bytes of memory for each row, beside its content: key, tuple, and place in a dictionary."""


class DeltaMerge:
    """Merges the changes of deltas, added in order."""

    def __init__(self, kinds: Mapping[int, str], groups: KeyGroupRange) -> None:
        """``kinds``: the kind of each state, by id; ``groups``: the key groups of which rows are kept."""
        self._kinds = kinds
        self._groups = groups
        self._dropped: set[Section] = set()
        self._rows: dict[Section, NewestRows] = {}
        self._pieces: dict[Section, list[Piece]] = {}
        self._unpacked = 0

    @property
    def memory(self) -> int:
        """Bytes of memory that the added changes take, approximately; the content of replaced rows counts, too."""
        return self._unpacked + _ROW * sum(map(len, self._rows.values()))

    def add(self, change: Change) -> None:
        """Add the next change."""
        at, dropped, pieces, _ = change
        self._unpacked += sum(in_memory(piece.data) for piece in pieces)
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

    def drain(self) -> Sequence[Change]:
        """The merged changes."""
        merged = {at: rows.pieces() for at, rows in self._rows.items()}
        for at, pieces in self._pieces.items():
            merged[at] = newest_entries(pieces) if self._kinds[at.state] == ENTRIES else pieces
        sections = self._dropped.union(merged)
        return [Change(at, at in self._dropped, merged.get(at, [])) for at in sections]
