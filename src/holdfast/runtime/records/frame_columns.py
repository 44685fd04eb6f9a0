"""Frames of plain records as columns: tuples or dictionaries of plain values, or single plain values. Compiled.

A column is packed by one call. Keys and timestamps that are fields of the records are not sent again, nor are the fields of
tuple keys. The names of dictionaries' fields are sent once. A column is a pickle unless its values are all integers, all
floats or all strings. Records of any other kind are pickled (`holdfast.runtime.records.frames`).
"""

from __future__ import annotations

import pickle
import struct
import sys
from functools import lru_cache
from typing import Any

__all__ = ["PACKED", "pack_columns", "unpack_columns"]

_COLUMNS, _WITH_TUPLE_KEYS = 1, 2
PACKED = (_COLUMNS, _WITH_TUPLE_KEYS)
"""The first bytes of packed frames; a pickle never begins with one of them."""
_HEAD = struct.Struct("<BqIbbb")
"""The first byte; the watermark; the numbers of records and of fields (0: single values; negative: fields of dictionaries,
whose names are the first column); the places of the timestamps and of the keys. With tuple keys, the last is the number of
their fields, whose places follow.
"""
_COLUMN = struct.Struct("<cI")
"""The type's code, and the number of bytes."""
_NONE, _OWN = -1, -2
"""Places: no such column; a column of its own, after those of the fields."""
_MOST_FIELDS = 100
_CODES = {int: b"q", float: b"d", str: b"s"}
_PICKLE = b"p"
_PLAIN = frozenset((int, float, str, bool, bytes, type(None)))
"""Classes of values without parts, so that two columns cannot share any."""


@lru_cache(maxsize=4096)
def _numbers(count: int, code: str) -> struct.Struct:
    return struct.Struct(f"<{count}{code}")


def pack_columns(watermark: int, values: list[Any], timestamps: list[int] | None, keys: list[Any] | None) -> bytes | None:
    """Pack the records of a frame; None if some are of another kind.

    Args:
        watermark: The watermark after them.
        values: The records.
        timestamps: The records' timestamps.
        keys: The records' keys.
    """
    if not values:
        return None
    first = values[0]
    kind = type(first)
    fields: list[list[Any]] | None
    names: list[Any] = []
    width = 0
    if kind is tuple:
        width = len(first)
        fields = _split(values, width) if 0 < width <= _MOST_FIELDS and _plain(list(first)) else None
    elif kind is dict:
        names = list(first)
        width = -len(names)
        fields = None
        if 0 < len(names) <= _MOST_FIELDS and _uniform(names, str) and _plain(list(first.values())):
            fields = _split_named(values, names)
    else:
        fields = [values]
    if fields is None:
        return None
    columns = fields.copy()
    stamp_place = _place(timestamps, fields, columns)
    if keys is not None and type(keys[0]) is tuple:
        key_width = len(keys[0])
        key_fields = _split(keys, key_width) if 0 < key_width <= _MOST_FIELDS else None
        if key_fields is None:
            return None
        places = [_place(each, fields, columns) for each in key_fields]
        head = _HEAD.pack(_WITH_TUPLE_KEYS, watermark, len(values), width, stamp_place, key_width)
        parts = [head, struct.pack(f"<{key_width}b", *places)]
    else:
        key_place = _place(keys, fields, columns)
        parts = [_HEAD.pack(_COLUMNS, watermark, len(values), width, stamp_place, key_place)]
    if names:
        columns.insert(0, names)
    for column in columns:
        packed = _packed(column)
        if packed is None:
            return None
        code, data = packed
        parts.append(_COLUMN.pack(code, len(data)))
        parts.append(data)
    return b"".join(parts)


def _packed(column: list[Any]) -> tuple[bytes, bytes] | None:
    """The code and the bytes of a column; None if some of its values are not plain."""
    kind = type(column[0])
    code = _CODES.get(kind)
    if code is not None and _uniform(column, kind):
        try:
            if kind is not str:
                return code, _numbers(len(column), code.decode()).pack(*column)
            text = "\0".join(column).encode()
            if _nuls(text) == len(column) - 1:
                return code, text
        except (struct.error, UnicodeEncodeError):
            pass  # beyond 64 bits, or a lone surrogate
    return (_PICKLE, pickle.dumps(column, 5)) if _plain(column) else None


def _nuls(text: bytes) -> int:
    """The number of zero bytes. Compiled, it compares 16 bytes at a time; `count` compares one."""
    found = 0
    for byte in text:
        found += byte == 0
    return found


def _split(values: list[Any], width: int) -> list[list[Any]] | None:
    """The fields of tuples of this length; None if there are other values."""
    for each in values:
        if type(each) is not tuple or len(each) != width:
            return None
    fields = []
    for position in range(width):
        fields.append([value[position] for value in values])
    return fields


def _split_named(values: list[Any], names: list[Any]) -> list[list[Any]] | None:
    """The fields of dictionaries with these names, in this order; None if there are other values."""
    width = len(names)
    fields: list[list[Any]] = [[] for _ in names]
    for each in values:
        if type(each) is not dict or len(each) != width:
            return None
        record = each
        position = 0
        for name, value in record.items():
            known = names[position]
            if name is not known and (type(name) is not str or name != known):
                return None
            field = fields[position]
            field.append(value)
            position += 1  # noqa: SIM113, an integer of C
    return fields


def _plain(column: list[Any]) -> bool:
    """Whether all elements are plain values."""
    for element in column:  # noqa: SIM110, a loop in C
        if type(element) not in _PLAIN:
            return False
    return True


def _uniform(column: list[Any], kind: Any) -> bool:
    """Whether all elements are of this class, and not of a subclass."""
    for element in column:  # noqa: SIM110, a loop in C
        if type(element) is not kind:
            return False
    return True


def _place(column: list[Any] | None, fields: list[list[Any]], columns: list[list[Any]]) -> int:
    """The place of a column beside the fields: that of a field, if it consists of the same objects."""
    if column is None:
        return _NONE
    for position, field in enumerate(fields):
        if field[0] is column[0] and _same(field, column):
            return position
    columns.append(column)
    return _OWN


def _same(a: list[Any], b: list[Any]) -> bool:
    for position in range(len(a)):  # noqa: SIM110, a loop in C
        if a[position] is not b[position]:
            return False
    return True


def unpack_columns(payload: Any) -> tuple[int, list[Any], list[int] | None, list[Any] | None]:
    """The watermark, values, timestamps and keys of a packed frame."""
    kind, watermark, count, width, stamp_place, key_place = _HEAD.unpack_from(payload)
    at = _HEAD.size
    key_places: tuple[int, ...] = ()
    if kind == _WITH_TUPLE_KEYS:
        key_places = struct.unpack_from(f"<{key_place}b", payload, at)
        at += key_place
    end = len(payload)
    columns: list[Any] = []
    names: list[str] = []
    while at < end:
        code, size = _COLUMN.unpack_from(payload, at)
        at += _COLUMN.size
        column: Any
        if code == b"s":
            column = str(payload[at : at + size], "utf-8").split("\0")
        elif code == _PICKLE:
            column = pickle.loads(payload[at : at + size])
        else:
            column = _numbers(count, code.decode()).unpack_from(payload, at)
        at += size
        if width < 0 and not names:
            names = [sys.intern(name) for name in column]
        else:
            columns.append(column)
    fields = abs(width)
    own = iter(columns[max(fields, 1) :])
    timestamps = keys = None
    if stamp_place != _NONE:
        timestamps = list(next(own) if stamp_place == _OWN else columns[stamp_place])
    if kind == _WITH_TUPLE_KEYS:
        keys = list(zip(*[next(own) if place == _OWN else columns[place] for place in key_places]))
    elif key_place != _NONE:
        keys = list(next(own) if key_place == _OWN else columns[key_place])
    if names:
        return watermark, _named(names, columns[:fields]), timestamps, keys
    values = list(zip(*columns[:fields])) if fields else list(columns[0])
    return watermark, values, timestamps, keys


def _named(names: list[str], columns: list[Any]) -> list[Any]:
    """Dictionaries with these names, from columns."""
    pattern = dict.fromkeys(names)
    values = []
    for fields in zip(*columns):
        row = fields
        record: dict[str, Any] = pattern.copy()  # copies all entries at once; the values are replaced
        position = 0
        for name in names:
            record[name] = row[position]
            position += 1  # noqa: SIM113, an integer of C
        values.append(record)
    return values
