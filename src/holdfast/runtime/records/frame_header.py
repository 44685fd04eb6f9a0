"""Header: the part of a frame that is needed to forward it."""

from __future__ import annotations

import struct
from typing import NamedTuple

__all__ = ["BARRIER", "DATA", "HEADER_SIZE", "REPORT", "Header", "pack_frame", "unpack_header"]

DATA, BARRIER, REPORT = 0, 1, 2

_HEADER = struct.Struct("<BBIIII")

HEADER_SIZE = _HEADER.size
"""The offset of the payload."""


class Header(NamedTuple):
    """The sender and the receiver of a frame."""

    kind: int
    level: int
    """The Spark stage of the receiver; frames for later stages are forwarded unchanged."""
    partition: int
    """The receiver's partition in that stage."""
    channel: int
    sender: int
    """The sending subtask."""
    sequence: int


def pack_frame(kind: int, level: int, partition: int, channel: int, sender: int, sequence: int, payload: bytes) -> bytes:
    """Encode a frame."""
    return _HEADER.pack(kind, level, partition, channel, sender, sequence) + payload


def unpack_header(frame: bytes) -> Header:
    """Decode the header of a frame; the payload begins at ``HEADER_SIZE``."""
    return Header._make(_HEADER.unpack_from(frame))
