"""Values of Debezium's events, by the declared type and by Debezium's name of their encoding. Pure."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import msgspec

from holdfast.common.formats.json import json_reader, to_instant, to_time, to_utc
from holdfast.common.time import Instant
from holdfast.common.typeinfo import BasicTypeInfo, SqlTimeTypeInfo, TypeInformation

__all__ = ["PLAIN", "UNAVAILABLE", "Encoding", "Read", "TimeUnit", "column_reader", "encodings"]

TimeUnit = Literal["ms", "us", "ns"]
Read = Callable[[Any], Any]
"""Makes a value of a declared type; raises ValueError, TypeError or OverflowError for one that does not fit."""

_PLACEHOLDER = "__debezium_unavailable_value"
UNAVAILABLE: tuple[Any, ...] = (_PLACEHOLDER, base64.b64encode(_PLACEHOLDER.encode()).decode(), [_PLACEHOLDER])
"""What stands for a large value that an update did not change: in columns of text, of bytes and of arrays."""

_NANOS = {"ms": 1_000_000, "us": 1000, "ns": 1}
_EPOCH = datetime.datetime(1970, 1, 1)
_DAY_NS = 86_400 * 10**9
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
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


class Encoding(NamedTuple):
    """How a column's values are written, as the schema in an event, or an argument, tells."""

    name: str = ""
    scale: int | None = None
    """Digits behind the point, of decimals as bytes."""


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
    return Encoding(name, int(scale) if name == _DECIMAL and scale is not None else None)


def column_reader(declared: TypeInformation, encoding: Encoding = PLAIN, unit: TimeUnit | None = None) -> Read:
    """The function that makes a column's values, which are not None.

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
    kind = _kind(declared)
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
        return _of_numbers(declared)
    annotation, convert = json_reader(declared, required=False)
    if convert is None:
        return lambda value: msgspec.convert(value, annotation, strict=False)
    return lambda value: convert(msgspec.convert(value, annotation, strict=False))


_NUMBERS = frozenset({"BYTE", "SHORT", "INT", "LONG", "BIG_INT", "FLOAT", "DOUBLE", "BIG_DEC"})


def _kind(declared: TypeInformation) -> str:
    if isinstance(declared, BasicTypeInfo):
        return declared.basic_type.name
    return declared.kind if isinstance(declared, SqlTimeTypeInfo) else ""


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"takes text, not {type(value).__name__}")
    return value


def _of_numbers(declared: TypeInformation) -> Read:
    """Numbers, also as text, and decimals that tell their scale."""
    conform, decimals = declared.conform, _of_decimals(declared, _with_scale)
    usual = int if _kind(declared) not in ("FLOAT", "DOUBLE", "BIG_DEC") else None

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
    if _kind(declared) == "STRING":
        return lambda value: format(decode(value), "f")
    conform = declared.conform
    return lambda value: conform(decode(value))


def _unscaled(scale: int) -> Callable[[Any], Decimal]:
    def decode(value: Any) -> Decimal:
        if not isinstance(value, str):
            raise TypeError(f"takes base64 of a decimal's bytes, not {type(value).__name__}")
        whole = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
        return Decimal((whole < 0, tuple(map(int, str(abs(whole)))), -scale))

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
