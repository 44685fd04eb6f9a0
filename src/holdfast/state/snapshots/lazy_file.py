"""LazyFile: a local SST file with its index and some of its blocks.

The local file has the size of the whole file, with holes. It has the end from the beginning: filter, index, properties.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from holdfast.checkpoint.handles import RawFile
from holdfast.checkpoint.parsing import parsing
from holdfast.checkpoint.stores.storage import Storage
from holdfast.errors import CorruptFile
from holdfast.state.snapshots.sparse_file import SparseFile
from holdfast.state.snapshots.sst_format import Block, DamagedBlock, IndexForm, IndexSearch, Metaindex
from holdfast.state.snapshots.sst_parts import SstReader
from holdfast.state.stored.damage import Naming

__all__ = ["LazyFile"]

_TAIL_SHARE = 192
"""The first read fetches this fraction of a file, at its end; it holds the index unless rows are small."""
_GAP = 64 << 10
"""Gap in bytes up to which two blocks are fetched by one request."""
_MOST_IN_RUN = 1 << 20
"""Most bytes of a range read of blocks."""


class LazyFile(SparseFile):
    """A file of which the end and some blocks have been fetched."""

    def __init__(self, storage: Storage, file: RawFile, target: str, named: Naming) -> None:
        """Fetch the end of the file.

        Args:
            storage: The storage with the file.
            file: The file.
            target: The local file.
            named: Adds to an error what the file holds.

        Raises:
            CorruptFile: the file is missing.
            DamagedBlock: its end is altered.
            UnknownFormat: the file must be fetched as a whole.
        """
        self._reader = SstReader(storage, file, file.size // _TAIL_SHARE)
        super().__init__(self._reader, target, named)
        self.level, self.first_key, self.last_key = file.level, file.first_key, file.last_key
        meta = Metaindex.read(self._reader.block(self._reader.footer.metaindex))
        self._reader.read_from(meta.start)
        self._properties = bytes(self._reader.block(meta.properties))
        IndexForm.read(memoryview(self._properties))
        self._reader.block(meta.index)
        self._meta = meta
        self._search: IndexSearch | None = None
        with open(target, "wb") as copy:
            copy.seek(start := file.size - len(self._reader.tail))
            copy.write(self._reader.tail)
        self.present.add(start, file.size)
        self._reader.tail = b""

    # Lookups in the index raise UnknownFormat for another format, and CorruptFile for no valid index.

    def lacking_keys(self, keys: Sequence[bytes]) -> list[list[Block]]:
        """The missing blocks that may hold some of these sorted keys."""
        mine = keys[bisect_left(keys, self.first_key) : bisect_right(keys, self.last_key)]
        if self.here or not mine:
            return []
        with self._searching() as search:
            return list(self._runs(search, (search.run(key, key) for key in mine)))

    def lacking(self, first: bytes, last: bytes) -> list[list[Block]]:
        """The missing blocks that may hold keys from ``first`` to ``last``."""
        if self.here:
            return []
        with self._searching() as search:
            return list(self._runs(search, [search.run(first, last)]))

    def bound(self, start: bytes) -> bytes:
        """A key after some of the file's keys from ``start`` on."""
        with self._searching() as search:
            numbers = search.run(start, start)
            return search.separator(numbers[-1] if numbers else search.blocks - 1)

    def span(self, first: bytes, last: bytes) -> int:
        """The bytes of the blocks that may hold keys from ``first`` to ``last``; 0 if none is missing."""
        if self.here or self.first_key > last:
            return 0
        with self._searching() as search:
            numbers = search.run(first, last)
            if not numbers:
                return 0
            start, end = search.block(numbers[0]).offset, search.block(numbers[-1]).end
        return 0 if self.present.has(start, end) else end - start

    def block_at(self, offset: int) -> Block | None:
        """The data block at this offset, if there is one."""
        with self._searching() as search:
            number = bisect_left(range(search.blocks), offset, key=lambda each: search.block(each).offset)
            block = search.block(number) if number < search.blocks else None
        return block if block is not None and block.offset == offset else None

    @contextmanager
    def _searching(self) -> Iterator[IndexSearch]:
        """The index."""
        with self._refusing():
            yield self._index()

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Turn any error that the content of the file causes into `CorruptFile`."""
        try:
            with parsing(self.reader.where, "a file of RocksDB"):
                yield
        except DamagedBlock as damage:
            raise self.altered(str(damage)) from damage
        except CorruptFile as error:
            raise self.telling(error) from error

    def _index(self) -> IndexSearch:
        """The index, read on first use."""
        search = self._search
        if search is None:
            with open(self._target, "rb") as copy:
                copy.seek(self._meta.index.offset)
                stored = copy.read(self._meta.index.end - self._meta.index.offset)
            search = self._search = IndexSearch(memoryview(self._properties), memoryview(stored))
        return search

    def _runs(self, search: IndexSearch, wanted: Iterable[range]) -> Iterator[list[Block]]:
        """Group missing blocks into runs; a gap that costs less than a request is fetched too."""
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
        """Whether a block has been fetched."""
        return self.present.has(block.offset, block.end)

    def fetch(self, blocks: Sequence[Block]) -> None:
        """Fetch adjacent blocks.

        Raises:
            CorruptFile: one is missing or altered.
            StorageError: the storage refused the read, or the retry budget ran out.
        """
        with self._refusing():
            data = self._reader.data(blocks)
        self.take(blocks[0].offset, data)

    def complete(self, may_go_on: Callable[[], bool]) -> None:
        """Fetch what is missing, and verify the whole file (`holdfast.state.snapshots.lazy_restore.PendingFile`)."""
        super().complete(may_go_on)
        if self.here:
            self._search = None
