"""The header of a frame: all that needs to be known of it to pass it on."""

from __future__ import annotations

import struct
from dataclasses import dataclass

__all__ = ["BARRIER", "DATA", "HEADER_SIZE", "REPORT", "Header", "pack_frame", "unpack_header"]

DATA, BARRIER, REPORT = 0, 1, 2

_HEADER = struct.Struct("<BBIIII")

HEADER_SIZE = _HEADER.size
"""Where the payload begins."""


@dataclass(frozen=True)
class Header:
    """Where a frame comes from and goes."""

    kind: int
    level: int
    """The Spark stage of the receiver; a frame for a later stage is passed on as it is."""
    partition: int
    """The receiver's partition in that stage."""
    channel: int
    sender: int
    """The sending subtask."""
    sequence: int


def pack_frame(kind: int, level: int, partition: int, channel: int, sender: int, sequence: int, payload: bytes) -> bytes:
    """A frame's bytes."""
    return _HEADER.pack(kind, level, partition, channel, sender, sequence) + payload


def unpack_header(frame: bytes) -> Header:
    """The header of a frame; the payload begins at ``HEADER_SIZE``."""
    return Header(*_HEADER.unpack_from(frame))
