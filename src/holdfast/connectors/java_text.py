"""The text that Flink prints for a value of a declared type (Java's toString)."""

from __future__ import annotations

import datetime
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.common.typeinfo import TypeInformation
from holdfast.common.types import RowKind

__all__ = ["text_of"]

_Text = Callable[[Any], str]
_KINDS = {
    RowKind.INSERT: "+I",
    RowKind.UPDATE_BEFORE: "-U",
    RowKind.UPDATE_AFTER: "+U",
    RowKind.DELETE: "-D",
}


def text_of(type_info: TypeInformation | None) -> _Text:
    """Return a function that formats values of a type as Flink does; ``str`` without a declared type.

    Examples:
        >>> from holdfast.common.typeinfo import Types
        >>> text_of(Types.TUPLE([Types.BOOLEAN(), Types.DOUBLE()]))((True, 1e10))
        '(true,1.0E10)'
        >>> text_of(None)((True, 1e10))
        '(True, 10000000000.0)'
    """
    if type_info is None or type_info.is_pickled:
        return str
    return _for(type_info.to_dict())


def _for(node: Mapping[str, Any]) -> _Text:
    text = _plain(node)
    return lambda value: "null" if value is None else text(value)


def _plain(node: Mapping[str, Any]) -> _Text:
    kind = node["type"]
    if kind == "BOOLEAN":
        return lambda value: "true" if value else "false"
    if kind == "DOUBLE":
        return lambda value: _floating(value, repr(value))
    if kind == "FLOAT":
        return lambda value: _floating(value, _shortest_float32(value))
    if kind == "INSTANT":
        return _instant
    if kind == "ROW":
        fields = [_for(field) for field in node["fields"]]
        return lambda row: f"{_KINDS[row.get_row_kind()]}[{_joined(',', fields, row)}]"
    if kind == "TUPLE":
        fields = [_for(field) for field in node["fields"]]
        return lambda value: f"({_joined(',', fields, value)})"
    if kind == "MAP":
        key, item = _for(node["key"]), _for(node["value"])
        return lambda value: "{" + ", ".join(f"{key(k)}={item(v)}" for k, v in value.items()) + "}"
    if "element" in node:
        element = _for(node["element"])
        return lambda value: "[" + ", ".join(map(element, value)) + "]"
    return str


def _joined(separator: str, texts: list[_Text], values: Any) -> str:
    return separator.join([text(value) for text, value in zip(texts, values, strict=True)])


def _floating(value: float, digits: str) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(float(digits))
    mantissa, _, exponent = format(float(digits), f".{_significant(digits) - 1}e").partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"


def _significant(digits: str) -> int:
    return max(1, len(digits.lstrip("-").partition("e")[0].replace(".", "").strip("0")))


def _shortest_float32(value: float) -> str:
    for precision in range(1, 9):
        text = format(value, f".{precision}g")
        if struct.pack("<f", float(text)) == struct.pack("<f", value):
            return text
    return format(value, ".9g")


def _instant(value: Any) -> str:
    whole = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=value.seconds)
    fraction = f".{value.nanos:09d}".removesuffix("000").removesuffix("000") if value.nanos else ""
    return f"{whole.isoformat()}{fraction}Z"
