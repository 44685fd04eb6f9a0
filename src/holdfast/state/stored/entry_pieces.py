"""Pieces of entries: the stored form of entries of adjacent key groups in a delta or a dump.

A piece is a msgpack array of four arrays: prefixes of keys to drop, then keys to put, their values, and keys to delete. The
keys lack the section's prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from holdfast.checkpoint.parsing import parsing
from holdfast.state.stored.delta import Piece
from holdfast.state.stored.layout import GROUP_SIZE, split_key

__all__ = [
    "DELETE",
    "DROP",
    "MOST_IN_PIECE",
    "PUT",
    "Entry",
    "entry_piece",
    "newest_entries",
    "sizes_by_key",
    "unpack_entries",
]

MOST_IN_PIECE = 4096
_LIST_NUMBER = 4
"""Length of a list chunk's number at the end of a key."""
DROP, PUT, DELETE = range(3)
Entry = tuple[int, bytes, bytes]
"""Kind, stored key and value of one write; kinds: drop all keys with a prefix, put, delete."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[list[bytes], list[bytes], list[bytes], list[bytes]]).decode
_pair = msgspec.msgpack.Decoder(tuple[msgspec.Raw, msgspec.Raw]).decode


def entry_piece(entries: Sequence[Entry], width: int) -> Piece:
    """A piece of one section's entries, in order of key group; ``width``: the length of the section's prefix."""
    data = (
        [key[width:] for kind, key, _ in entries if kind is DROP],
        [key[width:] for kind, key, _ in entries if kind is PUT],
        [value for kind, _, value in entries if kind is PUT],
        [key[width:] for kind, key, _ in entries if kind is DELETE],
    )
    return Piece(split_key(entries[0][1], width)[0], split_key(entries[-1][1], width)[0], _pack(data))


def unpack_entries(piece: Piece) -> tuple[list[bytes], list[bytes], list[bytes], list[bytes]]:
    """The content of a piece: prefixes to drop, keys to put, their values, keys to delete.

    Raises:
        CorruptFile: the piece was not written by `entry_piece`.
    """
    with parsing(piece.where, "a piece of entries"):
        drops, keys, values, deletes = _unpack(piece.data)
        shortest = min(map(len, (*drops, *keys, *deletes)), default=GROUP_SIZE)
        if len(keys) != len(values) or shortest < GROUP_SIZE:
            raise ValueError(f"{len(keys)} keys with {len(values)} values, a key of {shortest} bytes")
    return drops, keys, values, deletes


def newest_entries(pieces: Iterable[Piece]) -> list[Piece]:
    """Reduce the pieces of one section, in order, to the newest version of each entry."""
    merged: list[Piece] = []
    newest: dict[bytes, bytes | None] = {}
    for piece in pieces:
        drops, keys, values, deletes = unpack_entries(piece)
        if drops:  # a drop applies to what was written before it
            merged += _joined(newest)
            newest = {}
            merged.append(piece)
        else:
            newest.update(zip(keys, values, strict=True))
            newest.update(dict.fromkeys(deletes))
    return merged + _joined(newest)


def _joined(newest: Mapping[bytes, bytes | None]) -> list[Piece]:
    """Pieces of these entries, given by their keys without the section's prefix; None: the entry was deleted."""
    entries: list[Entry] = [(DELETE, key, b"") if value is None else (PUT, key, value) for key, value in newest.items()]
    entries.sort(key=lambda entry: entry[1])
    return [entry_piece(entries[at : at + MOST_IN_PIECE], 0) for at in range(0, len(entries), MOST_IN_PIECE)]


def sizes_by_key(piece: Piece) -> Iterator[tuple[bytes, int]]:
    """The stored key that owns each entry of a piece, and the entry's size in bytes."""
    _, keys, values, _ = unpack_entries(piece)
    for key, value in zip(keys, values):
        yield _owner(split_key(key, 0)[1]), len(key) + len(value)


def _owner(stored: bytes) -> bytes:
    r"""The key in a stored key without section and key group. A map's entry is one more canonical form, a list's is 4 bytes.

    >>> _owner(b"\xa4anna\xa6coffee") == _owner(b"\xa4anna" + bytes(4)) == b"\xa4anna"
    True
    """
    try:
        return bytes(_pair(b"\x92" + stored)[0])
    except msgspec.DecodeError:
        return stored[:-_LIST_NUMBER]
