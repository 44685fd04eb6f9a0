"""A table: rows by key, hot rows in memory, and the local store, if any, behind them.

The dictionary is a write-back cache, and user functions access only it. The misses of a whole frame are fetched with one
bulk read. Changes are collected once, at the barrier. The store receives only checkpointed rows: when they are evicted, or
for a new base. Key groups are computed a batch at a time when rows are stored or fetched, not for rows in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import msgspec

from holdfast.common.formats.columns import ColumnKeys
from holdfast.state.cells.codec import RowCodec
from holdfast.state.cells.row import DIRTY, PERSISTED, TOUCHED, UNFLUSHED, Row, filled
from holdfast.state.cells.row_pieces import EncodedRows, RowPieces, deleted_pieces, read_piece
from holdfast.state.keys.key_codec import decode_key, encode_key, have_plain_form
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.rows.lazy_columns import LazyColumns
from holdfast.state.rows.lazy_deltas import LazyRows
from holdfast.state.rows.restored_rows import RestoredRows, in_blocks
from holdfast.state.rows.row_loading import part_rows, rows_of, unflushed_keys, untouched_keys
from holdfast.state.store.ordered import OrderedStore, migrate
from holdfast.state.stored.delta import Piece
from holdfast.state.stored.layout import after, group_prefix, group_range, split_key

__all__ = ["RowTable", "store_key"]

_BATCH = 8 << 20
"""Bytes of rows per write to the store."""
_MOST_DELETES = 100_000
_LOOKS = 64
"""Number of rows that can be inspected in the time of writing one."""
_PART = 512
"""Rows to handle at a time: few enough to stay in the processor's cache from one step to the next."""

_BLOCKS = 16
"""Blocks of rows per portion of a dump."""

_plain_key = msgspec.msgpack.Encoder().encode


def store_key(prefix: bytes, key: Any) -> bytes:
    """The key of a row in the local store."""
    kind = type(key)
    if kind is int or kind is str:
        try:
            return prefix + _plain_key(key)
        except (OverflowError, UnicodeEncodeError):
            pass  # beyond 64 bits, or a lone surrogate: `encode_key` handles it
    return prefix + encode_key(key)


def store_keys(prefixes: Iterable[bytes], keys: Collection[Any]) -> list[bytes]:
    """The stored keys of these keys, each given with the prefix of its key group."""
    prefixes = list(prefixes)  # iterated twice if a key has no plain form
    if have_plain_form(keys):
        try:
            return [prefix + stored for prefix, stored in zip(prefixes, map(_plain_key, keys))]
        except (OverflowError, UnicodeEncodeError):
            pass  # a key beyond 64 bits or with a lone surrogate: encode each separately
    return [store_key(prefix, key) for prefix, key in zip(prefixes, keys)]


class _Prefixes(dict[int, bytes]):
    """The prefix of each key group's stored keys."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix

    def __missing__(self, group: int) -> bytes:
        prefix = self[group] = group_prefix(self._prefix, group)
        return prefix


class RowTable:
    """Rows by key, in one section of the key space."""

    __slots__ = (
        "_bind",
        "_enlarge",
        "_fresh_row",
        "_groups_of",
        "_move_out",
        "_prefixes",
        "_touched_keys",
        "_touched_rows",
        "codec",
        "in_store",
        "prefix",
        "restored",
        "rows",
        "store",
        "lazy",
    )

    def __init__(
        self,
        codec: RowCodec,
        store: OrderedStore,
        prefix: bytes,
        groups_of: Callable[[list[Any]], list[int]],
        in_store: bool,
        bind: Callable[[Any, Row], None],
        enlarge: Callable[[Any, Row, int], None],
        move_out: Callable[[list[Any], list[Row]], None],
    ) -> None:
        """Start without rows in memory.

        Args:
            codec: Encodes and decodes the rows.
            store: Receives checkpointed rows that leave memory.
            prefix: The section's prefix.
            groups_of: Returns the key groups of keys.
            in_store: Whether the store may already hold rows of this table (False saves reads).
            bind: Replaces the markers in a key's row with its large maps and lists.
            enlarge: Moves large maps and lists out of a row, given its key and key group.
            move_out: Moves the values of the codec's ``leaving`` columns out of rows, given with their keys.
        """
        self.codec = codec
        self.store = store
        self.prefix = prefix
        self.in_store = in_store
        self.rows: dict[Any, Row] = {}
        self.restored = RestoredRows(codec)
        """Encoded rows from a restore that are not in the store yet."""
        self._groups_of = groups_of
        self._bind = bind
        self._enlarge = enlarge
        self._move_out = move_out
        self._prefixes = _Prefixes(prefix)
        self._touched_keys: list[Any] = []
        """The keys of the rows loaded in this epoch, without duplicates."""
        self._touched_rows: list[Row] = []
        self.lazy: LazyColumns | None = None
        """Columns that loads leave out until they are read; None if there never were any."""
        self.resize()

    def touched_rows(self) -> Sequence[Row]:
        """The rows loaded in this epoch."""
        return self._touched_rows

    def forget(self) -> None:
        """Drop all rows and this epoch's changes from memory."""
        self.rows.clear()
        self._touched_keys, self._touched_rows = [], []

    def touched(self) -> Iterable[tuple[Any, Row]]:
        """The rows loaded in this epoch, with their keys."""
        return zip(self._touched_keys, self._touched_rows)

    def resize(self) -> None:
        """Extend every row by the cells of newly declared columns."""
        width = self.codec.width + 1
        self._fresh_row: Row = [0] + [None] * self.codec.width
        for row in self.rows.values():
            row.extend([None] * (width - len(row)))

    def load(self, keys: Sequence[Any]) -> list[Row]:
        """Load the rows of these keys into memory; a key without state gets an empty row."""
        if isinstance(keys, ColumnKeys):
            keys = keys.keys()  # a plain list: the batch's columns would stay in memory until the barrier
        fresh = None if self.in_store else self._fresh_row
        loaded = rows_of(self.rows, keys, fresh, self._touched_keys, self._touched_rows)
        if loaded is None:
            self._fetch(list(set(keys).difference(self.rows)))
            loaded = rows_of(self.rows, keys, self._fresh_row, self._touched_keys, self._touched_rows)
            assert loaded is not None
        return loaded

    def load_one(self, key: Any) -> Row:
        """Load the row of one key, which is usually in memory."""
        row = self.rows.get(key)
        if row is None:
            return self.load((key,))[0]
        if not row[0] & TOUCHED:
            self._note(key, row)
        return row

    def load_new(self, key: Any) -> Row:
        """Create the row of a key that is known to have no state, without reading the store."""
        if self.restored or key in self.rows:
            return self.load_one(key)
        row = self.rows[key] = self._fresh_row.copy()
        self._note(key, row)
        return row

    def overwrite(self, key: Any, value: Any) -> None:
        """Set the only cell of a key's row without reading it; None deletes the row."""
        row = self.rows.get(key)
        if row is None:
            self.restored.forget(key)
            row = self.rows[key] = [PERSISTED, None]
        if not row[0] & TOUCHED:
            self._note(key, row)
        row[1] = value
        row[0] |= DIRTY

    def _note(self, key: Any, row: Row) -> None:
        row[0] |= TOUCHED
        self._touched_keys.append(key)
        self._touched_rows.append(row)

    def _store_keys(self, keys: list[Any]) -> list[bytes]:
        return store_keys(map(self._prefixes.__getitem__, self._groups_of(keys)), keys)

    def _fetch(self, keys: list[Any]) -> None:
        """Read the store's rows of these keys into memory."""
        if self.restored:
            restored, keys = self.restored.take(keys)
            self.rows.update(restored)
            for key in restored if self.codec.large else ():
                self._bind(key, restored[key])
        lazy, stubs = self.lazy, set[int]()
        if lazy is not None and lazy.kind:
            found, stubs = self.store.get_stubs(self._store_keys(keys), lazy.kind)
        else:
            found = self.store.get_many(self._store_keys(keys))
        stored = [data for data in found if data is not None]
        if len(stored) < len(found):
            keys = [key for key, data in zip(keys, found) if data is not None]
        loaded = self.codec.decode_all(keys, stored, PERSISTED)
        self.rows.update(zip(keys, loaded))
        if self.codec.large:
            for key, row in zip(keys, loaded):
                self._bind(key, row)
        whole = loaded
        if lazy is not None and stubs:  # a stub does not tell its row's size
            short = [at in stubs for at, data in enumerate(found) if data is not None]
            whole = lazy.fill_in(loaded, short)
            stored = [data for data, stub in zip(stored, short) if not stub]
        self.codec.footprint.sample(whole, self.codec.encode)
        self.codec.footprint.count(len(found) - len(loaded) + len(whole), sum(map(len, stored)))

    def collect(self, where: str) -> list[Piece]:
        """At the barrier: drain this epoch's changes as pieces, in stored form; empty if nothing changed."""
        rows = self.rows
        touched_keys, touched_rows = self._touched_keys, self._touched_rows
        self._touched_keys, self._touched_rows = [], []
        if not self.codec.width:  # no state so far
            rows.clear()
            return []
        encoder = RowPieces(self.codec, where, self._enlarge)
        deleted: list[Any] = []
        idle: list[Any] = []
        for at in range(0, len(touched_rows), _PART):
            changed: list[Any] = []
            kept: list[Row] = []
            part_rows(touched_keys, touched_rows, at, at + _PART, self.codec.width > 2, changed, kept, deleted, idle)
            if changed:
                if self.lazy is not None:
                    self.lazy.complete(changed, kept)
                if self.codec.leaving:
                    self._move_out(changed, kept)
                encoder.add(changed, kept, self._groups_of(changed))
        for key in idle:
            rows.pop(key, None)
        if not self.in_store:  # no store rows to delete
            for key in deleted:
                del rows[key]
        pieces = encoder.drain()
        pieces += deleted_pieces(deleted, self._groups_of(deleted), self.codec.schema_id)
        pieces.sort(key=_first_group)
        return pieces

    def apply(self, piece: Piece, groups: KeyGroupRange | None) -> None:
        """Apply changes of a completed epoch (in a restore), restricted to ``groups``."""
        held, gone = read_piece(piece, self.codec, groups)
        rows = self.rows
        if self.codec.large:
            held = list(held)
            for key, row in held:
                self._bind(key, row)
        rows.update(held)
        for key in gone:
            if self.in_store:
                row = rows[key] = self._fresh_row.copy()
                row[0] = UNFLUSHED
            else:
                rows.pop(key, None)

    def set_aside(self, changes: EncodedRows | LazyRows) -> None:
        """Like `apply`, but leave the rows encoded until they are loaded or written to the store."""
        if not self.restored.accept(changes.schema):
            self.store_restored()
            self.restored.accept(changes.schema)
        self.restored.add(changes)
        self.in_store = True

    def store_restored(self, memory: float = math.inf) -> None:
        """Write rows that were set aside to the store until this much memory is free."""
        for held, gone in self.restored.drain(memory):
            puts = zip(self._store_keys([key for key, _ in held]), [data for _, data in held])
            self.store.write(puts, self._store_keys(gone))

    def drop(self, groups: KeyGroupRange | None) -> None:
        """Drop the rows of ``groups`` (None: all) from memory and store."""
        gone = list(self.rows)
        start, end = self.prefix, after(self.prefix)
        if groups is not None:
            gone = [key for key, group in zip(gone, self._groups_of(gone)) if group in groups]
            start, end = group_range(self.prefix, groups)
        for key in gone:
            del self.rows[key]
        if self.in_store:
            self.store.delete_range(start, end)
            self.in_store = self.store.first_key(self.prefix, after(self.prefix)) is not None

    def evict(self, most: int) -> int:
        """Evict up to ``most`` rows not touched in this epoch, oldest first; returns their number.

        Rows touched in the epoch stay: they are not checkpointed yet.
        """
        rows = self.rows
        victims = untouched_keys(rows, most)
        self._flush([key for key in victims if rows[key][0] & UNFLUSHED])
        for key in victims:
            del rows[key]
        return len(victims)

    def flush(self) -> None:
        """Write the checkpointed rows to the store (between epochs), and remove deleted rows from memory."""
        self.store_restored()
        for key in self._flush(unflushed_keys(self.rows)):
            del self.rows[key]

    def flushing(self) -> Iterator[int]:
        """Flush the rows that are checkpointed now in steps; yields the cost of each step, in rows written.

        Epochs may run between two steps.
        """
        rows = self.rows
        keys = list(rows)
        for start in range(0, len(keys), _PART):
            looked_at = keys[start : start + _PART]
            part = [key for key in looked_at if (row := rows.get(key)) and row[0] & UNFLUSHED]
            for key in self._flush(part):
                del rows[key]
            yield max(len(part), len(looked_at) // _LOOKS)

    def _flush(self, unflushed: list[Any]) -> list[Any]:
        """Write the rows of these keys, newer than the store's, to the store; returns the keys whose rows are deleted."""
        rows = self.rows
        encode = self.codec.committed_encoder()
        puts: list[tuple[bytes, bytes]] = []
        stubs: dict[bytes, bytes] = {}
        deletes: list[bytes] = []
        gone: list[Any] = []
        held = 0
        lazy = self.lazy
        if lazy is not None and not (lazy.kind and self.store.keeps_apart(self.prefix)):
            lazy = None
        for key, at in self._placed(unflushed):
            row = rows[key]
            row[0] &= ~UNFLUSHED
            if filled(row):
                data = encode(row)
                held += len(data)
                puts.append((at, data))
                if lazy is not None:
                    stubs[at] = lazy.stub(row, encode)
                self.in_store = True
            else:
                deletes.append(at)
                gone.append(key)
            if held > _BATCH or len(deletes) > _MOST_DELETES:
                self.store.write(puts, deletes, stubs)
                puts, deletes, stubs, held = [], [], {}, 0
        if puts or deletes:
            self.store.write(puts, deletes, stubs)
        return gone

    def _placed(self, keys: list[Any]) -> Iterator[tuple[Any, bytes]]:
        """Each key with its stored key."""
        for start in range(0, len(keys), _PART):
            part = keys[start : start + _PART]
            yield from zip(part, self._store_keys(part))

    def stored_rows(self, groups: KeyGroupRange | None = None) -> Iterator[tuple[Any, Row]]:
        """The store's rows of this table, of ``groups`` only (None: all); memory may hold newer versions."""
        self.store_restored()
        start = len(self.prefix)
        bounds = (self.prefix, after(self.prefix)) if groups is None else group_range(self.prefix, groups)
        for at, data in self.store.scan(*bounds):
            owner = decode_key(split_key(at, start)[1])
            row = self.codec.decode(owner, data, PERSISTED)
            if self.codec.large:
                self._bind(owner, row)
            yield owner, row

    def blocks(self) -> Iterator[tuple[list[Any], list[Row]]]:
        """All checkpointed rows with their keys, a block at a time; rows in the store do not stay in memory.

        The table must not change between two blocks.
        """
        if not self.in_store:
            rows = iter(self.rows.items())
            blocks: Iterable[tuple[list[Any], list[Row]]] = (
                ([key for key, _ in part], [row for _, row in part]) for part in iter(lambda: list(islice(rows, _PART)), [])
            )
        elif self.rows or self.store.first_key(self.prefix, after(self.prefix)) is not None:
            self.flush()
            blocks = ((keys, held) for _, keys, held in self._stored_blocks())
        else:
            blocks = self.restored.blocks()
        for keys, held in blocks:
            for key, row in zip(keys, held) if self.codec.large else ():
                self._bind(key, row)
            yield keys, held

    def in_order(self) -> Iterator[tuple[bytes, Any, Row]]:
        """All checkpointed rows, each as stored key, key and row, in order of the stored keys; cf. `blocks`."""
        self.flush()
        start = len(self.prefix)
        for stored, keys, held in self._stored_blocks():
            for at, key, row in zip(stored, keys, held):
                if self.codec.large:
                    self._bind(key, row)
                yield at[start:], key, row

    def _stored_blocks(self) -> Iterator[tuple[list[bytes], list[Any], list[Row]]]:
        """The store's rows, a block at a time: stored keys, keys, rows."""
        start = len(self.prefix)
        for stored, data in in_blocks(self.store.scan(self.prefix, after(self.prefix))):
            keys = [decode_key(split_key(at, start)[1]) for at in stored]
            yield stored, keys, self.codec.decode_all(keys, data, PERSISTED)

    def look_up(self, keys: list[Any]) -> list[Row]:
        """The store's rows of these keys, without keeping them in memory; a key without state gets an empty row."""
        found = self.store.get_many(self._store_keys(keys))
        known = [(key, data) for key, data in zip(keys, found) if data is not None]
        rows = iter(self.codec.decode_all([key for key, _ in known], [data for _, data in known], PERSISTED))
        held = [self.empty_row() if data is None else next(rows) for data in found]
        for key, row in zip(keys, held) if self.codec.large else ():
            self._bind(key, row)
        return held

    def empty_row(self) -> Row:
        """The row of a key without state; it is not kept."""
        return self._fresh_row.copy()

    def portions(self, where: str, groups_of: Callable[[list[Any]], list[int]]) -> Iterator[list[Piece]]:
        """All checkpointed rows as pieces of the key groups that ``groups_of`` returns, some megabytes at a time."""
        encoder = RowPieces(self.codec, where, None)
        blocks = self.blocks()
        while portion := list(islice(blocks, _BLOCKS)):
            for keys, rows in portion:
                encoder.add(keys, rows, groups_of(keys))
            yield sorted(encoder.drain(), key=_first_group)

    def hold_all(self) -> None:
        """Move all rows from the store into memory."""
        self.rows.update(self.stored_rows())
        self.store.delete_range(self.prefix, after(self.prefix))
        self.in_store = False

    def take_in(self, read: Sequence[tuple[Any, Row]]) -> None:
        """Keep rows read by `stored_rows` in memory, where they may be changed, until `let_go`."""
        self.rows.update(read)

    def let_go(self, read: Sequence[tuple[Any, Row]]) -> None:
        """Release these rows, except changed ones."""
        for key, row in read:
            if not row[0] & DIRTY:
                del self.rows[key]

    def claim(self, rows: Sequence[tuple[Any, Row]]) -> None:
        """Mark rows changed outside `load` as touched in this epoch."""
        for key, row in rows:
            if row[0] & (DIRTY | TOUCHED) == DIRTY:
                self._note(key, row)

    def migration(self) -> Iterator[None]:
        """Rewrite the store's rows of former types in steps."""
        if self.in_store and self.codec.has_former_types:
            self.store_restored()
            start = len(self.prefix)

            def migrated(at: bytes, data: bytes) -> bytes | None:
                return self.codec.migrated(decode_key(split_key(at, start)[1]), data)

            yield from migrate(self.store, self.prefix, after(self.prefix), migrated)

    def dump(self, where: str) -> list[Piece]:
        """All rows in memory, in pieces: the full snapshot of a table without a store."""
        return sorted(chain.from_iterable(self.portions(where, self._groups_of)), key=_first_group)


def _first_group(piece: Piece) -> int:
    return piece.first
