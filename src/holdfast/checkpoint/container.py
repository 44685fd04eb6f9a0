"""The container of stored metadata and small files: checksummed, compressed if that saves space.

A contained file (`write_file`), version 1, all integers little-endian:

    offset  0   4 bytes   magic "HFST"
            4   u8        container version: 1
            5   u8        flags: bit 0 = the body is one zstd frame
            6   u16       0
            8   u64       length of the body
           16   u64       length of the payload
           24   16 bytes  XXH3-128 (canonical) of bytes 0 to 23 and the body
           40   body

The first 40 bytes and the checksum keep their meaning in every later version, so that corruption is never mistaken for
another version.
"""

from __future__ import annotations

import struct
import threading

import xxhash
import zstandard

from holdfast.checkpoint.parsing import inflated
from holdfast.checkpoint.stores.object_store import Data
from holdfast.errors import CorruptFile, IncompatibleState

__all__ = ["CHECKSUM", "compress", "decompress", "pack", "unpack"]

_MAGIC = b"HFST"
_VERSION = 1
_ZSTD = 1
_FIELDS = struct.Struct("<4sBBHQQ")
CHECKSUM = slice(_FIELDS.size, _FIELDS.size + 16)
_HEADER = _FIELDS.size + 16
_WORTH_COMPRESSING = 128
_LITTLE = 16
"""Bytes are stored uncompressed if compression saves less than one in this many, because reading them is faster."""


class _Codecs(threading.local):
    """zstd contexts, one pair per thread: they are expensive to create and not thread-safe."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1, write_checksum=False)
        self.decompressor = zstandard.ZstdDecompressor()


_codecs = _Codecs()


def compress(data: Data) -> tuple[Data, int]:
    """Compress bytes to one zstd frame; returns it and the size of ``data``, or ``data`` and 0 if zstd saves little."""
    if len(data) >= _WORTH_COMPRESSING:
        compressed = _codecs.compressor.compress(data)
        if len(compressed) < len(data) - len(data) // _LITTLE:
            return compressed, len(data)
    return data, 0


def decompress(stored: Data, size: int, where: str) -> bytes:
    """Undo `compress`. The caller must have verified the checksum of the file ``where``.

    Raises:
        CorruptFile: it does not unpack to this size.
    """
    return inflated(_codecs.decompressor, stored, size, where) if size else bytes(stored)


def pack(payload: Data) -> bytes:
    """Build a contained file."""
    size = len(payload)
    body, compressed = compress(payload)
    flags = _ZSTD if compressed else 0
    fields = _FIELDS.pack(_MAGIC, _VERSION, flags, 0, len(body), size)
    return b"".join((fields, _checksum(fields, body), body))


def unpack(data: bytes, where: str) -> bytes:
    """Verify a contained file and return its payload.

    Args:
        data: The file's content.
        where: The file's name, for error messages.

    Raises:
        CorruptFile: the file is truncated, extended or altered.
        IncompatibleState: the file is intact, but of a version that this release does not know.
    """
    if len(data) < _HEADER:
        raise CorruptFile(where, f"truncated: {len(data)} bytes are less than a header")
    magic, version, flags, _, body_size, size = _FIELDS.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptFile(where, "altered, or not a state file: it does not begin with HFST")
    if len(data) != _HEADER + body_size:
        raise CorruptFile(where, f"truncated or altered: {len(data)} bytes instead of {_HEADER + body_size}")
    body = memoryview(data)[_HEADER:]
    if _checksum(data[: _FIELDS.size], body) != data[CHECKSUM]:
        raise CorruptFile(where, "altered: its checksum does not match its content")
    if version != _VERSION or flags & ~_ZSTD:
        raise IncompatibleState(
            f"{where} is in format version {version}, which this release of Holdfast does not read; "
            "run the release that wrote it, or a later one"
        )
    payload = inflated(_codecs.decompressor, body, size, where) if flags & _ZSTD else bytes(body)
    if len(payload) != size:
        raise CorruptFile(where, f"altered: it unpacks to {len(payload)} bytes instead of {size}")
    return payload


def _checksum(fields: bytes, body: Data) -> bytes:
    digest = xxhash.xxh3_128(fields)
    digest.update(body)
    return digest.digest()
