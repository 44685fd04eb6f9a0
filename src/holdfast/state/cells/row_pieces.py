"""Pieces of rows: the stored form of rows of adjacent key groups in a delta or a dump.

A piece of rows is a msgpack array:

    id of the schema that wrote the rows
    runs of the rows: [key group, number of rows, next key group, number of rows, ...]
    keys, and rows, each one msgpack array in the order of the runs, stored as binary
    runs of the deleted keys, and these keys

Pieces of large rows are small, and have a head: a msgpack array of the first three, that is, without the rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import chain, compress, islice, repeat
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.checkpoint import container
from holdfast.checkpoint.parsing import parsing
from holdfast.errors import CorruptFile
from holdfast.state.cells.codec import RowCodec, packed_array
from holdfast.state.cells.row import PERSISTED, UNFLUSHED, Row
from holdfast.state.keys.key_codec import decode_keys, encode_keys
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.stored.delta import LeftPiece, Piece, cut, in_memory

__all__ = ["EncodedRows", "NewestRows", "RowPieces", "deleted_pieces", "encoded_rows", "keys_of_head", "read_piece"]

_PARTS = 48
"""Rows collected together become this many pieces, within the size limits below. So a reader of one eighth of the key groups
reads little more than one eighth of the bytes.
"""
_LEAST = 32
_ENOUGH = 256
"""Approximate maximum of rows in a piece of several key groups."""
_MOST = 4096
_BLOCK = 8192
"""Number of rows collected together."""
_LARGE_ROW = 512
"""Approximate size of large rows, in bytes."""
_LARGE_ROWS = 16 << 10
"""Approximate size of a piece of large rows, in stored bytes: fetching it takes hardly longer than fetching one row."""
_MOST_SHRUNK = 4
"""Limit of such a piece in memory, as a multiple of `_LARGE_ROWS`: reading one of its rows unpacks them all."""
_HEAD_SHARE = 32
"""Limit of the head, as a part of its piece."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[int, list[int], memoryview, memoryview, list[int], memoryview]).decode
_unpack_head = msgspec.msgpack.Decoder(tuple[int, list[int], memoryview]).decode
_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_NO_KEYS = encode_keys([])
_NO_ROWS = _pack([])

T = TypeVar("T")


class EncodedRows(NamedTuple):
    """The content of a piece; the rows are views of its bytes."""

    schema: int
    keys: list[Any]
    rows: list[msgspec.Raw]
    """One row for each of the keys: a msgpack array of cells."""
    deleted: list[Any]
    size: int
    """Bytes of memory that the piece takes."""


class RowPieces:
    """Encodes rows, and joins them to pieces by key group.

    Rows are encoded in the order of arrival, a few hundred at a time, and appended to their key groups while they are in the
    processor's cache. Sorting them before or after that would fetch them from memory once more.
    """

    def __init__(self, codec: RowCodec, where: str, enlarge: Callable[[Any, Row, int], None] | None) -> None:
        """``enlarge``: moves large maps and lists out of a row, given its key and key group. None: they stay."""
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
            if codec.growing and self._enlarge is not None:
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
        for piece, count, size in _joined(self._codec.schema_id, self._keys, self._rows, self._count):
            self._pieces.append(piece)
            self._codec.footprint.count(count, size)
        self._keys.clear()
        self._rows.clear()
        self._count, self._latest = 0, []


class NewestRows:
    """The newest version of each row in several pieces of one section, still encoded."""

    def __init__(self, groups: KeyGroupRange) -> None:
        """``groups``: the key groups whose rows are kept."""
        self._groups = groups
        self._rows: dict[Any, tuple[int, int, msgspec.Raw | None]] = {}
        """Schema, key group and content by key; None: the row was deleted."""

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, piece: Piece) -> None:
        """Add a piece whose rows are newer than those added before."""
        schema, runs, keys, data, deleted_runs, deleted = _content(piece)
        clip = _clipper(piece, self._groups)
        for found, of, rows in ((keys, runs, _rows_of(piece, data, keys)), (deleted, deleted_runs, repeat(None))):
            if of:
                groups = chain.from_iterable(map(repeat, of[::2], of[1::2]))
                self._rows.update(clip(zip(found, zip(repeat(schema), groups, rows)), of))

    def pieces(self) -> list[Piece]:
        """All rows, in pieces by key group."""
        kept: defaultdict[int, tuple[_ByGroup[Any], _ByGroup[Any]]] = defaultdict(
            lambda: (defaultdict(list), defaultdict(list))
        )
        gone: defaultdict[int, tuple[list[Any], list[int]]] = defaultdict(lambda: ([], []))
        for key, (schema, group, row) in self._rows.items():
            if row is None:
                gone[schema][0].append(key)
                gone[schema][1].append(group)
            else:
                keys, rows = kept[schema]
                keys[group].append(key)
                rows[group].append(row)
        pieces = [
            piece for schema, (keys, rows) in kept.items() for piece, *_ in _joined(schema, keys, rows, len(self._rows))
        ]
        for schema, (deleted, groups) in gone.items():
            pieces += deleted_pieces(deleted, groups, schema)
        return sorted(pieces, key=lambda piece: piece.first)


_ByGroup = defaultdict[int, list[T]]


def _joined(schema: int, keys: _ByGroup[Any], rows: _ByGroup[Any], count: int) -> Iterator[tuple[Piece, int, int]]:
    """Join ``count`` encoded rows to pieces of adjacent key groups; yields each with its number of rows, and their bytes."""
    mean = sum(sum(map(len, each)) for each in rows.values()) // max(count, 1)
    large = mean >= _LARGE_ROW
    enough = max(int(_LARGE_ROWS * _shrinks(rows, _LARGE_ROWS // mean)) // mean, 1) if large else _enough(count)
    last = max(rows, default=0)
    runs: list[int] = []
    found: list[Any] = []
    parts: list[Any] = []
    for group in sorted(rows):
        of_group, rows_of_group = keys[group], rows[group]
        step = enough if large else len(of_group)
        for start in range(0, len(of_group), step):
            part = of_group[start : start + step]
            runs += (group, len(part))
            found += part
            parts += rows_of_group[start : start + step]
            if len(found) >= enough or (group == last and start + step >= len(of_group)):
                data, encoded = packed_array(parts), encode_keys(found)
                head = _pack((schema, runs, encoded)) if large else b""
                if len(head) * _HEAD_SHARE > len(data):
                    head = b""
                yield (
                    Piece(runs[0], runs[-2], _pack((schema, runs, encoded, data, (), _NO_KEYS)), head),
                    len(found),
                    len(data),
                )
                runs, found, parts = [], [], []


def _shrinks(rows: _ByGroup[Any], some: int) -> float:
    """Estimate from a sample by what factor compression shrinks such rows."""
    sample = packed_array(list(islice(chain.from_iterable(rows.values()), some)))
    return min(len(sample) / len(container.compress(sample)[0]), _MOST_SHRUNK)


def deleted_pieces(keys: list[Any], groups: list[int], schema: int) -> Iterator[Piece]:
    """Encode the deletion of keys, given with their key groups, as pieces; ``schema``: the id of the schema."""
    for runs, part in cut(groups, keys, _enough(len(keys)), _MOST):
        yield Piece(runs[0], runs[-2], _pack((schema, (), _NO_KEYS, _NO_ROWS, runs, encode_keys(part))))


def _enough(rows: int) -> int:
    """The number of rows in a piece of several key groups, if this many rows are collected together."""
    return min(max(rows // _PARTS, _LEAST), _ENOUGH)


def read_piece(
    piece: Piece, codec: RowCodec, groups: KeyGroupRange | None
) -> tuple[Iterable[tuple[Any, Row]], Iterable[Any]]:
    """Decode a piece: its rows by key, and its deleted keys; ``groups`` restricts both.

    Raises:
        CorruptFile: the piece was not written by `RowPieces`.
        IncompatibleState: a cell cannot be read as the program declares it; names the state and the key.
    """
    schema, runs, keys, data, deleted_runs, deleted = _content(piece)
    rows = codec.decode_many(keys, data, schema, PERSISTED | UNFLUSHED)
    _check_count(piece, rows, keys)
    clip = _clipper(piece, groups)
    return clip(zip(keys, rows), runs), clip(deleted, deleted_runs)


def encoded_rows(piece: Piece, groups: KeyGroupRange | None) -> EncodedRows:
    """Read a piece without decoding its rows; ``groups`` restricts them and the deleted keys.

    Raises:
        CorruptFile: the piece was not written by `RowPieces`.
    """
    schema, runs, keys, data, deleted_runs, deleted = _content(piece)
    clip = _clipper(piece, groups)
    held = list(clip(keys, runs)), list(clip(_rows_of(piece, data, keys), runs))
    return EncodedRows(schema, *held, list(clip(deleted, deleted_runs)), in_memory(piece.data))


def keys_of_head(piece: LeftPiece, groups: KeyGroupRange, where: str) -> tuple[int, list[Any]]:
    """The schema's id and the keys of a piece that was left in its file (``where``); ``groups`` restricts the keys.

    Raises:
        CorruptFile: the head was not written by `RowPieces`.
    """
    with parsing(where, "a head of a piece of rows"):
        schema, runs, stored = _unpack_head(piece.head)
        keys = _counted(stored, runs)
    return schema, list(_clipper(piece, groups)(keys, runs))


def _content(piece: Piece) -> tuple[int, list[int], list[Any], memoryview, list[int], list[Any]]:
    """A piece's schema, runs, keys and rows, then the runs and keys of the deleted rows."""
    with parsing(piece.where, "a piece of rows"):
        schema, runs, keys, data, deleted_runs, deleted = _unpack(piece.data)
        return schema, runs, _counted(keys, runs), data, deleted_runs, _counted(deleted, deleted_runs)


def _counted(stored: memoryview, runs: list[int]) -> list[Any]:
    """Decode the keys of these runs; their number must be that of the runs."""
    keys = decode_keys(stored)
    if len(runs) % 2 or min(runs, default=0) < 0 or sum(runs[1::2]) != len(keys):
        raise ValueError(f"the runs of {len(keys)} keys are those of others")
    return keys


def _rows_of(piece: Piece, data: memoryview, keys: list[Any]) -> list[msgspec.Raw]:
    with parsing(piece.where, "a piece of rows"):
        rows = _split(data)
    _check_count(piece, rows, keys)
    return rows


def _check_count(piece: Piece, rows: Sized, keys: list[Any]) -> None:
    if len(rows) != len(keys):
        raise CorruptFile(piece.where, f"not a piece of rows: {len(rows)} rows of {len(keys)} keys")


def _clipper(piece: Piece | LeftPiece, groups: KeyGroupRange | None) -> Callable[[Iterable[T], list[int]], Iterable[T]]:
    """Restrict the piece's items, given with their runs, to ``groups``."""
    if groups is None or (piece.first in groups and piece.last in groups):
        return lambda items, runs: items
    return lambda items, runs: compress(items, _within(runs, groups))


def _within(runs: list[int], groups: KeyGroupRange) -> Iterator[bool]:
    """For each item of these runs, whether its key group is in ``groups``."""
    return chain.from_iterable([group in groups] * count for group, count in zip(runs[::2], runs[1::2]))
