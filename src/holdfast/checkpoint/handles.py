"""Handles: where a checkpoint's state is stored, how much it is, and what it must contain.

Stored as msgpack arrays that begin with the kind's number. Fields may be added at the end, with a default.
"""

from __future__ import annotations

from typing import Union

import msgspec

__all__ = ["ContainedFile", "FileHandle", "Handle", "IndexedFile", "LogRange", "RawFile"]


class ContainedFile(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, tag=0):
    """A file in the container of `holdfast.checkpoint.files`."""

    path: str
    """Relative to the storage's URI."""
    size: int
    """In bytes, as stored."""
    checksum: bytes
    """XXH3-128: the one in the file's header."""


class RawFile(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, tag=1):
    """A file without a header, e.g. one of RocksDB's."""

    path: str
    """Relative to the storage's URI."""
    size: int
    """In bytes."""
    checksum: bytes
    """XXH3-128 of the content."""
    name: str = ""
    """What the file is called on the host that it is restored to."""
    first_key: bytes = b""
    last_key: bytes = b""
    """The smallest and the largest key in it, if it is sorted by keys; else empty."""
    level: int = 0
    """The level of the LSM tree that an SST file is in."""


class IndexedFile(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, tag=2):
    """A file of pieces with an index (see `holdfast.state.delta`), which can be read in part."""

    path: str
    """Relative to the storage's URI."""
    size: int
    """In bytes."""
    checksum: bytes
    """XXH3-128 of the index, which vouches for the pieces."""


class LogRange(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, tag=3):
    """Entries of a log that is kept elsewhere, e.g. a partition of a changelog topic."""

    log: str
    """The log's name, as the state backend resolves it."""
    first: int
    end: int
    """The first position, and the one after the last."""


FileHandle = Union[ContainedFile, RawFile, IndexedFile]
Handle = Union[ContainedFile, RawFile, IndexedFile, LogRange]
