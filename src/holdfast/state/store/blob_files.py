"""BlobFiles: the blob files of one local store: appends values, reads them, and collects garbage.

Key-value separation as in WiscKey (Lu et al., FAST 2016) and RocksDB's BlobDB: compactions move keys, while values stay
where they were written. Replaced values stay too, until their file is collected: when few rows of a file are live, they are
appended again, and the file is deleted once RocksDB's files no longer refer to it.

The number of live rows in a file is estimated from a sample. Each write does a portion of the garbage collection.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

from holdfast.checkpoint.container import compress
from holdfast.common.formats.in_portions import in_portions
from holdfast.state.store.blob_file import (
    BLOB_SIZE,
    MARKER,
    PLACE_SIZE,
    SUFFIX,
    Blob,
    BlobFile,
    Chunk,
    Damaged,
    place,
    records,
    unpack_blob,
)
from holdfast.state.store.disk_reads import blocks_read
from holdfast.state.store.ordered import NO_STUBS
from holdfast.state.store.runs import in_runs

__all__ = ["BlobFiles", "ValueSeparation", "blobs_in"]

_random = random.Random()  # a user's function draws from the module's
_LEAST = 512
"""Size of the smallest value that goes into a blob file, in bytes."""
_SAVING = 0.8
"""Values that compress to less than this share of their size stay in RocksDB, which compresses many together."""
_SAMPLE = 8
"""Number of values compressed as a sample."""
_SAMPLE_EVERY = 4096
"""Number of a state's values after which a new sample is taken."""

_FILE_SIZE = 64 << 20
"""Size at which a file is sealed, in bytes."""
_MOST = 1.7
"""Limit of the files' total size, as a multiple of their live rows."""
_PACE = 3
"""Bytes that garbage collection reads at most per byte written."""
_CHECK_EVERY = 1 / 16
"""The garbage of one more file is estimated each time this part of a file has been written."""
_STEP = 1 << 20
"""Size of a step of garbage collection, in bytes."""
_SAMPLED = 2
"""Number of chunks in a sample."""
_SMALL_SHARE = 8
"""A file below this fraction of the full size is small: the size divided by this."""
_MOST_SMALL = 16
"""Number of small files above which they are merged."""
_DEAD_SHARE = 1 / 8
"""Share of collected files at which RocksDB's write buffers are flushed, so that the files can be deleted."""

_ON_DISK = 1
"""Disk blocks of 512 bytes read per value, above which values are read ahead."""


def _file_sized(rows: list[tuple[bytes, bytes]]) -> Iterable[list[tuple[bytes, bytes]]]:
    """Cut the rows into portions that fit into one file."""
    if sum([len(value) for _, value in rows]) < _FILE_SIZE:
        return (rows,)
    return in_portions(rows, lambda row: len(row[1]), _FILE_SIZE)


class ValueSeparation:
    """Decides which values lie in blob files, apart from their keys: large ones, unless compression shrinks them.

    Args:
        compression: The compression setting of RocksDB.
    """

    def __init__(self, compression: str) -> None:
        self._compresses = compression.strip().upper().removesuffix("_COMPRESSION") != "NO"
        self._shrink: dict[bytes, bool] = {}
        """Whether compression makes a state's values smaller, by its stored id."""
        self._left: dict[bytes, int] = {}
        """Number of values left until a state's next sample, by its stored id."""

    def split(self, rows: Iterable[tuple[bytes, bytes]]) -> tuple[list[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]:
        """Split rows into those for RocksDB and those for blob files."""
        rows = list(rows)
        large = [row for row in rows if len(row[1]) >= _LEAST]
        if not large:
            return rows, large
        shrink = {state for state in {key[:2] for key, _ in large} if self._shrinks(state, large)}
        if shrink:
            large = [row for row in large if row[0][:2] not in shrink]
            return [row for row in rows if len(row[1]) < _LEAST or row[0][:2] in shrink], large
        return [row for row in rows if len(row[1]) < _LEAST] if len(large) < len(rows) else [], large

    def keeps_apart(self, state: bytes) -> bool:
        """Whether large values of a state, given by its stored id, go to blob files, as far as is known."""
        return not self._shrink.get(state, False)

    def _shrinks(self, state: bytes, rows: Sequence[tuple[bytes, bytes]]) -> bool:
        if not self._compresses:
            return False
        left = self._left.get(state, 0)
        if left <= 0:
            sample = b"".join(value for _, value in islice((row for row in rows if row[0][:2] == state), _SAMPLE))
            self._shrink[state] = len(compress(sample)[0]) < _SAVING * len(sample)
            left = _SAMPLE_EVERY
        self._left[state] = left - len(rows)
        return self._shrink[state]


def blobs_in(found: Iterable[bytes | None]) -> Iterator[Blob]:
    """The blobs among values read from RocksDB."""
    return (Blob.unpack(data) for data in found if data is not None and len(data) >= BLOB_SIZE and data[0] == MARKER)


class BlobFiles:
    """The blob files in a store's directory.

    Args:
        directory: The directory.
        look_up: Returns what RocksDB holds for these keys.
        put: Puts rows into RocksDB.
        writable: Whether the store may be written.

    Raises:
        Damaged: a file is altered.
    """

    def __init__(
        self,
        directory: str,
        look_up: Callable[[list[bytes]], list[bytes | None]],
        put: Callable[[list[tuple[bytes, bytes]]], None],
        *,
        writable: bool = True,
    ) -> None:
        self._directory = directory
        self._look_up = look_up
        self._put = put
        if writable:
            BlobFile.recover(directory)
        self._files = {file.number: file for file in BlobFile.in_directory(directory)}
        """The files by number, including collected ones that are not deleted yet."""
        self._on_disk = False
        """Whether many values were not in the page cache at the last read."""
        self._lock = threading.Lock()
        """Guards the following fields: a thread may be copying the store."""
        self._current: BlobFile | None = None
        self._pins = 0
        """Number of readers that may still need collected files."""
        self._queue = list(self._files.values())
        """Sealed files, least recently estimated first."""
        self._victim: Iterator[int] | None = None
        """The collection of a file; yields the bytes read in each step."""
        self._credit = 0
        self._unchecked = 0.0
        """Bytes written since garbage was last estimated."""
        self._collected: list[BlobFile] = []
        """Files without live rows, to which RocksDB's files may still refer."""
        self._flushing: list[BlobFile] = []
        """Files that can be deleted once the running flush is complete."""

    # values

    def append(self, rows: list[tuple[bytes, bytes]], stubs: Mapping[bytes, bytes] = NO_STUBS) -> list[tuple[bytes, bytes]]:
        """Write rows; returns their keys, each with what RocksDB is to hold in place of its value.

        Args:
            rows: The rows.
            stubs: Empty, or for each key a stub that may be read in place of its value (`with_stubs`), or nothing.

        Raises:
            OSError: the file cannot be written.
        """
        rows.sort()
        blobs: list[tuple[bytes, bytes]] = []
        with self._lock:
            for part in _file_sized(rows):
                file = self._current
                if file is None:
                    file = self._current = BlobFile.create(self._directory)
                    self._files[file.number] = file
                before = file.size
                blobs += file.append(part)
                self._unchecked += file.size - before
                if file.size >= _FILE_SIZE:
                    self._seal()
        return [(key, blob + stubs[key]) for key, blob in blobs] if stubs else blobs

    def _seal(self) -> None:
        file, self._current = self._current, None
        if file is not None:
            file.seal()
            self._queue.append(file)

    def resolve(self, found: list[bytes | None]) -> list[bytes | None]:
        """Replace blobs by their values, in place.

        Raises:
            Damaged: a value is altered, or its file is missing.
        """
        files, unpack = self._files, unpack_blob
        blobs = [
            (at, *unpack(data))
            for at, data in enumerate(found)
            if data is not None and len(data) >= BLOB_SIZE and data[0] == MARKER
        ]
        if not blobs:
            return found
        for _, _, number, *_ in blobs:
            if number not in files:
                raise Damaged(f"the file {number:016x}{SUFFIX} is missing")
        before = blocks_read()
        if self._on_disk:  # reading one after the other would wait for the disk each time
            for _, _, number, offset, size, _ in blobs:
                files[number].read_ahead(offset, size)
        for at, _, number, offset, size, checksum in blobs:
            found[at] = files[number].value(offset, size, checksum)
        self._on_disk = blocks_read() - before > _ON_DISK * len(blobs)
        return found

    def ranges(self) -> Iterator[tuple[str, bytes, bytes]]:
        """The name of each sealed file, with its first and last key; a file fetched in part may have none.

        Raises:
            Damaged: the end of one is altered.
        """
        for file in self._files.values():
            chunks = file.chunks()
            first = min((chunk.first for chunk in chunks), default=b"")
            yield file.name, first, max((chunk.last for chunk in chunks), default=b"")

    @contextmanager
    def pinned(self) -> Iterator[list[BlobFile]]:
        """Keep the files that a snapshot taken in this context may refer to: those that it yields, and new ones."""
        with self._lock:
            self._pins += 1
            files = self._present()
        try:
            yield files
        finally:
            with self._lock:
                self._pins -= 1

    def link(self, directory: str, known: Sequence[BlobFile]) -> None:
        """Link the files into a directory, for a copy of RocksDB that was made while the ``known`` files existed."""
        with self._lock:
            self._seal()
            files = {file.path: file for file in [*known, *self._present()]}
        for file in files.values():
            os.link(file.path, os.path.join(directory, file.name))

    def _present(self) -> list[BlobFile]:
        """The files with live rows."""
        gone = {*self._collected, *self._flushing}
        return [file for file in self._files.values() if file not in gone]

    # garbage collection

    def collect(self, written: int, flushed: Callable[[], bool]) -> bool:
        """Do a portion of garbage collection.

        Args:
            written: The bytes written since the last call.
            flushed: Whether RocksDB has no write buffer left to flush except the one in use.

        Returns:
            Whether RocksDB should flush its write buffers.
        """
        if self._flushing and not self._pins and flushed():
            self.delete_flushed()
        self._credit += _PACE * written
        while self._credit > 0:
            if self._victim is None and (file := self._garbage()) is not None:
                self._victim = self._moved(file)
            if self._victim is None:
                self._credit = 0
                break
            read = next(self._victim, None)
            if read is None:
                self._victim = None
            else:
                self._credit -= read
        return len(self._collected) > _DEAD_SHARE * len(self._files) and not self._flushing

    def _garbage(self) -> BlobFile | None:
        """A file worth collecting, if there is one."""
        small = [file for file in self._queue if file.size < _FILE_SIZE // _SMALL_SHARE]
        if len(small) > _MOST_SMALL:
            return self._victim_of(small[0])
        while self._unchecked >= _CHECK_EVERY * _FILE_SIZE:
            self._unchecked -= _CHECK_EVERY * _FILE_SIZE
            if self._queue:
                file = self._queue.pop(0)
                file.live = self._share(file) * file.size
                self._queue.append(file)
        if not self._queue or sum(file.size for file in self._queue) <= _MOST * sum(file.live for file in self._queue):
            return None
        return self._victim_of(min(self._queue, key=lambda file: file.live / file.size))

    def _victim_of(self, file: BlobFile) -> BlobFile:
        self._queue.remove(file)
        return file

    def _share(self, file: BlobFile) -> float:
        """The share of live rows in a file, from a sample."""
        chunks = file.chunks()
        live = count = 0
        for chunk in _random.sample(chunks, min(_SAMPLED, len(chunks))):
            rows, found, _ = self._live(file, [chunk])
            count, live = count + rows, live + len(found)
        return live / count if count else 0.0

    def _live(self, file: BlobFile, run: Sequence[Chunk]) -> tuple[int, list[tuple[bytes, bytes]], dict[bytes, bytes]]:
        """The number of rows in adjacent chunks; the live ones; and, by key, the stubs after their blobs."""
        start, number = run[0].offset, file.number
        rows = list(records(file.read(run)))
        live, stubs = [], {}
        for (key, at, value), held in zip(rows, self._look_up([key for key, _, _ in rows])):
            if held is not None and held[:PLACE_SIZE] == place(number, start + at):
                live.append((key, value))
                stubs[key] = held[BLOB_SIZE:]
        return len(rows), live, stubs

    def _moved(self, file: BlobFile) -> Iterator[int]:
        """Append a file's live rows to the current file, some at a time; yields the bytes read."""
        for run in in_runs(file.chunks(), _STEP):  # a file that was fetched in part has gaps
            _, live, stubs = self._live(file, run)
            if live:
                self._put(self.append(live, stubs))
            yield run[-1].end - run[0].offset
        with self._lock:
            self._collected.append(file)

    def before_flush(self) -> None:
        """RocksDB is about to flush its write buffers: afterwards its files no longer refer to the collected files."""
        if not self._flushing:
            with self._lock:
                self._flushing, self._collected = self._collected, []

    def delete_flushed(self) -> None:
        """Delete the files that RocksDB's files no longer refer to."""
        with self._lock:
            if not self._pins:
                gone, self._flushing = self._flushing, []
                for file in gone:
                    del self._files[file.number]
                    file.remove()

    def close(self) -> None:
        """Seal the current file, and close all."""
        with self._lock:
            self._seal()
            files, self._files = self._files, {}
        for file in files.values():
            file.close()
