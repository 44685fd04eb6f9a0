"""Avro records with the id of their schema in a Confluent schema registry: byte 0, the id in 4 bytes, Avro's binary form."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from holdfast.common.avro import AvroSchema, GenericRecordAvroTypeInfo, from_row, row_type, to_row
from holdfast.common.serialization import DeserializationSchema, SerializationSchema
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.typeinfo.base import shown
from holdfast.connectors.schema_registry import SchemaRegistry
from holdfast.errors import ServiceUnavailable

__all__ = ["ConfluentRegistryAvroDeserializationSchema", "ConfluentRegistryAvroSerializationSchema"]

_HEADER = struct.Struct(">bI")


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
        return row_type(self._schema) if self._rows else GenericRecordAvroTypeInfo(self._schema)

    def deserialize(self, data: bytes) -> Any:
        """Decode a record.

        Raises:
            ValueError: the bytes are not a record with a schema id, or do not fit the schemas.
            ServiceUnavailable: the registry does not answer.
        """
        if len(data) < _HEADER.size or data[0] != 0:
            raise ValueError(f"{shown(data)} does not begin with the id of a schema in a registry (byte 0 and 4 bytes)")
        schema_id = _HEADER.unpack_from(data)[1]
        try:
            writer = self._writers.get(schema_id)
            if writer is None:
                writer = self._writers[schema_id] = AvroSchema(self._registry.schema(schema_id))
            record = self._schema.decode(data[_HEADER.size :], writer)
        except ServiceUnavailable:
            raise
        except Exception as error:  # fastavro raises whatever it meets
            why = str(error) or type(error).__name__
            raise ValueError(f"not an Avro record of schema {schema_id}: {why}, in {shown(data)}") from error
        return record if self._convert is None else self._convert(record)


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
            self._header = _HEADER.pack(0, self._registry.register(self._subject, self._schema.text))
        return self._header + self._schema.encode(self._convert(value))
