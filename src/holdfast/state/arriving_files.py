"""ArrivingFiles: SST files of a base that a local store reads while they are still being fetched.

A file begins with its end alone: filter, index and properties, in a local file of the full size. RocksDB reads no more to
open a store. Before the store looks for keys, the data blocks that may hold them are fetched by range reads, verified by
their checksums, and written to their places. Meanwhile, threads fetch the whole files and verify them against the
checkpoint's checksums. RocksDB verifies every block that it reads, so a block that is lacking or damaged is an error and
never a wrong value.

Until all files are complete, RocksDB must not compact the store. A marker in its directory keeps other processes from
reusing it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from holdfast.checkpoint.handles import RawFile
from holdfast.checkpoint.in_parallel import in_parallel
from holdfast.checkpoint.storage import Storage
from holdfast.errors import CorruptFile
from holdfast.state.arriving_file import ArrivingFile
from holdfast.state.linked_files import naming
from holdfast.state.sst_format import Block, DamagedBlock, UnknownFormat

__all__ = ["ArrivingFiles"]

_MARKER = "ARRIVING"
_LEAST = 256 << 10
"""Size of the smallest file that arrives by and by, in bytes."""
_MOST_IN_RANGE = 8 << 20
"""Bytes that a scan fetches at once. A longer one waits for the complete files after its first rows."""
_AT_ONCE = 32
"""Range reads at a time."""
_THREADS = 4
"""Whole files that are fetched at a time."""
_PATIENCE_S = 0.5
"""The longest time for which a part of a whole file waits for the range reads of a lookup."""

_LACKING = re.compile(r"([^/ ]+\.sst) offset (\d+)")
"""The block in an error of RocksDB."""

_Run = tuple[ArrivingFile, list[Block]]
"""Adjacent blocks of a file."""


class ArrivingFiles:
    """The files of one store that are not complete.

    Args:
        storage: The storage with the files.
        where: The operator, for errors.
        directory: The store's directory.
        names: Returns the names of states by id, for errors.
    """

    def __init__(self, storage: Storage, where: str, directory: str, names: Callable[[], dict[int, str]]) -> None:
        self._storage = storage
        self._where = where
        self._directory = directory
        self._marker = os.path.join(directory, _MARKER)
        self._names = names
        self._files: list[ArrivingFile] = []
        self._changed = threading.Condition()
        """Guards the following."""
        self._begun = False
        self._left = 0
        """Files that are not complete."""
        self._lookups = 0
        """Lookups whose range reads are under way."""
        self._failure: Exception | None = None
        self._stopped = False
        self.complete = False
        """Whether all files are complete and verified."""
        with open(self._marker, "wb"):
            pass

    @staticmethod
    def marked(directory: str) -> bool:
        """Whether files of a store in this directory may be incomplete."""
        return os.path.exists(os.path.join(directory, _MARKER))

    def take(self, file: RawFile) -> bool:
        """Begin a file with its end; returns False if it must be fetched as a whole.

        Raises:
            CorruptFile: it is missing or altered.
        """
        if file.size < _LEAST:
            return False
        try:
            self._files.append(ArrivingFile(self._storage, file, os.path.join(self._directory, file.name)))
        except UnknownFormat:
            return False
        except DamagedBlock as damage:
            raise self._damaged(file, damage) from damage
        return True

    def any(self) -> bool:
        """Whether there are such files; otherwise the store is complete."""
        if not self._files:
            os.remove(self._marker)
        return bool(self._files)

    # what the store needs

    def need_keys(self, keys: Iterable[bytes]) -> None:
        """Have the blocks that may hold these keys.

        Raises:
            CorruptFile: a block is missing or altered.
            StorageError: the storage refused a read, or the retry budget ran out.
        """
        if self.complete:
            return
        self.check()
        wanted = sorted(keys)
        try:
            runs = [(file, run) for file in self._files for run in file.lacking_keys(wanted)]
        except UnknownFormat:
            self.wait()
        else:
            self._fetch(runs)

    def need_range(self, start: bytes, end: bytes) -> bytes:
        """Have the blocks of the keys from ``start`` to the returned one: ``end``, or one before it if much is lacking.

        Raises:
            CorruptFile: a block is missing or altered.
            StorageError: the storage refused a read, or the retry budget ran out.
        """
        if self.complete:
            return end
        self.check()
        files = [file for file in self._files if file.last_key >= start]
        try:
            if sum(file.span(start, end) for file in files) > _MOST_IN_RANGE:
                end = min([end, *(file.bound(start) for file in files if not file.here)])
            runs = self._lacking(files, start, end)
        except UnknownFormat:
            self.wait()
        else:
            self._fetch(runs)
        return end

    def need_block(self, error: str) -> bool:
        """Have the block that RocksDB's error names; returns False if it is here, or the error names none.

        Behind a range delete, RocksDB goes on where the range ends, in a block that nobody has asked for.

        Raises:
            CorruptFile: the block is missing or altered.
            StorageError: the storage refused a read, or the retry budget ran out.
        """
        named = _LACKING.search(error)
        if named is None or self.complete:
            return False
        file = next((each for each in self._files if each.file.name == named[1]), None)
        block = None if file is None else file.block_at(int(named[2]))
        if file is None or block is None or file.has(block):
            return False
        self._fetch([(file, [block])])
        return True

    def _lacking(self, files: Sequence[ArrivingFile], start: bytes, end: bytes) -> list[_Run]:
        """The blocks between two keys that are lacking, and the first ones behind them, which RocksDB may look at."""
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
        if not runs:
            return
        with self._changed:
            self._lookups += 1
        try:
            for _ in in_parallel(self._fetch_run, runs, _AT_ONCE):
                pass
        except Exception as error:  # a function may catch it, but its epoch must not be completed
            self._fail(error)
            raise
        finally:
            with self._changed:
                self._lookups -= 1
                self._changed.notify_all()

    def _fetch_run(self, run: _Run) -> None:
        file, blocks = run
        try:
            file.fetch(blocks)
        except DamagedBlock as damage:
            raise self._damaged(file.file, damage) from damage
        except CorruptFile as error:
            raise naming(error, file.file, self._where, self._names()) from error

    def _damaged(self, file: RawFile, damage: DamagedBlock) -> CorruptFile:
        error = CorruptFile(self._storage.locate(file.path), f"altered: {damage}")
        return naming(error, file, self._where, self._names())

    # fetching all of it

    def begin(self) -> None:
        """Begin to fetch the whole files in the background."""
        with self._changed:
            if self._begun or self._stopped:
                return
            self._begun = True
            self._left = len(self._files)
        files = iter(self._files)
        for _ in range(_THREADS):
            threading.Thread(target=self._complete, args=(files,), name="holdfast-arriving", daemon=True).start()

    def _complete(self, files: Iterator[ArrivingFile]) -> None:
        """Fetch files; several threads share the iterator."""
        while self._may_go_on():
            with self._changed:
                file = next(files, None)
            if file is None:
                return
            try:
                file.complete(self._may_go_on)
            except CorruptFile as error:
                return self._fail(naming(error, file.file, self._where, self._names()))
            except Exception as error:
                return self._fail(error)
            with self._changed:
                self._left -= file.here
                if not self._left and not self._stopped:
                    with suppress(FileNotFoundError):
                        os.remove(self._marker)
                    self.complete = True
                    self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _may_go_on(self) -> bool:
        """Let the range reads of a lookup go first; returns whether to go on."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lookups or self._stopped, _PATIENCE_S)
            return not self._stopped and self._failure is None

    def wait(self) -> None:
        """Wait until all files are complete.

        Raises:
            CorruptFile: one is missing or altered.
            StorageError: the storage refused a read, or the retry budget ran out.
        """
        self.begin()
        with self._changed:
            self._changed.wait_for(lambda: self.complete or self._stopped or self._failure is not None)
        self.check()
        if not self.complete:
            raise OSError(f"the local store {self._directory} was closed")

    def check(self) -> None:
        """Raise what has ended the fetch in the background, if anything."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop. What has not arrived is fetched anew by the next restore."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
