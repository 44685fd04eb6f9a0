"""AvroSchema, and the conversion between Avro's records and Rows."""

from __future__ import annotations

import datetime
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.common.optional_library import optional_library
from holdfast.common.typeinfo import TypeInformation, Types
from holdfast.common.typeinfo.base import refuse, register
from holdfast.common.types import Row
from holdfast.errors import ConfigurationError

__all__ = ["AvroSchema", "GenericRecordAvroTypeInfo", "fastavro", "from_row", "record_type", "row_type", "to_row"]

Convert = Callable[[Any], Any]
_UTC = datetime.timezone.utc


def fastavro() -> Any:
    """The library.

    Raises:
        ConfigurationError: it is not installed.
    """
    return optional_library("fastavro", "Avro needs fastavro", "'holdfast[avro]'")


class AvroSchema:
    """An Avro schema.

    Args:
        json_schema: The schema as JSON text.

    Raises:
        ConfigurationError: it is not a schema, or fastavro is not installed.

    Examples:
        >>> text = '{"type": "record", "name": "Payment", "fields": [{"name": "amount", "type": "double"}]}'
        >>> schema = AvroSchema.parse_string(text)
        >>> schema.decode(schema.encode({"amount": 2.5}))
        {'amount': 2.5}
    """

    def __init__(self, json_schema: str) -> None:
        library = fastavro()
        self.text = json_schema
        try:
            self.parsed: Any = library.parse_schema(json.loads(json_schema))
        except Exception as error:
            raise ConfigurationError(f"not an Avro schema: {error}, in {json_schema[:200]}") from error
        self._read = library.schemaless_reader
        self._write = library.schemaless_writer

    @staticmethod
    def parse_string(json_schema: str) -> AvroSchema:
        """Parse a schema from JSON text.

        Raises:
            ConfigurationError: the text is not a schema.
        """
        return AvroSchema(json_schema)

    @staticmethod
    def parse_file(file_path: str) -> AvroSchema:
        """Parse a schema from a file (``.avsc``).

        Raises:
            ConfigurationError: the file cannot be read, or is not a schema.
        """
        try:
            with open(file_path, encoding="utf-8") as file:
                return AvroSchema(file.read())
        except OSError as error:
            raise ConfigurationError(
                f"{os.path.abspath(file_path)}: cannot read the Avro schema: {error.strerror}"
            ) from error

    @staticmethod
    def of(parsed: Any) -> AvroSchema:
        """The schema of a parsed form."""
        return AvroSchema(json.dumps(parsed))

    def encode(self, record: Any) -> bytes:
        """Encode a record in Avro's binary form, without the schema.

        Raises:
            Exception: the record does not fit the schema.
        """
        buffer = io.BytesIO()
        self._write(buffer, self.parsed, record)
        return buffer.getvalue()

    def decode(self, data: bytes, writer: AvroSchema | None = None) -> Any:
        """Decode a record that was written with this schema, or with another one of which this is a later version.

        Args:
            data: The record in Avro's binary form.
            writer: The schema that wrote it; None: this one.

        Raises:
            ValueError: the bytes are not such a record.
        """
        buffer = io.BytesIO(data)
        try:
            record = self._read(buffer, (writer or self).parsed, None if writer is None else self.parsed)
        except EOFError as error:  # whose text may have the address of the buffer
            raise ValueError("the bytes end within a field") from error
        if buffer.tell() != len(data):
            raise ValueError(f"{len(data) - buffer.tell()} bytes behind the record: it was written with another schema")
        return record

    def __eq__(self, other: object) -> bool:
        return self.parsed == other.parsed if isinstance(other, AvroSchema) else NotImplemented

    def __hash__(self) -> int:
        return hash(json.dumps(self.parsed, sort_keys=True, default=str))

    def __reduce__(self) -> tuple[Any, ...]:
        return AvroSchema, (self.text,)

    def __repr__(self) -> str:
        return f"AvroSchema({self.text!r})"


class GenericRecordAvroTypeInfo(TypeInformation[dict[str, Any]]):
    """The type of Avro records as dicts; state with this type is stored in Avro's binary form."""

    def __init__(self, schema: AvroSchema) -> None:
        self.__dict__["schema"] = schema
        validate = fastavro().validate
        parsed = schema.parsed

        def conform(value: Any) -> Any:
            if not isinstance(value, Mapping) or not validate(value, parsed, raise_errors=False):
                raise refuse("AVRO", value, "pass a dict that fits the schema")
            return value

        self._seal(("AVRO", schema), bytes, conform, (schema.encode, schema.decode))

    def _describe(self) -> dict[str, Any]:
        return {"type": "AVRO", "schema": self.__dict__["schema"].text}


register("AVRO", lambda node: GenericRecordAvroTypeInfo(AvroSchema(node["schema"])))


class _Walk:
    """Walks a parsed schema, whose references to named types are full names."""

    def __init__(self, parsed: Any) -> None:
        self._named: dict[str, Any] = {}
        self._collect(parsed)

    def _collect(self, node: Any) -> None:
        if isinstance(node, list):
            for branch in node:
                self._collect(branch)
        elif isinstance(node, Mapping):
            if node["type"] in ("record", "error", "enum", "fixed"):
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


def _kind(node: Any) -> str:
    if isinstance(node, list):
        return "union"
    logical = str(node.get("logicalType", ""))
    return logical if logical in _LOGICAL else str(node["type"])


_LOGICAL = frozenset(
    (
        *("date", "time-millis", "time-micros", "decimal", "uuid"),
        *("timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros"),
    )
)
_TYPES: dict[str, Callable[[], TypeInformation]] = {
    **dict.fromkeys(("string", "enum", "uuid"), Types.STRING),
    **{"boolean": Types.BOOLEAN, "int": Types.INT, "long": Types.LONG, "float": Types.FLOAT, "double": Types.DOUBLE},
    **dict.fromkeys(("bytes", "fixed"), lambda: Types.PRIMITIVE_ARRAY(Types.BYTE())),
    **{"date": Types.SQL_DATE, "time-millis": Types.SQL_TIME, "time-micros": Types.SQL_TIME, "decimal": Types.BIG_DEC},
    **dict.fromkeys(("timestamp-millis", "timestamp-micros"), Types.SQL_TIMESTAMP),
    **dict.fromkeys(("local-timestamp-millis", "local-timestamp-micros"), Types.SQL_TIMESTAMP),
}


def record_type(schema: AvroSchema, as_rows: bool) -> TypeInformation:
    """The type of a schema's records, as Rows or as dicts.

    Raises:
        ConfigurationError: as `row_type`.
    """
    return row_type(schema) if as_rows else GenericRecordAvroTypeInfo(schema)


def row_type(schema: AvroSchema) -> TypeInformation:
    """The type of the Rows that `to_row` makes: ``ROW_NAMED`` for a record; a union of several types is pickled.

    Raises:
        ConfigurationError: the schema contains itself, so that its type has no end.
    """
    walk = _Walk(schema.parsed)

    def of(node: Any, within: tuple[str, ...]) -> TypeInformation:
        node = walk.resolved(node)
        kind = _kind(node)
        if kind == "record":
            if node["name"] in within:
                raise ConfigurationError(f"the Avro record {node['name']} contains itself; no type stands for it")
            fields, inner = node["fields"], (*within, node["name"])
            return Types.ROW_NAMED([f["name"] for f in fields], [of(f["type"], inner) for f in fields])
        if kind == "union":
            branches = [branch for branch in node if branch != "null"]
            return of(branches[0], within) if len(branches) == 1 else Types.PICKLED_BYTE_ARRAY()
        if kind == "array":
            return Types.LIST(of(node["items"], within))
        if kind == "map":
            return Types.MAP(Types.STRING(), of(node["values"], within))
        return _TYPES.get(kind, Types.PICKLED_BYTE_ARRAY)()

    return of(schema.parsed, ())


def to_row(schema: AvroSchema) -> Convert:
    """The function that converts decoded records: to Rows, with times without a zone in UTC."""
    return _converter(schema, _record_to_row, _time_from_avro)


def from_row(schema: AvroSchema) -> Convert:
    """The function that converts Rows, tuples and dicts to records that the schema encodes; times without a zone are UTC."""
    return _converter(schema, _row_to_record, _time_to_avro)


def _converter(
    schema: AvroSchema, record: Callable[[list[str], list[Convert]], Convert], times: Mapping[str, Convert]
) -> Convert:
    walk = _Walk(schema.parsed)
    records: dict[str, Convert] = {}

    def of(node: Any) -> Convert:
        node = walk.resolved(node)
        kind = _kind(node)
        if kind == "record":
            name = node["name"]
            if name not in records:
                records[name] = lambda value: records[name](value)  # a record within itself
                fields = node["fields"]
                records[name] = record([f["name"] for f in fields], [of(f["type"]) for f in fields])
            return records[name]
        if kind == "union":
            return _union([(branch, of(branch)) for branch in map(walk.resolved, node) if branch["type"] != "null"])
        if kind == "array":
            item = of(node["items"])
            return _same if item is _same else lambda value: [item(each) for each in value]
        if kind == "map":
            entry = of(node["values"])
            return _same if entry is _same else lambda value: {key: entry(each) for key, each in value.items()}
        return times.get(kind, _same)

    return of(schema.parsed)


def _same(value: Any) -> Any:
    return value


def _union(branches: list[tuple[Any, Convert]]) -> Convert:
    if len(branches) == 1:
        convert = branches[0][1]
        return _same if convert is _same else lambda value: None if value is None else convert(value)
    records = [({f["name"] for f in node["fields"]}, convert) for node, convert in branches if node["type"] == "record"]
    others = [convert for node, convert in branches if node["type"] != "record" and convert is not _same]

    def convert_any(value: Any) -> Any:
        names: Iterable[str] | None = value._fields if isinstance(value, Row) else value if isinstance(value, dict) else None
        if names is not None:
            of_record = next((convert for fields, convert in records if fields == set(names)), None)
            return value if of_record is None else of_record(value)
        for convert in others:
            if isinstance(value, (datetime.datetime, list)):
                return convert(value)
        return value

    return convert_any


def _record_to_row(names: list[str], converts: list[Convert]) -> Convert:
    fields = list(zip(names, converts, strict=True))
    if all(convert is _same for convert in converts):
        return lambda record: Row.of_values([record[name] for name in names], names)
    return lambda record: Row.of_values([convert(record[name]) for name, convert in fields], names)


def _row_to_record(names: list[str], converts: list[Convert]) -> Convert:
    fields = list(zip(names, converts, strict=True))

    def convert_row(row: Any) -> Any:
        if isinstance(row, dict):
            return {name: convert(row[name]) for name, convert in fields if name in row}
        if isinstance(row, Row) and row._fields is not None and set(row._fields) == set(names):
            return {name: convert(row[name]) for name, convert in fields}
        if not isinstance(row, (Row, tuple, list)):
            raise TypeError(f"an Avro record is written from a Row, a tuple or a dict, not from {row!r:.80}")
        if len(row) != len(names):
            raise ValueError(f"{row!r:.80} has {len(row)} fields, the Avro record {len(names)}: {', '.join(names)}")
        return {name: convert(value) for (name, convert), value in zip(fields, row)}

    return convert_row


def _naive(value: Any) -> Any:
    return value.astimezone(_UTC).replace(tzinfo=None) if value.tzinfo is not None else value


def _in_utc(value: Any) -> Any:
    return value.replace(tzinfo=_UTC) if isinstance(value, datetime.datetime) and value.tzinfo is None else value


_INSTANTS = ("timestamp-millis", "timestamp-micros")
_time_from_avro: dict[str, Convert] = {**dict.fromkeys(_INSTANTS, _naive), "uuid": str}
_time_to_avro: dict[str, Convert] = dict.fromkeys(_INSTANTS, _in_utc)
