"""IncompleteFiles: the interface through which a store reads files that are still being fetched."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from holdfast.state.store.blob_file import Blob

__all__ = ["IncompleteFiles"]


class IncompleteFiles(Protocol):
    """Files of a store that are still being fetched. Before a read, the store asks for what the read needs."""

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
