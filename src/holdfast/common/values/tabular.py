"""Elements of a stream as the rows of a table: for pandas, Polars and Arrow."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable
from typing import Any

from holdfast.common.system.optional_library import optional_library
from holdfast.common.types import Row, RowKind

__all__ = ["KIND_COLUMN", "as_record", "to_arrow", "to_pandas", "to_polars"]

KIND_COLUMN = "row_kind"
"""The column with the kind of a row of a changelog."""


def as_record(element: Any) -> dict[str, Any]:
    """The columns of an element: the fields of a row, dataclass, named tuple or dict; ``f0``, ``f1`` ... of a tuple.

    An element without fields is a column ``value``. A row of a changelog other than an insertion has a column ``row_kind``.

    Examples:
        >>> as_record(Row(user="Asha", total=3))
        {'user': 'Asha', 'total': 3}
        >>> as_record(("Asha", 3))
        {'f0': 'Asha', 'f1': 3}
        >>> as_record(7)
        {'value': 7}
    """
    if isinstance(element, Row):
        kind, named = element.get_row_kind(), element._fields
        record = dict(zip(named or _positions(len(element)), element))
        return record if kind is RowKind.INSERT else {KIND_COLUMN: kind.name, **record}
    if isinstance(element, dict):
        record = {str(name): value for name, value in element.items()}
        if len(record) < len(element):
            raise ValueError(f"two keys of {element!r:.200} are one column: columns are named by text")
        return record
    if dataclasses.is_dataclass(element) and not isinstance(element, type):
        return {field.name: getattr(element, field.name) for field in dataclasses.fields(element)}
    if isinstance(element, tuple):
        return dict(zip(getattr(element, "_fields", None) or _positions(len(element)), element))
    return {"value": element}


def _positions(count: int) -> list[str]:
    return [f"f{i}" for i in range(count)]


def _columns(elements: Iterable[Any]) -> dict[str, list[Any]]:
    """The columns of elements; None where an element lacks one."""
    records = [as_record(element) for element in elements]
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}


def _is_exact(values: list[Any]) -> bool:
    """Whether a library may choose a type for a column: its values are of one class, or numbers that floats hold."""
    classes = {(type(value), getattr(value, "tzinfo", None) is None) for value in values if value is not None}
    if classes == {(int, True), (float, True)}:
        return all(type(value) is not int or abs(value) <= _WHOLE_FLOATS for value in values)
    return len(classes) <= 1


_WHOLE_FLOATS = 1 << 53
"""Floats hold each whole number up to this one."""
_LONGS = range(-(1 << 63), 1 << 63)


def to_pandas(elements: Iterable[Any]) -> Any:
    """A ``pandas.DataFrame`` of the elements. Whole numbers stay whole beside None: their column is an ``Int64``.

    Raises:
        ConfigurationError: pandas is not installed.
    """
    pandas = optional_library("pandas", "to_pandas() needs pandas", "pandas")

    def series(values: list[Any]) -> Any:
        given = [value for value in values if value is not None]
        if len(given) < len(values) and given and all(type(value) is int and value in _LONGS for value in given):
            return pandas.Series(values, dtype="Int64")
        return pandas.Series(values, dtype=None if _is_exact(values) else object)

    return pandas.DataFrame({name: series(values) for name, values in _columns(elements).items()})


def to_polars(elements: Iterable[Any]) -> Any:
    """A ``polars.DataFrame`` of the elements. A column of values of several classes holds objects.

    Raises:
        ConfigurationError: Polars is not installed.
    """
    polars = optional_library("polars", "to_polars() needs Polars", "polars")

    def series(name: str, values: list[Any]) -> Any:
        if _is_exact(values):
            try:
                return polars.Series(name, values, strict={type(value) for value in values} <= {int, type(None)})
            except (TypeError, OverflowError):
                pass  # whole numbers beyond 64 bits
        return polars.Series(name, values, dtype=polars.Object)

    return polars.DataFrame([series(name, values) for name, values in _columns(elements).items()])


def to_arrow(elements: Iterable[Any]) -> Any:
    """A ``pyarrow.Table`` of the elements.

    Raises:
        ConfigurationError: pyarrow is not installed.
        ValueError: Arrow has no type for the values of a column.
    """
    pyarrow = optional_library("pyarrow", "to_arrow() needs pyarrow", "'holdfast[parquet]'")
    arrays = {}
    for name, values in _columns(elements).items():
        try:
            if {getattr(value, "tzinfo", None) is None for value in values if isinstance(value, datetime.datetime)} > {True}:
                raise TypeError("times with and without a zone")
            arrays[name] = pyarrow.array(values)
        except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"Arrow has no type for the column {name!r}: {error}") from error
    return pyarrow.table(arrays)
