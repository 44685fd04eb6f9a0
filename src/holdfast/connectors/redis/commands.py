"""Rows as Redis's commands: strings, hashes, entries of streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from holdfast.common.formats.json import JsonRowSerializationSchema
from holdfast.common.typeinfo import RowTypeInfo
from holdfast.common.typeinfo.composite import PrimitiveArrayTypeInfo
from holdfast.common.types import Row, RowKind

__all__ = ["Command", "RowCommands", "Structure", "packed"]

Structure = Literal["string", "hash", "stream"]
Command = list[bytes]
_ARGUMENTS = 6000
"""Arguments of a command behind its key: Lua, which carries it out, takes somewhat less than 8,000."""


class RowCommands:
    """Makes the commands that write a row.

    Args:
        type_info: The rows.
        structure: What a key holds.
        key: A row's key; or the name of the one stream.
        value: The value of a string, of a row.
        ttl_ms: How long a key lives; None: for ever.
        max_length: How many entries a stream keeps, about; None: all.
    """

    def __init__(
        self,
        type_info: RowTypeInfo,
        structure: Structure,
        key: Callable[[Row], str | bytes] | str,
        value: Callable[[Row], Any] | None,
        ttl_ms: int | None,
        max_length: int | None,
    ) -> None:
        self._conform = type_info.conform
        self._names = type_info.get_field_names()
        self._fields = [name.encode() for name in self._names]
        self._key = key
        self._structure = structure
        self._json = JsonRowSerializationSchema(type_info).serialize
        self._value = self._json if value is None else value
        self._ttl = None if ttl_ms is None else str(ttl_ms).encode()
        self._trim = [] if max_length is None else [b"MAXLEN", b"~", str(max_length).encode()]
        self._bytes = [
            i
            for i, of in enumerate(type_info.get_field_types())
            if isinstance(of, PrimitiveArrayTypeInfo) and of.annotation is bytes
        ]
        self._decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

    def of(self, element: Any) -> list[Command]:
        """The commands of an element; none for a row that another one replaces.

        Raises:
            TypeError, ValueError: it is no row of the type, or has no key.
        """
        row: Row = self._conform(element)
        kind = row.get_row_kind()
        if kind is RowKind.UPDATE_BEFORE and self._structure != "stream":
            return []
        key = self._key_of(row)
        if self._structure == "stream":
            if kind is not RowKind.INSERT:
                raise ValueError(
                    f"a stream takes new rows, not one of the kind {kind.name}: filter them, or map the kind to a field"
                )
            fields = [part for name, text in self._texts(row) if text is not None for part in (name, text)]
            if not fields:
                raise ValueError("all fields of the row are None: an entry of a stream needs one")
            if len(fields) > _ARGUMENTS:
                raise ValueError(f"the row has {len(fields) // 2} fields: an entry of a stream takes {_ARGUMENTS // 2}")
            return [[b"XADD", key, *self._trim, b"*", *fields]]
        if kind is RowKind.DELETE:
            return [[b"DEL", key]]
        if self._structure == "string":
            return [[b"SET", key, self._text_of(row), *([] if self._ttl is None else [b"PX", self._ttl])]]
        texts = self._texts(row)
        given = [part for name, text in texts if text is not None for part in (name, text)]
        absent = [name for name, text in texts if text is None]
        made = [[b"HSET", key, *given[i : i + _ARGUMENTS]] for i in range(0, len(given), _ARGUMENTS)]
        made += [[b"HDEL", key, *absent[i : i + _ARGUMENTS]] for i in range(0, len(absent), _ARGUMENTS)]
        return made if self._ttl is None else [*made, [b"PEXPIRE", key, self._ttl]]

    def _key_of(self, row: Row) -> bytes:
        key = self._key if isinstance(self._key, str) else self._key(row)
        if not isinstance(key, (str, bytes)) or not key:
            raise TypeError(f"the key of a row is text or bytes, not {key!r:.80}")
        return key.encode() if isinstance(key, str) else key

    def _text_of(self, row: Row) -> bytes:
        value = self._value(row)
        if not isinstance(value, (str, bytes)):
            raise TypeError(f"the value of a row is text or bytes, not {value!r:.80}: use DELETE rows to delete keys")
        return value.encode() if isinstance(value, str) else value

    def _texts(self, row: Row) -> list[tuple[bytes, bytes | None]]:
        """The fields and their text, as in JSON but without quotes, bytes as they are; None where there is no value."""
        raw = self._decode(self._json(row))
        texts: list[bytes | None] = [_plain(bytes(raw[name])) for name in self._names]
        for i in self._bytes:
            texts[i] = row[i]
        return list(zip(self._fields, texts))


def _plain(json: bytes) -> bytes | None:
    if json.startswith(b'"'):
        text: str = msgspec.json.decode(json)
        return text.encode()
    return None if json == b"null" else json


# ---- their stored form: MessagePack, whose texts are bytes of any kind, as Redis reads it ----


def packed(commands: Sequence[Command]) -> bytes:
    """The stored form of commands.

    >>> packed([[b"DEL", b"a"]]).hex(" ")
    '91 92 a3 44 45 4c a1 61'
    """
    parts = [_array(len(commands))]
    for command in commands:
        parts.append(_array(len(command)))
        for argument in command:
            parts += (_text(len(argument)), argument)
    return b"".join(parts)


def _array(count: int) -> bytes:
    if count < 16:
        return bytes([0x90 | count])
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


def _text(size: int) -> bytes:
    if size < 32:
        return bytes([0xA0 | size])
    if size < 1 << 8:
        return b"\xd9" + size.to_bytes(1, "big")
    return b"\xda" + size.to_bytes(2, "big") if size < 1 << 16 else b"\xdb" + size.to_bytes(4, "big")
