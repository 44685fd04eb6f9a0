"""Avro records with the id of their schema in a Confluent schema registry: byte 0, the id in 4 bytes, Avro's binary form."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.common.formats.avro import AvroSchema, from_row, record_type, to_row
from holdfast.common.formats.avro_columns import AvroColumns
from holdfast.common.formats.columns import Columns
from holdfast.common.serialization import DeserializationSchema, SerializationSchema
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.typeinfo.base import shown
from holdfast.connectors.schema_registry import SchemaRegistry
from holdfast.errors import ConfigurationError, ServiceUnavailable

__all__ = ["HEADER", "ConfluentRegistryAvroDeserializationSchema", "ConfluentRegistryAvroSerializationSchema"]

HEADER = struct.Struct(">bI")
"""Byte 0, and the id of the schema."""


class ConfluentRegistryAvroDeserializationSchema(DeserializationSchema):
    """Deserializes Avro records whose schemas are in a Confluent schema registry.

    Each record is read with the schema that wrote it, which is fetched once, and converted to the given schema by Avro's
    rules: new fields get their defaults. Create one with `for_generic` or `for_row`.
    """

    def __init__(self, schema: AvroSchema, registry: SchemaRegistry, rows: bool) -> None:
        self._schema = schema
        self._registry = registry
        self._rows = rows
        self._convert = to_row(schema) if rows else None
        self._writers: dict[int, AvroSchema] = {}
        self._columns: dict[int, AvroColumns | None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._schema, self._registry, self._rows)

    @staticmethod
    def for_generic(
        schema: AvroSchema, url: str, registry_configs: Mapping[str, str] | None = None
    ) -> ConfluentRegistryAvroDeserializationSchema:
        """Create a schema whose records are dicts.

        Args:
            schema: The reader's schema.
            url: The registry's address.
            registry_configs: Options of `holdfast.connectors.schema_registry.SchemaRegistry`, e.g. a password.

        Raises:
            ConfigurationError: an argument cannot be used.
        """
        return ConfluentRegistryAvroDeserializationSchema(schema, SchemaRegistry(url, registry_configs), False)

    @staticmethod
    def for_row(
        schema: AvroSchema, url: str, registry_configs: Mapping[str, str] | None = None
    ) -> ConfluentRegistryAvroDeserializationSchema:
        """Create a schema whose records are Rows; the arguments are those of `for_generic`."""
        return ConfluentRegistryAvroDeserializationSchema(schema, SchemaRegistry(url, registry_configs), True)

    def get_produced_type(self) -> TypeInformation:
        """The records' type."""
        return record_type(self._schema, self._rows)

    def deserialize(self, data: bytes) -> Any:
        """Decode a record.

        Raises:
            ValueError: the bytes are not a record with a schema id, or do not fit the schemas.
            ServiceUnavailable: the registry does not answer.
        """
        if len(data) < HEADER.size or data[0] != 0:
            raise ValueError(f"{shown(data)} does not begin with the id of a schema in a registry (byte 0 and 4 bytes)")
        schema_id = HEADER.unpack_from(data)[1]
        try:
            record = self._schema.decode(data[HEADER.size :], self._writer(schema_id))
        except (ServiceUnavailable, ConfigurationError):
            raise  # the registry is to blame
        except Exception as error:  # fastavro raises whatever it meets
            why = str(error) or type(error).__name__
            raise ValueError(f"not an Avro record of schema {schema_id}: {why}, in {shown(data)}") from error
        return record if self._convert is None else self._convert(record)

    def deserialize_batch(self, data: Sequence[bytes]) -> list[Any]:
        """Decode records, to columns where that is possible and all were written with one schema.

        Raises:
            ValueError: the bytes are not records with a schema id, or do not fit the schemas.
            ServiceUnavailable: the registry does not answer.
        """
        columns = self._as_columns(data) if self._rows else None
        return list(map(self.deserialize, data)) if columns is None else columns.as_list()

    def _as_columns(self, data: Sequence[bytes]) -> Columns | None:
        if len(data) < 2 or len(data[0]) < HEADER.size or data[0][0] != 0:
            return None
        schema_id = HEADER.unpack_from(data[0])[1]
        if schema_id not in self._columns:
            try:
                self._columns[schema_id] = AvroColumns.of(self._writer(schema_id), self._schema)
            except (ConfigurationError, LookupError):
                return None  # the registry has no such schema: the error of a record says so
        columns = self._columns[schema_id]
        return None if columns is None else columns.of_values(data, data[0][: HEADER.size])

    def _writer(self, schema_id: int) -> AvroSchema:
        writer = self._writers.get(schema_id)
        if writer is None:
            writer = self._writers[schema_id] = AvroSchema(self._registry.schema(schema_id))
        return writer


class ConfluentRegistryAvroSerializationSchema(SerializationSchema):
    """Serializes Rows, tuples and dicts to Avro records whose schema is in a Confluent schema registry.

    The schema is registered when the first record is written. Create one with `for_generic`.
    """

    def __init__(self, subject: str, schema: AvroSchema, registry: SchemaRegistry) -> None:
        self._subject = subject
        self._schema = schema
        self._registry = registry
        self._convert = from_row(schema)
        self._header = b""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._subject, self._schema, self._registry)

    @staticmethod
    def for_generic(
        subject: str, schema: AvroSchema, url: str, registry_configs: Mapping[str, str] | None = None
    ) -> ConfluentRegistryAvroSerializationSchema:
        """Create a schema.

        Args:
            subject: The subject in the registry, e.g. ``payments-value``.
            schema: The schema of the records.
            url: The registry's address.
            registry_configs: Options of `holdfast.connectors.schema_registry.SchemaRegistry`, e.g. a password.

        Raises:
            ConfigurationError: an argument cannot be used.
        """
        return ConfluentRegistryAvroSerializationSchema(subject, schema, SchemaRegistry(url, registry_configs))

    def serialize(self, value: Any) -> bytes:
        """Encode a record.

        Raises:
            Exception: the record does not fit the schema.
            ConfigurationError: the registry refuses the schema.
            ServiceUnavailable: the registry does not answer.
        """
        if not self._header:
            self._header = HEADER.pack(0, self._registry.register(self._subject, self._schema.text))
        return self._header + self._schema.encode(self._convert(value))
