"""Values of Debezium's events, by the declared type and by Debezium's name of their encoding. Pure."""

from __future__ import annotations

import base64
import datetime
import hashlib
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import msgspec

from holdfast.common.formats.json import json_reader, to_instant, to_time, to_utc
from holdfast.common.time import Instant
from holdfast.common.typeinfo import BasicTypeInfo, MapTypeInfo, RowTypeInfo, SqlTimeTypeInfo, TypeInformation
from holdfast.common.typeinfo.composite import PrimitiveArrayTypeInfo, SequenceTypeInfo
from holdfast.common.types import Row

__all__ = [
    "DECIMAL",
    "NOT_HERE",
    "PLAIN",
    "Encoding",
    "Read",
    "TimeUnit",
    "column_reader",
    "encodings",
    "is_unavailable",
    "kind_of",
]

TimeUnit = Literal["ms", "us", "ns"]
Read = Callable[[Any], Any]
"""Makes a value of a declared type; raises ValueError, TypeError or OverflowError for one that does not fit."""

NOT_HERE = "__debezium_unavailable_value"
"""What stands in a column of text for a large value that an update did not change."""

_NANOS = {"ms": 1_000_000, "us": 1000, "ns": 1}
_EPOCH = datetime.datetime(1970, 1, 1)
_DAY_NS = 86_400 * 10**9
DECIMAL = "org.apache.kafka.connect.data.Decimal"
_BITS = "io.debezium.data.Bits"
_TIMES: dict[str, tuple[str, TimeUnit | None]] = {
    "org.apache.kafka.connect.data.Date": ("date", None),
    "org.apache.kafka.connect.data.Time": ("time of day", "ms"),
    "org.apache.kafka.connect.data.Timestamp": ("timestamp", "ms"),
    "io.debezium.time.Date": ("date", None),
    "io.debezium.time.Time": ("time of day", "ms"),
    "io.debezium.time.MicroTime": ("time of day", "us"),
    "io.debezium.time.NanoTime": ("time of day", "ns"),
    "io.debezium.time.ZonedTime": ("time of day", None),
    "io.debezium.time.Timestamp": ("timestamp", "ms"),
    "io.debezium.time.MicroTimestamp": ("timestamp", "us"),
    "io.debezium.time.NanoTimestamp": ("timestamp", "ns"),
    "io.debezium.time.ZonedTimestamp": ("timestamp", None),
    "io.debezium.time.IsoDate": ("date", None),
    "io.debezium.time.IsoTime": ("time of day", None),
    "io.debezium.time.IsoTimestamp": ("timestamp", None),
}
"""What the encodings hold, and the unit of those that are whole numbers."""


# ---- values that are not here ----


def _as_name_uuid(data: bytes) -> str:
    digest = bytearray(hashlib.md5(data, usedforsecurity=False).digest())
    return str(uuid.UUID(bytes=bytes(digest), version=3))


_BYTES = NOT_HERE.encode()
_TEXTS = frozenset({NOT_HERE, base64.b64encode(_BYTES).decode(), _BYTES.hex(), _as_name_uuid(_BYTES)})


def is_unavailable(value: Any) -> bool:
    """Whether a value stands for a large one that an update did not change, in a column of any type.

    An array of text has it as its one element, one of numbers has the placeholder's bytes as its elements.

    >>> is_unavailable(["__debezium_unavailable_value"]), is_unavailable([95, 95, 100])
    (True, False)
    """
    kind = type(value)
    if kind is str:
        return value in _TEXTS
    if kind is bytes:
        return bool(value == _BYTES)
    if kind is dict:
        return len(value) == 1 and value.get(NOT_HERE) == NOT_HERE
    if kind is not list:
        return False
    if len(value) == 1:
        return type(value[0]) in (str, bytes) and is_unavailable(value[0])
    return len(value) == len(_BYTES) and all(map(_stands_for, value, _BYTES))


def _stands_for(element: Any, byte: int) -> bool:
    if isinstance(element, dict):  # a decimal that tells its scale
        element = element.get("value")
    if isinstance(element, (str, bytes)):  # a decimal as bytes
        return element in (bytes([byte]), base64.b64encode(bytes([byte])).decode())
    return type(element) is not bool and bool(element == byte)


# ---- encodings ----


class Encoding(NamedTuple):
    """How a column's values are written, as the schema of an event, or an argument, tells."""

    name: str = ""
    scale: int | None = None
    """Digits behind the point, of decimals as bytes."""
    items: Encoding | None = None
    """That of an array's elements, or of a map's values."""
    fields: Mapping[str, Encoding] | None = None
    """Those of a record's fields."""


PLAIN = Encoding()


def encodings(schema: Any) -> dict[str, Encoding]:
    """The encodings of columns, by the schema that is in an event.

    Raises:
        ValueError: it is no schema of an event.
    """
    try:
        parts = {part["field"]: part for part in schema["fields"]}
        row = parts["after"] if "after" in parts else parts["before"]
        return {column["field"]: _encoding(column) for column in row["fields"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the event's schema does not describe the fields of its rows ({error!r})") from None


def _encoding(column: Mapping[str, Any]) -> Encoding:
    name = column.get("name") or ""
    scale = (column.get("parameters") or {}).get("scale")
    items = column.get("items") or column.get("values")
    fields = column.get("fields")
    return Encoding(
        name,
        int(scale) if name == DECIMAL and scale is not None else None,
        None if items is None else _encoding(items),
        None if fields is None else {field["field"]: _encoding(field) for field in fields},
    )


# ---- readers ----


def column_reader(declared: TypeInformation, encoding: Encoding = PLAIN, unit: TimeUnit | None = None) -> Read:
    """The function that makes a column's values, which are not None, of those in JSON or Avro.

    Args:
        declared: The column's type.
        encoding: How its values are written.
        unit: The unit of times as whole numbers whose encoding is not known.

    Raises:
        ConfigurationError: JSON holds no values of this type.
        ValueError: the type does not take values of this encoding.

    >>> from holdfast.common import Types
    >>> column_reader(Types.BIG_DEC(), Encoding("org.apache.kafka.connect.data.Decimal", 2))("BNI=")
    Decimal('12.34')
    >>> column_reader(Types.SQL_TIMESTAMP(), Encoding("io.debezium.time.MicroTimestamp"))(1_500_000)
    datetime.datetime(1970, 1, 1, 0, 0, 1, 500000)
    """
    holds, known = _TIMES.get(encoding.name, ("", None))
    kind = kind_of(declared)
    if kind in _READ_TIMES:
        takes, read = _READ_TIMES[kind]
        if holds not in ("", takes):
            raise ValueError(f"its values are {encoding.name}, which {declared} does not take")
        conform, of = declared.conform, known or unit
        return lambda value: conform(read(value, of))
    if encoding.scale is not None:
        return _of_decimals(declared, _unscaled(encoding.scale))
    if kind == "STRING":
        return _text
    if kind in _NUMBERS:
        return _of_bits(declared) if encoding.name == _BITS else _of_numbers(declared)
    json_reader(declared, required=False)  # whether JSON has such values at all
    if isinstance(declared, PrimitiveArrayTypeInfo) and declared.annotation is bytes:
        return _binary
    return _of_parts(declared, encoding, unit) or _converted(declared)


_NUMBERS = frozenset({"BYTE", "SHORT", "INT", "LONG", "BIG_INT", "FLOAT", "DOUBLE", "BIG_DEC"})


def kind_of(declared: TypeInformation) -> str:
    """The name of a basic type, or a type of times; empty for others."""
    if isinstance(declared, BasicTypeInfo):
        return declared.basic_type.name
    return declared.kind if isinstance(declared, SqlTimeTypeInfo) else ""


def _of_parts(declared: TypeInformation, encoding: Encoding, unit: TimeUnit | None) -> Read | None:
    """The function for arrays, maps and rows; None for other types."""
    if isinstance(declared, SequenceTypeInfo):
        item, conform = _unless_null(column_reader(declared.element_type, encoding.items or PLAIN, unit)), declared.conform
        return lambda value: conform([item(each) for each in _of_class(list, value)])
    if isinstance(declared, MapTypeInfo):
        key, conform = column_reader(declared.key_type), declared.conform
        part = _unless_null(column_reader(declared.value_type, encoding.items or PLAIN, unit))
        return lambda value: conform({key(name): part(each) for name, each in _entries(value)})
    if isinstance(declared, RowTypeInfo):
        names, known = declared.get_field_names(), encoding.fields or {}
        readers = [
            (name, _unless_null(column_reader(of, known.get(name, PLAIN), unit)))
            for name, of in zip(names, declared.get_field_types())
        ]

        def read(value: Any) -> Row:
            fields = _of_class(dict, value)
            return Row.of_values([part(fields.get(name)) for name, part in readers], names)

        return read
    return None


def _entries(value: Any) -> Any:
    """The entries of a map, which Avro has as an array of records, unless its keys are text."""
    if isinstance(value, list) and all(isinstance(each, dict) and each.keys() == {"key", "value"} for each in value):
        return [(each["key"], each["value"]) for each in value]
    return _of_class(dict, value).items()


def _of_class(wanted: type, value: Any) -> Any:
    if type(value) is not wanted:
        raise TypeError(f"takes {'an array' if wanted is list else 'an object'}, not {type(value).__name__}")
    return value


def _unless_null(read: Read) -> Read:
    return lambda value: None if value is None else read(value)


def _converted(declared: TypeInformation) -> Read:
    annotation, convert = json_reader(declared, required=False)
    if convert is None:
        return lambda value: msgspec.convert(value, annotation, strict=False)
    return lambda value: convert(msgspec.convert(value, annotation, strict=False))


def _text(value: Any) -> str:
    if type(value) is not str:
        if isinstance(value, dict) and value.keys() == {"scale", "value"}:
            return format(_with_scale(value), "f")
        raise TypeError(f"takes text, not {type(value).__name__}")
    return value


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise TypeError(f"takes bytes as base64, not {type(value).__name__}")
    return base64.b64decode(value.replace("-", "+").replace("_", "/"), validate=True)


def _of_bits(declared: TypeInformation) -> Read:
    conform = declared.conform
    return lambda value: conform(int(value) if type(value) is bool else int.from_bytes(_binary(value), "little"))


def _of_numbers(declared: TypeInformation) -> Read:
    """Numbers, also as text, and decimals that tell their scale."""
    conform, decimals = declared.conform, _of_decimals(declared, _with_scale)
    usual = int if kind_of(declared) not in ("FLOAT", "DOUBLE", "BIG_DEC") else None

    def read(value: Any) -> Any:
        if type(value) is usual:
            return conform(value)
        if isinstance(value, bool):
            raise TypeError("takes numbers, not a boolean")
        if isinstance(value, dict):
            return decimals(value)
        return conform(_number(value) if isinstance(value, str) else value)

    return read


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except ArithmeticError:
        raise ValueError(
            "it is no number. Bytes of decimal.handling.mode=precise need their scale: let the connector send schemas "
            "(value.converter.schemas.enable=true) or text (decimal.handling.mode=string), or give decimal_scales"
        ) from None


def _of_decimals(declared: TypeInformation, decode: Callable[[Any], Decimal]) -> Read:
    kind, conform = kind_of(declared), declared.conform
    if kind == "STRING":
        return lambda value: format(decode(value), "f")
    if kind in _NUMBERS:
        return lambda value: conform(decode(value))
    # the scale was given for the elements of an array
    if isinstance(declared, SequenceTypeInfo):
        item = _unless_null(_of_decimals(declared.element_type, decode))
        return lambda value: conform([item(each) for each in _of_class(list, value)])
    raise ValueError(f"its values are decimals, which {declared} does not take")


def _unscaled(scale: int) -> Callable[[Any], Decimal]:
    def decode(value: Any) -> Decimal:
        if not isinstance(value, (str, bytes)):
            raise TypeError(f"takes base64 of a decimal's bytes, not {type(value).__name__}")
        whole = int.from_bytes(
            value if isinstance(value, bytes) else base64.b64decode(value, validate=True), "big", signed=True
        )
        return Decimal((whole < 0, Decimal(whole).as_tuple().digits, -scale))

    return decode


def _with_scale(value: Mapping[str, Any]) -> Decimal:
    """io.debezium.data.VariableScaleDecimal."""
    scale, unscaled = value.get("scale"), value.get("value")
    if type(scale) is not int or len(value) != 2:
        raise ValueError("takes a number, or an object of scale and value")
    return _unscaled(scale)(unscaled)


def _whole(value: Any, unit: TimeUnit | None) -> int:
    """A time in nanoseconds."""
    if type(value) is not int:
        raise TypeError(f"takes a whole number or text, not {type(value).__name__}")
    if unit is None:
        raise ValueError(
            "its unit is unknown. Let the connector send schemas (value.converter.schemas.enable=true), or give "
            "time_unit: 'us' for most columns of PostgreSQL, 'ms' with time.precision.mode=connect"
        )
    return value * _NANOS[unit]


def _date(value: Any, unit: TimeUnit | None) -> datetime.date:
    if isinstance(value, str):
        return datetime.date.fromisoformat(value.removesuffix("Z"))
    if type(value) is not int:
        raise TypeError(f"takes a number of days or text, not {type(value).__name__}")
    return _EPOCH.date() + datetime.timedelta(days=value)


def _time(value: Any, unit: TimeUnit | None) -> datetime.time:
    if isinstance(value, str):
        return to_time(value)
    nanos = _whole(value, unit)
    if not 0 <= nanos < _DAY_NS:
        raise ValueError("it is no time of a day: declare LONG for spans of time")
    return (_EPOCH + datetime.timedelta(microseconds=nanos // 1000)).time()


def _timestamp(value: Any, unit: TimeUnit | None) -> datetime.datetime:
    if isinstance(value, str):
        return to_utc(value)
    return _EPOCH + datetime.timedelta(microseconds=_whole(value, unit) // 1000)


def _instant(value: Any, unit: TimeUnit | None) -> Instant:
    if isinstance(value, str):
        return to_instant(value)
    return Instant(*divmod(_whole(value, unit), 10**9))


_READ_TIMES: dict[str, tuple[str, Callable[[Any, TimeUnit | None], Any]]] = {
    "SQL_DATE": ("date", _date),
    "SQL_TIME": ("time of day", _time),
    "SQL_TIMESTAMP": ("timestamp", _timestamp),
    "INSTANT": ("timestamp", _instant),
}
