"""Pieces of rows: the stored form of rows of adjacent key groups in a delta or a dump.

A piece of rows is a msgpack array:

    id of the schema that wrote the rows
    runs of the rows: [key group, number of rows, next key group, number of rows, ...]
    keys, and rows, each one msgpack array in the order of the runs, stored as binary
    runs of the deleted keys, and these keys
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, compress
from typing import Any

import msgspec

from holdfast.state.codec import RowCodec
from holdfast.state.delta import Piece
from holdfast.state.key_codec import decode_keys, encode_keys
from holdfast.state.key_groups import KeyGroupRange
from holdfast.state.row import PERSISTED, UNFLUSHED, Row

__all__ = ["deleted_pieces", "read_piece", "row_pieces"]

_PARTS = 48
"""Rows collected together become this many pieces, within the size limits below. A reader of one eighth of the key groups
then reads little more than one eighth of the bytes."""
_LEAST = 32
_ENOUGH = 256
"""Approximate rows in a piece of several key groups: few enough to stay in the processor's cache between the steps."""
_MOST = 4096

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[int, list[int], bytes, bytes, list[int], bytes]).decode
_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_NO_KEYS = encode_keys([])


def row_pieces(keys: list[Any], rows: list[Row], groups: list[int], codec: RowCodec, where: str) -> Iterator[Piece]:
    """Encode rows as pieces, given with their keys and key groups.

    Raises:
        UserCodeError: a value does not fit its declared type; names the state and the key.
    """
    buckets: defaultdict[int, list[Any]] = defaultdict(list)
    # Encode rows in memory order, then group the encoded rows: the processor's cache likes it better than the reverse.
    for key, stored, group in zip(keys, _split(codec.encode_many(keys, rows, where)), groups):
        bucket = buckets[group]
        bucket.append(key)
        bucket.append(stored)
    for runs, items in _cut(buckets, 2):
        data = _pack(items[1::2])
        yield Piece(runs[0], runs[-2], _pack((codec.schema_id, runs, encode_keys(items[::2]), data, (), _NO_KEYS)))


def deleted_pieces(keys: list[Any], groups: list[int], codec: RowCodec, where: str) -> Iterator[Piece]:
    """Encode the deletion of keys, given with their key groups, as pieces."""
    nothing = codec.encode_many([], [], where)
    buckets: defaultdict[int, list[Any]] = defaultdict(list)
    for key, group in zip(keys, groups):
        buckets[group].append(key)
    for runs, items in _cut(buckets, 1):
        yield Piece(runs[0], runs[-2], _pack((codec.schema_id, (), _NO_KEYS, nothing, runs, encode_keys(items))))


def _cut(buckets: dict[int, list[Any]], width: int) -> Iterator[tuple[list[int], list[Any]]]:
    """Cut the items of each key group into runs and items, one pair per piece. An item takes ``width`` places."""
    total = sum(map(len, buckets.values())) // width
    enough = min(max(total // _PARTS, _LEAST), _ENOUGH) * width
    most = _MOST * width
    runs: list[int] = []
    items: list[Any] = []
    for group in sorted(buckets):
        bucket = buckets[group]
        for start in range(0, len(bucket), most):
            part = bucket[start : start + most]
            runs += (group, len(part) // width)
            items += part
            if len(items) >= enough:
                yield runs, items
                runs, items = [], []
    if items:
        yield runs, items


def read_piece(
    piece: Piece, codec: RowCodec, groups: KeyGroupRange | None
) -> tuple[Iterable[tuple[Any, Row]], Iterable[Any]]:
    """Decode a piece: its rows by key, and its deleted keys; ``groups`` restricts both."""
    schema, runs, keys, data, deleted_runs, deleted = _unpack(piece.data)
    held = zip(decode_keys(keys), codec.decode_many(data, schema, PERSISTED | UNFLUSHED))
    gone = decode_keys(deleted)
    if groups is None or (piece.first in groups and piece.last in groups):
        return held, gone
    return compress(held, _within(runs, groups)), compress(gone, _within(deleted_runs, groups))


def _within(runs: list[int], groups: KeyGroupRange) -> Iterator[bool]:
    """Tell for each item of these runs whether its key group is one of ``groups``."""
    return chain.from_iterable([group in groups] * count for group, count in zip(runs[::2], runs[1::2]))
