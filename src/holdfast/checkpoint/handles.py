"""Handles: references to stored state, with location, size and checksum.

Stored as msgpack arrays that begin with the number of the kind. New fields go to the end and have a default.

A handle read from a file is refused if it names something outside of the storage, or outside of the directory of the host
that restores it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Union

import msgspec

from holdfast.checkpoint.stores.object_store import leaves

__all__ = [
    "LARGEST_INLINE",
    "ContainedFile",
    "FileHandle",
    "Handle",
    "IndexedFile",
    "InlineFile",
    "LogRange",
    "RawFile",
    "contents_of",
    "inline_limit",
    "kept_inline_limit",
]

LARGEST_INLINE = 64 << 10
"""Limit of one content in the metadata, in bytes."""
_MOST_INLINE = 1 << 20
"""Limit of an epoch's content in the metadata, in bytes, for all subtasks of a vertex together, and for all sinks together.
The driver stores this content and holds it in memory.
"""
_MOST_KEPT = 16 << 20
"""Limit of the content in the metadata, in bytes, of all epochs and all subtasks of a vertex together. Beyond it they merge
deltas.
"""


class ContainedFile(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, tag=0):
    """A file in the container of `holdfast.checkpoint.files`."""

    path: str
    """Relative to the storage's URI."""
    size: int
    """In bytes, as stored."""
    checksum: bytes
    """XXH3-128, as in the file's header."""

    def __post_init__(self) -> None:
        _check(self.path)


class RawFile(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, tag=1):
    """A file without a header, e.g. a file of RocksDB."""

    path: str
    """Relative to the storage's URI."""
    size: int
    """In bytes."""
    checksum: bytes
    """XXH3-128 of the content."""
    name: str = ""
    """The file's name on the host that restores it."""
    first_key: bytes = b""
    last_key: bytes = b""
    """The largest key in a file sorted by keys; ``first_key`` is the smallest one. Otherwise both are empty."""
    level: int = 0
    """The LSM level of an SST file."""
    foreign: bool = False
    """Whether most rows of an SST file belong to other subtasks, so that it is read in part."""

    def __post_init__(self) -> None:
        _check(self.path)
        if "/" in self.name or self.name in (".", "..") or "\0" in self.name:
            raise ValueError(f"{self.name!r} is not the name of a file")


class IndexedFile(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, tag=2):
    """A file of pieces with an index, which can be read in part (see `holdfast.state.stored.delta`)."""

    path: str
    """Relative to the storage's URI."""
    size: int
    """In bytes."""
    checksum: bytes
    """XXH3-128 of the index, which holds the checksums of the pieces."""

    def __post_init__(self) -> None:
        _check(self.path)


class LogRange(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, tag=3):
    """Entries of an external log, e.g. of a partition of a changelog topic."""

    log: str
    """The log's name, resolved by the state backend."""
    first: int
    end: int
    """The first position, and the position after the last."""


class InlineFile(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, tag=4):
    """The content of an `IndexedFile` that is small enough to be stored in the handle, without a file."""

    path: str
    """A unique path that names the content; no such file exists."""
    data: bytes
    checksum: bytes
    """XXH3-128 of the index, which holds the checksums of the pieces."""

    def __post_init__(self) -> None:
        _check(self.path)

    @property
    def size(self) -> int:
        """The size of the content, in bytes."""
        return len(self.data)


FileHandle = Union[ContainedFile, RawFile, IndexedFile]
Handle = Union[ContainedFile, RawFile, IndexedFile, LogRange, InlineFile]


def inline_limit(wanted: int, writers: int) -> int:
    """Limit of the bytes that each of some writers may put into the metadata at a time; ``wanted``: the configured limit.

    >>> inline_limit(20_000, 2), inline_limit(1 << 20, 2), inline_limit(20_000, 64)
    (20000, 65536, 16384)
    """
    return min(wanted, LARGEST_INLINE, _MOST_INLINE // writers)


def kept_inline_limit(writers: int) -> int:
    """Limit of the bytes of deltas that each of some writers keeps in the metadata; beyond it, the writer merges them.

    >>> kept_inline_limit(2), kept_inline_limit(64), kept_inline_limit(1000)
    (262144, 262144, 16777)
    """
    return min(4 * LARGEST_INLINE, _MOST_KEPT // writers)


def contents_of(handles: Iterable[Handle]) -> Iterator[FileHandle | InlineFile]:
    """The handles that refer to files in the storage or hold the content of one."""
    for handle in handles:
        if not isinstance(handle, LogRange):
            yield handle


def _check(path: str) -> None:
    if leaves(path):
        raise ValueError(f"{path!r} leaves the storage")
