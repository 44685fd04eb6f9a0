"""Chunks of timers: the stored form of many timers, and one service's timers in the local store.

A change of many timers is a msgpack array: times, keys and namespaces (or nil) of the added timers, then those of the
removed ones. Keys and namespaces are arrays in canonical form, stored as binary.

The local store holds the timers of a bucket and key group in chunks, one for each time that timers left memory:

    state id | bucket, as the slice | key group | 0xC1 | number of the chunk (u64)

with the value ``u32 timers added | u32 timers removed | change``, whose times are relative to the bucket's start. A later
chunk overrides earlier ones. No key in canonical form begins with 0xC1. A row with a key there instead, followed by the
time (u16) and without a value, is one timer added before all chunks; earlier releases stored timers in this form:

    state id | bucket, as the slice | key group | key | time within the bucket (u16) [| namespace | its length (u16)]
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from holdfast.checkpoint.parsing import parsing
from holdfast.checkpoint.stores.storage import Data
from holdfast.state.keys.key_codec import decode_key, decode_keys, encode_key, encode_keys
from holdfast.state.store.ordered import OrderedStore
from holdfast.state.stored.layout import after, group_prefix, section, slice_of, split_key
from holdfast.state.timers.timers import BUCKET_BITS, Timer

__all__ = ["GroupsOf", "TimerChunks", "TimerList", "owners_of", "pack_change", "timers_by_group", "unpack_change"]

GroupsOf = Callable[[list[Any]], list[int]]
"""Returns the key groups of keys."""

_time_of = _key_of = itemgetter(0)
_owner_of = _namespace_of = itemgetter(1)
_IN_BUCKET = (1 << BUCKET_BITS) - 1
_CHUNK = b"\xc1"
_NUMBER = struct.Struct(">Q")
_COUNTS = struct.Struct(">II")
_SHORT = struct.Struct(">H")
_MOST_REMOVED = 4096
"""Up to this many removed timers in a bucket's chunks, rewriting them is not worth its cost."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[list[int], bytes, bytes | None, list[int], bytes, bytes | None]).decode


class TimerList(NamedTuple):
    """Timers in stored form."""

    times: Sequence[int]
    keys: bytes
    namespaces: bytes | None

    @staticmethod
    def of(timers: Collection[Timer], namespaced: bool) -> TimerList:
        """Encode these timers."""
        keys, namespaces = owners_of(timers, namespaced)
        times = list(map(_time_of, timers))
        return TimerList(times, encode_keys(keys), None if namespaces is None else encode_keys(namespaces))

    def timers(self) -> list[Timer]:
        """Decode the timers."""
        owners = decode_keys(self.keys)
        if self.namespaces is not None:
            owners = list(zip(owners, decode_keys(self.namespaces), strict=True))
        return list(zip(self.times, owners, strict=True))

    def moved(self, by: int) -> TimerList:
        """The same timers, later by this many ms."""
        return TimerList([time + by for time in self.times], self.keys, self.namespaces)


def pack_change(added: TimerList, removed: TimerList) -> bytes:
    """Encode a change."""
    return _pack((*added, *removed))


def unpack_change(data: Data) -> tuple[TimerList, TimerList]:
    """Decode a change written by `pack_change`: the added and the removed timers."""
    times, keys, namespaces, removed_times, removed_keys, removed_namespaces = _unpack(data)
    return TimerList(times, keys, namespaces), TimerList(removed_times, removed_keys, removed_namespaces)


@dataclass
class _Chunks:
    """What is known about one bucket's chunks."""

    next: int = 0
    """The number of the next chunk."""
    added: int = 0
    removed: int = 0


class TimerChunks:
    """One service's timers in the local store: a `holdfast.state.timers.timers.TimerStore`."""

    def __init__(self, state: int, store: OrderedStore, groups_of: GroupsOf, namespaced: bool) -> None:
        self._state = state
        self._store = store
        self._groups_of = groups_of
        self._namespaced = namespaced
        self._whole = section(state).prefix
        self._none = TimerList.of((), namespaced)
        self._chunks: dict[int, _Chunks] = {}
        """The facts about buckets that were written to since the store was opened."""

    def buckets(self) -> Iterator[int]:
        """The buckets with timers, found with one seek each."""
        end = after(self._whole)
        at = self._whole
        while (found := self._store.first_key(at, end)) is not None:
            number = slice_of(found)
            yield number
            at = after(section(self._state, number).prefix)

    def load(self, bucket: int) -> set[Timer]:
        """Load all timers of a bucket."""
        return self._timers(bucket, self._rows(bucket))

    def loading(self, bucket: int) -> Iterator[set[Timer]]:
        """Load all timers of a bucket, one key group per step, as of the step."""
        prefix = section(self._state, bucket).prefix
        at, end = prefix, after(prefix)
        while (found := self._store.first_key(at, end)) is not None:
            group = group_prefix(prefix, split_key(found, len(prefix))[0])
            at = after(group)
            yield self._timers(bucket, [(key[len(prefix) :], value) for key, value in self._store.scan(group, at)])

    def _timers(self, bucket: int, rows: Iterable[tuple[bytes, bytes]]) -> set[Timer]:
        """Decode a bucket's rows, whose keys lack its prefix."""
        first = bucket << BUCKET_BITS
        timers: set[Timer] = set()
        chunks: list[bytes] = []
        with parsing(f"the local store's timers of state {self._state}", "timers"):
            for key, value in rows:
                if value:
                    chunks.append(value)
                else:
                    timers.add(self._single(key, first))
            for chunk in chunks:  # in order of key group and number
                added, removed = unpack_change(chunk[_COUNTS.size :])
                timers.update(added.moved(first).timers())
                timers.difference_update(removed.moved(first).timers())
        return timers

    def _rows(self, bucket: int) -> Iterator[tuple[bytes, bytes]]:
        """A bucket's rows; their keys lack the bucket's prefix."""
        prefix = section(self._state, bucket).prefix
        start = len(prefix)
        return ((key[start:], value) for key, value in self._store.scan(prefix, after(prefix)))

    def _single(self, row: bytes, first: int) -> Timer:
        """Decode a timer stored in a row of its own."""
        _, key = split_key(row, 0)
        end = len(key) - _SHORT.size
        if not self._namespaced:
            return first + _SHORT.unpack_from(key, end)[0], decode_key(key[:end])
        at = end - _SHORT.unpack_from(key, end)[0]
        time = first + _SHORT.unpack_from(key, at - _SHORT.size)[0]
        return time, (decode_key(key[: at - _SHORT.size]), decode_key(key[at:end]))

    def single_rows(self, timers: TimerList) -> list[bytes]:
        """The keys of these timers, one row per timer."""
        rows = []
        for group, members in self._by_group(timers.timers()).items():
            for time, owner in members:
                at = group_prefix(section(self._state, time >> BUCKET_BITS).prefix, group)
                within = _SHORT.pack(time & _IN_BUCKET)
                if self._namespaced:
                    key, namespace = owner
                    form = encode_key(namespace)
                    rows.append(at + encode_key(key) + within + form + _SHORT.pack(len(form)))
                else:
                    rows.append(at + encode_key(owner) + within)
        return rows

    def write(self, bucket: int, added: Collection[Timer], removed: Collection[Timer]) -> None:
        """Add and remove timers."""
        chunks = self._of(bucket)
        if 2 * len(removed) > chunks.added + chunks.removed:  # most of them were removed before they were stored
            removed = self.load(bucket).intersection(removed)
        if added or removed:
            self._store.write(self._puts(bucket, added, removed))
        chunks.added += len(added)
        chunks.removed += len(removed)
        self._merge_if_worth_it(bucket, chunks)

    def replacing(self, bucket: int, parts: Iterable[Collection[Timer]]) -> Iterator[int]:
        """Replace a bucket's timers, one part per step; yields its size. The former timers stay until the end."""
        prefix = section(self._state, bucket).prefix
        before = [key for key, _ in self._store.scan(prefix, after(prefix))]
        number = 0
        for part in parts:
            self._of(bucket)
            self._store.write(self._puts(bucket, part, ()))
            number += len(part)
            yield len(part)
        self._store.write([], before)
        self._chunks[bucket] = _Chunks(self._of(bucket).next, number)

    def drop(self, bucket: int) -> None:
        """Remove a bucket."""
        prefix = section(self._state, bucket).prefix
        self._store.delete_range(prefix, after(prefix))
        self._chunks.pop(bucket, None)

    def _of(self, bucket: int) -> _Chunks:
        """The facts about a bucket's chunks. The bucket is scanned at its first write."""
        known = self._chunks.get(bucket)
        if known is None:
            known = self._chunks[bucket] = _Chunks()
            for key, value in self._rows(bucket):
                if value:
                    added, removed = _COUNTS.unpack_from(value)
                    known.added += added
                    known.removed += removed
                    known.next = max(known.next, 1 + _NUMBER.unpack(key[-_NUMBER.size :])[0])
                else:
                    known.added += 1
        return known

    def _merge_if_worth_it(self, bucket: int, chunks: _Chunks) -> None:
        """Rewrite the remaining timers as new chunks if most entries of the chunks are about removed timers."""
        if chunks.removed > _MOST_REMOVED and 2 * chunks.removed > chunks.added:
            for _ in self.replacing(bucket, [self.load(bucket)]):
                pass

    def _puts(self, bucket: int, added: Collection[Timer], removed: Collection[Timer]) -> list[tuple[bytes, bytes]]:
        """Encode new chunks, one per key group."""
        prefix = section(self._state, bucket).prefix
        number = self._chunks[bucket].next
        self._chunks[bucket].next += 1
        set_by, removed_by = self._by_group(added), self._by_group(removed)
        puts = []
        for group in sorted({*set_by, *removed_by}):
            here = group_prefix(prefix, group)
            one = self._listed(set_by.get(group, ()))
            other = self._listed(removed_by.get(group, ()))
            puts.append(self._row(bucket, here, number, one, other))
        return puts

    def _row(self, bucket: int, prefix: bytes, number: int, added: TimerList, removed: TimerList) -> tuple[bytes, bytes]:
        back = -(bucket << BUCKET_BITS)
        counts = _COUNTS.pack(len(added.times), len(removed.times))
        change = pack_change(added.moved(back), removed.moved(back))
        return prefix + _CHUNK + _NUMBER.pack(number), counts + change

    def _listed(self, timers: Collection[Timer]) -> TimerList:
        return TimerList.of(timers, self._namespaced) if timers else self._none

    def _by_group(self, timers: Collection[Timer]) -> dict[int, list[Timer]]:
        return timers_by_group(timers, self._groups_of, self._namespaced)


def owners_of(timers: Collection[Timer], namespaced: bool) -> tuple[list[Any], list[Any] | None]:
    """The keys of these timers, and their namespaces, if any."""
    owners = list(map(_owner_of, timers))
    if not namespaced:
        return owners, None
    return list(map(_key_of, owners)), list(map(_namespace_of, owners))


def timers_by_group(timers: Collection[Timer], groups_of: GroupsOf, namespaced: bool) -> dict[int, list[Timer]]:
    """Group timers by the key group of their keys."""
    keys, _ = owners_of(timers, namespaced)
    by_group: defaultdict[int, list[Timer]] = defaultdict(list)
    for group, timer in zip(groups_of(keys), timers, strict=True):
        by_group[group].append(timer)
    return by_group
