"""The messages of pgoutput, PostgreSQL's plugin for logical replication (protocol version 1). Pure.

A transaction is sent whole, after its commit: Begin, its changes, Commit. A Relation describes a table before its first
change, and again whenever the table has changed.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Literal, NamedTuple

__all__ = [
    "UNCHANGED",
    "Begin",
    "Column",
    "Commit",
    "Delete",
    "Insert",
    "Message",
    "Relation",
    "Truncate",
    "Tuple",
    "Unchanged",
    "Update",
    "decode",
    "format_lsn",
    "parse_lsn",
]


class Unchanged(Enum):
    """The place of a large value that an update did not change, and that the server therefore does not send (TOAST)."""

    UNCHANGED = "unchanged"


UNCHANGED: Literal[Unchanged.UNCHANGED] = Unchanged.UNCHANGED

Tuple = list[bytes | Unchanged | None]
"""The values of a row in the server's text form, in the order of the relation's columns."""


class Begin(NamedTuple):
    """The begin of a transaction."""

    commit_lsn: int
    """The position of its commit record."""
    committed_at: int
    """Microseconds since 1970."""
    xid: int


class Commit(NamedTuple):
    """The end of a transaction."""

    commit_lsn: int
    end_lsn: int


class Column(NamedTuple):
    """A column of a relation."""

    name: str
    type_oid: int
    is_key: bool
    """Whether it belongs to the replica identity."""


class Relation(NamedTuple):
    """A table as of the changes that follow."""

    oid: int
    name: str
    """Schema and name: ``public.orders``."""
    identity: str
    """The replica identity: d(efault), f(ull), i(ndex) or n(othing)."""
    columns: tuple[Column, ...]


class Insert(NamedTuple):
    """An inserted row."""

    relation: int
    new: Tuple


class Update(NamedTuple):
    """An updated row."""

    relation: int
    key: Tuple | None
    """The old values of the replica identity, others None; only if they have changed."""
    old: Tuple | None
    """The old row; only with the replica identity FULL."""
    new: Tuple


class Delete(NamedTuple):
    """A deleted row."""

    relation: int
    key: Tuple | None
    """The values of the replica identity, others None."""
    old: Tuple | None
    """The row; only with the replica identity FULL."""


class Truncate(NamedTuple):
    """Tables that were truncated by one statement."""

    relations: tuple[int, ...]


Message = Begin | Commit | Relation | Insert | Update | Delete | Truncate | None

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">BQQq")
_COLUMN = struct.Struct(">Ii")
_POSTGRES_EPOCH = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970."""
_NULL, _TOAST, _TEXT = b"nut"
_KEY, _OLD, _NEW = b"KON"


def decode(data: bytes) -> Message:
    """Decode a message; None for one without changes (origins, types, messages of other programs).

    Raises:
        ValueError: it is no message of this version of the protocol.
    """
    kind = data[0:1]
    try:
        if kind == b"I":
            return Insert(_U32.unpack_from(data, 1)[0], _tuple(data, 6)[0])
        if kind == b"U":
            return _update(data)
        if kind == b"D":
            old, _ = _tuple(data, 6)
            return Delete(_U32.unpack_from(data, 1)[0], old if data[5] == _KEY else None, old if data[5] == _OLD else None)
        if kind == b"B":
            lsn, at, xid = _BEGIN.unpack_from(data, 1)
            return Begin(lsn, at + _POSTGRES_EPOCH, xid)
        if kind == b"C":
            _, lsn, end, _ = _COMMIT.unpack_from(data, 1)
            return Commit(lsn, end)
        if kind == b"R":
            return _relation(data)
        if kind == b"T":
            (count,) = _U32.unpack_from(data, 1)
            return Truncate(struct.unpack_from(f">{count}I", data, 6))
        if kind in (b"O", b"Y", b"M"):
            return None
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"a damaged message of pgoutput ({error}): {data[:80]!r}") from error
    raise ValueError(f"an unknown message of pgoutput: {data[:80]!r}")


def _update(data: bytes) -> Update:
    key: Tuple | None = None
    old: Tuple | None = None
    at, kind = 6, data[5]
    if kind != _NEW:
        before, at = _tuple(data, at)
        key, old = (before, None) if kind == _KEY else (None, before)
        at += 1
    return Update(_U32.unpack_from(data, 1)[0], key, old, _tuple(data, at)[0])


def _tuple(data: bytes, at: int) -> tuple[Tuple, int]:
    """The tuple at a position, and the position behind it."""
    (count,) = _U16.unpack_from(data, at)
    at += 2
    values: Tuple = []
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == _TEXT:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                raise IndexError("a value ends behind the message")
            values.append(data[at + 4 : end])
            at = end
        elif kind == _NULL:
            values.append(None)
        elif kind == _TOAST:
            values.append(UNCHANGED)
        else:
            raise IndexError(f"a value of the unknown kind {kind}")
    return values, at


def _relation(data: bytes) -> Relation:
    (oid,) = _U32.unpack_from(data, 1)
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    identity = chr(data[at])
    (count,) = _U16.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        column, at = _text(data, at + 1)
        type_oid, _ = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(Column(column, type_oid, bool(flags & 1)))
    return Relation(oid, f"{schema or 'pg_catalog'}.{name}", identity, tuple(columns))


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at) if 0 in data[at:] else len(data) + 1
    if end > len(data):
        raise IndexError("a name without its end")
    return data[at:end].decode(), end + 1


def parse_lsn(text: str) -> int:
    """The number of an LSN.

    >>> parse_lsn("1/10")
    4294967312
    """
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def format_lsn(lsn: int) -> str:
    """The server's text of an LSN.

    >>> format_lsn(4294967312)
    '1/10'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
