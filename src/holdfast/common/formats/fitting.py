"""Conversions of single values at the write, to the class of their kind; a value that would lose something is refused."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from decimal import Decimal
from numbers import Integral
from typing import Any

from holdfast.common.typeinfo import TypeInformation
from holdfast.common.typeinfo.base import shown
from holdfast.common.types import Row

__all__ = ["Convert", "binary", "clock_time", "fixed", "null", "real", "sequence", "timestamp", "whole"]

Convert = Callable[[Any], Any]
"""Converts a value; raises TypeError, ValueError or OverflowError for one that does not fit."""
_UTC = datetime.timezone.utc


def whole(declared: TypeInformation) -> Convert:
    """Whole numbers of a type, which are no booleans."""
    conform = declared.conform

    def convert(value: Any) -> Any:
        if isinstance(value, bool):
            raise TypeError(f"takes whole numbers, not {value!r}")
        return conform(value)

    return convert


def real(declared: TypeInformation) -> Convert:
    """Floats of a type, and whole numbers that a float holds."""
    conform = declared.conform

    def convert(value: Any) -> Any:
        if type(value) is float:
            return conform(value)
        if isinstance(value, (bool, Decimal)):
            raise TypeError(f"takes floats, not {value!r}")
        number = conform(value)
        if isinstance(value, Integral) and int(number) != int(value):
            raise ValueError(f"{value} has more digits than a float holds")
        return number

    return convert


def null(value: Any) -> None:
    """None only."""
    if value is not None:
        raise TypeError(f"takes None, not {shown(value)}")


def binary(value: Any) -> bytes:
    """Bytes."""
    if not isinstance(value, (bytes, bytearray)):
        raise TypeError(f"takes bytes, not {shown(value)}")
    return bytes(value)


def fixed(size: int) -> Convert:
    """So many bytes."""

    def convert(value: Any) -> bytes:
        found = binary(value)
        if len(found) != size:
            raise ValueError(f"takes {size} bytes, not {len(found)}")
        return found

    return convert


def clock_time(micros: int) -> Convert:
    """Times of a day without a zone, cut to a unit of so many microseconds."""

    def convert(value: Any) -> Any:
        if not isinstance(value, datetime.time) or value.tzinfo is not None:
            raise TypeError(f"takes a datetime.time without a zone, not {value!r}")
        return value.replace(microsecond=value.microsecond // micros * micros, fold=0)

    return convert


def timestamp(micros: int, local: bool) -> Convert:
    """Times without a zone (local), or in UTC, also those without one, cut to a unit of so many microseconds."""

    def convert(value: Any) -> Any:
        if not isinstance(value, datetime.datetime):
            raise TypeError(f"takes a datetime.datetime, not {shown(value)}")
        if value.tzinfo is not None and local:
            raise TypeError(f"takes a local time without a zone, not {value!r}")
        if type(value) is not datetime.datetime:  # pandas' have nanoseconds, or are none at all (NaT)
            value = datetime.datetime.combine(value.date(), value.timetz())
        if not local:
            value = value.replace(tzinfo=_UTC) if value.tzinfo is None else value.astimezone(_UTC)
        return value.replace(microsecond=value.microsecond // micros * micros, fold=0)

    return convert


def sequence(values: Any) -> Any:
    """Values of an array: a list, a tuple, or an array of NumPy or Python."""
    if isinstance(values, (str, bytes, bytearray, memoryview, Mapping, set, frozenset, Row)):
        raise TypeError(f"an array is written from a list, not from {shown(values)}")
    return values
