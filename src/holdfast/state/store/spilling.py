"""SpillingStore: an ordered store that starts in memory, and moves to a RocksDB on disk when it has grown."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice

from holdfast.common.rocksdb_options import RocksDBOptions as _O
from holdfast.errors import StorageError
from holdfast.state.store.ordered import NO_STUBS, SortedMemory
from holdfast.state.store.store import RocksDBStore

__all__ = ["SpillingStore"]

_ENTRY = 220
"""Approximate memory of a row besides the bytes of its key and value."""
_AT_ONCE = 10_000
_SCANNED = {
    _O.BLOCK_SIZE.key: "64kb",
    _O.USE_BLOOM_FILTER.key: "false",
    _O.WRITE_BUFFER_SIZE.key: "32mb",
    _O.MAX_OPEN_FILES.key: "64",
}
"""Settings that keep RocksDB's memory from growing with its files."""


class SpillingStore:
    """Rows in memory up to a limit, then all of them in RocksDB: an `holdfast.state.store.ordered.OrderedStore`."""

    on_disk = True

    def __init__(self, directory: str, settings: Mapping[str, str], most: int) -> None:
        """Start without rows.

        Args:
            directory: The directory in which RocksDB gets one of its own, when the rows move to it.
            settings: Settings of RocksDB, except the sizes of blocks and buffers, which this store chooses.
            most: Approximate limit of the rows' memory, in bytes.
        """
        self._directory = directory
        self._settings = {**settings, **_SCANNED}
        self._memory = SortedMemory()
        self._room = most
        self._disk: RocksDBStore | None = None

    @property
    def _rows(self) -> SortedMemory | RocksDBStore:
        return self._memory if self._disk is None else self._disk

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of these keys."""
        return self._rows.get_many(keys)

    def get_stubs(self, keys: list[bytes], kind: bytes) -> tuple[list[bytes | None], set[int]]:
        """The values of these keys, with stubs in place of some of them, and where."""
        return self._rows.get_stubs(keys, kind)

    def keeps_apart(self, prefix: bytes) -> bool:
        """Whether large values of the state with this prefix lie apart."""
        return self._rows.keeps_apart(prefix)

    def write(
        self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = (), stubs: Mapping[bytes, bytes] = NO_STUBS
    ) -> None:
        """Put values and delete keys."""
        if self._disk is None:
            puts = list(puts)
            self._room -= sum([_ENTRY + len(key) + len(value) for key, value in puts])
            if self._room < 0:
                self.spill()
        with self._remedy():
            self._rows.write(puts, deletes, stubs)

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete all keys in ``[start, end)``."""
        self._rows.delete_range(start, end)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys in ``[start, end)`` with their values, in order."""
        return self._rows.scan(start, end)

    def first_key(self, start: bytes, end: bytes) -> bytes | None:
        """The first key in ``[start, end)``."""
        return self._rows.first_key(start, end)

    def spill(self) -> None:
        """Move all rows to disk; later writes go there, too."""
        if self._disk is None:
            rows = self._memory.rows()
            with self._remedy():
                self._disk = RocksDBStore(tempfile.mkdtemp(prefix="spilled-", dir=self._directory), self._settings)
                while batch := list(islice(rows, _AT_ONCE)):
                    self._disk.write(batch)
            self._memory = SortedMemory()

    @contextmanager
    def _remedy(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"state that does not fit into memory cannot be written to {self._directory}: {error}. Free space there, "
                "or name another directory for temporary files: io.tmp.dirs in a job, TMPDIR elsewhere"
            ) from error

    def close(self) -> None:
        """Close the store, and delete its files."""
        if self._disk is not None:
            with suppress(Exception):  # closing a store that failed may fail, too
                self._disk.close()
            shutil.rmtree(self._disk.path, ignore_errors=True)
