"""LazyFiles: SST files of a base that a local store reads while they are still being fetched.

At first, only the end of a file is fetched (filter, index and properties), into a local file of the full size. RocksDB needs
no more to open a store. Before the store looks for keys, the data blocks that may hold them are fetched by range reads,
verified by their checksums, and written to their places. Meanwhile, threads fetch the whole files and verify them against
the checkpoint's checksums. RocksDB verifies every block that it reads, so a missing or damaged block is an error and never a
wrong value.

RocksDB must not compact the store until all files are complete. A marker in its directory keeps other processes from reusing
it.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress

from holdfast.checkpoint.handles import RawFile
from holdfast.checkpoint.parsing import parsing
from holdfast.checkpoint.stores.storage import Storage
from holdfast.errors import CorruptFile
from holdfast.state.snapshots.blob_parts import LazyBlobFile
from holdfast.state.snapshots.lazy_file import LazyFile
from holdfast.state.snapshots.lazy_restore import LazyRestore
from holdfast.state.snapshots.linked_files import states_in
from holdfast.state.snapshots.sst_format import Block, DamagedBlock, UnknownFormat
from holdfast.state.store.blob_file import SUFFIX, Blob
from holdfast.state.stored.damage import Naming

__all__ = ["LazyFiles"]

_MARKER = "ARRIVING"
_LEAST = 256 << 10
"""Smallest file that is fetched lazily, in bytes."""
_MOST_IN_RANGE = 8 << 20
"""Most bytes that a scan fetches at once; a longer scan waits for the complete files."""

_LACKING = re.compile(r"([^/ ]+\.sst) offset (\d+)")
"""Matches the block that an error of RocksDB names."""

_Run = tuple[LazyFile, list[Block]]
"""Adjacent blocks of a file."""


class LazyFiles:
    """The files of one store that are not complete.

    Args:
        storage: The storage with the files.
        directory: The store's directory.
        named: Adds to an error the states in the file.
        lazy_restore: Fetches the files in the background.
    """

    def __init__(self, storage: Storage, directory: str, named: Naming, lazy_restore: LazyRestore) -> None:
        self._storage = storage
        self._directory = directory
        self._marker = os.path.join(directory, _MARKER)
        self._named = named
        self._lazy_restore = lazy_restore
        self._files: list[LazyFile] = []
        self._blob_files: dict[int, LazyBlobFile] = {}
        """The blob files, by number."""
        lazy_restore.then(self._unmark)
        with open(self._marker, "wb"):
            pass

    @staticmethod
    def marked(directory: str) -> bool:
        """Whether files of a store in this directory may be incomplete."""
        return os.path.exists(os.path.join(directory, _MARKER))

    def take(self, file: RawFile) -> bool:
        """Fetch the end of a file; returns False if the file must be fetched as a whole.

        Raises:
            CorruptFile: it is missing or altered.
        """
        if file.size < _LEAST:
            return False
        target = os.path.join(self._directory, file.name)
        if file.name.endswith(SUFFIX):
            blobs = LazyBlobFile(self._storage, file, target, self._named)
            self._blob_files[blobs.number] = blobs
            self._lazy_restore.expect(blobs)
            return True
        try:
            with parsing(self._storage.locate(file.path), "a file of RocksDB"):
                lazy = LazyFile(self._storage, file, target, self._named)
        except UnknownFormat:
            return False
        except DamagedBlock as damage:
            error = CorruptFile(self._storage.locate(file.path), f"altered: {damage}")
            raise self._named(error, states_in(file)) from damage
        self._files.append(lazy)
        self._lazy_restore.expect(lazy)
        return True

    def _unmark(self) -> None:
        with suppress(FileNotFoundError):
            os.remove(self._marker)

    def any(self) -> bool:
        """Whether there are incomplete files."""
        taken = bool(self._files or self._blob_files)
        if not taken:
            self._unmark()
        return taken

    # what the store needs

    @property
    def complete(self) -> bool:
        """Whether all files are complete."""
        return self._lazy_restore.complete

    def need_keys(self, keys: Iterable[bytes]) -> None:
        """Fetch the blocks that may hold these keys.

        Raises:
            CorruptFile: a block is missing or altered.
            StorageError: the storage refused a read, or the retry budget ran out.
        """
        if self._lazy_restore.complete:
            return
        wanted = sorted(keys)
        try:
            runs = [(file, run) for file in self._files for run in file.lacking_keys(wanted)]
        except UnknownFormat:
            self._lazy_restore.wait()
        else:
            self._fetch(runs)

    def need_range(self, start: bytes, end: bytes) -> bytes:
        """Fetch the blocks of the keys from ``start`` to the returned key: ``end``, or an earlier one if much is missing.

        Raises:
            CorruptFile: a block is missing or altered.
            StorageError: the storage refused a read, or the retry budget ran out.
        """
        if self._lazy_restore.complete:
            return end
        files = [file for file in self._files if file.last_key >= start]
        try:
            if sum(file.span(start, end) for file in files) > _MOST_IN_RANGE:
                end = min([end, *(file.bound(start) for file in files if not file.here)])
            runs = self._lacking(files, start, end)
        except UnknownFormat:
            self._lazy_restore.wait()
        else:
            self._fetch(runs)
        return end

    def need_block(self, error: str) -> bool:
        """Fetch the block that RocksDB's error names; returns False if it is present, or the error names none.

        After a range delete, RocksDB continues where the range ends, in a block that no `need_range` asked for.

        Raises:
            CorruptFile: the block is missing or altered.
            StorageError: the storage refused a read, or the retry budget ran out.
        """
        named = _LACKING.search(error)
        if named is None or self._lazy_restore.complete:
            return False
        file = next((each for each in self._files if each.file.name == named[1]), None)
        try:
            block = None if file is None else file.block_at(int(named[2]))
        except UnknownFormat:
            self._lazy_restore.wait()
            return True
        if file is None or block is None or file.has(block):
            return False
        self._fetch([(file, [block])])
        return True

    def need_values(self, blobs: Iterable[Blob]) -> None:
        """Fetch the values of these blobs.

        Raises:
            CorruptFile: a chunk is missing or altered.
            StorageError: the storage refused a read, or the retry budget ran out.
        """
        if self._lazy_restore.complete:
            return
        wanted: dict[int, list[Blob]] = defaultdict(list)
        for blob in blobs:
            wanted[blob.file].append(blob)
        files = ((self._blob_files[number], each) for number, each in wanted.items() if number in self._blob_files)
        runs = [(file, run) for file, each in files for run in file.lacking(each)]
        self._lazy_restore.at_once(lambda run: run[0].fetch(run[1]), runs)

    def _lacking(self, files: Sequence[LazyFile], start: bytes, end: bytes) -> list[_Run]:
        """The missing blocks between two keys, and the first ones after them, because RocksDB may read these too."""
        after: dict[int, bytes] = {}
        for file in files:
            if file.first_key > end:
                after[file.level] = min(file.first_key, after.get(file.level, file.first_key))
        runs: list[_Run] = []
        for file in files:
            if file.first_key <= end:
                runs += ((file, run) for run in file.lacking(start, end))
            elif file.first_key == after[file.level]:
                runs += ((file, run) for run in file.lacking(file.first_key, file.first_key))
        return runs

    def _fetch(self, runs: Sequence[_Run]) -> None:
        self._lazy_restore.at_once(lambda run: run[0].fetch(run[1]), runs)

    def wait(self) -> None:
        """Wait until all files are complete; raises as `LazyRestore.wait` does."""
        self._lazy_restore.wait()
