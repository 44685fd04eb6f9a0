"""Delta and dump files: sections of the key space, cut into pieces that are read and checked one by one.

Form 2 of a file, integers of the trailer little-endian:

    pieces    section by section, in order of state and slice; within a section, in order of key group; in a concatenated
              file, those of the first delta, then those of the second, and so on
    index     msgpack: [[state, slice, dropped, [[first group, last group, length, size, checksum, head], ...]], ...]
    trailer   u32 stored length of the index
              u32 size of the uncompressed index; 0: stored uncompressed
              u8  form: 2
              3 zero bytes
              4 bytes magic "HFSD"

A piece is one zstd frame of ``length`` bytes that unpacks to ``size`` bytes; if ``size`` is 0 it is stored
uncompressed. Its checksum is the XXH3-64 of the stored bytes. The file's handle holds the XXH3-128 of index and trailer,
so the handle protects the index, and the index protects the pieces. A reader of some key groups fetches only the index
and the pieces that overlap these groups.

A piece's head repeats its keys, if its rows are large (`holdfast.state.cells.row_pieces`): a restore that knows the keys can
leave the piece where it is until a row is needed. Otherwise it is empty; files of earlier releases have
no heads.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from mmap import mmap
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import xxhash

from holdfast.checkpoint.container import compress, decompress, unpack
from holdfast.checkpoint.handles import IndexedFile, InlineFile
from holdfast.checkpoint.parsing import parsing
from holdfast.checkpoint.stores.storage import Data, NotFound, Storage
from holdfast.common.formats.in_portions import in_portions
from holdfast.errors import CorruptFile, IncompatibleState
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.stored.layout import Section, section

__all__ = [
    "Change",
    "LeftPiece",
    "Piece",
    "StoredDelta",
    "cut",
    "in_memory",
    "open_piece",
    "pack_delta",
    "pack_joined",
    "put_delta",
    "read_delta",
    "read_stored",
    "stored_sizes",
    "write_delta",
]

_TRAILER = struct.Struct("<IIB3x4s")
_MAGIC = b"HFSD"
_FORM = 2
_LEAST_TAIL = 1 << 10
_MOST_TAIL = 1 << 16
"""Bounds of the first read at the end of a file, in bytes; it fetches the trailer and usually the whole index."""
_READ_AT_ONCE = 8 << 20
_CHANGE = 8 << 20
"""Bytes of a section, before compression, that a reader gets as one change: sections may be much larger than memory."""
_LARGE = 4 << 10
"""Size of a large piece, in bytes."""
_FUTILE, _AGAIN = 8, 32
"""After `_FUTILE` large pieces in a row that do not compress, compression is tried only on every `_AGAIN`-th piece of the
section.
"""

_pack = msgspec.msgpack.Encoder().encode

T = TypeVar("T")


class Piece(NamedTuple):
    """Encoded rows or entries of adjacent key groups, stored together."""

    first: int
    """The first key group of the piece."""
    last: int
    data: Data
    head: bytes = b""
    """The keys of its rows, which the index then also stores; empty: it does not."""
    where: str = ""
    """The file that it was read from, for errors."""


class LeftPiece(NamedTuple):
    """A piece with a head that is left in its file."""

    first: int
    last: int
    head: bytes
    start: int
    """The piece's offset in the file."""
    length: int
    size: int
    checksum: int


def in_memory(data: Data) -> int:
    """The memory of a piece's data, in bytes: none for a mapped file."""
    return 0 if isinstance(data, memoryview) and isinstance(data.obj, mmap) else len(data)


class Change(NamedTuple):
    """The changes of one section: an optional drop of everything, then the written pieces."""

    section: Section
    dropped: bool
    pieces: Sequence[Piece]
    left: Sequence[LeftPiece] = ()
    """Written pieces that the reader left in the file."""


def cut(groups: Iterable[int], items: Iterable[T], enough: int, most: int) -> Iterator[tuple[list[int], list[T]]]:
    """Cut items into pieces of adjacent key groups.

    Args:
        groups: The key group of each item.
        items: The items.
        enough: Number of items that completes a piece of several key groups.
        most: The most items of one key group per piece.

    Yields:
        Per piece, its runs ``[key group, number of items, next key group, ...]``, and its items in order.
    """
    by_group: defaultdict[int, list[T]] = defaultdict(list)
    for group, item in zip(groups, items):
        by_group[group].append(item)
    runs: list[int] = []
    piece: list[T] = []
    for group, members in sorted(by_group.items()):
        for start in range(0, len(members), most):
            part = members[start : start + most]
            runs += (group, len(part))
            piece += part
            if len(piece) >= enough:
                yield runs, piece
                runs, piece = [], []
    if piece:
        yield runs, piece


_Natural = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """An index entry for a piece."""

    first: _Natural
    last: _Natural
    length: _Natural
    size: _Natural
    checksum: int
    head: bytes = b""


class _SectionEntry(msgspec.Struct, frozen=True, array_like=True):
    """An index entry for a section."""

    state: Annotated[int, msgspec.Meta(ge=0, le=2**16 - 1)]
    slice: Annotated[int, msgspec.Meta(le=2**63 - 1)] | None
    dropped: bool
    pieces: list[_Entry]


_Placed = tuple[int, _Entry]
"""A piece, and its offset in the file."""
_unpack_index = msgspec.msgpack.Decoder(list[_SectionEntry]).decode


def pack_delta(changes: Iterable[Change]) -> tuple[bytes, bytes]:
    """Build a file's content; returns its bytes and the checksum for its handle."""
    stored: list[Data] = []
    index: list[Any] = []
    for (state, slice, _), dropped, pieces, _ in sorted(changes, key=lambda change: change.section.prefix):
        entries: list[Any] = []
        for (first, last, _, head, _), (body, size) in zip(pieces, _compressed(pieces)):
            stored.append(body)
            entry = (first, last, len(body), size, xxhash.xxh3_64_intdigest(body))
            entries.append((*entry, head) if head else entry)
        index.append((state, slice, dropped, entries))
    return _with_end(stored, index)


def _compressed(pieces: Iterable[Piece]) -> Iterator[tuple[Data, int]]:
    """The stored form of each piece of a section, and its size before compression; 0: stored uncompressed."""
    futile = 0
    for _, _, data, *_ in pieces:
        large = len(data) >= _LARGE
        hopeless = large and futile >= _FUTILE and futile % _AGAIN != 0
        body, size = (data, 0) if hopeless else compress(data)
        if large:
            futile = 0 if size else futile + 1
        yield body, size


def _with_end(pieces: list[Data], index: list[Any]) -> tuple[bytes, bytes]:
    """A file's content, and the checksum for its handle."""
    body, size = compress(_pack(index))
    end = bytes(body) + _TRAILER.pack(len(body), size, _FORM, _MAGIC)
    return b"".join([*pieces, end]), xxhash.xxh3_128_digest(end)


def write_delta(storage: Storage, path: str, changes: Iterable[Change]) -> IndexedFile:
    """Store a delta or dump under a unique path.

    Raises:
        StorageError: the storage refused the write, or the retry budget ran out.
    """
    return put_delta(storage, path, *pack_delta(changes))


def put_delta(storage: Storage, path: str, data: bytes, checksum: bytes) -> IndexedFile:
    """Store a packed delta under a unique path.

    Raises:
        StorageError: the storage refused the write, or the retry budget ran out.
    """
    storage.put(path, data)
    return IndexedFile(path, len(data), checksum)


class StoredDelta(NamedTuple):
    """A delta whose pieces keep their stored form."""

    pieces: Data
    sections: list[_SectionEntry]

    @property
    def memory(self) -> int:
        """Bytes of its pieces before compression."""
        return sum(piece.size or piece.length for each in self.sections for piece in each.pieces)


def read_stored(storage: Storage, handle: IndexedFile | InlineFile, mapped: memoryview | None = None) -> StoredDelta:
    """Read and verify a delta, without unpacking its pieces. ``mapped``: see `read_delta`.

    Raises:
        CorruptFile: the file is missing, truncated, altered, or not the one that the handle describes.
        IncompatibleState: the file has another form.
        StorageError: the storage refused the read, or the retry budget ran out.
    """
    return _Reader(storage, handle, mapped).stored()


def pack_joined(deltas: Sequence[StoredDelta]) -> tuple[bytes, bytes]:
    """Build the content of one delta from adjacent ones, with the changes of the first, then of the second, and so on.

    Returns its bytes and the checksum for its handle.
    """
    return _with_end([each.pieces for each in deltas], [entry for each in deltas for entry in each.sections])


def read_delta(
    storage: Storage,
    handle: IndexedFile | InlineFile,
    groups: KeyGroupRange | None = None,
    mapped: memoryview | None = None,
    leaves: Callable[[Section], bool] = lambda section: False,
) -> Iterator[Change]:
    """Read a file's changes; with ``groups``, only the pieces that overlap them.

    Args:
        storage: The storage with the file.
        handle: The file.
        groups: The wanted key groups; None: all.
        mapped: The file in memory, e.g. mapped. Uncompressed pieces are then views of it.
        leaves: Whether a section's pieces with a head stay in the file.

    Raises:
        CorruptFile: the file is missing, truncated, altered, or not the one that the handle describes.
        IncompatibleState: the file has another form.
        StorageError: the storage refused the read, or the retry budget ran out.
    """
    return _Reader(storage, handle, mapped).changes(groups, leaves)


def open_piece(piece: _Entry | LeftPiece, body: memoryview, where: str) -> Data:
    """Verify and unpack a piece read from its file (``where``, for errors).

    Raises:
        CorruptFile: it is altered.
    """
    _verify(piece, body, where)
    return decompress(body, piece.size, where) if piece.size else body


def _verify(piece: _Entry | LeftPiece, body: memoryview, where: str) -> None:
    if xxhash.xxh3_64_intdigest(body) != piece.checksum:
        raise _corrupt(where, f"the checksum of its piece with key groups {piece.first} to {piece.last} does not match")


def stored_sizes(storage: Storage, handle: IndexedFile | InlineFile) -> list[tuple[int, int]]:
    """The stored bytes of each section's pieces, with the state's id, in a file. Reads only the index.

    Raises:
        CorruptFile: the file is missing, truncated, altered, or not the one that the handle describes.
        IncompatibleState: the file has another form.
        StorageError: the storage refused the read, or the retry budget ran out.
    """
    _, index, _ = _Reader(storage, handle).index(whole=False)
    return [(each.state, sum(piece.length for piece in each.pieces)) for each in index]


class _Reader:
    """Reads one file, whole or by ranges."""

    def __init__(self, storage: Storage, handle: IndexedFile | InlineFile, mapped: Data | None = None) -> None:
        self._storage = storage
        self._handle = handle
        self._mapped = memoryview(handle.data) if isinstance(handle, InlineFile) else mapped
        self._where = storage.locate(handle.path)

    def changes(self, groups: KeyGroupRange | None, leaves: Callable[[Section], bool]) -> Iterator[Change]:
        tail, index, ends = self.index(whole=groups is None or self._mapped is not None)
        starts = iter(ends)
        sections = [section(each.state, each.slice) for each in index]
        wanted: list[list[_Placed]] = []
        left: list[list[LeftPiece]] = []
        for each, leave in zip(index, map(leaves, sections)):
            placed = [(start, piece) for piece, start in zip(each.pieces, starts) if _overlap(piece, groups)]
            wanted.append([(start, piece) for start, piece in placed if not (leave and piece.head)])
            left.append([_left(start, piece) for start, piece in placed if leave and piece.head])
        bodies = self._bodies([placed for each in wanted for placed in each], tail)
        for each, at, placed, others in zip(index, sections, wanted, left, strict=True):
            if others or (each.dropped and not placed):
                yield Change(at, each.dropped, [], others or ())
            dropped = each.dropped and not others
            opened = (self._opened(piece, next(bodies)) for _, piece in placed)
            for pieces in in_portions(opened, lambda piece: len(piece.data), _CHANGE):
                yield Change(at, dropped, pieces)
                dropped = False

    def _opened(self, piece: _Entry, body: memoryview) -> Piece:
        return Piece(piece.first, piece.last, open_piece(piece, body, self._where), where=self._where)

    def stored(self) -> StoredDelta:
        data, index, ends = self.index(whole=True)
        view = memoryview(data)
        for start, piece in zip(ends, (piece for each in index for piece in each.pieces)):
            _verify(piece, view[start : start + piece.length], self._where)
        return StoredDelta(view[: ends[-1]], index)

    def index(self, whole: bool) -> tuple[Data, list[_SectionEntry], list[int]]:
        """The file's end, its index, and the boundaries of its pieces; ``whole``: read the whole file at once."""
        size = self._handle.size
        tail_size = size if whole else min(size, max(_LEAST_TAIL, min(size // 32, _MOST_TAIL)))
        tail = self._get(size - tail_size, tail_size)
        length, unpacked = self._sizes(tail)
        end = length + _TRAILER.size
        if end > len(tail):
            missing = end - len(tail)
            tail = b"".join((self._get(size - end, missing), tail))
        index = self._index(tail[len(tail) - end :], unpacked)
        ends = list(accumulate((piece.length for each in index for piece in each.pieces), initial=0))
        if ends[-1] != size - end:
            raise self._corrupt(f"its index lists {ends[-1]} bytes of pieces, the file has {size - end}")
        return tail, index, ends

    def _sizes(self, tail: Data) -> tuple[int, int]:
        """Read the index's stored and unpacked sizes from the trailer, which is not yet verified."""
        if len(tail) < _TRAILER.size:
            raise self._corrupt("the file is shorter than its trailer")
        length, unpacked, _, magic = _TRAILER.unpack(tail[-_TRAILER.size :])
        if magic != _MAGIC:
            self._refuse_form_1()
            raise self._corrupt("the file does not end with HFSD")
        if length + _TRAILER.size > self._handle.size:
            raise self._corrupt("its index would be longer than the file")
        return length, unpacked

    def _refuse_form_1(self) -> None:
        if self._get(0, 4) != b"HFST":
            return
        unpack(bytes(self._get(0, self._handle.size)), self._where)
        raise IncompatibleState(
            f"{self._where} is state of form 1, which this release of Holdfast does not read; "
            "start the job with an empty checkpoint directory, or run the release that wrote it"
        )

    def _index(self, end: Data, unpacked: int) -> list[_SectionEntry]:
        if xxhash.xxh3_128_digest(end) != self._handle.checksum:
            raise self._corrupt("the checksum of its index does not match the checkpoint's")
        form = _TRAILER.unpack(end[-_TRAILER.size :])[2]
        if form != _FORM:
            raise IncompatibleState(
                f"{self._where} is state of form {form}; this release of Holdfast reads form {_FORM}: "
                "run the release that wrote it, or a later one"
            )
        packed = decompress(end[: -_TRAILER.size], unpacked, self._where)
        with parsing(self._where, "an index of a delta"):
            return _unpack_index(packed)

    def _bodies(self, placed: list[_Placed], tail: Data) -> Iterator[memoryview]:
        """Fetch the stored bytes of these pieces: adjacent ones in one read, and nothing that ``tail`` already holds."""
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

    def _get(self, start: int, length: int) -> Data:
        handle, whole = self._handle, start == 0 and length == self._handle.size
        data: Data
        try:
            if self._mapped is not None:
                data = self._mapped if whole else self._mapped[start : start + length]
            elif whole:
                data = self._storage.get(handle.path)
            else:
                data = self._storage.get_range(handle.path, start, length)
        except NotFound as error:
            raise CorruptFile(self._where, "missing") from error
        if len(data) != length:
            raise CorruptFile(self._where, f"truncated or altered: {len(data)} bytes instead of {length} at {start}")
        return data

    def _corrupt(self, reason: str) -> CorruptFile:
        return _corrupt(self._where, reason)


def _corrupt(where: str, reason: str) -> CorruptFile:
    return CorruptFile(where, f"truncated or altered: {reason}")


def _left(start: int, piece: _Entry) -> LeftPiece:
    return LeftPiece(piece.first, piece.last, piece.head, start, piece.length, piece.size, piece.checksum)


def _overlap(piece: _Entry, groups: KeyGroupRange | None) -> bool:
    return groups is None or (piece.first <= groups.last and piece.last >= groups.first)
