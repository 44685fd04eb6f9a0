"""CellCodec: the interface by which large maps and lists encode their entries and chunks."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["CellCodec"]


class CellCodec(Protocol):
    """Encodes and decodes parts of one column's cells."""

    def encode(self, key: Any, part: Any) -> bytes:
        """Encode a part of the cell of ``key``.

        Raises:
            UserCodeError: the part does not fit its declared type; names the state and the key.
        """

    def decode(self, key: Any, data: bytes) -> Any:
        """Decode a part of the cell of ``key``, written by `encode`.

        Raises:
            IncompatibleState: it cannot be read as the program declares it; names the state and the key.
        """

    @property
    def keys_vary(self) -> bool:
        """Whether equal keys of a map may differ, like 1 and 1.0."""

    @property
    def has_former_types(self) -> bool:
        """Whether the column had other types before."""

    def migrated(self, key: Any, data: bytes) -> bytes | None:
        """A stored part of the cell of ``key`` with the present types; None if it has them already.

        Raises:
            IncompatibleState: it cannot be read as the program declares it; names the state and the key.
        """
