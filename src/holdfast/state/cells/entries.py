"""Large maps and lists, stored outside their key's row as entries that are read and written one by one.

A small map or list is stored in its cell of the row. At the barrier, one with more than `MOST_IN_ROW` elements is replaced
by a `LargeMap` or `LargeList`, and each map entry and each list chunk gets a stored key of its own:

    state id | namespace | key group | key | entry

The entry part is the map key in canonical form, or the list chunk's number (u32). The value is the id of the schema that
wrote it, followed by a part of the cell in the cell's stored form: a map of one entry, or a list of a chunk's elements.
Until the barrier, an epoch's changes stay in memory in the large map or list.

A `LargeMap` iterates in the order of its keys' canonical forms. As in a dict, the first of equal keys (1 and 1.0) stays.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any

from holdfast.common.formats.in_portions import in_portions
from holdfast.state.cells.cell_codec import CellCodec
from holdfast.state.cells.large_values import LargeValue
from holdfast.state.cells.recent_entries import RecentEntries
from holdfast.state.keys.key_codec import decode_key, encode_entry, encode_key
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.store.ordered import OrderedStore, Writes, migrate
from holdfast.state.stored.delta import Change
from holdfast.state.stored.entry_pieces import DELETE, DROP, MOST_IN_PIECE, PUT, Entry, entry_piece, unpack_entries
from holdfast.state.stored.layout import after, group_prefix, group_range, section, slice_of, split_key

__all__ = ["LARGE", "MOST_IN_ROW", "EntryFamily", "LargeList", "LargeMap"]

MOST_IN_ROW = 256
"""The most entries or elements that a row holds from one epoch to the next."""
_CHUNK = 128
"""Elements per chunk of a list."""
_MOST_CACHED = 4096
"""Entries of a map to keep in memory, the last ones read; up to twice as many stay."""
_PIECE_BYTES = 4 << 20
"""Bytes of values per piece of a dump."""
_READ_AHEAD = 64
"""Chunks of a list fetched per read."""
_GONE: Any = object()
"""Marks a missing entry."""
_MISSING: tuple[Any, Any] = (None, _GONE)
_END = b"\xff" * 9
"""Sorts after every canonical form: no form begins with this many 0xFF bytes."""

_NUMBER = struct.Struct(">I")


class EntryFamily:
    """The entries of all large maps, or large lists, of one column."""

    def __init__(self, state: int, namespaced: bool, store: OrderedStore) -> None:
        self.store = store
        self.codec: CellCodec | None = None
        """Set when the program declares the column; an undeclared column is never decoded."""
        self._state = state
        self._namespaced = namespaced
        self._dirty: list[LargeMap | LargeList] = []
        """Maps and lists changed in this epoch."""
        self._dropped_namespaces: set[int | None] = set()
        self._waiting: list[tuple[list[bytes], list[tuple[bytes, bytes]], list[bytes]]] = []
        """Writes to the store when the epoch completes: prefixes to drop, puts and deletes, in this order."""

    def prefix(self, namespace: int | None, group: int, key: Any) -> bytes:
        """The prefix of the stored keys of one key's entries."""
        return group_prefix(section(self._state, namespace).prefix, group) + encode_key(key)

    def changed(self, part: LargeMap | LargeList) -> None:
        """Register a map or list as changed in this epoch."""
        self._dirty.append(part)

    def drop_namespace(self, namespace: int) -> None:
        """Drop the entries of a namespace."""
        prefix = section(self._state, namespace).prefix
        self._dirty = [part for part in self._dirty if not part.prefix.startswith(prefix)]
        self._dropped_namespaces.add(namespace)

    def collect(self) -> Sequence[Change]:
        """At the barrier: drain the changes since the last one, in stored form."""
        dropped, self._dropped_namespaces = self._dropped_namespaces, set()
        changes: dict[int | None, list[Entry]] = {namespace: [] for namespace in dropped}
        for part in self._dirty:
            changes.setdefault(slice_of(part.prefix) if self._namespaced else None, []).extend(part.drain())
        self._dirty = []
        collected = []
        for namespace, entries in changes.items():
            at = section(self._state, namespace)
            width = len(at.prefix)
            entries.sort(key=lambda entry: split_key(entry[1], width)[0])
            drops = [key for kind, key, _ in entries if kind is DROP]
            puts = [(key, value) for kind, key, value in entries if kind is PUT]
            deletes = [key for kind, key, _ in entries if kind is DELETE]
            self._waiting.append(([at.prefix, *drops] if namespace in dropped else drops, puts, deletes))
            pieces = [entry_piece(entries[n : n + MOST_IN_PIECE], width) for n in range(0, len(entries), MOST_IN_PIECE)]
            collected.append(Change(at, namespace in dropped, pieces))
        return collected

    def discard(self) -> None:
        """Forget this epoch's changes."""
        self._dirty = []

    def completed(self) -> None:
        """Write the last collected epoch, now complete, to the store."""
        waiting, self._waiting = self._waiting, []
        for drops, puts, deletes in waiting:
            self._write(drops, puts, deletes)

    def _write(self, drops: Iterable[bytes], puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        for prefix in drops:
            self.store.delete_range(prefix, after(prefix))
        if puts or deletes:
            self.store.write(puts, deletes)

    def apply(self, change: Change, groups: KeyGroupRange | None) -> None:
        """Apply a change of a completed epoch; with ``groups``, only its entries in these key groups."""
        prefix = change.section.prefix
        if change.dropped:
            self.store.delete_range(*((prefix, after(prefix)) if groups is None else group_range(prefix, groups)))
        for piece in change.pieces:
            drops, keys, values, deletes = unpack_entries(piece)
            puts = [(prefix + key, value) for key, value in zip(keys, values, strict=True) if _within(key, groups)]
            gone = [prefix + key for key in deletes if _within(key, groups)]
            self._write([prefix + key for key in drops if _within(key, groups)], puts, gone)

    def writes(self, change: Change) -> Iterator[Writes]:
        """The pieces of a change as writes to the store."""
        prefix = change.section.prefix
        for piece in change.pieces:
            drops, keys, values, deletes = unpack_entries(piece)
            puts = [(prefix + key, value) for key, value in zip(keys, values, strict=True)]
            yield Writes([prefix + key for key in drops], puts, [prefix + key for key in deletes])

    def flush(self) -> None:
        """Do nothing: between epochs the store is up to date."""

    def migration(self) -> Iterator[None]:
        """Rewrite the entries of former types, some in each step."""
        if self.codec is not None and self.codec.has_former_types:
            whole = section(self._state).prefix
            migrated = self.codec.migrated
            # Here the key is known only in its stored form, joined with that of the entry.
            yield from migrate(self.store, whole, after(whole), lambda at, data: migrated(at[len(whole) :], data))

    def dump(self) -> Iterator[Change]:
        """All entries, in the form that `apply` takes."""
        whole = section(self._state).prefix
        yield from self.changes(self.store.scan(whole, after(whole)))

    def changes(self, rows: Iterable[tuple[bytes, bytes]]) -> Iterator[Change]:
        """Group entries, given by their stored keys in order, into changes that `apply` takes, a piece at a time."""
        width = len(section(self._state, 0 if self._namespaced else None).prefix)
        puts: Iterable[Entry] = ((PUT, key, value) for key, value in rows)
        for part in in_portions(puts, lambda entry: len(entry[2]), _PIECE_BYTES, MOST_IN_PIECE):
            for prefix, entries in groupby(part, lambda entry: entry[1][:width]):
                at = section(self._state, slice_of(prefix) if self._namespaced else None)
                yield Change(at, False, [entry_piece(sorted(entries, key=itemgetter(1)), width)])


def _within(key: bytes, groups: KeyGroupRange | None) -> bool:
    return groups is None or split_key(key, 0)[0] in groups


class LargeMap:
    """A map with individually stored entries; replaces a dict in its cell."""

    __slots__ = ("_changed", "_cleared", "_dirty", "_family", "_held", "_key", "_put", "_read_last", "_stored", "prefix")

    marker = 0
    """The row's placeholder for the map."""

    def __init__(
        self, family: EntryFamily, namespace: int | None, group: int, key: Any, entries: Mapping[Any, Any] | None = None
    ) -> None:
        """Create a map that becomes large, with its ``entries``, or open one in the store (None).

        Raises:
            TypeError: an entry's key has no canonical form.
        """
        self._family = family
        self._key = key
        self.prefix = family.prefix(namespace, group, key)
        self._changed: dict[Any, Any] = {}
        """This epoch's writes."""
        self._held = 0
        """The number of entries that they put."""
        self._put: set[Any] = set()
        """If keys vary: keys put in this epoch, for which the store may have equal ones."""
        self._read_last = RecentEntries()
        """Entries read from the store, including missing ones."""
        self._cleared = entries is not None
        """Whether the stored entries are obsolete."""
        self._dirty = False
        self._stored: bytes | None = None
        """The stored key of the first entry that this epoch may not have changed; empty: there is none; None: unknown."""
        if entries is not None:
            list(map(encode_entry, entries))
            self._touch()
            self._changed.update(entries)
            self._held = len(entries)

    def _touch(self) -> None:
        if not self._dirty:
            self._dirty = True
            self._family.changed(self)

    def __bool__(self) -> bool:
        return True

    def get(self, key: Any) -> Any:
        """The entry's value; None when missing."""
        value = self._find(key)
        return None if value is _GONE else value

    def __contains__(self, key: Any) -> bool:
        return self._find(key) is not _GONE

    def _find(self, key: Any) -> Any:
        value = self._changed.get(key, self)
        if value is not self:
            return value
        if (entry := self._read_last.get(key, None)) is None:
            entry = _MISSING if self._cleared else self._read(key)
            self._read_last.put(key, entry, _MOST_CACHED)
        return entry[1]

    def _read(self, key: Any) -> tuple[Any, Any]:
        try:
            form = encode_entry(key)
        except TypeError:  # a key without a canonical form has no entry
            return _MISSING
        (data,) = self._family.store.get_many([self.prefix + form])
        return _MISSING if data is None else next(iter(self._decoded(data).items()))

    def _decoded(self, data: bytes) -> dict[Any, Any]:
        assert self._family.codec is not None
        entry: dict[Any, Any] = self._family.codec.decode(self._key, data)
        return entry

    def __setitem__(self, key: Any, value: Any) -> None:
        before = self._changed.get(key, self)
        if before is self:
            encode_entry(key)  # raise here, not at the barrier, if the key has no canonical form
            self._touch()
            self._held += 1
            if not self._cleared and (self._family.codec is None or self._family.codec.keys_vary):
                self._put.add(key)
        elif before is _GONE:
            self._held += 1
            del self._changed[key]  # together with the equal key that was removed
        self._changed[key] = value

    def update(self, entries: Mapping[Any, Any]) -> None:
        """Set several entries."""
        for key, value in entries.items():
            self[key] = value

    def remove(self, key: Any) -> bool:
        """Remove an existing entry; returns whether any are left."""
        self._touch()
        before = self._changed.get(key, self)
        if before is not self and before is not _GONE:
            self._held -= 1
        self._changed[key] = _GONE
        self._put.discard(key)
        return self._held > 0 or self._has_others()

    def _has_others(self) -> bool:
        """Whether the store has entries that this epoch has not changed. An epoch's removals together read each once."""
        if self._cleared:
            return False
        start, end = len(self.prefix), after(self.prefix)
        first_key = self._family.store.first_key
        found = first_key(self.prefix, end) or b"" if self._stored is None else self._stored
        while found and decode_key(found[start:]) in self._changed:
            found = first_key(found + b"\x00", end) or b""
        self._stored = found
        return bool(found)

    def _keep_first_keys(self) -> None:
        """Replace keys put in this epoch by the equal ones in the store, which were first."""
        put, self._put = list(self._put), set()
        known = [self._read_last.get(key, None) for key in put]
        unknown = [key for key, entry in zip(put, known) if entry is None]
        found = self._family.store.get_many([self.prefix + encode_entry(key) for key in unknown]) if unknown else ()
        first = {entry[0]: entry[0] for entry in known if entry is not None and entry is not _MISSING}
        first.update((key, key) for data in found if data is not None for key in self._decoded(data))
        if first:
            self._changed = {first.get(key, key): value for key, value in self._changed.items()}

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self.items())

    def values(self) -> Iterator[Any]:
        """The values, in order of the keys' canonical forms."""
        return (value for _, value in self.items())

    def items(self) -> Iterator[tuple[Any, Any]]:
        """The current entries, in order of the keys' canonical forms."""
        self._keep_first_keys()
        changed = sorted((encode_entry(key), key, value) for key, value in self._changed.items()) if self._changed else []
        rows = iter(()) if self._cleared else self._family.store.scan(self.prefix, after(self.prefix))
        first = list(islice(rows, 1))  # fetch the first entry now, so that the scan sees the store before later changes
        return self._merged(changed, chain(first, rows))

    def _merged(
        self, changed: list[tuple[bytes, Any, Any]], stored: Iterable[tuple[bytes, bytes]]
    ) -> Iterator[tuple[Any, Any]]:
        start = len(self.prefix)
        waiting = iter([*changed, (_END, None, _GONE)])
        form, key, value = next(waiting)
        for stored_key, data in stored:
            entry = stored_key[start:]
            while form < entry:
                if value is not _GONE:
                    yield key, value
                form, key, value = next(waiting)
            if form != entry:
                yield from self._decoded(data).items()
        while form is not _END:
            if value is not _GONE:
                yield key, value
            form, key, value = next(waiting)

    def any_item(self) -> tuple[Any, Any]:
        """Any entry; there is at least one."""
        if self._has_others():
            assert self._stored
            key = decode_key(self._stored[len(self.prefix) :])
            return key, self._find(key)
        return next((key, value) for key, value in reversed(self._changed.items()) if value is not _GONE)

    def drop(self) -> None:
        """Remove all entries; the caller gives the cell other content."""
        self._touch()
        self._changed, self._held, self._put, self._read_last, self._cleared = {}, 0, set(), RecentEntries(), True

    def drain(self) -> Iterator[Entry]:
        """At the barrier: drain this epoch's changes, in stored form."""
        assert self._family.codec is not None
        if self._cleared:
            yield DROP, self.prefix, b""
        self._keep_first_keys()
        encode = self._family.codec.encode
        for key, value in self._changed.items():
            form = self.prefix + encode_entry(key)
            if value is not _GONE:
                yield PUT, form, encode(self._key, {key: value})
            elif not self._cleared:
                yield DELETE, form, b""
        if len(self._changed) > _MOST_CACHED:
            self._read_last = RecentEntries()
        else:
            for key, value in self._changed.items():
                self._read_last.put(key, _MISSING if value is _GONE else (key, value), _MOST_CACHED)
        self._changed, self._held, self._stored, self._cleared, self._dirty = {}, 0, None, False, False


class LargeList:
    """A list stored in chunks; replaces a list in its cell."""

    __slots__ = ("_cleared", "_dirty", "_end", "_family", "_first", "_held", "_key", "_touched", "prefix")

    def __init__(
        self,
        family: EntryFamily,
        namespace: int | None,
        group: int,
        key: Any,
        marker: int = 0,
        elements: Sequence[Any] | None = None,
    ) -> None:
        """Create a list that becomes large, with its ``elements``, or open one in the store (None)."""
        self._family = family
        self._key = key
        self.prefix = family.prefix(namespace, group, key)
        self._first, self._end = divmod(marker, 1 << 32)
        """Number of the first chunk, and the number after the last."""
        self._held: dict[int, list[Any]] = {}
        """Chunks in memory: the ones changed in this epoch, and the last one."""
        self._touched: set[int] = set()
        """Numbers of the chunks changed in this epoch."""
        self._cleared = elements is not None
        self._dirty = False
        if elements is not None:
            for start in range(0, len(elements), _CHUNK):
                self._put(self._end, list(elements[start : start + _CHUNK]))
                self._end += 1

    @property
    def marker(self) -> int:
        """The row's placeholder for the list: the range of its chunk numbers."""
        return self._first << 32 | self._end

    def __bool__(self) -> bool:
        return True

    def _touch(self) -> None:
        if not self._dirty:
            self._dirty = True
            self._family.changed(self)

    def _put(self, number: int, chunk: list[Any]) -> None:
        self._touch()
        self._held[number] = chunk
        self._touched.add(number)

    def append(self, value: Any) -> None:
        """Append an element."""
        last = self._chunk(self._end - 1) if self._end > self._first else None
        if last is None or len(last) >= _CHUNK:
            self._put(self._end, [value])
            self._end += 1
        else:
            last.append(value)
            self._put(self._end - 1, last)

    def extend(self, values: Iterable[Any]) -> None:
        """Append several elements."""
        for value in values:
            self.append(value)

    def _chunk(self, number: int) -> list[Any]:
        held = self._held.get(number)
        if held is None:
            held = self._held[number] = next(iter(self._read([number])))
        return held

    def _read(self, numbers: list[int]) -> Iterator[list[Any]]:
        """Read these chunks from the store."""
        codec = self._family.codec
        assert codec is not None
        for data in self._family.store.get_many([self.prefix + _NUMBER.pack(number) for number in numbers]):
            yield [] if data is None else codec.decode(self._key, data)

    def __iter__(self) -> Iterator[Any]:
        """The current elements, in order."""
        if self._end == self._first:
            return iter(())
        last = len(self._chunk(self._end - 1))
        return self._elements(self._all(), self._end - 1, last)

    @staticmethod
    def _elements(chunks: Iterable[tuple[int, list[Any]]], end: int, last: int) -> Iterator[Any]:
        for number, chunk in chunks:
            yield from islice(chunk, last) if number == end else chunk

    def _all(self) -> Iterator[tuple[int, list[Any]]]:
        """The present chunks with their numbers. A reader that has begun is not affected by `drop`."""
        return self._chunks(self._first, self._end, self._held)

    def _chunks(self, first: int, end: int, in_memory: Mapping[int, list[Any]]) -> Iterator[tuple[int, list[Any]]]:
        for start in range(first, end, _READ_AHEAD):
            numbers = range(start, min(start + _READ_AHEAD, end))
            held = {number: in_memory[number] for number in numbers if number in in_memory}
            missing = [number for number in numbers if number not in held]
            held.update(zip(missing, self._read(missing), strict=True))
            yield from sorted(held.items())

    def keep(self, wanted: Callable[[Any], bool]) -> bool:
        """Keep only the ``wanted`` elements; returns whether any are left."""
        left = False
        for number, chunk in self._all():
            kept = [each for each in chunk if wanted(each)]
            if len(kept) < len(chunk):
                self._put(number, kept)
            if not left:
                self._first = number + (not kept)
                left = bool(kept)
        return left

    def drop(self) -> None:
        """Remove all elements; the caller gives the cell other content."""
        self._touch()
        self._held, self._touched, self._cleared = {}, set(), True
        self._first = self._end = 0

    def drain(self) -> Iterator[Entry]:
        """At the barrier: drain this epoch's changes, in stored form."""
        assert self._family.codec is not None
        if self._cleared:
            yield DROP, self.prefix, b""
        for number in sorted(self._touched):
            form = self.prefix + _NUMBER.pack(number)
            if self._held[number]:
                yield PUT, form, self._family.codec.encode(self._key, self._held[number])
            elif not self._cleared:
                yield DELETE, form, b""
        last = self._held.get(self._end - 1)
        self._held = {} if last is None else {self._end - 1: last}
        self._touched, self._cleared, self._dirty = set(), False, False


LARGE: frozenset[type] = frozenset((LargeMap, LargeList, LargeValue))
"""The types that can replace the content of a cell."""
