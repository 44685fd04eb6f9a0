"""Parts of a cell in stored form: the entries of a large map, and the chunks of a large list.

A part is a msgpack array of the id of the schema that wrote it, and its content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import GenericAlias
from typing import Any

import msgspec

from holdfast.common.typeinfo.base import shown
from holdfast.errors import UserCodeError
from holdfast.state.cells.column import Column, unreadable_cell
from holdfast.state.stored.schema import ColumnSchema

__all__ = ["PartCodec"]

_pack = msgspec.msgpack.Encoder().encode
_unpack_first = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw]).decode


class PartCodec:
    """Encodes and decodes parts of a column's cells: map entries and list chunks."""

    def __init__(self, column: Column, stored: ColumnSchema, schema_id: int, where: str) -> None:
        """A codec of a declared column.

        Args:
            column: The column, without markers.
            stored: Its stored schema, with its former types.
            schema_id: The schema of newly written parts.
            where: The operator, for error messages.
        """
        self._column = column
        self._stored = stored
        self._schema_id = schema_id
        self._where = where
        self._decode = msgspec.msgpack.Decoder(GenericAlias(tuple, (int, column.annotation))).decode
        self._former: dict[int, tuple[Callable[..., Any], Callable[[Any], Any] | None]] = {}
        """By the length of the history: reads parts of former types."""

    def encode(self, key: Any, part: Any) -> bytes:
        """Encode a part of the cell of ``key``.

        Raises:
            UserCodeError: the part does not fit its declared type; names the state and the key.
        """
        column = self._column
        try:
            fitting = column.conform(part) if column.conform else part
            data = _pack((self._schema_id, column.encode(fitting) if column.encode else fitting))
            self._decode(data)
            return data
        except Exception as error:  # pickle and users' classes may raise anything
            raise UserCodeError(
                f"{shown(part)} in state {column.name!r} cannot be stored as {column.schema} ({error}); operator "
                f"{self._where}, key {key!r:.200}. Nothing of this epoch was committed.",
                operator=self._where,
                key=repr(key),
            ) from error

    def decode(self, key: Any, data: bytes) -> Any:
        """Decode a part of the cell of ``key``, written by `encode`.

        Raises:
            IncompatibleState: it cannot be read as the program declares it; names the state and the key.
        """
        history = self._stored.history(_schema_of(data)) if self._stored.former else ()
        try:
            if len(history) > 1:
                return self._decode_former(data, history)
            stored = self._decode(data)[1]
            return stored if self._column.decode is None else self._column.decode(stored)
        except Exception as error:  # pickle and users' classes may raise anything
            written = history[0] if history else self._stored.types
            raise unreadable_cell(self._stored, written, error, self._where, key) from error

    @property
    def keys_vary(self) -> bool:
        """Whether equal keys of a map may differ, like 1 and 1.0."""
        return self._column.keys_vary

    @property
    def has_former_types(self) -> bool:
        """Whether the column had other types before."""
        return bool(self._stored.former)

    def migrated(self, key: Any, data: bytes) -> bytes | None:
        """A stored part of the cell of ``key`` with the present types; None if it has them already.

        Raises:
            IncompatibleState: it cannot be read as the program declares it; names the state and the key.
        """
        return None if _schema_of(data) >= self._stored.changed else self.encode(key, self.decode(key, data))

    def _decode_former(self, data: bytes, history: Sequence[Any]) -> Any:
        known = self._former.get(len(history))
        if known is None:
            column = self._column.reading(history)
            read = msgspec.msgpack.Decoder(GenericAlias(tuple, (int, column.annotation))).decode
            known = self._former[len(history)] = (read, column.decode)
        read, decode = known
        stored = read(data)[1]
        return stored if decode is None else decode(stored)


def _schema_of(part: bytes) -> int:
    """The id of the schema that wrote a part."""
    first: int = _unpack_first(part)[0]
    return first
