"""RestoredRows: a table's rows as a restore found them in the deltas, still encoded.

Decoding all rows of a large state, and encoding again those that exceed the memory budget, would take most of a restart.
Some rows may not even have been fetched from the storage yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.common.formats.in_portions import in_portions
from holdfast.state.cells.codec import RowCodec
from holdfast.state.cells.row import PERSISTED, UNFLUSHED, Row
from holdfast.state.cells.row_pieces import EncodedRows
from holdfast.state.rows.lazy_deltas import LazyRows

__all__ = ["RestoredRows", "in_blocks"]

_ENTRY = 250
"""Approximate memory of a row besides its bytes."""

_BLOCK = 512
_BLOCK_BYTES = 1 << 20
_MOST_OPENED = 32 << 20
"""Bytes of lazy rows to write to the local store at a time."""

_pack = msgspec.msgpack.Encoder().encode

K = TypeVar("K")
B = TypeVar("B", bytes, msgspec.Raw)


def in_blocks(rows: Iterable[tuple[K, B]]) -> Iterator[tuple[list[K], list[B]]]:
    """Cut encoded rows, given with their keys, into blocks of a few hundred rows and at most about a megabyte."""
    for block in in_portions(rows, lambda row: len(row[1]), _BLOCK_BYTES, _BLOCK):
        yield [key for key, _ in block], [data for _, data in block]


class RestoredRows:
    """Rows, by key, that have not been read since the restore. They are newer than those of the local store."""

    def __init__(self, codec: RowCodec) -> None:
        self._codec = codec
        self._schema = 0
        self._rows: dict[Any, msgspec.Raw | LazyRows | None] = {}
        """The encoded row, or the object that will have it once opened; None: the row was deleted."""
        self._added: deque[EncodedRows | LazyRows] = deque()
        """The added changes, in order. A change's memory is freed only when all its rows are gone."""
        self.memory = 0
        """Estimated memory of the rows, in bytes."""

    def __bool__(self) -> bool:
        return bool(self._rows)

    def accept(self, schema: int) -> bool:
        """Whether rows of this schema can be added: all rows here must have the same one."""
        self._codec.stored_head(schema)  # raises if the schema is unknown
        if not self._rows:
            self._schema = schema
        return schema == self._schema

    def add(self, changes: EncodedRows | LazyRows) -> None:
        """Add the changes of a later epoch."""
        if isinstance(changes, LazyRows):
            self._rows.update(dict.fromkeys(changes.keys, changes))
            changes.current = self._rows
        else:
            self._rows.update(zip(changes.keys, changes.rows))
            self._rows.update(dict.fromkeys(changes.deleted))
        self._added.append(changes)
        self.memory += _memory(changes)

    def _open(self, lazy: Sequence[LazyRows]) -> None:
        """Open these rows; none of them is open yet."""
        LazyRows.open(lazy)
        rows = self._rows
        for each in lazy:
            assert each.rows is not None
            for key, raw in zip(each.keys, each.rows, strict=True):
                if rows.get(key) is each:
                    rows[key] = raw
            self.memory += each.size

    def take(self, keys: list[Any]) -> tuple[dict[Any, Row], list[Any]]:
        """Remove and decode the rows of these keys; returns the rows, and the keys without one."""
        rows = self._rows
        known = [key for key in keys if key in rows]
        if not known:
            return {}, keys
        others = [key for key in keys if key not in rows]
        self._open(list({raw for key in known if isinstance(raw := rows[key], LazyRows)}))
        found = {key: rows.pop(key) for key in known}
        stored = {key: raw for key, raw in found.items() if raw is not None}
        rows_of = self._codec.decode_many(list(stored), _pack(list(stored.values())), self._schema, PERSISTED | UNFLUSHED)
        decoded = iter(rows_of)
        empty: Row = [UNFLUSHED] + [None] * self._codec.width
        if not rows:
            self._added.clear()
            self.memory = 0
        return {key: empty.copy() if raw is None else next(decoded) for key, raw in found.items()}, others

    def forget(self, key: Any) -> None:
        """Remove the row of a key, if any: a newer one replaces it."""
        self._rows.pop(key, None)

    def blocks(self) -> Iterator[tuple[list[Any], list[Row]]]:
        """All rows, decoded a block at a time; they stay here, encoded."""
        self._open([each for each in self._added if isinstance(each, LazyRows) and each.rows is None and each.needed])
        held = ((key, raw) for key, raw in self._rows.items() if isinstance(raw, msgspec.Raw))
        for keys, raws in in_blocks(held):
            yield keys, self._codec.decode_many(keys, _pack(raws), self._schema, PERSISTED | UNFLUSHED)

    def drain(self, memory: float) -> Iterator[tuple[list[tuple[Any, bytes]], list[Any]]]:
        """Remove rows, oldest first, until this much memory is free: keys with stored rows, and deleted keys."""
        if not self._added:
            return
        head, start = self._codec.stored_head(self._schema)
        rows = self._rows
        until = self.memory - memory
        while self._added and self.memory > until:
            changes = self._added[0]
            if isinstance(changes, LazyRows) and changes.rows is None:
                self._open(self._next_late(self.memory - until))
            self._added.popleft()
            held = [(key, raw) for key, raw in zip(changes.keys, changes.rows or ()) if rows.get(key) is raw]
            gone = [key for key in changes.deleted if key in rows and rows[key] is None]
            for key, _ in held:
                del rows[key]
            for key in gone:
                del rows[key]
            self.memory -= _memory(changes)
            yield [(key, head + memoryview(raw)[start:]) for key, raw in held], gone

    def _next_late(self, memory: float) -> list[LazyRows]:
        """Rows to open before this much memory can be freed, at most as many as one read fetches."""
        lazy: list[LazyRows] = []
        size = 0
        for changes in self._added:
            memory -= _memory(changes)
            if isinstance(changes, LazyRows) and changes.rows is None and changes.needed:
                lazy.append(changes)
                size += changes.piece.length
            if memory <= 0 or size >= _MOST_OPENED:
                break
        return lazy


def _memory(changes: EncodedRows | LazyRows) -> int:
    return changes.size + _ENTRY * (len(changes.keys) + len(changes.deleted))
