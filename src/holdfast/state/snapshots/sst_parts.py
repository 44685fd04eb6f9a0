"""Copies the data blocks of an SST file that hold certain keys, read by ranges.

The copy has the size of the whole file, with holes: every copied block keeps its offset, and a new index leaves out the
other blocks. RocksDB reads the copy like the whole file without the other keys. Its properties still count all entries, so a
store with such a file must not compare numbers of entries (`holdfast.state.store.store`).

The checksum of the whole file cannot be verified, but that of each block is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from holdfast.checkpoint.handles import RawFile
from holdfast.checkpoint.parsing import parsing
from holdfast.checkpoint.stores.storage import Storage
from holdfast.errors import CorruptFile
from holdfast.state.snapshots.sparse_file import RangeReader
from holdfast.state.snapshots.sst_format import (
    FOOTER_SIZE,
    TRAILER_SIZE,
    Block,
    DamagedBlock,
    Footer,
    IndexEntry,
    IndexForm,
    Metaindex,
    UnknownFormat,
)
from holdfast.state.store.runs import in_runs

__all__ = ["KeyRange", "KeyRanges", "SstReader", "fetch_parts"]

KeyRange = tuple[bytes, bytes]
"""The keys in ``[start, end)``."""


class KeyRanges:
    """Ranges of keys, sorted and without overlaps.

    >>> ranges = KeyRanges([(b"b", b"d"), (b"f", b"h")])
    >>> ranges.overlap(b"d", b"e"), ranges.overlap(b"d", b"f"), ranges.contain(b"f", b"g"), ranges.contain(b"c", b"f")
    (False, True, True, False)
    """

    def __init__(self, ranges: Iterable[KeyRange]) -> None:
        self._starts: list[bytes] = []
        self._ends: list[bytes] = []
        for start, end in ranges:
            self._starts.append(start)
            self._ends.append(end)

    def overlap(self, first: bytes, last: bytes) -> bool:
        """Whether some keys from ``first`` to ``last``, inclusive, may be in the ranges."""
        at = bisect_right(self._ends, first)
        return at < len(self._starts) and self._starts[at] <= last

    def contain(self, first: bytes, last: bytes) -> bool:
        """Whether one range contains all keys from ``first`` to ``last``, inclusive."""
        at = bisect_right(self._ends, first)
        return at < len(self._starts) and self._starts[at] <= first and last < self._ends[at]


_TAIL = 2 << 10
"""Bytes of the first read: properties, metaindex and footer."""
_LEAST = 8 * _TAIL
"""Size of the smallest file that is read in parts."""
_MOST_SHARE = 0.75
"""A file is read in parts if at most this share of its data is needed."""
_FILTER_SHARE = 1 / 64
"""The filter is read if it is at most this share of the file. Without a filter, absent keys are found more slowly."""
_AT_ONCE = 8 << 20
"""Bytes read at a time."""


def fetch_parts(storage: Storage, file: RawFile, target: str, ranges: KeyRanges) -> bool:
    """Copy the blocks that may hold keys in these ranges; returns False, without copying, if the file should be read whole.

    Args:
        storage: The storage with the file.
        file: The file.
        target: The path of the copy.
        ranges: The wanted keys.

    Raises:
        CorruptFile: a block is missing or altered.
        StorageError: the storage refused the read, or the retry budget ran out.
    """
    if file.size < _LEAST:
        return False
    try:
        with parsing(storage.locate(file.path), "a file of RocksDB"):
            return _Parts(storage, file).copy(target, ranges)
    except UnknownFormat:
        return False
    except DamagedBlock as damage:
        raise CorruptFile(storage.locate(file.path), f"altered: {damage}") from damage


class SstReader(RangeReader):
    """Reads one file by ranges: keeps all that follows the data blocks in memory, and reads verified data blocks.

    Args:
        storage: The storage with the file.
        file: The file.
        tail: Minimum number of bytes at the file's end that the first read fetches.

    Raises:
        UnknownFormat: files of this format are not read in parts.
        DamagedBlock: the file's end is altered.
        CorruptFile: the file is missing, or has another size.
    """

    def __init__(self, storage: Storage, file: RawFile, tail: int = _TAIL) -> None:
        super().__init__(storage, file)
        self.tail = b""
        self.read_from(max(file.size - max(tail, _TAIL), 0))
        self.footer = Footer.read(self.tail[-FOOTER_SIZE:], file.size)

    def data(self, run: Sequence[Block]) -> bytes:
        """Adjacent data blocks, verified."""
        start = run[0].offset
        data = self.part(start, run[-1].end - start)
        view = memoryview(data)
        for block in run:
            self.footer.verify(block, view[block.offset - start : block.end - start])
        return data

    def block(self, block: Block) -> memoryview:
        """A verified block after the data blocks, with its trailer."""
        self.read_from(block.offset)
        start = self.file.size - len(self.tail)
        stored = memoryview(self.tail)[block.offset - start : block.end - start]
        self.footer.verify(block, stored)
        return stored

    def read_from(self, start: int) -> None:
        """Make sure that the file from ``start`` on is in memory."""
        have = self.file.size - len(self.tail)
        if start < have:
            self.tail = self.part(start, have - start) + self.tail


class _Parts(SstReader):
    """Copies parts of one file."""

    def copy(self, target: str, ranges: KeyRanges) -> bool:
        """Copy the blocks of these keys; returns False if they are most of the file."""
        meta = Metaindex.read(self.block(self.footer.metaindex))
        kept = {name: each for name, each in meta.filters.items() if each.size <= _FILTER_SHARE * self.file.size}
        kept.update(meta.others)
        self.read_from(min(block.offset for block in [meta.index, *kept.values()]))
        form = IndexForm.read(self.block(meta.properties))
        wanted = list(_wanted(form, form.entries(self.block(meta.index)), self.file.first_key, ranges))
        index = form.packed(wanted)
        if sum(block.size for _, block in wanted) > _MOST_SHARE * self.file.size or len(index) > meta.index.size:
            return False
        with open(target, "wb") as copy:
            # Read a block before seeking to its place: the index may claim any offset.
            for block in kept.values():
                content = self.block(block)
                copy.seek(block.offset)
                copy.write(content)
            for run in in_runs((block for _, block in wanted), _AT_ONCE):
                data = self.data(run)
                copy.seek(run[0].offset)
                copy.write(data)
            copy.seek(meta.index.offset)
            copy.write(self.footer.sealed(index, meta.index.offset))
            packed = meta.with_index(Block(meta.index.offset, len(index)), kept).packed()
            place = Block(self.footer.metaindex.end - TRAILER_SIZE - len(packed), len(packed))
            copy.seek(place.offset)
            copy.write(self.footer.sealed(packed, place.offset) + self.footer._replace(metaindex=place).packed())
        return True


def _wanted(form: IndexForm, entries: Iterable[IndexEntry], first: bytes, ranges: KeyRanges) -> Iterator[IndexEntry]:
    """The entries of the blocks that may hold keys in the ranges; ``first``: the file's first key."""
    low = first
    for entry in entries:
        high = form.user_key(entry.separator)
        if ranges.overlap(low, high):
            yield entry
        low = high
