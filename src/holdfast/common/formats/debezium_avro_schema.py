"""Avro schemas of Debezium's events: the encodings that they tell, and those that describe rows of a type."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from holdfast.common.formats.avro_values import Walk, kind_of
from holdfast.common.formats.debezium_values import DECIMAL, PLAIN, Encoding
from holdfast.common.formats.debezium_values import kind_of as kind_of_type
from holdfast.common.formats.json import from_instant
from holdfast.common.typeinfo import MapTypeInfo, RowTypeInfo, TypeInformation
from holdfast.common.typeinfo.base import shown
from holdfast.common.typeinfo.composite import PrimitiveArrayTypeInfo, SequenceTypeInfo
from holdfast.common.types import Row
from holdfast.errors import ConfigurationError

__all__ = ["RecordWriter", "encodings_of", "envelope", "key_record"]

_PRECISION = 64
"""Digits of a decimal whose column does not tell them, as Confluent's converter has it."""
_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)
_CONNECT, _TIME = "org.apache.kafka.connect.data.", "io.debezium.time."
_LOGICAL = {
    **{"decimal": DECIMAL, "date": _CONNECT + "Date", "time-millis": _CONNECT + "Time", "time-micros": _TIME + "MicroTime"},
    **dict.fromkeys(("timestamp-millis", "local-timestamp-millis"), _CONNECT + "Timestamp"),
    **dict.fromkeys(("timestamp-micros", "local-timestamp-micros"), _TIME + "MicroTimestamp"),
}
"""Kafka Connect's and Debezium's names of Avro's logical types."""


# ---- the encodings of a writer's schema ----


def encodings_of(parsed: Any) -> dict[str, Encoding]:
    """The encodings of columns, by the schema that wrote an event.

    Raises:
        ValueError: it is no schema of an event.
    """
    walk = Walk(parsed)
    root = walk.resolved(parsed)
    parts = {field["name"]: field["type"] for field in root["fields"]} if "fields" in root else {}
    row = _not_null(walk, parts.get("after", parts.get("before")))
    if row is None or "fields" not in row:
        raise ValueError("the event's schema does not describe the fields of its rows")
    return {field["name"]: _encoding(walk, field["type"], (row["name"],)) for field in row["fields"]}


def _not_null(walk: Walk, node: Any) -> Any:
    """The one branch of a union that is not null; None if there are several."""
    if node is None:
        return None
    node = walk.resolved(node)
    if isinstance(node, list):
        branches = [branch for branch in node if branch != "null"]
        return walk.resolved(branches[0]) if len(branches) == 1 else None
    return node


def _encoding(walk: Walk, node: Any, within: tuple[str, ...]) -> Encoding:
    node = _not_null(walk, node)
    if node is None:
        return PLAIN
    kind = kind_of(node)
    name = node.get("connect.name") or _LOGICAL.get(kind, "")
    scale = None
    if name == DECIMAL:
        scale = int((node.get("connect.parameters") or {}).get("scale", node.get("scale", 0)))
    items = node.get("items", node.get("values"))
    fields = None
    if "fields" in node and node["name"] not in within:
        inner = (*within, node["name"])
        fields = {field["name"]: _encoding(walk, field["type"], inner) for field in node["fields"]}
    return Encoding(name, scale, None if items is None else _encoding(walk, items, within), fields)


# ---- schemas of rows ----


def envelope(type_info: RowTypeInfo, topic: str, key: Sequence[str], scales: Mapping[str, int]) -> Any:
    """The schema of a topic's events, under Debezium's names.

    Raises:
        ConfigurationError: a column's type has no form in events.
    """
    names = _Names(topic)
    value = names.record("Value", names.fields(type_info, type_info.get_field_names(), key, scales))
    parts = [{"name": "before", "type": ["null", value], "default": None}]
    parts += [{"name": "after", "type": ["null", value["connect.name"]], "default": None}]
    return names.record("Envelope", [*parts, {"name": "op", "type": "string"}])


def key_record(type_info: RowTypeInfo, topic: str, key: Sequence[str], scales: Mapping[str, int]) -> Any:
    """The schema of a topic's keys."""
    names = _Names(topic)
    return names.record("Key", names.fields(type_info, key, key, scales))


class _Names:
    """Makes the types of one schema, where a record is described once and then named."""

    def __init__(self, topic: str) -> None:
        parts = re.sub(r"[^A-Za-z0-9_.]", "_", topic).split(".")
        self._space = ".".join(re.sub(r"^(?=\d|$)", "_", part) for part in parts)
        self._known: set[str] = set()

    def record(self, name: str, fields: list[Any]) -> Any:
        """A record of the topic."""
        full = f"{self._space}.{name}"
        return {"type": "record", "name": name, "namespace": self._space, "fields": fields, "connect.name": full}

    def fields(
        self, type_info: RowTypeInfo, chosen: Sequence[str], key: Sequence[str], scales: Mapping[str, int], path: str = ""
    ) -> list[Any]:
        """The fields for these columns; those of the key are never null."""
        types = dict(zip(type_info.get_field_names(), type_info.get_field_types()))
        made = []
        for name in chosen:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ConfigurationError(f"the column {name!r} has no name in Avro: use letters, digits and _")
            node = self._type(types[name], scales.get(name), f"{path}{name}")
            made.append({"name": name, "type": node} if name in key else _nullable(name, node))
        return made

    def _type(self, declared: TypeInformation, scale: int | None, path: str) -> Any:
        kind = kind_of_type(declared)
        if kind == "BIG_DEC" and scale is not None:
            told = {"scale": scale, "precision": _PRECISION, "connect.parameters": {"scale": str(scale)}}
            return {"type": "bytes", **told, "connect.version": 1, "connect.name": DECIMAL, "logicalType": "decimal"}
        if scale is not None:
            raise ConfigurationError(f"decimal_scales: the column {path!r} is {declared}, which has no scale")
        if kind in ("BIG_DEC", "BIG_INT"):
            return self._variable()
        if kind in _TYPES:
            return _TYPES[kind]
        if isinstance(declared, PrimitiveArrayTypeInfo) and declared.annotation is bytes:
            return "bytes"
        if isinstance(declared, SequenceTypeInfo):
            item = self._type(declared.element_type, None, path)
            return {"type": "array", "items": ["null", item] if declared.has_nulls else item}
        if isinstance(declared, MapTypeInfo) and kind_of_type(declared.key_type) == "STRING":
            return {"type": "map", "values": ["null", self._type(declared.value_type, None, path)]}
        if isinstance(declared, RowTypeInfo):
            return self.record(path, self.fields(declared, declared.get_field_names(), (), {}, f"{path}_"))
        raise ConfigurationError(f"the column {path!r} is {declared}, which has no form in Debezium's events in Avro")

    def _variable(self) -> Any:
        name = "io.debezium.data.VariableScaleDecimal"
        if name in self._known:
            return name
        self._known.add(name)
        fields = [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}]
        space, _, short = name.rpartition(".")
        return {"type": "record", "name": short, "namespace": space, "fields": fields, "connect.name": name}


def _nullable(name: str, node: Any) -> Any:
    return {"name": name, "type": ["null", node], "default": None}


_TYPES: dict[str, Any] = {
    **{"BOOLEAN": "boolean", "INT": "int", "LONG": "long", "FLOAT": "float", "DOUBLE": "double"},
    **{"STRING": "string", "CHAR": "string"},
    "BYTE": {"type": "int", "connect.type": "int8"},
    "SHORT": {"type": "int", "connect.type": "int16"},
    "SQL_DATE": {"type": "int", "connect.version": 1, "connect.name": _TIME + "Date"},
    "SQL_TIME": {"type": "long", "connect.version": 1, "connect.name": _TIME + "MicroTime"},
    "SQL_TIMESTAMP": {"type": "long", "connect.version": 1, "connect.name": _TIME + "MicroTimestamp"},
    "INSTANT": {"type": "string", "connect.version": 1, "connect.name": _TIME + "ZonedTimestamp"},
}


# ---- values of rows ----


class RecordWriter:
    """Makes the records of rows that a schema of `envelope` or `key_record` encodes.

    Args:
        type_info: The rows' type.
        schema: The schema.
        scales: The scales of decimals.
        key: The columns to write, none of them None; all, if it is empty.
    """

    def __init__(self, type_info: RowTypeInfo, schema: Any, scales: Mapping[str, int], key: Sequence[str] = ()) -> None:
        self.text = json.dumps(schema)
        """The schema."""
        self._conform = type_info.conform
        names = type_info.get_field_names()
        self._key = bool(key)
        self._fields = [
            (i, names[i], _value(declared, scales.get(names[i])))
            for i, declared in enumerate(type_info.get_field_types())
            if not key or names[i] in key
        ]

    def fields(self, row: Row) -> dict[str, Any]:
        """The record of a row.

        Raises:
            TypeError, ValueError: it is not of the type, or a field does not fit; names the field.
        """
        given = self._conform(row)
        made: dict[str, Any] = {}
        for i, name, convert in self._fields:
            value = given[i]
            if value is None:
                if self._key:
                    raise ValueError(f"the field {name!r} of the primary key is None in {shown(row)}")
                made[name] = None
                continue
            try:
                made[name] = convert(value)
            except (ValueError, OverflowError) as error:
                raise ValueError(f"field {name}: {error}") from error
        return made


def _value(declared: TypeInformation, scale: int | None = None) -> Callable[[Any], Any]:
    """From a value that is not None to the one that is encoded."""
    kind = kind_of_type(declared)
    if kind in ("BIG_DEC", "BIG_INT"):
        return _of_variable_scale if scale is None else lambda value: _unscaled(value, scale)
    if kind in _VALUES:
        return _VALUES[kind]
    if isinstance(declared, SequenceTypeInfo) and declared.annotation is not bytes:
        item = _value(declared.element_type)
        return lambda value: [None if each is None else item(each) for each in value]
    if isinstance(declared, MapTypeInfo):
        part = _value(declared.value_type)
        return lambda value: {name: None if each is None else part(each) for name, each in value.items()}
    if isinstance(declared, RowTypeInfo):
        return RecordWriter(declared, None, {}).fields
    return lambda value: value


def _of_variable_scale(value: Any) -> dict[str, Any]:
    number = Decimal(value)
    scale = -int(number.as_tuple().exponent)
    return {"scale": scale, "value": _bytes(_whole(number, scale))}


def _unscaled(number: Decimal, scale: int) -> bytes:
    _, digits, exponent = number.as_tuple()
    if -int(exponent) > scale or len(digits) + int(exponent) + scale > _PRECISION:
        raise ValueError(f"{number} has more than {scale} digits behind the point, or more than {_PRECISION} in all")
    return _bytes(_whole(number, scale))


def _whole(number: Decimal, scale: int) -> int:
    """The digits of a number as a whole one, exactly."""
    sign, digits, exponent = number.as_tuple()
    whole: int = int(Decimal((sign, digits, 0))) * 10 ** (scale + int(exponent))
    return whole


def _bytes(whole: int) -> bytes:
    return whole.to_bytes((whole + (whole < 0)).bit_length() // 8 + 1, "big", signed=True)


_VALUES: dict[str, Callable[[Any], Any]] = {
    "SQL_DATE": lambda value: (value - _EPOCH.date()).days,
    "SQL_TIME": lambda value: (datetime.datetime.combine(_EPOCH.date(), value) - _EPOCH) // _MICROSECOND,
    "SQL_TIMESTAMP": lambda value: (value - _EPOCH) // _MICROSECOND,
    "INSTANT": from_instant,
}
