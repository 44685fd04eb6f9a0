"""RocksDB's manifest: edits it so that a copy of a store opens without some of its files.

A manifest is a log of version edits in blocks of 32 KB. A record is

    u32 masked CRC-32C of type and payload | u16 length | u8 type (1 full, 2 first, 3 middle, 4 last) | payload

in little-endian. For a copy without some files, one more edit deletes them from the version: for each file the varints
6 (deleted file), level, number. RocksDB's own ``ldb unsafe_remove_sst_file`` does the same.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

__all__ = ["without_files"]

_BLOCK: Final = 32 * 1024
_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_DELETED_FILE: Final = 6
_POLYNOMIAL: Final = 0x82F63B78
"""Castagnoli's polynomial, reflected."""


def without_files(manifest: bytes, files: Iterable[tuple[int, int]]) -> bytes:
    """The manifest of the same store without these files, each given as (level, number)."""
    edit = b"".join(_varint(_DELETED_FILE) + _varint(level) + _varint(number) for level, number in files)
    return manifest + b"".join(_records(len(manifest), edit)) if edit else manifest


def _records(at: int, payload: bytes) -> Iterator[bytes]:
    """The log records that append a payload to a log of ``at`` bytes."""
    rest = payload
    while rest:
        room = _BLOCK - at % _BLOCK
        if room < _HEADER.size:
            yield bytes(room)
            at += room
            continue
        part, left = rest[: room - _HEADER.size], rest[room - _HEADER.size :]
        begins, ends = len(rest) == len(payload), not left
        kind = (_FULL if ends else _FIRST) if begins else (_LAST if ends else _MIDDLE)
        yield _HEADER.pack(_masked(_crc32c(bytes([kind]) + part)), len(part), kind) + part
        at += _HEADER.size + len(part)
        rest = left


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE: Final = _table()


def _crc32c(data: bytes) -> int:
    """CRC-32C.

    >>> hex(_crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _masked(crc: int) -> int:
    """RocksDB's masking of a CRC, which keeps the CRC of data that contains CRCs meaningful."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
