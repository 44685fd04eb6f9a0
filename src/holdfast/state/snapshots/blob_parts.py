"""Reads the blob files of a base by chunks: copies the chunks with certain keys, or fetches each when a lookup needs it.

In both cases the local file has the size of the whole file, with holes, so that every value keeps its offset.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

from holdfast.checkpoint.handles import RawFile
from holdfast.checkpoint.stores.storage import Storage
from holdfast.errors import CorruptFile
from holdfast.state.snapshots.sparse_file import RangeReader, SparseFile
from holdfast.state.snapshots.sst_parts import KeyRanges
from holdfast.state.store.blob_file import SUFFIX, Blob, Chunk, Damaged, chunks_of, sealing
from holdfast.state.store.runs import in_runs
from holdfast.state.stored.damage import Naming

__all__ = ["LazyBlobFile", "fetch_chunks"]

_MOST_SHARE = 0.75
"""A file is read whole if more than this share of it is needed."""
_MOST_IN_RUN, _MOST_IN_LOOKUP = 8 << 20, 1 << 20
"""Limits of a range read, in bytes: for a copy, and for a lookup."""
_offset = attrgetter("offset")
_GAP = 64 << 10
"""Gap in bytes up to which two chunks are fetched by one request."""


def fetch_chunks(storage: Storage, file: RawFile, target: str, ranges: KeyRanges) -> bool:
    """Copy the chunks that may hold keys in these ranges; returns False, without copying, if the file should be read whole.

    The copy's index has only those chunks.

    Raises:
        CorruptFile: the file is missing or altered.
        StorageError: the storage refused the read, or the retry budget ran out.
    """
    reader = RangeReader(storage, file)
    try:
        chunks = [each for each in chunks_of(file.size, reader.part) if ranges.overlap(each.first, each.last)]
        if sum(chunk.size for chunk in chunks) > _MOST_SHARE * file.size:
            return False
        end = sealing(chunks)
        with open(target, "wb") as copy:
            for run in in_runs(chunks, _MOST_IN_RUN, _GAP):
                copy.seek(run[0].offset)
                copy.write(_read(reader, run))
            copy.seek(file.size - len(end))
            copy.write(end)
    except Damaged as damage:
        raise CorruptFile(storage.locate(file.path), str(damage)) from damage
    return True


class LazyBlobFile(SparseFile):
    """A blob file with its index and some of its chunks."""

    def __init__(self, storage: Storage, file: RawFile, target: str, named: Naming) -> None:
        """Fetch the index of the file.

        Args:
            storage: The storage with the file.
            file: The file.
            target: The local file.
            named: Adds to an error what the file holds.

        Raises:
            CorruptFile: the file is missing, or its index is altered.
        """
        super().__init__(RangeReader(storage, file), target, named)
        self._chunks: list[Chunk] | None = None
        self.number = int(file.name.removesuffix(SUFFIX), 16)
        try:
            end = sealing(chunks_of(file.size, self.reader.part))
        except Damaged as damage:
            raise self.altered(str(damage)) from damage
        except CorruptFile as error:
            raise self.telling(error) from error
        with open(target, "wb") as copy:
            copy.seek(start := file.size - len(end))
            copy.write(end)
        self.present.add(start, file.size)

    def lacking(self, blobs: Iterable[Blob]) -> Iterator[list[Chunk]]:
        """Runs of missing chunks with these blobs, which are all in this file."""
        if self.here:
            return iter(())
        chunks = self._index()
        numbers = sorted({bisect_right(chunks, blob.offset, key=_offset) - 1 for blob in blobs})
        wanted = (chunks[number] for number in numbers if number >= 0)  # no value lies before the first chunk
        lacking = (each for each in wanted if not self.present.has(each.offset, each.end))
        return in_runs(lacking, _MOST_IN_LOOKUP, _GAP)

    def _index(self) -> list[Chunk]:
        """The chunks of the file, read on first use."""
        chunks = self._chunks
        if chunks is None:
            with open(self._target, "rb") as copy:
                chunks = self._chunks = chunks_of(self.file.size, lambda offset, size: os.pread(copy.fileno(), size, offset))
        return chunks

    def fetch(self, run: Sequence[Chunk]) -> None:
        """Fetch chunks and the gaps between them.

        Raises:
            CorruptFile: one is missing or altered.
            StorageError: the storage refused the read, or the retry budget ran out.
        """
        try:
            self.take(run[0].offset, _read(self.reader, run))
        except Damaged as damage:
            raise self.altered(str(damage)) from damage
        except CorruptFile as error:
            raise self.telling(error) from error

    def complete(self, may_go_on: Callable[[], bool]) -> None:
        """Fetch what is missing, and verify the whole file (`holdfast.state.snapshots.lazy_restore.PendingFile`)."""
        super().complete(may_go_on)
        if self.here:
            self._chunks = None


def _read(reader: RangeReader, run: Sequence[Chunk]) -> bytes:
    """The verified bytes of chunks, with the gaps between them."""
    start = run[0].offset
    data = reader.part(start, run[-1].end - start)
    for chunk in run:
        chunk.verified(data[chunk.offset - start : chunk.end - start])
    return data
