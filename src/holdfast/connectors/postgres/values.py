"""Values of PostgreSQL in their text form, as values of declared types. Pure.

Snapshot and log both deliver text forms, so a value is the same whichever way it comes. Connections set the formats that
these functions read (`SESSION`).
"""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from holdfast.common.time import Instant
from holdfast.common.typeinfo import PrimitiveArrayTypeInfo, TypeInformation, Types

__all__ = ["SESSION", "accepted_types", "converter"]

SESSION = {
    "DateStyle": "ISO,YMD",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "xmloption": "content",
}
"""Settings of every connection that reads values."""

_BOOL, _BYTEA, _INT8, _INT2, _INT4 = 16, 17, 20, 21, 23
_FLOAT4, _FLOAT8, _DATE, _TIME, _TIMESTAMP, _TIMESTAMPTZ, _NUMERIC = 700, 701, 1082, 1083, 1114, 1184, 1700
_FRACTION = re.compile(r"\.(\d{1,5})(?!\d)")
_UTC = datetime.timezone.utc
_START = datetime.datetime(1970, 1, 1, tzinfo=_UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


def _full_fraction(text: str) -> str:
    """Python 3.10 reads fractions of three and six digits only."""
    if sys.version_info >= (3, 11):
        return text
    return _FRACTION.sub(lambda found: "." + found[1].ljust(6, "0"), text)


def _time(text: bytes) -> datetime.time:
    return datetime.time.fromisoformat(_full_fraction(text.decode()))


def _timestamp(text: bytes) -> datetime.datetime:
    return datetime.datetime.fromisoformat(_full_fraction(text.decode()))


def _instant(text: bytes) -> Instant:
    moment = _timestamp(text.removesuffix(b"+00")).replace(tzinfo=_UTC)
    seconds, micros = divmod((moment - _START) // _MICROSECOND, 1_000_000)
    return Instant(seconds, micros * 1000)


def _boolean(text: bytes) -> bool:
    return text == b"t"


def _bytes(text: bytes) -> bytes:
    if not text.startswith(b"\\x"):
        raise ValueError(f"{text[:40]!r} is no bytea in hex form")
    return bytes.fromhex(text[2:].decode())


def _decimal(text: bytes) -> Decimal:
    return Decimal(text.decode())


def _date(text: bytes) -> datetime.date:
    return datetime.date.fromisoformat(text.decode())


def _conformed(read: Callable[[bytes], Any], conform: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    return lambda text: conform(read(text))


def _milliseconds(read: Callable[[bytes], Any], conform: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    def cut(text: bytes) -> Any:
        value = read(text)
        return conform(value) if value.microsecond % 1000 else value

    return cut


_KINDS: list[tuple[TypeInformation[Any], frozenset[int], Callable[[bytes], Any], bool]] = [
    (Types.BOOLEAN(), frozenset({_BOOL}), _boolean, False),
    (Types.SHORT(), frozenset({_INT2}), int, False),
    (Types.INT(), frozenset({_INT2, _INT4}), int, False),
    (Types.LONG(), frozenset({_INT2, _INT4, _INT8}), int, False),
    (Types.BIG_INT(), frozenset({_INT2, _INT4, _INT8}), int, False),
    (Types.FLOAT(), frozenset({_FLOAT4}), float, True),
    (Types.DOUBLE(), frozenset({_FLOAT4, _FLOAT8}), float, False),
    (Types.BIG_DEC(), frozenset({_INT2, _INT4, _INT8, _NUMERIC}), _decimal, False),
    (Types.SQL_DATE(), frozenset({_DATE}), _date, False),
    (Types.SQL_TIME(), frozenset({_TIME}), _time, True),
    (Types.SQL_TIMESTAMP(), frozenset({_TIMESTAMP}), _timestamp, True),
    (Types.INSTANT(), frozenset({_TIMESTAMPTZ}), _instant, False),
    (PrimitiveArrayTypeInfo(Types.BYTE()), frozenset({_BYTEA}), _bytes, False),
]
"""A declared type, the types of columns that it takes, how their text is read, and whether the value is cut to the type."""


def accepted_types(declared: TypeInformation[Any]) -> frozenset[int] | None:
    """The types of columns, by OID, that a declared type takes; None: all, by their text.

    Raises:
        ValueError: no column can have the declared type.

    >>> sorted(accepted_types(Types.INT()))
    [21, 23]
    """
    if declared == Types.STRING():
        return None
    for kind, oids, _, _ in _KINDS:
        if kind == declared:
            return oids
    raise ValueError(f"no column of PostgreSQL is read as {declared}; declare Types.STRING() for its text")


def converter(declared: TypeInformation[Any]) -> Callable[[bytes], Any]:
    """The function from the text form of a column to a value of the declared type.

    The function raises ValueError or OverflowError for a value that the type does not hold, such as ``infinity`` as a date.

    >>> converter(Types.SQL_TIMESTAMP())(b"2026-01-31 10:00:00.5")
    datetime.datetime(2026, 1, 31, 10, 0, 0, 500000)
    """
    if declared == Types.STRING():
        return bytes.decode
    for kind, _, read, cut in _KINDS:
        if kind == declared:
            if not cut:
                return read
            conform = declared.conform
            return (_conformed if declared == Types.FLOAT() else _milliseconds)(read, conform)
    raise ValueError(f"no column of PostgreSQL is read as {declared}")
