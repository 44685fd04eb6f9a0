"""Spark's column types in Arrow's form, and the records of such columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from holdfast.common.formats.arrow import pyarrow
from holdfast.common.formats.columns import as_rows, column_schema, column_values
from holdfast.common.typeinfo import RowTypeInfo, TypeInformation, Types
from holdfast.common.types import Row
from holdfast.errors import ConfigurationError

__all__ = ["arrow_columns", "declared_type", "make_rows", "nested_rows", "without_zones"]

_SIMPLE: dict[str, Callable[[Any], Any]] = {
    "BooleanType": lambda arrow: arrow.bool_(),
    "ByteType": lambda arrow: arrow.int8(),
    "ShortType": lambda arrow: arrow.int16(),
    "IntegerType": lambda arrow: arrow.int32(),
    "LongType": lambda arrow: arrow.int64(),
    "FloatType": lambda arrow: arrow.float32(),
    "DoubleType": lambda arrow: arrow.float64(),
    "StringType": lambda arrow: arrow.string(),
    "CharType": lambda arrow: arrow.string(),
    "VarcharType": lambda arrow: arrow.string(),
    "BinaryType": lambda arrow: arrow.binary(),
    "DateType": lambda arrow: arrow.date32(),
    "TimestampType": lambda arrow: arrow.timestamp("us"),
    "TimestampNTZType": lambda arrow: arrow.timestamp("us"),
    "DayTimeIntervalType": lambda arrow: arrow.duration("us"),
    "TimeType": lambda arrow: arrow.time64("us"),
}
_TYPES: dict[str, Callable[[], TypeInformation]] = {
    "BooleanType": Types.BOOLEAN,
    "ByteType": Types.BYTE,
    "ShortType": Types.SHORT,
    "IntegerType": Types.INT,
    "LongType": Types.LONG,
    "FloatType": Types.FLOAT,
    "DoubleType": Types.DOUBLE,
    "StringType": Types.STRING,
    "CharType": Types.STRING,
    "VarcharType": Types.STRING,
    "BinaryType": lambda: Types.PRIMITIVE_ARRAY(Types.BYTE()),
    "DateType": Types.SQL_DATE,
}
"""The types whose values are the same in Arrow and as declared: Flink's timestamps have no microseconds."""


def arrow_columns(schema: Any) -> Any:
    """The ``pyarrow.Schema`` of a ``StructType``; timestamps are wall clocks, without a zone.

    Raises:
        ConfigurationError: a column has a type that cannot be carried, two have one name, or there is none.
    """
    names = [field.name for field in schema.fields]
    if not names:
        raise ConfigurationError("the DataFrame has no columns; select at least one")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"the DataFrame has two columns named {twice[0]}; rename one, e.g. with toDF()")
    arrow = pyarrow()
    return arrow.schema([arrow.field(field.name, _arrow_type(field.dataType, field.name)) for field in schema.fields])


def _arrow_type(kind: Any, where: str) -> Any:
    arrow, name = pyarrow(), type(kind).__name__
    if name in _SIMPLE:
        return _SIMPLE[name](arrow)
    if name == "DecimalType":
        return arrow.decimal128(kind.precision, kind.scale)
    if name == "ArrayType":
        return arrow.list_(_arrow_type(kind.elementType, f"{where}.element"))
    if name == "MapType":
        return arrow.map_(_arrow_type(kind.keyType, f"{where}.key"), _arrow_type(kind.valueType, f"{where}.value"))
    if name == "StructType":
        fields = [arrow.field(each.name, _arrow_type(each.dataType, f"{where}.{each.name}")) for each in kind.fields]
        if fields and len({each.name for each in fields}) == len(fields):
            return arrow.struct(fields)
    raise ConfigurationError(
        f"column {where} of the DataFrame has the type {kind.simpleString()}, which cannot be carried; cast it, or leave it "
        "out with drop()"
    )


def without_zones(kind: Any) -> Any:
    """A type of Spark with wall clocks in place of moments, at any depth; the type itself if it has none."""
    from pyspark.sql import types

    if isinstance(kind, types.TimestampType):
        return types.TimestampNTZType()
    if isinstance(kind, types.ArrayType):
        made: Any = types.ArrayType(without_zones(kind.elementType), kind.containsNull)
    elif isinstance(kind, types.MapType):
        made = types.MapType(without_zones(kind.keyType), without_zones(kind.valueType), kind.valueContainsNull)
    elif isinstance(kind, types.StructType):
        fields = [types.StructField(each.name, without_zones(each.dataType), each.nullable) for each in kind.fields]
        made = types.StructType(fields)
    else:
        return kind
    return kind if made == kind else made


def declared_type(schema: Any) -> RowTypeInfo | None:
    """The declared type of a ``StructType``'s Rows; None if one of its fields has none that holds all of its values."""
    kinds = [type(field.dataType).__name__ for field in schema.fields]
    if not set(kinds) <= _TYPES.keys():
        return None
    declared = Types.ROW_NAMED([field.name for field in schema.fields], [_TYPES[kind]() for kind in kinds])
    assert column_schema(declared) is not None
    return declared


def make_rows(schema: Any) -> Callable[[Any], list[Any]]:
    """The function that makes the Rows of columns of a ``pyarrow.Schema``."""
    return as_rows if all(_converter(field.type) is None for field in schema) else nested_rows


def nested_rows(batch: Any) -> list[Any]:
    """The records of a ``pyarrow.RecordBatch`` as Rows; structs in it are Rows, and maps are dicts."""
    names, of_values = batch.schema.names, Row.of_values
    columns = []
    for column in batch.columns:
        values, convert = column_values(column), _converter(column.type)
        columns.append(values if convert is None else [None if value is None else convert(value) for value in values])
    return [of_values(list(fields), names) for fields in zip(*columns, strict=True)]


@lru_cache(256)
def _converter(kind: Any) -> Callable[[Any], Any] | None:
    """What makes of Arrow's Python value, not None, that of a stream; None: it is the same."""
    types = pyarrow().types
    if types.is_struct(kind):
        inner = [(field.name, _nullable(_converter(field.type))) for field in kind]
        names = [name for name, _ in inner]
        return lambda value: Row.of_values([convert(value[name]) for name, convert in inner], names)
    if types.is_map(kind):
        key, item = _nullable(_converter(kind.key_type)), _nullable(_converter(kind.item_type))
        return lambda value: {key(k): item(v) for k, v in value}
    if types.is_list(kind):
        element = _converter(kind.value_type)
        if element is not None:
            each = _nullable(element)
            return lambda value: list(map(each, value))
    return None


def _nullable(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)
