"""Elements of a stream as the rows of a table: for pandas, Polars and Arrow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from holdfast.common.optional_library import optional_library
from holdfast.common.types import Row, RowKind

__all__ = ["as_record", "to_arrow", "to_pandas", "to_polars"]

_KIND = "row_kind"


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
        return record if kind is RowKind.INSERT else {_KIND: kind.name, **record}
    if isinstance(element, dict):
        return {str(name): value for name, value in element.items()}
    if dataclasses.is_dataclass(element) and not isinstance(element, type):
        return {field.name: getattr(element, field.name) for field in dataclasses.fields(element)}
    if isinstance(element, tuple):
        return dict(zip(getattr(element, "_fields", None) or _positions(len(element)), element))
    return {"value": element}


def _positions(count: int) -> list[str]:
    return [f"f{i}" for i in range(count)]


def to_pandas(elements: Iterable[Any]) -> Any:
    """A ``pandas.DataFrame`` of the elements.

    Raises:
        ConfigurationError: pandas is not installed.
    """
    pandas = optional_library("pandas", "to_pandas() needs pandas", "pandas")
    return pandas.DataFrame.from_records([as_record(element) for element in elements])


def to_polars(elements: Iterable[Any]) -> Any:
    """A ``polars.DataFrame`` of the elements.

    Raises:
        ConfigurationError: Polars is not installed.
    """
    polars = optional_library("polars", "to_polars() needs Polars", "polars")
    return polars.DataFrame([as_record(element) for element in elements], infer_schema_length=None)


def to_arrow(elements: Iterable[Any]) -> Any:
    """A ``pyarrow.Table`` of the elements.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    pyarrow = optional_library("pyarrow", "to_arrow() needs pyarrow", "'holdfast[parquet]'")
    records = [as_record(element) for element in elements]
    names = dict.fromkeys(name for record in records for name in record)
    return pyarrow.table({name: [record.get(name) for record in records] for name in names})
