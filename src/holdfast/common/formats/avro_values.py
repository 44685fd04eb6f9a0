"""Conversions between Avro's values and Python's, made for a parsed schema: to Rows, from Rows, and to logical types."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from holdfast.common.formats.fitting import Convert, binary, clock_time, fixed, null, real, sequence, timestamp, whole
from holdfast.common.system.optional_library import optional_library
from holdfast.common.typeinfo import Types
from holdfast.common.typeinfo.base import shown
from holdfast.common.types import Row

__all__ = ["Convert", "Walk", "fastavro", "from_row", "kind_of", "logical_kinds", "to_logical", "to_row", "without_logical"]

_UTC = datetime.timezone.utc
_NAMED = ("record", "error", "enum", "fixed")


def fastavro() -> Any:
    """The library.

    Raises:
        ConfigurationError: it is not installed.
    """
    return optional_library("fastavro", "Avro needs fastavro", "'holdfast[avro]'")


class Walk:
    """Walks a parsed schema, whose references to named types are full names."""

    def __init__(self, parsed: Any) -> None:
        self._named: dict[str, Any] = {}
        self._collect(parsed)

    def _collect(self, node: Any) -> None:
        if isinstance(node, list):
            for branch in node:
                self._collect(branch)
        elif isinstance(node, Mapping):
            if node["type"] in _NAMED:
                self._named[node["name"]] = node
            for inner in (*(f["type"] for f in node.get("fields", ())), node.get("items"), node.get("values")):
                self._collect(inner)
            self._collect(node["type"])

    def resolved(self, node: Any) -> Any:
        """The node of a reference; and that within ``{"type": {...}}``."""
        if isinstance(node, str):
            return self._named.get(node, {"type": node})
        if isinstance(node, Mapping) and isinstance(node["type"], (list, Mapping)):
            return self.resolved(node["type"])
        return node


_LOGICAL = {
    **{"date": ("int",), "time-millis": ("int",), "time-micros": ("long",)},
    **{"decimal": ("bytes", "fixed"), "uuid": ("string",)},
    **dict.fromkeys(("timestamp-millis", "timestamp-micros"), ("long",)),
    **dict.fromkeys(("local-timestamp-millis", "local-timestamp-micros"), ("long",)),
}
"""Logical types, with those that they annotate: on another type they are ignored, as Avro's specification says."""


def kind_of(node: Any) -> str:
    """The logical type of a resolved node, or else its type."""
    if isinstance(node, list):
        return "union"
    if isinstance(node, str):
        return node
    base, logical = str(node["type"]), node.get("logicalType")
    return logical if isinstance(logical, str) and base in _LOGICAL.get(logical, ()) else base


def _built(
    parsed: Any,
    leaf: Callable[[str, Any], Convert],
    record: Callable[[str, list[str], list[Convert]], Convert],
    sequence: Callable[[Convert], Convert],
    mapping: Callable[[Convert], Convert],
    union: Callable[[list[tuple[str, Any, Convert]], bool], Convert],
) -> Convert:
    """The conversion of a schema, from those of its parts; a part that changes nothing is `_same`."""
    walk = Walk(parsed)
    records: dict[str, Convert] = {}

    def of(node: Any) -> Convert:
        node = walk.resolved(node)
        kind = kind_of(node)
        if kind in ("record", "error"):
            name = node["name"]
            if name not in records:
                records[name] = lambda value: records[name](value)  # a record within itself
                fields = node["fields"]
                records[name] = record(name, [f["name"] for f in fields], [of(f["type"]) for f in fields])
            return records[name]
        if kind == "union":
            branches = [(_branch_name(b), walk.resolved(b), of(b)) for b in node if b != "null"]
            return union(branches, len(branches) < len(node))
        if kind == "array":
            return sequence(of(node["items"]))
        return mapping(of(node["values"])) if kind == "map" else leaf(kind, node)

    return of(parsed)


def _branch_name(branch: Any) -> str:
    if isinstance(branch, str):
        return branch
    return str(branch["name"] if branch["type"] in _NAMED else branch["type"])


def _same(value: Any) -> Any:
    return value


def _items(item: Convert) -> Convert:
    return _same if item is _same else lambda values: [item(each) for each in values]


def _entries(entry: Convert) -> Convert:
    return _same if entry is _same else lambda values: {key: entry(each) for key, each in values.items()}


# decoded records to Rows


def to_row(parsed: Any) -> Convert:
    """The conversion of decoded records to Rows, with times without a zone in UTC."""

    def leaf(kind: str, node: Any) -> Convert:
        return str if kind == "uuid" else _naive if kind in ("timestamp-millis", "timestamp-micros") else _same

    return _built(parsed, leaf, _record_to_row, _items, _entries, _union_to_row)


def _naive(value: Any) -> Any:
    return value.astimezone(_UTC).replace(tzinfo=None) if value.tzinfo is not None else value


def _record_to_row(record: str, names: list[str], converts: list[Convert]) -> Convert:
    if all(convert is _same for convert in converts):
        return lambda record: Row.of_values([record[name] for name in names], names)
    fields = list(zip(names, converts, strict=True))
    return lambda record: Row.of_values([convert(record[name]) for name, convert in fields], names)


def _union_to_row(branches: list[tuple[str, Any, Convert]], nullable: bool) -> Convert:
    if len(branches) == 1:
        return _unless_null(branches[0][2])
    of_class: dict[type, Convert] = {datetime.datetime: _naive, uuid.UUID: str}
    records = [({f["name"] for f in node["fields"]}, convert) for _, node, convert in branches if "fields" in node]
    for _, node, convert in branches:
        if node["type"] in ("array", "map"):
            of_class[list if node["type"] == "array" else dict] = convert

    def convert_any(value: Any) -> Any:
        names = set(value) if isinstance(value, dict) else None
        of_record = None if names is None else next((convert for fields, convert in records if fields == names), None)
        return of_class.get(type(value), _same)(value) if of_record is None else of_record(value)

    return convert_any


def _unless_null(convert: Convert) -> Convert:
    return _same if convert is _same else lambda value: None if value is None else convert(value)


# Rows to records that are encoded as they are


def from_row(parsed: Any, tagged: bool = True) -> Convert:
    """The conversion of Rows, tuples and dicts to records that a schema encodes and decodes without a change.

    Whole numbers may stand for floats, and floats without a fraction for whole numbers; FLOAT rounds to 32 bits, times
    are cut to the schema's unit, and those without a zone are UTC. Anything else that does not fit is refused.

    Args:
        parsed: The schema.
        tagged: Whether a value of a union of several types has the name of its type, as fastavro takes it.

    Raises:
        ValueError: (the conversion) a value does not fit; names the field.
    """

    def union(branches: list[tuple[str, Any, Convert]], nullable: bool) -> Convert:
        return _union_from(branches, nullable, tagged)

    return _built(parsed, _leaf_from, _record_from, _items_from, _entries_from, union)


def _record_from(record: str, names: list[str], converts: list[Convert]) -> Convert:
    fields, known = list(zip(names, converts, strict=True)), frozenset(names)

    def convert_record(row: Any) -> dict[str, Any]:
        if isinstance(row, Row) and row._fields is not None:
            given: Any = row.as_dict()
        elif isinstance(row, Mapping):
            given = row
        elif not isinstance(row, (Row, tuple, list)):
            raise TypeError(f"an Avro record is written from a Row, a tuple or a dict, not from {shown(row)}")
        elif len(row) != len(names):
            raise ValueError(f"{shown(row)} has {len(row)} fields, the Avro record {len(names)}: {', '.join(names)}")
        else:
            given = dict(zip(names, row))
        unknown = given.keys() - known
        if unknown:
            raise ValueError(f"{shown(row)} has the field {min(unknown, key=str)!r}, which the Avro record {record} has not")
        try:
            return {name: convert(given[name]) for name, convert in fields if name in given}
        except Exception:
            _name_field(fields, given)
            raise

    return convert_record


def _name_field(fields: Sequence[tuple[str, Convert]], given: Mapping[str, Any]) -> None:
    for name, convert in fields:
        try:
            if name in given:
                convert(given[name])
        except Exception as error:
            raise ValueError(f"field {name}: {error}") from error


def _items_from(item: Convert) -> Convert:
    return lambda values: [item(each) for each in sequence(values)]


def _entries_from(entry: Convert) -> Convert:
    def convert_entries(values: Any) -> dict[str, Any]:
        if not isinstance(values, Mapping):
            raise TypeError(f"a map is written from a dict, not from {shown(values)}")
        return {_text(key): entry(each) for key, each in values.items()}

    return convert_entries


def _union_from(branches: list[tuple[str, Any, Convert]], nullable: bool, tagged: bool) -> Convert:
    if len(branches) == 1 and nullable:
        return _unless_null(branches[0][2])
    # A double holds each float of Python; floats of 32 bits are for unions without one. Numbers in their own class come
    # first: 1 is an int, if the union has one, wherever it stands.
    order = sorted(branches, key=lambda branch: _PREFERRED.get(branch[0], 0))

    def convert_any(value: Any) -> Any:
        if value is None and nullable:
            return None
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):  # fastavro's notation: name, value
            of_name = next((convert for name, _, convert in order if name == value[0]), None)
            if of_name is not None:
                return (value[0], of_name(value[1])) if tagged else of_name(value[1])
        for name, _, convert in order:
            if not _may_be(name, value):
                continue
            try:
                found = convert(value)
            except Exception:
                continue
            return (name, found) if tagged else found
        kinds = ", ".join(["null"] * nullable + [name for name, *_ in branches])
        raise TypeError(f"{shown(value)} is none of the types of the union: {kinds}")

    return convert_any


_PREFERRED = {"int": -4, "long": -3, "double": -2, "float": -1}


def _may_be(name: str, value: Any) -> bool:
    return name not in ("int", "long") or not isinstance(value, (float, Decimal))


def _leaf_from(kind: str, node: Any) -> Convert:
    if kind == "decimal":
        return _decimal(int(node["precision"]), int(node.get("scale", 0)))
    if kind == "fixed":
        return fixed(int(node["size"]))
    return _symbol(node["symbols"]) if kind == "enum" else _LEAVES[kind]


_text = Types.STRING().conform


def _symbol(symbols: Sequence[str]) -> Convert:
    known = dict(zip(symbols, symbols))

    def convert(value: Any) -> str:
        found = known.get(value) if isinstance(value, str) else None
        if found is None:
            raise ValueError(f"{shown(value)} is none of the enum's symbols: {', '.join(symbols)}")
        return found

    return convert


def _decimal(precision: int, scale: int) -> Convert:
    conform = Types.BIG_DEC().conform

    def convert(value: Any) -> Any:
        if isinstance(value, bool):
            raise TypeError(f"takes decimals, not {value!r}")
        number: Decimal = conform(value)
        _, digits, exponent = number.as_tuple()
        if -int(exponent) > scale or (number and len(digits) + int(exponent) + scale > precision):
            raise ValueError(f"{number} has more than {precision} digits, or more than {scale} behind the point")
        return number

    return convert


def _uuid(value: Any) -> uuid.UUID:
    return value if isinstance(value, uuid.UUID) else uuid.UUID(_text(value))


_LEAVES: dict[str, Convert] = {
    **{"int": whole(Types.INT()), "long": whole(Types.LONG()), "boolean": Types.BOOLEAN().conform},
    **{"float": real(Types.FLOAT()), "double": real(Types.DOUBLE())},
    **{"string": _text, "bytes": binary, "null": null, "date": Types.SQL_DATE().conform, "uuid": _uuid},
    **{"time-millis": clock_time(1000), "time-micros": clock_time(1)},
    **{"timestamp-millis": timestamp(1000, local=False), "timestamp-micros": timestamp(1, local=False)},
    **{"local-timestamp-millis": timestamp(1000, local=True), "local-timestamp-micros": timestamp(1, local=True)},
}


# a reader's logical types


def logical_kinds(parsed: Any) -> dict[tuple[str, ...], frozenset[str]]:
    """The logical types at each path of names of fields that a schema has; none for most."""
    walk = Walk(parsed)
    found: dict[tuple[str, ...], frozenset[str]] = {}

    def look(node: Any, path: tuple[str, ...], within: tuple[str, ...]) -> None:
        node = walk.resolved(node)
        if isinstance(node, list):
            for branch in node:
                look(branch, path, within)
        elif "fields" in node:
            if node["name"] not in within:
                for field in node["fields"]:
                    look(field["type"], (*path, field["name"]), (*within, node["name"]))
        elif node["type"] in ("array", "map"):
            look(node["items" if node["type"] == "array" else "values"], path, within)
        else:
            kind = kind_of(node)
            logical = {f"{kind} {node.get('precision')} {node.get('scale')}"} if kind in _LOGICAL else set()
            found[path] = found.get(path, frozenset()) | logical

    look(parsed, (), ())
    return found


def without_logical(node: Any) -> Any:
    """A schema, as JSON, without its logical types."""
    if isinstance(node, list):
        return [without_logical(branch) for branch in node]
    if not isinstance(node, dict):
        return node
    plain = {key: value for key, value in node.items() if key != "logicalType"}
    for key in ("type", "items", "values"):
        if isinstance(plain.get(key), (dict, list)):
            plain[key] = without_logical(plain[key])
    if isinstance(plain.get("fields"), list):
        plain["fields"] = [without_logical(field) for field in plain["fields"]]
    return plain


def to_logical(parsed: Any) -> Convert:
    """The conversion of records that were decoded without logical types to those of a schema."""
    readers = fastavro().read.LOGICAL_READERS

    def leaf(kind: str, node: Any) -> Convert:
        read = readers.get(f"{node['type']}-{kind}") if kind in _LOGICAL else None
        return _same if read is None else lambda value: read(_raw(value, node), node, node)

    return _built(parsed, leaf, _record_to_logical, _items, _entries, _union_to_logical)


def _raw(value: Any, node: Any) -> Any:
    """A value, or a default of the schema: bytes stand there as text."""
    return value.encode("iso-8859-1") if isinstance(value, str) and node["type"] in ("bytes", "fixed") else value


def _record_to_logical(record: str, names: list[str], converts: list[Convert]) -> Convert:
    changing = [(name, convert) for name, convert in zip(names, converts, strict=True) if convert is not _same]
    return lambda record: {**record, **{name: convert(record[name]) for name, convert in changing}}


def _union_to_logical(branches: list[tuple[str, Any, Convert]], nullable: bool) -> Convert:
    if len(branches) == 1:
        return _unless_null(branches[0][2])

    def convert_any(value: Any) -> Any:
        for _, node, convert in branches:
            if _is_raw(node, value):
                return convert(value)
        return value

    return convert_any


def _is_raw(node: Any, value: Any) -> bool:
    if "fields" in node:
        return isinstance(value, dict) and set(value) == {f["name"] for f in node["fields"]}
    classes = {"array": list, "map": dict, "int": int, "long": int, "string": str, "bytes": bytes, "fixed": bytes}
    return type(value) is classes.get(node["type"])
