"""A table: rows by key, hot in memory, with the local store behind them when there is one.

The dictionary is the write-back cache: user functions touch nothing else. The misses of a whole frame are fetched with
one sorted bulk read; what changed is collected once, at the barrier; the store only ever receives committed rows, when
they are evicted or when a materialisation is due.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import msgspec

from holdfast.state.codec import RowCodec
from holdfast.state.delta import Piece
from holdfast.state.key_codec import decode_key, encode_key
from holdfast.state.key_groups import KeyGroupRange
from holdfast.state.layout import after, group_prefix, group_range, split_key
from holdfast.state.ordered import OrderedStore
from holdfast.state.row import DIRTY, GROUP_SHIFT, PERSISTED, UNFLUSHED, Row, filled
from holdfast.state.row_pieces import deleted_pieces, read_piece, row_pieces

__all__ = ["RowTable", "store_key"]

_BATCH = 8 << 20
"""Bytes of rows written to the store at once."""
_MOST_DELETES = 100_000
_BLOCK = 8192
"""Rows that are sorted into key groups at once: few enough that the processor's cache has them when they are encoded."""

_PLAIN = {int, str}
_plain_key = msgspec.msgpack.Encoder().encode


def store_key(prefix: bytes, key: Any) -> bytes:
    """A row's key in the local store."""
    kind = type(key)
    if kind is int or kind is str:
        try:
            return prefix + _plain_key(key)
        except (OverflowError, UnicodeEncodeError):
            pass  # beyond 64 bits, or a lone surrogate: `encode_key` has a form for it
    return prefix + encode_key(key)


def store_keys(prefixes: Mapping[int, bytes], groups: Mapping[Any, int]) -> list[bytes]:
    """The stored keys of some keys, given with their key groups."""
    if set(map(type, groups)) <= _PLAIN:
        try:
            return [prefixes[group] + _plain_key(key) for key, group in groups.items()]
        except (OverflowError, UnicodeEncodeError):
            pass  # one of them is beyond 64 bits, or has a lone surrogate
    return [store_key(prefixes[group], key) for key, group in groups.items()]


class _Templates(dict[int, Row]):
    """A row without state for each key group."""

    def __init__(self, width: int) -> None:
        self._width = width

    def __missing__(self, group: int) -> Row:
        row = self[group] = [group << GROUP_SHIFT] + [None] * self._width
        return row


class _Prefixes(dict[int, bytes]):
    """What the stored keys of each key group begin with."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix

    def __missing__(self, group: int) -> bytes:
        prefix = self[group] = group_prefix(self._prefix, group)
        return prefix


class RowTable:
    """Rows by key, in one section of the key space."""

    __slots__ = (
        "_batches",
        "_bind",
        "_groups_of",
        "_prefixes",
        "_templates",
        "_touched",
        "codec",
        "in_store",
        "prefix",
        "rows",
        "store",
    )

    def __init__(
        self,
        codec: RowCodec,
        store: OrderedStore,
        prefix: bytes,
        groups_of: Callable[[list[Any]], list[int]],
        in_store: bool,
        bind: Callable[[Any, Row], None],
    ) -> None:
        """Begin without rows in memory.

        Args:
            codec: The rows' stored form.
            store: Where committed rows go when they leave memory.
            prefix: The section's prefix.
            groups_of: Gives the key groups of keys.
            in_store: Whether the store may hold rows of this table already (False saves the reads).
            bind: Puts the large maps and lists of a key into its row, in place of their markers.
        """
        self.codec = codec
        self.store = store
        self.prefix = prefix
        self.in_store = in_store
        self.rows: dict[Any, Row] = {}
        self._groups_of = groups_of
        self._bind = bind
        self._prefixes = _Prefixes(prefix)
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
        self._templates = _Templates(self.codec.width)
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
        fresh = [keys[position] for position in missing]
        groups = self._groups_of(fresh)
        if self.in_store:
            self._fetch(dict(zip(fresh, groups)))
        take, templates = rows.setdefault, self._templates
        for position, key, group in zip(missing, fresh, groups):
            loaded[position] = take(key, templates[group].copy())
        return loaded

    def _fetch(self, fresh: dict[Any, int]) -> None:
        """Bring the rows that the store has of these keys, given with their key groups, into memory."""
        prefixes, rows = self._prefixes, self.rows
        owners = dict(zip(store_keys(prefixes, fresh), fresh))
        wanted = sorted(owners)
        found = self.store.get_many(wanted)
        stored = [data for data in found if data is not None]
        if len(stored) < len(found):
            wanted = [at for at, data in zip(wanted, found) if data is not None]
        for key, row in zip(map(owners.__getitem__, wanted), self.codec.decode_all(stored)):
            row[0] = fresh[key] << GROUP_SHIFT | PERSISTED
            rows[key] = row
            if self.codec.large:
                self._bind(key, row)
        self.codec.footprint.count(len(found), sum(map(len, stored)))

    def collect(self, where: str) -> list[Piece]:
        """The barrier: what changed in this epoch, in stored form, in pieces; empty if nothing did."""
        rows = self.rows
        pieces: list[Piece] = []
        deleted: defaultdict[int, list[Any]] = defaultdict(list)
        idle: list[Any] = []
        more = self.codec.width > 2
        # A row that comes a second time is clean by then, or has been noted as idle.
        asked = chain(self._touched.items(), *(zip(*batch) for batch in self._batches))
        total = len(self._touched) + sum(len(keys) for keys, _ in self._batches)
        for _ in range(0, total, _BLOCK):
            changed: defaultdict[int, list[Any]] = defaultdict(list)
            for key, row in islice(asked, _BLOCK):
                flags = row[0]
                # The first and the last slot tell most; the first is the flags where there is no slot.
                if len(row) > 1 and (row[1] is not None or row[-1] is not None or (more and filled(row))):
                    if flags & DIRTY:
                        bucket = changed[flags >> GROUP_SHIFT]
                        bucket.append(key)
                        bucket.append(row)
                        row[0] = flags & ~DIRTY | (PERSISTED | UNFLUSHED)
                elif not flags & (PERSISTED | UNFLUSHED):
                    idle.append(key)
                elif flags & PERSISTED and flags & DIRTY:
                    deleted[flags >> GROUP_SHIFT].append(key)
                    row[0] = flags & ~(DIRTY | PERSISTED) | UNFLUSHED
                else:
                    row[0] = flags & ~DIRTY
            pieces += row_pieces(changed, self.codec, where)
        self._touched, self._batches = {}, []
        for key in idle:
            rows.pop(key, None)
        if not self.in_store:  # there is nothing to delete there
            for key in chain.from_iterable(deleted.values()):
                del rows[key]
        pieces += deleted_pieces(deleted, self.codec, where)
        pieces.sort(key=_first_group)
        return pieces

    def apply(self, piece: Piece, groups: KeyGroupRange | None) -> None:
        """Take over changes of a completed epoch that this table has not seen (a restore), of ``groups`` only."""
        held, gone = read_piece(piece, self.codec, groups)
        rows = self.rows
        if self.codec.large:
            held = list(held)
            for key, row in held:
                self._bind(key, row)
        rows.update(held)
        for key, group in gone:
            if self.in_store:
                row = rows[key] = self._templates[group].copy()
                row[0] |= UNFLUSHED
            else:
                rows.pop(key, None)

    def drop(self, groups: KeyGroupRange | None) -> None:
        """Forget the rows of ``groups`` (None: all), in memory and in the store."""
        if groups is None:
            gone, start, end = list(self.rows), self.prefix, after(self.prefix)
        else:
            gone = [key for key, row in self.rows.items() if row[0] >> GROUP_SHIFT in groups]
            start, end = group_range(self.prefix, groups)
        for key in gone:
            del self.rows[key]
        if self.in_store:
            self.store.delete_range(start, end)
            self.in_store = next(self.store.scan(self.prefix, after(self.prefix)), None) is not None

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
        puts: list[tuple[bytes, bytes]] = []
        deletes: list[bytes] = []
        prefixes = self._prefixes
        encode = self.codec.committed_encoder()
        held = 0
        for key in keys:
            row = self.rows[key]
            if row[0] & UNFLUSHED:
                row[0] &= ~UNFLUSHED
                prefix = prefixes[row[0] >> GROUP_SHIFT]
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
        start = len(self.prefix)
        for at, data in self.store.scan(self.prefix, after(self.prefix)):
            group, key = split_key(at, start)
            owner, row = decode_key(key), self.codec.decode(data, group << GROUP_SHIFT | PERSISTED)
            if self.codec.large:
                self._bind(owner, row)
            yield owner, row

    def hold_all(self) -> None:
        """Take all rows out of the store into memory."""
        self.rows.update(self.stored_rows())
        self.store.delete_range(self.prefix, after(self.prefix))
        self.in_store = False

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

    def dump(self, where: str) -> list[Piece]:
        """All rows in memory, in pieces: the materialisation of a table without a store."""
        pieces: list[Piece] = []
        held = iter(self.rows.items())
        while part := list(islice(held, _BLOCK)):
            buckets: defaultdict[int, list[Any]] = defaultdict(list)
            for key, row in part:
                buckets[row[0] >> GROUP_SHIFT] += (key, row)
            pieces += row_pieces(buckets, self.codec, where)
        pieces.sort(key=_first_group)
        return pieces


def _first_group(piece: Piece) -> int:
    return piece.first
