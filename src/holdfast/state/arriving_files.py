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
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import xxhash

from holdfast.checkpoint.handles import RawFile
from holdfast.checkpoint.in_parallel import in_parallel
from holdfast.checkpoint.storage import Storage
from holdfast.errors import CorruptFile
from holdfast.state.linked_files import naming
from holdfast.state.sst_format import Block, DamagedBlock, IndexForm, IndexSearch, Metaindex, UnknownFormat
from holdfast.state.sst_parts import SstReader

__all__ = ["ArrivingFiles", "Present"]

_MARKER = "ARRIVING"
_LEAST = 256 << 10
"""Size of the smallest file that arrives by and by, in bytes."""
_TAIL_SHARE = 192
"""The part of a file that is read at first: its end, if the rows are not small."""
_GAP = 64 << 10
"""Bytes between two blocks that are rather read than requested separately."""
_MOST_IN_RUN = 4 << 20
"""Bytes of a range read, at most."""
_MOST_IN_PART = 8 << 20
"""Bytes of a whole file that are read at once."""
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

_Run = tuple["_ArrivingFile", list[Block]]
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
        self._files: list[_ArrivingFile] = []
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
            self._files.append(_ArrivingFile(self._storage, file, os.path.join(self._directory, file.name)))
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

    def _lacking(self, files: Sequence[_ArrivingFile], start: bytes, end: bytes) -> list[_Run]:
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

    def _complete(self, files: Iterator[_ArrivingFile]) -> None:
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


class Present:
    """The parts of a file that are here. Thread-safe.

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
        """Note that the bytes ``[start, end)`` are here."""
        with self._lock:
            first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
            if first < last:
                start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
            self._starts[first:last] = [start]
            self._ends[first:last] = [end]

    def has(self, start: int, end: int) -> bool:
        """Whether all of the bytes ``[start, end)`` are here."""
        with self._lock:
            at = bisect_right(self._starts, start) - 1
            return at >= 0 and end <= self._ends[at]

    def lacking(self, start: int, gap: int) -> tuple[int, int] | None:
        """The next part that is lacking from ``start`` on; what is here and not longer than ``gap`` does not end it."""
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


class _ArrivingFile:
    """A file of which the end and some blocks are here."""

    def __init__(self, storage: Storage, file: RawFile, target: str) -> None:
        self.file = file
        self.level, self.first_key, self.last_key = file.level, file.first_key, file.last_key
        self.here = False
        self._storage = storage
        self._target = target
        self._reader = SstReader(storage, file, file.size // _TAIL_SHARE)
        meta = Metaindex.read(self._reader.block(self._reader.footer.metaindex))
        self._reader.read_from(meta.start)
        self._properties = bytes(self._reader.block(meta.properties))
        IndexForm.read(memoryview(self._properties))
        self._reader.block(meta.index)
        self._meta = meta
        self._search: IndexSearch | None = None
        self._present = Present(file.size)
        with open(target, "wb") as copy:
            copy.seek(start := file.size - len(self._reader.tail))
            copy.write(self._reader.tail)
        self._present.add(start, file.size)
        self._reader.tail = b""

    def lacking_keys(self, keys: Sequence[bytes]) -> Iterator[list[Block]]:
        """The blocks that may hold some of these sorted keys and are lacking."""
        mine = keys[bisect_left(keys, self.first_key) : bisect_right(keys, self.last_key)]
        if self.here or not mine:
            return iter(())
        search = self._index()
        return self._runs(search.run(key, key) for key in mine)

    def lacking(self, first: bytes, last: bytes) -> Iterator[list[Block]]:
        """The blocks that may hold keys from ``first`` to ``last`` and are lacking."""
        return iter(()) if self.here else self._runs([self._index().run(first, last)])

    def bound(self, start: bytes) -> bytes:
        """A key behind some of the file's keys from ``start`` on."""
        search = self._index()
        numbers = search.run(start, start)
        return search.separator(numbers[-1] if numbers else search.blocks - 1)

    def span(self, first: bytes, last: bytes) -> int:
        """The bytes of the blocks that may hold keys from ``first`` to ``last``; 0 if all of them are here."""
        if self.here or self.first_key > last:
            return 0
        search = self._index()
        numbers = search.run(first, last)
        if not numbers:
            return 0
        start, end = search.block(numbers[0]).offset, search.block(numbers[-1]).end
        return 0 if self._present.has(start, end) else end - start

    def block_at(self, offset: int) -> Block | None:
        """The data block at this offset, if there is one."""
        search = self._index()
        number = bisect_left(range(search.blocks), offset, key=lambda each: search.block(each).offset)
        block = search.block(number) if number < search.blocks else None
        return block if block is not None and block.offset == offset else None

    def _index(self) -> IndexSearch:
        """The index, read when it is first needed."""
        search = self._search
        if search is None:
            with open(self._target, "rb") as copy:
                copy.seek(self._meta.index.offset)
                stored = copy.read(self._meta.index.end - self._meta.index.offset)
            search = self._search = IndexSearch(memoryview(self._properties), memoryview(stored))
        return search

    def _runs(self, wanted: Iterable[range]) -> Iterator[list[Block]]:
        """Join blocks that are lacking to runs; a gap that is smaller than the cost of a request belongs to its run."""
        search = self._index()
        run: list[Block] = []
        last = -1
        for numbers in wanted:
            for number in range(max(numbers.start, last + 1), numbers.stop):
                block = search.block(number)
                if self.has(block):
                    continue
                if run and (block.offset - run[-1].end > _GAP or block.end - run[0].offset > _MOST_IN_RUN):
                    yield run
                    run = []
                run += map(search.block, range(last + 1, number) if run else ())
                run.append(block)
                last = number
        if run:
            yield run

    def has(self, block: Block) -> bool:
        """Whether a block is here."""
        return self._present.has(block.offset, block.end)

    def fetch(self, blocks: Sequence[Block]) -> None:
        """Fetch adjacent blocks.

        Raises:
            DamagedBlock: one is altered.
        """
        data = self._reader.data(blocks)
        with open(self._target, "r+b") as copy:
            copy.seek(blocks[0].offset)
            copy.write(data)
        self._present.add(blocks[0].offset, blocks[-1].end)

    def complete(self, may_go_on: Callable[[], bool]) -> None:
        """Fetch what is lacking, unless ``may_go_on`` returns False in between, and verify the whole file."""
        with open(self._target, "r+b") as copy:  # if another store takes its place, this remains the old file
            while (lacking := self._present.lacking(0, _GAP)) is not None:
                start, end = lacking[0], min(lacking[1], lacking[0] + _MOST_IN_PART)
                data = self._reader.part(start, end - start)
                copy.seek(start)
                copy.write(data)
                copy.flush()
                self._present.add(start, end)
                if not may_go_on():
                    return
            digest = xxhash.xxh3_128()
            copy.seek(0)
            while data := copy.read(_MOST_IN_PART):
                digest.update(data)
                if not may_go_on():
                    return
        if digest.digest() != self.file.checksum:
            raise CorruptFile(self._storage.locate(self.file.path), "altered: its checksum does not match its content")
        self.here = True
        self._search = None
