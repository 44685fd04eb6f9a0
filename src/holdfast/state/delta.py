"""Delta and dump files: sections of the key space, cut into pieces that are read and checked one by one.

Form 2 of a file, integers of the trailer little-endian:

    pieces    of the first section, then of the second, ...; sections in order of state and slice, pieces of key group
    index     msgpack: [[state, slice, dropped, [[first group, last group, length, size, checksum], ...]], ...]
    trailer   u32 length of the index as stored
              u32 size of the index before compression; 0: not compressed
              u8  form: 2
              3 zero bytes
              4 bytes magic "HFSD"

A piece of ``length`` bytes is one zstd frame of ``size`` bytes, or as it is where ``size`` is 0. Its checksum is the
XXH3-64 of the stored bytes. The file's handle holds the XXH3-128 of index and trailer: it vouches for the index, and the
index for the pieces. A reader that owns some of the key groups reads the index and its own pieces only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec
import xxhash

from holdfast.checkpoint.files import compress, decompress, unpack
from holdfast.checkpoint.handles import IndexedFile
from holdfast.checkpoint.storage import Data, NotFound, Storage
from holdfast.errors import CorruptFile, IncompatibleState
from holdfast.state.key_groups import KeyGroupRange
from holdfast.state.layout import Section, section

__all__ = ["Change", "Piece", "pack_delta", "read_delta", "write_delta"]

_TRAILER = struct.Struct("<IIB3x4s")
_MAGIC = b"HFSD"
_FORM = 2
_LEAST_TAIL = 1 << 10
_MOST_TAIL = 1 << 16
"""Bytes from the end of a file that are read in search of its index."""
_READ_AT_ONCE = 8 << 20

_pack = msgspec.msgpack.Encoder().encode


class Piece(NamedTuple):
    """Rows or entries of neighbouring key groups that are stored together."""

    first: int
    """The first key group in it."""
    last: int
    data: bytes


class Change(NamedTuple):
    """What happened to a section: it may have been dropped, then these pieces were written."""

    section: Section
    dropped: bool
    pieces: Sequence[Piece]


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """A piece in the index."""

    first: int
    last: int
    length: int
    size: int
    checksum: int


class _SectionEntry(msgspec.Struct, frozen=True, array_like=True):
    """A section in the index."""

    state: int
    slice: int | None
    dropped: bool
    pieces: list[_Entry]


_unpack_index = msgspec.msgpack.Decoder(list[_SectionEntry]).decode


def pack_delta(changes: Iterable[Change]) -> tuple[bytes, bytes]:
    """The bytes of a file, and the checksum for its handle."""
    stored: list[Data] = []
    index: list[_SectionEntry] = []
    for (state, slice, _), dropped, pieces in sorted(changes, key=lambda change: change.section.prefix):
        entries = []
        for first, last, data in pieces:
            body, size = compress(data)
            stored.append(body)
            entries.append(_Entry(first, last, len(body), size, xxhash.xxh3_64_intdigest(body)))
        index.append(_SectionEntry(state, slice, dropped, entries))
    body, size = compress(_pack(index))
    end = bytes(body) + _TRAILER.pack(len(body), size, _FORM, _MAGIC)
    stored.append(end)
    return b"".join(stored), xxhash.xxh3_128_digest(end)


def write_delta(storage: Storage, path: str, changes: Iterable[Change]) -> IndexedFile:
    """Store a delta or a dump under a path that is never used again.

    Raises:
        StorageError: not done within the retry budget, or refused.
    """
    data, checksum = pack_delta(changes)
    storage.put(path, data)
    return IndexedFile(path, len(data), checksum)


def read_delta(storage: Storage, handle: IndexedFile, groups: KeyGroupRange | None = None) -> Iterator[Change]:
    """The changes in a file, of the pieces only those that hold some of ``groups`` (None: all).

    Raises:
        CorruptFile: missing, truncated, altered or another file than the one the handle was made for.
        IncompatibleState: written in another form.
        StorageError: no answer within the retry budget, or refused.
    """
    return _Reader(storage, handle).changes(groups)


class _Reader:
    """One file being read: whole, or by ranges."""

    def __init__(self, storage: Storage, handle: IndexedFile) -> None:
        self._storage = storage
        self._handle = handle
        self._where = storage.locate(handle.path)

    def changes(self, groups: KeyGroupRange | None) -> Iterator[Change]:
        size = self._handle.size
        tail_size = size if groups is None else min(size, max(_LEAST_TAIL, min(size // 32, _MOST_TAIL)))
        tail = self._get(size - tail_size, tail_size)
        length, unpacked = self._sizes(tail)
        end = length + _TRAILER.size
        if end > len(tail):
            missing = end - len(tail)
            tail = self._get(size - end, missing) + tail
        index = self._index(tail[len(tail) - end :], unpacked)
        ends = list(accumulate((piece.length for each in index for piece in each.pieces), initial=0))
        if ends[-1] != size - end:
            raise self._corrupt(f"its index tells of {ends[-1]} bytes, there are {size - end}")
        starts = iter(ends)
        wanted = [[(start, piece) for piece, start in zip(each.pieces, starts) if _overlap(piece, groups)] for each in index]
        bodies = self._bodies([placed for each in wanted for placed in each], tail)
        for each, placed in zip(index, wanted, strict=True):
            pieces = [Piece(piece.first, piece.last, self._open(piece, next(bodies))) for _, piece in placed]
            if pieces or each.dropped:
                yield Change(section(each.state, each.slice), each.dropped, pieces)

    def _sizes(self, tail: bytes) -> tuple[int, int]:
        """Length and unpacked size of the index, as the trailer tells; its checksum comes later."""
        if len(tail) < _TRAILER.size:
            raise self._corrupt("it is shorter than a trailer")
        length, unpacked, _, magic = _TRAILER.unpack(tail[-_TRAILER.size :])
        if magic != _MAGIC:
            self._refuse_form_1()
            raise self._corrupt("it does not end in HFSD")
        if length + _TRAILER.size > self._handle.size:
            raise self._corrupt("its index would be longer than the file")
        return length, unpacked

    def _refuse_form_1(self) -> None:
        if self._get(0, 4) != b"HFST":
            return
        unpack(self._get(0, self._handle.size), self._where)
        raise IncompatibleState(
            f"{self._where} is state of form 1, which this release of Holdfast does not read; "
            "start the job with an empty checkpoint directory, or run the release that wrote it"
        )

    def _index(self, end: bytes, unpacked: int) -> list[_SectionEntry]:
        if xxhash.xxh3_128_digest(end) != self._handle.checksum:
            raise self._corrupt("the checksum of its index does not match the checkpoint's")
        form = _TRAILER.unpack(end[-_TRAILER.size :])[2]
        if form != _FORM:
            raise IncompatibleState(
                f"{self._where} is state of form {form}; this release of Holdfast reads form {_FORM}: "
                "run the release that wrote it, or a later one"
            )
        try:
            return _unpack_index(decompress(end[: -_TRAILER.size], unpacked))
        except msgspec.MsgspecError as error:
            raise self._corrupt(f"its index cannot be read: {error}") from error

    def _bodies(self, placed: list[tuple[int, _Entry]], tail: bytes) -> Iterator[memoryview]:
        """The stored bytes of these pieces, neighbours by one read; nothing is read that is in ``tail`` already."""
        at = 0
        have = self._handle.size - len(tail)
        while at < len(placed):
            start = end = placed[at][0]
            first = at
            while at < len(placed) and placed[at][0] == end and (at == first or end - start < _READ_AT_ONCE):
                end += placed[at][1].length
                at += 1
            block = tail[start - have : end - have] if start >= have else self._get(start, end - start)
            view = memoryview(block)
            for offset, piece in placed[first:at]:
                yield view[offset - start : offset - start + piece.length]

    def _open(self, piece: _Entry, body: memoryview) -> bytes:
        if xxhash.xxh3_64_intdigest(body) != piece.checksum:
            raise self._corrupt(f"the checksum of its piece with key groups {piece.first} to {piece.last} does not match")
        return decompress(body, piece.size)

    def _get(self, start: int, length: int) -> bytes:
        handle = self._handle
        try:
            if start == 0 and length == handle.size:
                data = self._storage.get(handle.path)
            else:
                data = self._storage.get_range(handle.path, start, length)
        except NotFound as error:
            raise CorruptFile(self._where, "missing") from error
        if len(data) != length:
            raise CorruptFile(self._where, f"truncated or altered: {len(data)} bytes instead of {length} at {start}")
        return data

    def _corrupt(self, reason: str) -> CorruptFile:
        return CorruptFile(self._where, f"truncated or altered: {reason}")


def _overlap(piece: _Entry, groups: KeyGroupRange | None) -> bool:
    return groups is None or (piece.first <= groups.last and piece.last >= groups.first)
