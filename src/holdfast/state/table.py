"""A table: rows by key, hot in memory, with the local store behind them when there is one.

The dictionary is the write-back cache: user functions touch nothing else. The misses of a whole frame are fetched with
one sorted bulk read; what changed is collected once, at the barrier; the store only ever receives committed rows, when
they are evicted or when a materialisation is due.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import msgspec

from holdfast.state.codec import Row, RowCodec
from holdfast.state.key_codec import decode_key, decode_keys, encode_key, encode_keys
from holdfast.state.layout import after
from holdfast.state.store import RocksDBStore

__all__ = ["DIRTY", "PERSISTED", "UNFLUSHED", "RowTable", "TableDelta"]

PERSISTED = 1
"""Some completed checkpoint holds the row."""
DIRTY = 2
"""Changed in this epoch."""
UNFLUSHED = 4
"""Newer than what the local store holds."""

_BATCH = 8 << 20
"""Bytes of rows written to the store at once."""
_MOST_DELETES = 100_000
_PIECE = 4096
"""Rows that are encoded at once: few enough that the processor's cache has them from one step to the next."""

_plain_key = msgspec.msgpack.Encoder().encode


class TableDelta(NamedTuple):
    """Some of what changed in a table in one epoch."""

    keys: bytes
    rows: bytes
    deleted: bytes
    changes: int
    """How many rows changed or went."""


def filled(row: Row) -> bool:
    """Whether any state of the row holds something."""
    # By identity, not by list.count: values may have an equality of their own (NumPy's arrays).
    return any(slot is not None for slot in row[1:])


def store_key(prefix: bytes, key: Any) -> bytes:
    """A row's key in the local store."""
    kind = type(key)
    if kind is int or kind is str:
        try:
            return prefix + _plain_key(key)
        except (OverflowError, UnicodeEncodeError):
            pass  # beyond 64 bits, or a lone surrogate: `encode_key` has a form for it
    return prefix + encode_key(key)


class RowTable:
    """Rows by key, below one prefix of the local store."""

    __slots__ = ("_batches", "_fresh_row", "_touched", "codec", "in_store", "prefix", "rows", "store")

    def __init__(self, codec: RowCodec, store: RocksDBStore | None, prefix: bytes, in_store: bool) -> None:
        """``in_store``: whether the store may hold rows of this table already (False saves the reads)."""
        self.codec = codec
        self.store = store
        self.prefix = prefix
        self.in_store = in_store
        self.rows: dict[Any, Row] = {}
        self._touched: dict[Any, Row] = {}
        self._batches: list[tuple[Sequence[Any], list[Row]]] = []
        """Batches of rows that this epoch has asked for beside those in `_touched`; a row may be in several."""
        self.resize()

    @property
    def touched(self) -> dict[Any, Row]:
        """The rows that this epoch has asked for."""
        for keys, rows in self._batches:
            self._touched.update(zip(keys, rows))
        self._batches.clear()
        return self._touched

    def resize(self) -> None:
        """The codec has got columns: give every row its slots."""
        width = self.codec.width + 1
        self._fresh_row: Row = [0] + [None] * (width - 1)
        for row in self.rows.values():
            row.extend([None] * (width - len(row)))

    def load(self, keys: Sequence[Any]) -> list[Row]:
        """The rows of these keys, brought into memory; a key without state gets an empty row."""
        try:
            loaded = list(map(self.rows.__getitem__, keys))
        except KeyError:
            loaded = self._load_fresh(keys)
            # Keys that come and go are many: to look each up once more costs as much as to find its row.
            self._batches.append((keys, loaded))
        else:
            self._touched.update(zip(keys, loaded))
        return loaded

    def _load_fresh(self, keys: Sequence[Any]) -> list[Row]:
        rows = self.rows
        loaded: list[Any] = list(map(rows.get, keys))
        missing = [position for position, row in enumerate(loaded) if row is None]
        if self.store is not None and self.in_store:
            self._fetch(self.store, {keys[position] for position in missing})
        take, empty = rows.setdefault, self._fresh_row
        for position in missing:
            loaded[position] = take(keys[position], empty.copy())
        return loaded

    def _fetch(self, store: RocksDBStore, fresh: set[Any]) -> None:
        """Bring the rows that the store has of these keys into memory."""
        prefix, rows, decode = self.prefix, self.rows, self.codec.decode
        wanted = sorted((store_key(prefix, key), i, key) for i, key in enumerate(fresh))
        found = store.get_many([w[0] for w in wanted])
        for (_, _, key), data in zip(wanted, found):
            if data is not None:
                rows[key] = decode(data, PERSISTED)
        self.codec.footprint.count(len(found), sum(len(data) for data in found if data is not None))

    def collect(self, where: str) -> list[TableDelta]:
        """The barrier: what changed in this epoch, in stored form, in pieces; empty if nothing did."""
        rows = self.rows
        pieces: list[TableDelta] = []
        deleted: list[Any] = []
        clean = PERSISTED | UNFLUSHED if self.store is not None else PERSISTED
        idle: list[Any] = []
        more = self.codec.width > 2
        # A row that comes a second time is clean by then, or has been noted as idle.
        asked = chain(self._touched.items(), *(zip(*batch) for batch in self._batches))
        total = len(self._touched) + sum(len(keys) for keys, _ in self._batches)
        for _ in range(0, total, _PIECE):
            changed: list[Any] = []
            kept: list[Row] = []
            for key, row in islice(asked, _PIECE):
                flags = row[0]
                # The first and the last slot tell most; the first is the flags where there is no slot.
                if len(row) > 1 and (row[1] is not None or row[-1] is not None or (more and filled(row))):
                    if flags & DIRTY:
                        changed.append(key)
                        kept.append(row)
                        row[0] = clean
                elif not flags & (PERSISTED | UNFLUSHED):
                    idle.append(key)
                elif flags & PERSISTED and flags & DIRTY:
                    deleted.append(key)
                    row[0] = UNFLUSHED
                else:
                    row[0] = flags & ~DIRTY
            if changed:
                pieces.append(self._piece(changed, kept, where))
        self._touched, self._batches = {}, []
        for key in idle:
            rows.pop(key, None)
        if self.store is None:
            for key in deleted:
                del rows[key]
        if deleted:
            pieces.append(self._piece([], [], where, deleted))
        return pieces

    def _piece(self, keys: list[Any], rows: list[Row], where: str, deleted: Sequence[Any] = ()) -> TableDelta:
        data = self.codec.encode_many(keys, rows, where)
        return TableDelta(encode_keys(keys), data, encode_keys(list(deleted)), len(keys) + len(deleted))

    def apply(self, delta: TableDelta, schema_id: int) -> None:
        """Take over the changes of a completed epoch that this table has not seen (a restore)."""
        flags = PERSISTED if self.store is None else PERSISTED | UNFLUSHED
        rows = self.rows
        rows.update(zip(decode_keys(delta.keys), self.codec.decode_many(delta.rows, schema_id, flags)))
        deleted = decode_keys(delta.deleted)
        if self.store is None:
            for key in deleted:
                rows.pop(key, None)
        else:
            for key in deleted:
                rows[key] = [UNFLUSHED] + [None] * self.codec.width

    def evict(self, most: int) -> int:
        """Move up to ``most`` of the rows that this epoch has not touched out to the store, oldest first.

        Only committed rows leave: the epoch's own rows are in `touched`. Returns how many left.
        """
        touched = self.touched
        victims: list[Any] = []
        for key in self.rows:
            if key not in touched:
                victims.append(key)
                if len(victims) >= most:
                    break
        self._flush(victims)
        for key in victims:
            del self.rows[key]
        return len(victims)

    def flush(self) -> None:
        """Bring the store up to date with the committed rows (between epochs), and forget rows that are gone."""
        self._flush(self.rows)
        for key in [key for key, row in self.rows.items() if not filled(row)]:
            del self.rows[key]

    def _flush(self, keys: Iterable[Any]) -> None:
        store = self.store
        assert store is not None
        puts: list[tuple[bytes, bytes]] = []
        deletes: list[bytes] = []
        prefix = self.prefix
        encode = self.codec.encode_committed
        held = 0
        for key in keys:
            row = self.rows[key]
            if row[0] & UNFLUSHED:
                row[0] &= ~UNFLUSHED
                if filled(row):
                    data = encode(row)
                    held += len(data)
                    puts.append((store_key(prefix, key), data))
                    self.in_store = True
                else:
                    deletes.append(store_key(prefix, key))
                if held > _BATCH or len(deletes) > _MOST_DELETES:
                    store.write(puts, deletes)
                    puts, deletes, held = [], [], 0
        if puts or deletes:
            store.write(puts, deletes)

    def stored_rows(self) -> Iterator[tuple[Any, Row]]:
        """The rows of this table that the store holds (they may have newer versions in memory)."""
        assert self.store is not None
        start = len(self.prefix)
        for key, data in self.store.scan(self.prefix, after(self.prefix)):
            yield decode_key(key[start:]), self.codec.decode(data, PERSISTED)

    def take_in(self, read: Sequence[tuple[Any, Row]]) -> None:
        """Hold rows that `stored_rows` gave, so that they may be changed, until `let_go`."""
        self.rows.update(read)

    def let_go(self, read: Sequence[tuple[Any, Row]]) -> None:
        """Forget these rows, but for those that have been changed."""
        for key, row in read:
            if not row[0] & DIRTY:
                del self.rows[key]

    def claim(self, rows: Sequence[tuple[Any, Row]]) -> None:
        """What has changed of these rows, which nobody asked for by `load`, changed in this epoch."""
        self._touched.update([(key, row) for key, row in rows if row[0] & DIRTY])

    def dump(self, where: str) -> Iterator[TableDelta]:
        """All rows in memory, in pieces: the materialisation of a table without a store."""
        keys = list(self.rows)
        for start in range(0, len(keys), _PIECE):
            part = keys[start : start + _PIECE]
            yield self._piece(part, [self.rows[key] for key in part], where)
