"""The format of RocksDB's SST files, as far as needed to read some of their data blocks. Pure.

A file of format version 6 is

    data blocks | filter | index | range deletions | properties | metaindex | footer (53 bytes)

Every block is followed by a trailer of 5 bytes: its compression type, and a checksum of block, type and offset. The footer
gives the size of the metaindex, and the metaindex the offsets and sizes of the other blocks. The index has an entry per data
block: a key not less than the block's last one and less than the next block's first one, and the block's offset and size.

Files with other versions, checksums or indexes raise `UnknownFormat`: they are read whole.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import xxhash

__all__ = [
    "FOOTER_SIZE",
    "TRAILER_SIZE",
    "Block",
    "DamagedBlock",
    "Footer",
    "IndexEntry",
    "IndexForm",
    "IndexSearch",
    "Metaindex",
    "UnknownFormat",
]

FOOTER_SIZE: Final = 53
TRAILER_SIZE: Final = 5
_FOOTER = struct.Struct("<B4sIII16x8xIQ")
_EXTENDED_MAGIC: Final = b"\x3e\x00\x7a\x00"
_MAGIC: Final = 0x88E241B785F4CFF7
_VERSION: Final = 6
_XXH3: Final = 4
_UNCOMPRESSED, _LZ4 = 0, 4
_LAST_BYTE: Final = 0x6B9083D9
"""RocksDB's factor for the last byte in a checksum."""
_U32: Final = 0xFFFFFFFF
_INDEX: Final = b"rocksdb.index"
_PROPERTIES: Final = b"rocksdb.properties"
_FILTER: Final = b"fullfilter."
_INDEX_TYPE: Final = b"rocksdb.block.based.table.index.type"
_USER_KEYS: Final = b"rocksdb.index.key.is.user.key"
_DELTAS: Final = b"rocksdb.index.value.is.delta.encoded"
_DATA_BLOCKS: Final = b"rocksdb.num.data.blocks"
_LONGEST_NUMBER: Final = 70
"""Bits in the ten bytes of an encoded 64-bit number."""
_RESTART: Final = 16
"""The most entries of an index between two restarts."""
_SEQUENCE: Final = 8
"""Bytes of sequence number and type after the user key in an internal key."""


class UnknownFormat(Exception):
    """The file's format is unknown to this module."""


class DamagedBlock(Exception):
    """A block's checksum or structure is wrong."""


class Block(NamedTuple):
    """The place of a block, without its trailer."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        """The offset after the trailer."""
        return self.offset + self.size + TRAILER_SIZE


class IndexEntry(NamedTuple):
    """A data block and the bound of its keys."""

    separator: bytes
    """As stored: not less than the block's last key."""
    block: Block


class Footer(NamedTuple):
    """The end of a file."""

    context: int
    """Salts the checksums of blocks by file and offset."""
    metaindex: Block

    @classmethod
    def read(cls, data: bytes, file_size: int) -> Footer:
        """Read the last `FOOTER_SIZE` bytes of a file.

        Raises:
            UnknownFormat: this module does not know the format.
            DamagedBlock: the checksum does not match.
        """
        kind, extended, checksum, context, size, version, magic = _FOOTER.unpack(data)
        if (kind, extended, version, magic) != (_XXH3, _EXTENDED_MAGIC, _VERSION, _MAGIC) or not context:
            raise UnknownFormat
        start = file_size - FOOTER_SIZE
        if checksum != _footer_checksum(data, context, start):
            raise DamagedBlock("the checksum of its footer does not match")
        return cls(context, Block(start - TRAILER_SIZE - size, size))

    def packed(self) -> bytes:
        """The footer's bytes."""
        start = self.metaindex.end
        data = _FOOTER.pack(_XXH3, _EXTENDED_MAGIC, 0, self.context, self.metaindex.size, _VERSION, _MAGIC)
        checksum = _footer_checksum(data, self.context, start)
        return _FOOTER.pack(_XXH3, _EXTENDED_MAGIC, checksum, self.context, self.metaindex.size, _VERSION, _MAGIC)

    def verify(self, block: Block, stored: memoryview) -> None:
        """Verify a block's stored bytes, which include its trailer.

        Raises:
            DamagedBlock: the checksum does not match.
        """
        checksum = int.from_bytes(stored[block.size + 1 :], "little")
        if _checksum(stored[: block.size], stored[block.size], self.context, block.offset) != checksum:
            raise DamagedBlock(f"the checksum of its block at {block.offset} does not match")

    def sealed(self, content: bytes, offset: int) -> bytes:
        """An uncompressed block with its trailer, to be placed at ``offset``."""
        checksum = _checksum(content, _UNCOMPRESSED, self.context, offset)
        return content + bytes([_UNCOMPRESSED]) + checksum.to_bytes(4, "little")


@dataclass(frozen=True)
class Metaindex:
    """The blocks other than data blocks."""

    blocks: Mapping[bytes, Block]

    @classmethod
    def read(cls, stored: memoryview) -> Metaindex:
        """Read a verified metaindex, given with its trailer."""
        found = {}
        for name, value in _entries(_unpacked(stored)):
            offset, at = _varint(value, 0)
            found[name] = Block(offset, _varint(value, at)[0])
        if _INDEX not in found or _PROPERTIES not in found:
            raise UnknownFormat
        return cls(found)

    def packed(self) -> bytes:
        """The metaindex's bytes."""
        out, restarts = bytearray(), []
        for name, block in sorted(self.blocks.items()):
            restarts.append(len(out))
            value = _varints(*block)
            out += _varints(0, len(name), len(value)) + name + value
        return _with_restarts(out, restarts)

    @property
    def index(self) -> Block:
        """The index."""
        return self.blocks[_INDEX]

    @property
    def properties(self) -> Block:
        """The properties."""
        return self.blocks[_PROPERTIES]

    @property
    def start(self) -> int:
        """The offset of the first of these blocks: the end of the data blocks."""
        return min(block.offset for block in self.blocks.values())

    @property
    def others(self) -> dict[bytes, Block]:
        """All blocks except index and filters: a few bytes each."""
        return {name: block for name, block in self.blocks.items() if name != _INDEX and not name.startswith(_FILTER)}

    @property
    def filters(self) -> dict[bytes, Block]:
        """The Bloom filter, if there is one."""
        return {name: block for name, block in self.blocks.items() if name.startswith(_FILTER)}

    def with_index(self, index: Block, others: Mapping[bytes, Block]) -> Metaindex:
        """The metaindex of a file with this index and these other blocks."""
        return Metaindex({**others, _INDEX: index})


class IndexForm(NamedTuple):
    """How an index stores its entries, according to the file's properties."""

    user_keys: bool
    deltas: bool

    @classmethod
    def read(cls, stored: memoryview) -> IndexForm:
        """Read it from verified properties, given with their trailer."""
        properties = dict(_entries(_unpacked(stored)))
        if int.from_bytes(properties.get(_INDEX_TYPE, b""), "little"):
            raise UnknownFormat  # the index is not searched binarily
        return cls(properties.get(_USER_KEYS, b"\0") != b"\0", properties.get(_DELTAS, b"\0") != b"\0")

    def user_key(self, separator: bytes) -> bytes:
        """The user key in a separator."""
        return separator if self.user_keys else separator[:-_SEQUENCE]

    def entries(self, stored: memoryview) -> Iterator[IndexEntry]:
        """Read a verified index, given with its trailer."""
        data, key, block = _unpacked(stored), b"", Block(0, 0)
        at, end = 0, _end_of_entries(data)
        while at < end:
            shared, at = _varint(data, at)
            length, at = _varint(data, at)
            if not self.deltas:
                _, at = _varint(data, at)
            key = key[:shared] + data[at : at + length]
            at += length
            if self.deltas and shared:
                change, at = _varint(data, at)
                block = Block(block.end, block.size + (change >> 1 ^ -(change & 1)))
            else:
                offset, at = _varint(data, at)
                size, at = _varint(data, at)
                block = Block(offset, size)
            yield IndexEntry(key, block)

    def packed(self, entries: Iterable[IndexEntry]) -> bytes:
        """Encode an index of these entries.

        An entry begins with the length of the prefix that its key shares with the key before; 0 at a restart, where a search
        may begin. With delta encoding, an entry between two restarts belongs to the block right after the previous one and
        holds only the change of the size.
        """
        out, restarts, last, before = bytearray(), [], b"", Block(0, 0)
        since = _RESTART
        for separator, block in entries:
            shared = _shared(last, separator)
            if since >= _RESTART or not shared or block.offset != before.end:
                restarts.append(len(out))
                shared = since = 0
            change = block.size - before.size
            value = _varints(change << 1 ^ change >> 63) if self.deltas and shared else _varints(*block)
            out += _varints(shared, len(separator) - shared) + (b"" if self.deltas else _varints(len(value)))
            out += separator[shared:] + value
            last, before = separator, block
            since += 1
        return _with_restarts(out, restarts)


class IndexSearch:
    """Finds the data blocks of keys in an index that has a restart at each entry, as RocksDB writes it by default.

    Args:
        properties: The file's verified properties, with their trailer.
        stored: The verified index, with its trailer.

    Raises:
        UnknownFormat: the index is of another form.
        DamagedBlock: a block cannot be unpacked.
    """

    def __init__(self, properties: memoryview, stored: memoryview) -> None:
        self._form = IndexForm.read(properties)
        self._data = _unpacked(stored)
        self._restarts = _end_of_entries(self._data)
        self.blocks = int.from_bytes(self._data[-4:], "little")
        """The number of data blocks."""
        known = dict(_entries(_unpacked(properties))).get(_DATA_BLOCKS, b"\0")
        if self.blocks != _varint(known, 0)[0] or self._restarts < 0:
            raise UnknownFormat

    def run(self, first: bytes, last: bytes) -> range:
        """The numbers of the blocks that RocksDB may read to find keys from ``first`` to ``last``, inclusive.

        They include one more block at the end: a search that reaches a block's end continues in the next one.
        """
        numbers = range(self.blocks)
        start = bisect_left(numbers, first, key=self.separator)
        return range(start, min(bisect_right(numbers, last, start, key=self.separator) + 2, self.blocks))

    def separator(self, number: int) -> bytes:
        """A key not less than the keys of this block, and less than those of the next one."""
        at, length = self._entry(number)
        return self._form.user_key(self._data[at : at + length])

    def block(self, number: int) -> Block:
        """The place of a data block."""
        at, length = self._entry(number)
        offset, at = _varint(self._data, at + length)
        return Block(offset, _varint(self._data, at)[0])

    def _entry(self, number: int) -> tuple[int, int]:
        """The offset and length of an entry's key."""
        start = self._restarts + 4 * number
        shared, at = _varint(self._data, int.from_bytes(self._data[start : start + 4], "little"))
        length, at = _varint(self._data, at)
        if shared:
            raise UnknownFormat
        return at if self._form.deltas else _varint(self._data, at)[1], length


def _checksum(content: bytes | memoryview, last: int, context: int, offset: int) -> int:
    digest: int = xxhash.xxh3_64_intdigest(content)
    bare = digest & _U32 ^ last * _LAST_BYTE & _U32
    return bare + (context ^ (offset & _U32) + (offset >> 32) & _U32) & _U32


def _footer_checksum(data: bytes, context: int, start: int) -> int:
    bare = data[:5] + bytes(4) + data[9:]
    return _checksum(bare[:-1], bare[-1], context, start)


def _unpacked(stored: memoryview) -> bytes:
    """The content of a block, given with its trailer."""
    kind, content = stored[-TRAILER_SIZE], stored[:-TRAILER_SIZE]
    if kind == _UNCOMPRESSED:
        return bytes(content)
    if kind != _LZ4:
        raise UnknownFormat
    size, at = _varint(content, 0)
    return _from_lz4(content[at:], size)


def _from_lz4(data: memoryview, size: int) -> bytes:
    """Decompress an LZ4 block.

    >>> _from_lz4(memoryview(bytes([0x13, 0x61, 1, 0, 0x10, 0x62])), 9)
    b'aaaaaaaab'
    """
    out = bytearray()
    at, end = 0, len(data)
    while at < end:
        token = data[at]
        length, at = _lz4_length(data, at + 1, token >> 4)
        out += data[at : at + length]
        at += length
        if at >= end:
            break
        back = data[at] | data[at + 1] << 8
        length, at = _lz4_length(data, at + 2, token & 15)
        length += 4
        if not 0 < back <= len(out):
            raise DamagedBlock("a compressed block cannot be unpacked")
        copied = out[-back:]
        out += (copied * (length // back + 1))[:length]
        if len(out) > size:
            break
    if len(out) != size:
        raise DamagedBlock("a compressed block cannot be unpacked")
    return bytes(out)


def _lz4_length(data: memoryview, at: int, length: int) -> tuple[int, int]:
    if length == 15:
        while True:
            more = data[at]
            at += 1
            length += more
            if more != 255:
                break
    return length, at


def _end_of_entries(data: bytes) -> int:
    return len(data) - 4 - 4 * int.from_bytes(data[-4:], "little")


_LONGEST_NAME = 4096


def _entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block of properties or of the metaindex."""
    key, at, end = b"", 0, _end_of_entries(data)
    while at < end:
        shared, at = _varint(data, at)
        length, at = _varint(data, at)
        size, at = _varint(data, at)
        key = key[:shared] + data[at : at + length]
        if len(key) > _LONGEST_NAME:  # otherwise a few bytes each could repeat all bytes before them
            raise DamagedBlock("a name is too long")
        at += length
        yield key, data[at : at + size]
        at += size


def _shared(one: bytes, other: bytes) -> int:
    """The length of two keys' common prefix.

    >>> _shared(b"abc", b"abd"), _shared(b"ab", b"abc")
    (2, 2)
    """
    unequal = (at for at, (left, right) in enumerate(zip(one, other)) if left != right)
    return next(unequal, min(len(one), len(other)))


def _with_restarts(entries: bytearray, restarts: list[int]) -> bytes:
    restarts = restarts or [0]
    return bytes(entries) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def _varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Read a number; returns it, and the position after it."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    number, shift = byte & 0x7F, 7
    while byte >= 0x80:
        if shift >= _LONGEST_NUMBER:
            raise DamagedBlock("a number is longer than 64 bits")
        at += 1
        byte = data[at]
        number |= (byte & 0x7F) << shift
        shift += 7
    return number, at + 1


def _varints(*numbers: int) -> bytes:
    out = bytearray()
    for number in numbers:
        while number >= 0x80:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        out.append(number)
    return bytes(out)
