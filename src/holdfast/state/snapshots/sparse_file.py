"""SparseFile: a local copy of a stored file that is fetched part by part.

The copy has the size of the whole file, with holes.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable

import xxhash

from holdfast.checkpoint.handles import RawFile
from holdfast.checkpoint.stores.storage import NotFound, Storage
from holdfast.errors import CorruptFile
from holdfast.state.snapshots.linked_files import states_in
from holdfast.state.stored.damage import Naming

__all__ = ["Present", "RangeReader", "SparseFile"]

_AGAIN = 512 << 10
"""Present parts of up to this many bytes are fetched again with their neighbours, to save a request."""
_MOST_IN_PART = 8 << 20
"""Bytes per read when the whole file is fetched."""


class RangeReader:
    """Reads a stored file by ranges."""

    def __init__(self, storage: Storage, file: RawFile) -> None:
        self._storage = storage
        self.file = file

    @property
    def where(self) -> str:
        """The file's location, for messages."""
        return self._storage.locate(self.file.path)

    def part(self, start: int, length: int) -> bytes:
        """Bytes of the file, not verified.

        Raises:
            CorruptFile: the file is missing, has another size, or there are no such bytes in it.
            StorageError: the storage refused the read, or the retry budget ran out.
        """
        file = self.file
        if not 0 <= start <= start + length <= file.size:  # an index may claim any size: check before allocating
            raise CorruptFile(self.where, f"altered: it names {length} bytes at {start}, and has {file.size}")
        last = start + length == file.size
        try:  # read one byte beyond the end, to notice a longer file
            data = self._storage.get_range(file.path, start, length + last)
        except NotFound as error:
            raise CorruptFile(self.where, "missing") from error
        if len(data) != length:
            raise CorruptFile(self.where, f"truncated or altered: its size is not {file.size}")
        return data


class Present:
    """The present parts of a file. Thread-safe.

    >>> present = Present(100)
    >>> present.add(10, 20); present.add(50, 60); present.add(20, 25)
    >>> present.has(12, 25), present.has(12, 26), present.lacking(0, 5), present.lacking(10, 5), present.lacking(26, 40)
    (True, False, (0, 10), (25, 50), (26, 100))
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Mark the bytes ``[start, end)`` as present."""
        with self._lock:
            first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
            if first < last:
                start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
            self._starts[first:last] = [start]
            self._ends[first:last] = [end]

    def has(self, start: int, end: int) -> bool:
        """Whether all bytes ``[start, end)`` are present."""
        with self._lock:
            at = bisect_right(self._starts, start) - 1
            return at >= 0 and end <= self._ends[at]

    def lacking(self, start: int, gap: int) -> tuple[int, int] | None:
        """The next missing part from ``start`` on; present parts of up to ``gap`` bytes count as missing."""
        with self._lock:
            at = bisect_right(self._starts, start) - 1
            if at >= 0:
                start = max(start, self._ends[at])
            if start >= self._size:
                return None
            at += 1
            while at < len(self._starts) and self._ends[at] - self._starts[at] <= gap and self._ends[at] < self._size:
                at += 1
            return start, self._starts[at] if at < len(self._starts) else self._size


class SparseFile:
    """A local file with missing parts; a `holdfast.state.snapshots.lazy_restore.PendingFile`.

    Args:
        reader: Reads the stored file.
        target: The local copy.
        named: Adds to an error the states in the file.
    """

    def __init__(self, reader: RangeReader, target: str, named: Naming) -> None:
        self.reader = reader
        self.file = reader.file
        self.present = Present(self.file.size)
        self.here = False
        self._target = target
        self._named = named

    def altered(self, how: str) -> CorruptFile:
        """The error for a file with altered content."""
        return self.telling(CorruptFile(self.reader.where, f"altered: {how}"))

    def telling(self, error: CorruptFile) -> CorruptFile:
        """Add the states in the file to the error."""
        return self._named(error, states_in(self.file))

    def take(self, start: int, data: bytes) -> None:
        """Write verified bytes to their place."""
        with open(self._target, "r+b") as copy:
            copy.seek(start)
            copy.write(data)
        self.present.add(start, start + len(data))

    def complete(self, may_go_on: Callable[[], bool]) -> None:
        """Fetch what is missing, and verify the whole file (`holdfast.state.snapshots.lazy_restore.PendingFile`)."""
        with open(self._target, "r+b") as copy:  # if another store replaces the path, this stays the old file
            while (lacking := self.present.lacking(0, _AGAIN)) is not None:
                start, end = lacking[0], min(lacking[1], lacking[0] + _MOST_IN_PART)
                try:
                    data = self.reader.part(start, end - start)
                except CorruptFile as error:
                    raise self.telling(error) from error
                copy.seek(start)
                copy.write(data)
                copy.flush()
                self.present.add(start, end)
                if not may_go_on():
                    return
            digest = xxhash.xxh3_128()
            copy.seek(0)
            while data := copy.read(_MOST_IN_PART):
                digest.update(data)
                if not may_go_on():
                    return
        if digest.digest() != self.file.checksum:
            raise self.altered("its checksum does not match its content")
        self.here = True
