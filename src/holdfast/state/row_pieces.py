"""Pieces of rows: the stored form of rows of adjacent key groups in a delta or a dump.

A piece of rows is a msgpack array:

    id of the schema that wrote the rows
    runs of the rows: [key group, number of rows, next key group, number of rows, ...]
    keys, and rows, each one msgpack array in the order of the runs, stored as binary
    runs of the deleted keys, and these keys
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec

from holdfast.state.codec import RowCodec
from holdfast.state.delta import Piece
from holdfast.state.key_codec import decode_keys, encode_keys
from holdfast.state.key_groups import KeyGroupRange
from holdfast.state.row import GROUP_SHIFT, PERSISTED, UNFLUSHED, Row

__all__ = ["Buckets", "deleted_pieces", "read_piece", "row_pieces"]

Buckets = Mapping[int, list[Any]]
"""By key group: key, row, key, row, ... (or just keys)."""

_PARTS = 48
"""Rows collected together become this many pieces, within the size limits below. A reader of one eighth of the key groups
then reads little more than one eighth of the bytes."""
_LEAST = 32
_ENOUGH = 256
"""Approximate rows in a piece of several key groups: few enough to stay in the processor's cache between the steps."""
_MOST = 4096

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[int, list[int], bytes, bytes, list[int], bytes]).decode
_NO_KEYS = encode_keys([])


def row_pieces(buckets: Buckets, codec: RowCodec, where: str) -> Iterator[Piece]:
    """Encode rows as pieces.

    Raises:
        UserCodeError: a value does not fit its declared type; names the state and the key.
    """
    for runs, items in _cut(buckets, 2):
        keys, rows = items[::2], items[1::2]
        data = codec.encode_many(keys, rows, where)
        yield Piece(runs[0], runs[-2], _pack((codec.schema_id, runs, encode_keys(keys), data, (), _NO_KEYS)))


def deleted_pieces(buckets: Buckets, codec: RowCodec, where: str) -> Iterator[Piece]:
    """Encode the deletion of keys as pieces."""
    nothing = codec.encode_many([], [], where)
    for runs, keys in _cut(buckets, 1):
        yield Piece(runs[0], runs[-2], _pack((codec.schema_id, (), _NO_KEYS, nothing, runs, encode_keys(keys))))


def _cut(buckets: Buckets, width: int) -> Iterator[tuple[list[int], list[Any]]]:
    """Cut the buckets into runs and items, one pair per piece. An item takes ``width`` places."""
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
) -> tuple[Iterable[tuple[Any, Row]], Iterable[tuple[Any, int]]]:
    """Decode a piece: its rows by key, and its deleted keys with their key groups; ``groups`` restricts both."""
    schema, runs, keys, data, deleted_runs, deleted = _unpack(piece.data)
    flags = PERSISTED | UNFLUSHED
    rows = codec.decode_many(data, schema, flags)
    marks = _expand(runs, lambda group: group << GROUP_SHIFT | flags)
    for row, mark in zip(rows, marks):
        row[0] = mark
    held = zip(decode_keys(keys), rows)
    gone = zip(decode_keys(deleted), _expand(deleted_runs, lambda group: group))
    if groups is None or (piece.first in groups and piece.last in groups):
        return held, gone
    mine = [(key, row) for key, row in held if row[0] >> GROUP_SHIFT in groups]
    return mine, [(key, group) for key, group in gone if group in groups]


def _expand(runs: list[int], value: Callable[[int], int]) -> Iterator[int]:
    return chain.from_iterable([value(group)] * count for group, count in zip(runs[::2], runs[1::2]))
