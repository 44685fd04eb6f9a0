"""IncompleteStore: a RocksDB that is read while some of its files are still being fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from holdfast.state.store.blob_file import Blob
from holdfast.state.store.blob_files import blobs_in
from holdfast.state.store.store import RocksDBStore, rows_from

__all__ = ["IncompleteFiles", "IncompleteStore"]

T = TypeVar("T")

_PART = 512
"""Rows of a scan whose values are read at once, after a smaller start: each time may wait for the storage."""


class IncompleteFiles(Protocol):
    """Files of a store that are still being fetched. Before a read, the store asks for what the read needs."""

    @property
    def complete(self) -> bool:
        """Whether all of them are complete; then the store need not ask any more."""

    def need_keys(self, keys: Iterable[bytes]) -> None:
        """Fetch the blocks that may hold these keys."""

    def need_range(self, start: bytes, end: bytes) -> bytes:
        """Fetch the blocks of the keys from ``start`` to the returned one: ``end``, or an earlier one if much is missing."""

    def need_block(self, error: str) -> bool:
        """Fetch the block that RocksDB's error names; returns False if it is already here, or the error names none."""

    def need_values(self, blobs: Iterable[Blob]) -> None:
        """Fetch the values of these blobs."""

    def wait(self) -> None:
        """Wait until all files are complete."""


class IncompleteStore(RocksDBStore):
    """A store some of whose files are still being fetched. It does not compact before `compact_from_now_on`."""

    def __init__(
        self, path: str, settings: Mapping[str, str], files: IncompleteFiles, *, explain: Callable[[], None] = lambda: None
    ) -> None:
        """Open the store.

        Args:
            path: The store's directory.
            settings: Settings of RocksDB.
            files: Its incomplete files.
            explain: Called when an access fails; may raise a more precise error.
        """
        self._files = files
        super().__init__(path, settings, compacts=False, explain=explain)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The rows of these keys; fetches the blocks that may hold them, by the Bloom filters."""
        self._files.need_keys(filter(self._db.key_may_exist, keys))
        return super().get_many(keys)

    def get_stubs(self, keys: list[bytes], kind: bytes) -> tuple[list[bytes | None], set[int]]:
        """The rows of these keys with stubs, or whole while files are incomplete."""
        return super().get_stubs(keys, kind) if self._files.complete else (self.get_many(keys), set())

    def _with_values(self, found: list[bytes | None]) -> list[bytes | None]:
        self._files.need_values(blobs_in(found))
        return super()._with_values(found)

    def _read(self, read: Callable[[], T]) -> T:
        """Read; fetch blocks that turn out to be missing, and read again."""
        while True:
            try:
                return read()
            except Exception as error:  # rocksdict raises plain exceptions for everything
                if not self._files.need_block(str(error)):
                    break
        self._files.wait()
        return super()._read(read)

    def _collect(self, written: int) -> None:
        if self._files.complete:
            super()._collect(written)

    @property
    def _part(self) -> int:
        return super()._part if self._files.complete else _PART

    def _rows(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        rows = self._iterator(end)
        if not self._files.complete:
            until = self._files.need_range(start, end)
            yield from self._read(lambda: self._between(start, until))
            if until == end:
                return
            self._files.wait()
            start = until
        yield from self._iterate(rows, start)

    def _between(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        rows = self._iterator(end)
        found = list(rows_from(rows, start))
        rows.status()  # raises for missing blocks, at which an iterator ends silently
        return found

    def checkpoint(self, directory: str) -> None:
        """Make a consistent, self-contained copy of the store, once its files are complete."""
        self._files.wait()
        super().checkpoint(directory)
