"""Pieces of rows: the stored form of rows of adjacent key groups in a delta or a dump.

A piece of rows is a msgpack array:

    id of the schema that wrote the rows
    runs of the rows: [key group, number of rows, next key group, number of rows, ...]
    keys, and rows, each one msgpack array in the order of the runs, stored as binary
    runs of the deleted keys, and these keys
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, compress
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.state.codec import RowCodec, packed_array
from holdfast.state.delta import Piece, cut
from holdfast.state.key_codec import decode_keys, encode_keys
from holdfast.state.key_groups import KeyGroupRange
from holdfast.state.row import PERSISTED, UNFLUSHED, Row

__all__ = ["EncodedRows", "RowPieces", "deleted_pieces", "encoded_rows", "read_piece"]

_PARTS = 48
"""Rows collected together become this many pieces, within the size limits below. A reader of one eighth of the key groups
then reads little more than one eighth of the bytes."""
_LEAST = 32
_ENOUGH = 256
"""Approximate rows in a piece of several key groups, at most."""
_MOST = 4096
_BLOCK = 8192
"""Rows collected together."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[int, list[int], memoryview, memoryview, list[int], memoryview]).decode
_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_NO_KEYS = encode_keys([])
_NO_ROWS = _pack([])

T = TypeVar("T")


class EncodedRows(NamedTuple):
    """The content of a piece; its rows are views of it."""

    schema: int
    keys: list[Any]
    rows: list[msgspec.Raw]
    """The rows of these keys, each one msgpack array of slots."""
    deleted: list[Any]
    size: int
    """Bytes of the piece."""


class RowPieces:
    """Encodes rows, and joins them to pieces by key group.

    Rows are encoded in the order in which they come, a few hundred at a time, and appended to their key groups while the
    processor's cache holds them: rows sorted before or after that would be fetched from memory once more.
    """

    def __init__(self, codec: RowCodec, where: str, enlarge: Callable[[Any, Row, int], None]) -> None:
        """``enlarge``: moves large maps and lists out of a row, given with its key and key group."""
        self._codec = codec
        self._where = where
        self._enlarge = enlarge
        self._keys: defaultdict[int, list[Any]] = defaultdict(list)
        self._rows: defaultdict[int, list[bytes]] = defaultdict(list)
        self._count = 0
        self._latest: list[Row] = []
        self._pieces: list[Piece] = []

    def add(self, keys: list[Any], rows: list[Row], groups: list[int]) -> None:
        """Encode rows, given with their keys and key groups.

        Raises:
            UserCodeError: a value does not fit its declared type; names the state and the key.
        """
        codec = self._codec
        try:
            encoded = codec.encode_small(rows)
        except Exception:  # pickle and users' classes may raise anything
            if codec.growing:
                for key, row, group in zip(keys, rows, groups):
                    self._enlarge(key, row, group)
            encoded = codec.encode_each(keys, rows, self._where)
        keys_of, rows_of = self._keys, self._rows
        for group, key, data in zip(groups, keys, encoded):
            keys_of[group].append(key)
            rows_of[group].append(data)
        self._count += len(rows)
        self._latest = rows
        if self._count >= _BLOCK:
            self._join()

    def drain(self) -> list[Piece]:
        """The pieces of all rows."""
        if self._count:
            self._join()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _join(self) -> None:
        """Join the encoded rows to pieces of adjacent key groups."""
        self._codec.footprint.sample(self._latest, self._codec.encode)
        enough = _enough(self._count)
        last = max(self._rows, default=0)
        runs: list[int] = []
        keys: list[Any] = []
        rows: list[bytes] = []
        for group in sorted(self._rows):
            runs += (group, len(self._keys[group]))
            keys += self._keys[group]
            rows += self._rows[group]
            if len(keys) >= enough or group == last:
                data = packed_array(rows)
                content = _pack((self._codec.schema_id, runs, encode_keys(keys), data, (), _NO_KEYS))
                self._pieces.append(Piece(runs[0], runs[-2], content))
                self._codec.footprint.count(len(keys), len(data))
                runs, keys, rows = [], [], []
        self._keys.clear()
        self._rows.clear()
        self._count, self._latest = 0, []


def deleted_pieces(keys: list[Any], groups: list[int], codec: RowCodec) -> Iterator[Piece]:
    """Encode the deletion of keys, given with their key groups, as pieces."""
    for runs, part in cut(groups, keys, _enough(len(keys)), _MOST):
        yield Piece(runs[0], runs[-2], _pack((codec.schema_id, (), _NO_KEYS, _NO_ROWS, runs, encode_keys(part))))


def _enough(rows: int) -> int:
    """The rows of a piece of several key groups, if this many are collected together."""
    return min(max(rows // _PARTS, _LEAST), _ENOUGH)


def read_piece(
    piece: Piece, codec: RowCodec, groups: KeyGroupRange | None
) -> tuple[Iterable[tuple[Any, Row]], Iterable[Any]]:
    """Decode a piece: its rows by key, and its deleted keys; ``groups`` restricts both."""
    schema, runs, keys, data, deleted_runs, deleted = _unpack(piece.data)
    held = zip(decode_keys(keys), codec.decode_many(data, schema, PERSISTED | UNFLUSHED))
    clip = _clipper(piece, groups)
    return clip(held, runs), clip(decode_keys(deleted), deleted_runs)


def encoded_rows(piece: Piece, groups: KeyGroupRange | None) -> EncodedRows:
    """Read a piece without decoding its rows; ``groups`` restricts them and the deleted keys."""
    schema, runs, keys, data, deleted_runs, deleted = _unpack(piece.data)
    clip = _clipper(piece, groups)
    held = list(clip(decode_keys(keys), runs)), list(clip(_split(data), runs))
    return EncodedRows(schema, *held, list(clip(decode_keys(deleted), deleted_runs)), len(piece.data))


def _clipper(piece: Piece, groups: KeyGroupRange | None) -> Callable[[Iterable[T], list[int]], Iterable[T]]:
    """Restrict the piece's items, given with their runs, to ``groups``."""
    if groups is None or (piece.first in groups and piece.last in groups):
        return lambda items, runs: items
    return lambda items, runs: compress(items, _within(runs, groups))


def _within(runs: list[int], groups: KeyGroupRange) -> Iterator[bool]:
    """Tell for each item of these runs whether its key group is one of ``groups``."""
    return chain.from_iterable([group in groups] * count for group, count in zip(runs[::2], runs[1::2]))
