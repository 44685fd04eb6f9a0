"""BlobFile: large values of a local store in a file of their own, beside RocksDB's.

    file      := chunk*, index, trailer
    chunk     := record*                  sorted by key; about 32 KB
    record    := u32 length of the key | u32 length of the value | key | value
    index     := msgpack array of chunks: [first key, last key, offset, length, XXH3-64]
    trailer   := u32 length of the index | u64 XXH3-64 of the index | "HFBLOB01"

A file is written once, from beginning to end. Until it is sealed, it has another name, and neither index nor trailer. In
place of each value RocksDB holds a `Blob`: the value's place and checksum. A stub to read instead of the value may follow
(`with_stubs`).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, NamedTuple

import msgspec
import xxhash

from holdfast.checkpoint.parsing import PARSE_ERRORS
from holdfast.state.store.disk_reads import read_ahead

__all__ = [
    "BLOB_SIZE",
    "MARKER",
    "SUFFIX",
    "Blob",
    "BlobFile",
    "Chunk",
    "Damaged",
    "packed_chunks",
    "chunks_of",
    "records",
    "sealing",
    "with_stubs",
]

SUFFIX = ".blobs"
"""The suffix of a sealed file's name."""
_UNSEALED = ".unsealed"
MARKER = 0xC1
"""The first byte of a blob; msgpack never writes it."""

_BLOB = struct.Struct(">BQIIQ")
BLOB_SIZE = _BLOB.size
unpack_blob = _BLOB.unpack_from
"""Unpacks the fields of a `Blob` from the beginning of the data."""
_PLACE = struct.Struct(">BQI")
PLACE_SIZE = _PLACE.size
_LENGTHS = struct.Struct(">II")
_TRAILER = struct.Struct(">IQ8s")
_MAGIC = b"HFBLOB01"
_CHUNK = 32 << 10
"""Size at which a chunk is closed, in bytes."""
_LEAST_TAIL, _TAIL_SHARE = 4 << 10, 512
"""The part of a file that is read first, at its end: minimum in bytes, and fraction of the file. Usually it holds the whole
index.
"""

_checksum = xxhash.xxh3_64_intdigest


class Damaged(OSError):
    """A blob file's content is not what was written."""


class Blob(NamedTuple):
    """What RocksDB holds in place of a value."""

    marker: int
    file: int
    """The number of the file."""
    offset: int
    """The value's offset in the file."""
    size: int
    """The value's size, in bytes."""
    checksum: int
    """The value's XXH3-64."""

    @staticmethod
    def unpack(data: bytes) -> Blob:
        """Read a blob; ``data`` has `BLOB_SIZE` bytes or more, and begins with `MARKER`."""
        return Blob._make(unpack_blob(data))


def place(number: int, offset: int) -> bytes:
    """The beginning of a value's blob, given the file's number and the value's offset in it."""
    return _PLACE.pack(MARKER, number, offset)


def with_stubs(found: list[bytes | None], kind: bytes) -> set[int]:
    """Replace blobs by their stubs of this kind, in place; returns the positions. Blobs without such a stub stay.

    >>> ((_, blob),) = packed_chunks([(b"key", b"value")], 7, 0).blobs
    >>> found = [b"row", blob + b"k+stub", None]
    >>> with_stubs(found, b"k+"), found
    ({1}, [b'row', b'stub', None])
    """
    start = BLOB_SIZE + len(kind)
    places = set()
    for at, data in enumerate(found):
        if data is not None and data.startswith(kind, BLOB_SIZE) and data[0] == MARKER:
            found[at] = data[start:]
            places.add(at)
    return places


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Some adjacent records of a file."""

    first: bytes
    last: bytes
    """The key of its last record; ``first`` is that of its first one."""
    offset: Annotated[int, msgspec.Meta(ge=0)]
    size: Annotated[int, msgspec.Meta(ge=0)]
    """Size in bytes."""
    checksum: int
    """The XXH3-64 of its bytes."""

    @property
    def end(self) -> int:
        """The offset after the chunk."""
        return self.offset + self.size

    def verified(self, data: bytes) -> bytes:
        """The bytes of the chunk, verified.

        Raises:
            Damaged: they are not those that were written.
        """
        if len(data) != self.size or _checksum(data) != self.checksum:
            raise Damaged(f"altered between {self.offset} and {self.end}")
        return data


_pack_index = msgspec.msgpack.Encoder().encode
_unpack_index = msgspec.msgpack.Decoder(list[Chunk]).decode


class Packed(NamedTuple):
    """Rows packed as chunks."""

    data: bytes
    chunks: list[Chunk]
    blobs: list[tuple[bytes, bytes]]
    """The keys of the rows, each with what RocksDB holds in place of its value."""


def packed_chunks(rows: Iterable[tuple[bytes, bytes]], number: int, start: int) -> Packed:
    """Pack rows, sorted by key, as chunks from the offset ``start`` of the file ``number``.

    >>> packed = packed_chunks([(b"a", b"1"), (b"b", b"22")], number=7, start=100)
    >>> [(chunk.first, chunk.last, chunk.offset, chunk.size) for chunk in packed.chunks]
    [(b'a', b'b', 100, 21)]
    >>> [(key, Blob.unpack(blob)[1:4]) for key, blob in packed.blobs]
    [(b'a', (7, 109, 1)), (b'b', (7, 119, 2))]
    >>> list(records(packed.data))
    [(b'a', 9, b'1'), (b'b', 19, b'22')]
    """
    parts: list[bytes] = []
    done: list[bytes] = []
    chunks: list[Chunk] = []
    blobs: list[tuple[bytes, bytes]] = []
    pack_lengths, pack_blob, checksum = _LENGTHS.pack, _BLOB.pack, _checksum
    at = begin = start
    first = last = b""
    for key, value in rows:
        if at - begin >= _CHUNK:
            done.append(data := b"".join(parts))
            chunks.append(Chunk(first, last, begin, at - begin, checksum(data)))
            parts, begin = [], at
        if not parts:
            first = key
        last = key
        size = len(value)
        parts += (pack_lengths(len(key), size), key, value)
        at += 8 + len(key)
        blobs.append((key, pack_blob(MARKER, number, at, size, checksum(value))))
        at += size
    if parts:
        done.append(data := b"".join(parts))
        chunks.append(Chunk(first, last, begin, at - begin, checksum(data)))
    return Packed(b"".join(done), chunks, blobs)


def records(data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """The complete records in the bytes of chunks: keys, offsets of the values in ``data``, and values."""
    at, end = 0, len(data)
    while at + _LENGTHS.size <= end:
        key_size, size = _LENGTHS.unpack_from(data, at)
        value = at + _LENGTHS.size + key_size
        if value + size > end:
            return
        yield data[value - key_size : value], value, data[value : value + size]
        at = value + size


def sealing(chunks: Sequence[Chunk]) -> bytes:
    """The index and the trailer of a file with these chunks."""
    index = _pack_index(chunks)
    return index + _TRAILER.pack(len(index), _checksum(index), _MAGIC)


def chunks_of(size: int, read: Callable[[int, int], bytes]) -> list[Chunk]:
    """The chunks of a sealed file.

    Args:
        size: The file's size, in bytes.
        read: Returns the bytes of the file from an offset on, given their number.

    Raises:
        Damaged: the file was altered, or not sealed.
    """
    start = max(size - max(_LEAST_TAIL, size // _TAIL_SHARE), 0)
    tail = read(start, size - start)
    if len(tail) < _TRAILER.size:
        raise Damaged("truncated")
    length, checksum, magic = _TRAILER.unpack_from(tail, len(tail) - _TRAILER.size)
    begin = size - _TRAILER.size - length
    if magic != _MAGIC or begin < 0:
        raise Damaged("truncated, or its end is altered")
    if begin < start:
        tail = read(begin, start - begin) + tail
    index = tail[-_TRAILER.size - length : -_TRAILER.size]
    if _checksum(index) != checksum:
        raise Damaged("its index is altered")
    try:
        chunks = _unpack_index(index)
    except PARSE_ERRORS as error:
        raise Damaged(f"its index cannot be read: {error}") from error
    ends = [0, *(chunk.end for chunk in chunks)]
    if ends[-1] > begin or any(chunk.offset < before for chunk, before in zip(chunks, ends)):
        raise Damaged("its index names chunks that overlap, or are not in the file")
    return chunks


class BlobFile:
    """A blob file of a local store: sealed, or being written.

    Args:
        directory: The store's directory.
        number: The file's number.
        begun: Whether it is being written; it is created if missing.

    Raises:
        OSError: it cannot be opened or created.
    """

    def __init__(self, directory: str, number: int, *, begun: bool = False) -> None:
        self.number = number
        self.name = f"{number:016x}{SUFFIX}"
        self.path = os.path.join(directory, self.name)
        self._written: list[Chunk] | None = [] if begun else None
        """The chunks of an unsealed file."""
        self._fd = os.open(self._unsealed, os.O_RDWR | os.O_CREAT) if begun else os.open(self.path, os.O_RDONLY)
        self.size = os.fstat(self._fd).st_size
        """Size in bytes."""
        self.live: float = self.size
        """Estimated size of the live rows, in bytes."""

    @staticmethod
    def create(directory: str) -> BlobFile:
        """Create a file whose number no file of any store has."""
        return BlobFile(directory, int.from_bytes(os.urandom(8), "big"), begun=True)

    @staticmethod
    def in_directory(directory: str) -> list[BlobFile]:
        """The sealed files in a directory.

        Raises:
            OSError: one of them cannot be opened.
        """
        names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIX))
        return [BlobFile(directory, int(name.removesuffix(SUFFIX), 16)) for name in names]

    @staticmethod
    def recover(directory: str) -> None:
        """Seal the files that a killed process left, without their incomplete ends.

        Raises:
            OSError: one of them cannot be written.
        """
        for name in os.listdir(directory):
            if name.endswith(_UNSEALED):
                file = BlobFile(directory, int(name.removesuffix(_UNSEALED), 16), begun=True)
                data = file._read(0, file.size)
                packed = packed_chunks([(key, value) for key, _, value in records(data)], file.number, 0)
                file._written, file.size = packed.chunks, len(packed.data)
                os.ftruncate(file._fd, file.size)
                file.seal()
                file.close()

    @property
    def _unsealed(self) -> str:
        return self.path.removesuffix(SUFFIX) + _UNSEALED

    def chunks(self) -> Sequence[Chunk]:
        """The chunks of the file.

        Raises:
            Damaged: its end is altered.
        """
        return chunks_of(self.size, self._read) if self._written is None else self._written

    def append(self, rows: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Write sorted rows; returns their keys, each with what RocksDB holds in place of its value.

        Raises:
            OSError: it cannot be written; the file is unchanged.
        """
        assert self._written is not None
        packed = packed_chunks(rows, self.number, self.size)
        self._write(packed.data)
        self._written += packed.chunks
        return packed.blobs

    def _write(self, data: bytes) -> None:
        left, at = memoryview(data), self.size
        while left:
            written = os.pwrite(self._fd, left, at)
            left, at = left[written:], at + written
        self.size = at

    def seal(self) -> None:
        """Write the index, which makes the file final.

        Raises:
            OSError: it cannot be written.
        """
        assert self._written is not None
        self._write(sealing(self._written))
        self.live = self.size
        os.rename(self._unsealed, self.path)
        self._written = None

    def value(self, offset: int, size: int, checksum: int) -> bytes:
        """The value of a blob.

        Raises:
            Damaged: it is altered.
        """
        data = os.pread(self._fd, size, offset)
        if len(data) != size or _checksum(data) != checksum:
            raise Damaged(f"{self.path} is altered between {offset} and {offset + size}")
        return data

    def read_ahead(self, offset: int, size: int) -> None:
        """Ask the system to read a blob's value from the disk ahead; does not wait."""
        read_ahead(self._fd, offset, size)

    def read(self, run: Sequence[Chunk]) -> bytes:
        """The bytes of adjacent chunks.

        Raises:
            Damaged: they are altered.
        """
        start = run[0].offset
        data = self._read(start, run[-1].end - start)
        try:
            for chunk in run:
                chunk.verified(data[chunk.offset - start : chunk.end - start])
        except Damaged as damage:
            raise Damaged(f"{self.path} is {damage}") from None
        return data

    def _read(self, offset: int, size: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def remove(self) -> None:
        """Close and delete the file."""
        self.close()
        os.unlink(self.path)
