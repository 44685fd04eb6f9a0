"""AvroSchema, and the types of Avro's records."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from holdfast.common.formats import avro_values
from holdfast.common.formats.avro_values import Convert, Walk, fastavro, kind_of, logical_kinds, to_logical, without_logical
from holdfast.common.typeinfo import TypeInformation, Types
from holdfast.common.typeinfo.base import refuse, register
from holdfast.errors import ConfigurationError

__all__ = ["AvroSchema", "GenericRecordAvroTypeInfo", "fastavro", "from_row", "record_type", "row_type", "to_row"]


_READERS_KNOWN = 100


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
        self._readers: dict[str, Callable[[BinaryIO], Any]] = {}
        """The functions that read records, by the writers' schemas."""

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
            record = self.reader_of(writer)(buffer)
        except EOFError as error:  # whose text may have the address of the buffer
            raise ValueError("the bytes end within a field") from error
        if buffer.tell() != len(data):
            raise ValueError(f"{len(data) - buffer.tell()} bytes behind the record: it was written with another schema")
        return record

    def reader_of(self, writer: AvroSchema | None) -> Callable[[BinaryIO], Any]:
        """The function that reads the next record of a stream, written with a schema; None: with this one.

        The record has the logical types of this schema. fastavro takes the writer's, so where they differ it reads
        without any.
        """
        text = self.text if writer is None else writer.text
        reader = self._readers.get(text)
        if reader is None:
            if len(self._readers) >= _READERS_KNOWN:
                self._readers.clear()
            reader = self._readers[text] = self._reader(writer)
        return reader

    def _reader(self, writer: AvroSchema | None) -> Callable[[BinaryIO], Any]:
        read, parsed = self._read, self.parsed
        if writer is None or writer.text == self.text:
            return lambda stream: read(stream, parsed)
        wrote, given, wanted = writer.parsed, logical_kinds(writer.parsed), logical_kinds(parsed)
        if all(given.get(path, frozenset()) == kinds for path, kinds in wanted.items()):
            return lambda stream: read(stream, wrote, parsed)
        plain = [fastavro().parse_schema(without_logical(json.loads(each.text))) for each in (writer, self)]
        convert = to_logical(parsed)
        return lambda stream: convert(read(stream, *plain))

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
        fit, tag = avro_values.from_row(schema.parsed, tagged=False), avro_values.from_row(schema.parsed)

        def conform(value: Any) -> Any:
            if not isinstance(value, Mapping):
                raise refuse("AVRO", value, "pass a dict that fits the schema")
            try:
                return fit(value)
            except Exception as error:
                raise refuse("AVRO", value, f"pass a dict that fits the schema: {error}") from error

        self._seal(("AVRO", schema), bytes, conform, (lambda value: schema.encode(tag(value)), schema.decode))

    def _describe(self) -> dict[str, Any]:
        return {"type": "AVRO", "schema": self.__dict__["schema"].text}


register("AVRO", lambda node: GenericRecordAvroTypeInfo(AvroSchema(node["schema"])))


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
    walk = Walk(schema.parsed)

    def of(node: Any, within: tuple[str, ...]) -> TypeInformation:
        node = walk.resolved(node)
        kind = kind_of(node)
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
    return avro_values.to_row(schema.parsed)


def from_row(schema: AvroSchema) -> Convert:
    """The function that converts Rows, tuples and dicts to records that the schema encodes; times without a zone are UTC.

    It refuses a value that would be read back as another one, and names the field.
    """
    return avro_values.from_row(schema.parsed)
