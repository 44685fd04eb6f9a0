"""The timers of one service as a family of the key space: their stored form in the local store and in deltas.

The store's key of a timer is

    state id | bucket, as the slice | key group | key | time within the bucket (u16) [| namespace | its length (u16)]

without a value. In deltas and dumps, timers of all buckets are stored together, in pieces by key group: the times, keys
and namespaces of added timers, then those of removed ones.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from holdfast.state.delta import Change, Piece
from holdfast.state.key_codec import decode_key, decode_keys, encode_key, encode_keys
from holdfast.state.key_groups import KeyGroupRange
from holdfast.state.layout import after, section, slice_of
from holdfast.state.ordered import OrderedStore
from holdfast.state.timers import BUCKET_BITS, Timer, TimerQueue

__all__ = ["TimerFamily"]

_PIECE = 4096
"""The most timers per piece."""
_DUMPED = 1 << 17
"""Timers held in memory at a time during a dump."""
_SHORT = struct.Struct(">H")
_SHORTS = [_SHORT.pack(number) for number in range(1 << 16)]
_GROUP = _SHORT.size
_IN_BUCKET = (1 << BUCKET_BITS) - 1
_ARRAY = struct.Struct(">BI")
_ARRAY_32 = 0xDD
"""msgpack: an array whose length follows in 32 bits."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[list[int], bytes, bytes | None, list[int], bytes, bytes | None]).decode
_plain_key = msgspec.msgpack.Encoder().encode

GroupsOf = Callable[[list[Any]], list[int]]
"""Returns the key groups of keys."""


class TimerFamily(TimerQueue):
    """The timers of one service, with their stored form."""

    def __init__(
        self, state: int, store: OrderedStore, groups_of: GroupsOf, *, namespaced: bool = False, bound: int = 1 << 62
    ) -> None:
        """``namespaced``: the timers' owners are pairs of key and namespace."""
        super().__init__(_TimerRows(state, store, groups_of, namespaced), bound)
        self._section = section(state)
        self._groups_of = groups_of
        self._namespaced = namespaced

    def collect(self) -> Sequence[Change]:
        """At the barrier: drain the changes since the last one, in stored form."""
        added, removed = self.drain()
        pieces = [*self._pieces(removed, False), *self._pieces(added, True)]
        return [Change(self._section, False, pieces)] if pieces else []

    def apply(self, change: Change, groups: KeyGroupRange | None) -> None:
        """Apply a change of a completed epoch; with ``groups``, only timers of keys in these key groups."""
        for piece in change.pieces:
            whole = groups is None or (piece.first in groups and piece.last in groups)
            added_times, added, added_namespaces, removed_times, removed, removed_namespaces = _unpack(piece.data)
            self.replay(
                self._timers(added_times, added, added_namespaces, None if whole else groups),
                self._timers(removed_times, removed, removed_namespaces, None if whole else groups),
            )

    def dump(self) -> Iterator[Change]:
        """All timers, in the form that `apply` takes."""
        timers = self.all()
        while part := list(islice(timers, _DUMPED)):
            yield Change(self._section, False, list(self._pieces(part, True)))

    def _pieces(self, timers: list[Timer], added: bool) -> Iterator[Piece]:
        if not timers:
            return
        groups = self._groups_of([owner[0] for _, owner in timers] if self._namespaced else [key for _, key in timers])
        order = sorted(range(len(timers)), key=groups.__getitem__)
        for start in range(0, len(order), _PIECE):
            part = order[start : start + _PIECE]
            stored = self._stored([timers[i] for i in part])
            nothing = self._stored([])
            data = _pack((*stored, *nothing) if added else (*nothing, *stored))
            yield Piece(groups[part[0]], groups[part[-1]], data)

    def _stored(self, timers: list[Timer]) -> tuple[list[int], bytes, bytes | None]:
        times = [time for time, _ in timers]
        if not self._namespaced:
            return times, encode_keys([key for _, key in timers]), None
        keys = encode_keys([owner[0] for _, owner in timers])
        return times, keys, encode_keys([owner[1] for _, owner in timers])

    def _timers(
        self, times: list[int], keys: bytes, namespaces: bytes | None, groups: KeyGroupRange | None
    ) -> Iterable[Timer]:
        owners = users = decode_keys(keys)
        if namespaces is not None:
            owners = list(zip(users, decode_keys(namespaces), strict=True))
        timers = zip(times, owners, strict=True)
        if groups is None or not times:
            return timers
        return [timer for timer, group in zip(timers, self._groups_of(users), strict=True) if group in groups]


class _TimerRows:
    """One service's timers in the local store."""

    def __init__(self, state: int, store: OrderedStore, groups_of: GroupsOf, namespaced: bool) -> None:
        self._state = state
        self._store = store
        self._groups_of = groups_of
        self._namespaced = namespaced
        self._whole = section(state).prefix

    def buckets(self) -> Iterator[int]:
        """The buckets with timers, found with one seek each."""
        end = after(self._whole)
        at = self._whole
        while (found := next(self._store.scan(at, end), None)) is not None:
            number = slice_of(found[0])
            yield number
            at = after(section(self._state, number).prefix)

    def load(self, bucket: int) -> list[Timer]:
        """Load all timers of a bucket."""
        prefix = section(self._state, bucket).prefix
        start = len(prefix) + _GROUP
        rows = [key[start:] for key, _ in self._store.scan(prefix, after(prefix))]
        first = bucket << BUCKET_BITS
        if not self._namespaced:
            times = [first + _SHORT.unpack_from(row, len(row) - _SHORT.size)[0] for row in rows]
            return list(zip(times, _keys([row[: -_SHORT.size] for row in rows]), strict=True))
        timers: list[Timer] = []
        for row in rows:
            (length,) = _SHORT.unpack_from(row, len(row) - _SHORT.size)
            at = len(row) - _SHORT.size - length
            time = first + _SHORT.unpack_from(row, at - _SHORT.size)[0]
            timers.append((time, (decode_key(row[: at - _SHORT.size]), decode_key(row[at : at + length]))))
        return timers

    def write(self, added: Iterable[Timer], removed: Iterable[Timer]) -> None:
        """Add and remove timers."""
        puts = [(row, b"") for row in self._rows(list(added))]
        deletes = self._rows(list(removed))
        if puts or deletes:
            self._store.write(puts, deletes)

    def drop(self, bucket: int) -> None:
        """Remove a bucket."""
        prefix = section(self._state, bucket).prefix
        self._store.delete_range(prefix, after(prefix))

    def _rows(self, timers: list[Timer]) -> list[bytes]:
        owners = [owner for _, owner in timers]
        keys = [owner[0] for owner in owners] if self._namespaced else owners
        prefixes = {number: section(self._state, number).prefix for number in {time >> BUCKET_BITS for time, _ in timers}}
        places = [prefixes[time >> BUCKET_BITS] for time, _ in timers]
        rows = [
            prefix + _SHORTS[group] + key + _SHORTS[time & _IN_BUCKET]
            for prefix, group, key, (time, _) in zip(places, self._groups_of(keys), _encoded(keys), timers, strict=True)
        ]
        if self._namespaced:
            namespaces = [encode_key(owner[1]) for owner in owners]
            rows = [row + each + _SHORTS[len(each)] for row, each in zip(rows, namespaces, strict=True)]
        return rows


def _encoded(keys: list[Any]) -> Iterable[bytes]:
    """The stored form of each key."""
    if set(map(type, keys)) <= {int, str}:
        try:
            return list(map(_plain_key, keys))
        except (OverflowError, UnicodeEncodeError):
            pass  # beyond 64 bits, or a lone surrogate: `encode_key` handles it
    return map(encode_key, keys)


def _keys(rows: list[bytes]) -> list[Any]:
    """Decode the keys in these rows as one array."""
    return decode_keys(_ARRAY.pack(_ARRAY_32, len(rows)) + b"".join(rows))
