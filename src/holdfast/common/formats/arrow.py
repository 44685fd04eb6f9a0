"""Rows and declared types in Arrow's form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from holdfast.common.formats.arrow_values import Fit, by_position, fit
from holdfast.common.system.optional_library import optional_library
from holdfast.common.typeinfo import (
    BasicType,
    BasicTypeInfo,
    MapTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    SqlTimeTypeInfo,
    TupleTypeInfo,
    TypeInformation,
)
from holdfast.common.typeinfo.base import shown
from holdfast.common.typeinfo.composite import SequenceTypeInfo
from holdfast.errors import ConfigurationError

__all__ = ["RecordColumns", "arrow_schema", "check_dataframes", "pyarrow"]

Convert = Callable[[Any], Any]


@cache
def pyarrow() -> Any:
    """The library.

    Raises:
        ConfigurationError: it is not installed.
    """
    return optional_library("pyarrow", "Parquet and Arrow need pyarrow", "'holdfast[arrow]'")


def check_dataframes() -> None:
    """Check that PySpark can pass the rows of DataFrames to Python, which it does by pyarrow and pandas.

    Raises:
        ConfigurationError: one of them is not installed.
    """
    for library in ("pyarrow", "pandas"):
        optional_library(library, f"DataFrames of Spark need {library}", "'holdfast[dataframes]'")


def arrow_schema(row_type: RowTypeInfo) -> Any:
    """The ``pyarrow.Schema`` of rows of a type; all fields may be null.

    Raises:
        ConfigurationError: a field has a type without a form in Arrow.
    """
    library = pyarrow()
    fields = zip(row_type.get_field_names(), row_type.get_field_types(), strict=True)
    return library.schema([library.field(name, _arrow_type(library, declared, name)) for name, declared in fields])


def _arrow_type(arrow: Any, declared: TypeInformation, where: str) -> Any:
    if isinstance(declared, BasicTypeInfo):
        return _BASIC[declared.basic_type](arrow)
    if isinstance(declared, SqlTimeTypeInfo):
        return {"SQL_DATE": arrow.date32(), "SQL_TIME": arrow.time32("ms"), "SQL_TIMESTAMP": arrow.timestamp("ms")}[
            declared.kind
        ]
    if isinstance(declared, PrimitiveArrayTypeInfo) and declared.annotation is bytes:
        return arrow.binary()
    if isinstance(declared, SequenceTypeInfo):
        return arrow.list_(_arrow_type(arrow, declared.element_type, where))
    if isinstance(declared, MapTypeInfo):
        return arrow.map_(_arrow_type(arrow, declared.key_type, where), _arrow_type(arrow, declared.value_type, where))
    if isinstance(declared, (RowTypeInfo, TupleTypeInfo)):
        fields = zip(_names(declared), declared.get_field_types(), strict=True)
        return arrow.struct([arrow.field(name, _arrow_type(arrow, inner, f"{where}.{name}")) for name, inner in fields])
    raise ConfigurationError(f"field {where} has the type {declared!r}, for which Parquet and Arrow have no form")


def _names(declared: RowTypeInfo | TupleTypeInfo) -> list[str]:
    if isinstance(declared, RowTypeInfo):
        return declared.get_field_names()
    return [f"f{i}" for i in range(len(declared.get_field_types()))]


_BASIC: dict[BasicType, Callable[[Any], Any]] = {
    BasicType.STRING: lambda arrow: arrow.string(),
    BasicType.CHAR: lambda arrow: arrow.string(),
    BasicType.BOOLEAN: lambda arrow: arrow.bool_(),
    BasicType.BYTE: lambda arrow: arrow.int8(),
    BasicType.SHORT: lambda arrow: arrow.int16(),
    BasicType.INT: lambda arrow: arrow.int32(),
    BasicType.LONG: lambda arrow: arrow.int64(),
    BasicType.FLOAT: lambda arrow: arrow.float32(),
    BasicType.DOUBLE: lambda arrow: arrow.float64(),
    BasicType.BIG_INT: lambda arrow: arrow.decimal128(38, 0),
    BasicType.BIG_DEC: lambda arrow: arrow.decimal128(38, 18),
    BasicType.INSTANT: lambda arrow: arrow.timestamp("ns", tz="UTC"),
}


def _same(value: Any) -> Any:
    return value


def _to_arrow(declared: TypeInformation) -> Convert:
    """The conversion of a value that is not None to what Arrow takes for it."""
    if isinstance(declared, BasicTypeInfo) and declared.basic_type is BasicType.INSTANT:
        return lambda instant: instant.seconds * 1_000_000_000 + instant.nanos
    if isinstance(declared, SequenceTypeInfo) and declared.annotation is not bytes:
        element = _nullable(_to_arrow(declared.element_type))
        return _same if element is _same else lambda values: [element(value) for value in values]
    if isinstance(declared, MapTypeInfo):
        key, entry = _to_arrow(declared.key_type), _nullable(_to_arrow(declared.value_type))
        return lambda given: [(key(k), entry(v)) for k, v in given.items()]
    if isinstance(declared, (RowTypeInfo, TupleTypeInfo)):
        names = _names(declared)
        converts = [_nullable(_to_arrow(inner)) for inner in declared.get_field_types()]
        return lambda row: {name: convert(value) for name, convert, value in zip(names, converts, row, strict=True)}
    return _same


def _nullable(convert: Convert) -> Convert:
    return _same if convert is _same else lambda value: None if value is None else convert(value)


class RecordColumns:
    """Converts records to record batches.

    Args:
        schema: The ``pyarrow.Schema``.
        row_type: The declared type of the records; None: dicts, tuples and Rows are taken as they are.
    """

    def __init__(self, schema: Any, row_type: RowTypeInfo | None) -> None:
        self.schema = schema
        self._row_type = row_type
        self._names = list(schema.names)
        if row_type is None:
            self._fits = [fit(kind) for kind in schema.types]
        else:
            converts = map(_to_arrow, row_type.get_field_types())
            self._fits = [Fit(None if convert is _same else frozenset(), convert) for convert in converts]

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordColumns, (self.schema, self._row_type)

    def fitting(self, value: Any) -> Sequence[Any]:
        """The record's fields, in the order of the schema.

        Raises:
            TypeError: the record is not of the declared type.
            ValueError: the same, or it has other fields.
        """
        if self._row_type is not None:
            fields: Sequence[Any] = self._row_type.conform(value)._values
            return fields
        return by_position(value, self._names)

    def batch(self, rows: Sequence[Sequence[Any]]) -> Any:
        """The ``pyarrow.RecordBatch`` of fitting rows.

        Raises:
            Exception: a value does not fit its column; names the column.
        """
        library = pyarrow()
        arrays = []
        for field, known, column in zip(self.schema, self._fits, zip(*rows, strict=True), strict=True):
            try:
                arrays.append(library.array(known.column(column), field.type))
            except _REFUSALS as error:
                why = _first_misfit(field.type, known, column) or str(error)
                raise ValueError(f"field {field.name} does not fit {field.type}: {why}") from error
        return library.RecordBatch.from_arrays(arrays, schema=self.schema)


_REFUSALS = (TypeError, ValueError, OverflowError)  # Arrow's own are of these classes


def _first_misfit(kind: Any, known: Fit, column: Sequence[Any]) -> str:
    for value in column:
        try:
            pyarrow().array(known.column([value]), kind)
        except _REFUSALS as error:
            return f"{error}, in {shown(value)}"
    return ""
