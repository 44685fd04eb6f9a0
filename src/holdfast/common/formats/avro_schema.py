"""Avro schemas: Avro's binary form to Rows, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from holdfast.common.formats.avro import AvroSchema, from_row, row_type, to_row
from holdfast.common.formats.avro_columns import AvroColumns
from holdfast.common.serialization import DeserializationSchema, SerializationSchema
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.typeinfo.base import shown
from holdfast.common.types import Row
from holdfast.errors import ConfigurationError

__all__ = ["AvroRowDeserializationSchema", "AvroRowSerializationSchema"]


def _schema(record_class: str | None, avro_schema_string: str | None, where: str) -> AvroSchema:
    if record_class is not None:
        raise ConfigurationError(f"{where}: a record class is a class of the JVM; give the schema, avro_schema_string=...")
    if avro_schema_string is None:
        raise ConfigurationError(f'{where} needs a schema: avro_schema_string=\'{{"type": "record", ...}}\'')
    return AvroSchema.parse_string(avro_schema_string)


class AvroRowDeserializationSchema(DeserializationSchema[Row]):
    """Deserializes records in Avro's binary form, without a header, to Rows. Times with a zone are in UTC.

    For records of a schema registry there is
    `holdfast.datastream.formats.avro_confluent.ConfluentRegistryAvroDeserializationSchema`.

    Args:
        record_class: PyFlink's name of a Java class; not supported.
        avro_schema_string: The schema as JSON text, the one that wrote the records.

    Raises:
        ConfigurationError: the schema is missing or wrong, or fastavro is not installed.

    Examples:
        >>> text = '{"type": "record", "name": "Payment", "fields": [{"name": "amount", "type": "double"}]}'
        >>> data = AvroRowSerializationSchema(avro_schema_string=text).serialize((2.5,))
        >>> AvroRowDeserializationSchema(avro_schema_string=text).deserialize(data)
        Row(amount=2.5)
    """

    def __init__(self, record_class: str | None = None, avro_schema_string: str | None = None) -> None:
        self._schema = _schema(record_class, avro_schema_string, type(self).__name__)
        self._convert = to_row(self._schema)
        self._columns = AvroColumns.of(self._schema)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (None, self._schema.text)

    def get_produced_type(self) -> TypeInformation:
        """The records' type."""
        return row_type(self._schema)

    def deserialize(self, data: bytes) -> Row:
        """Decode a record.

        Raises:
            ValueError: the bytes are not a record of the schema.
        """
        try:
            return cast(Row, self._convert(self._schema.decode(data)))
        except Exception as error:  # fastavro raises whatever it meets
            why = str(error) or type(error).__name__
            raise ValueError(f"not an Avro record of the schema: {why}, in {shown(data)}") from error

    def deserialize_batch(self, data: Sequence[bytes]) -> list[Any]:
        """Decode records, to columns where that is possible.

        Raises:
            ValueError: the bytes are not records of the schema.
        """
        columns = None if self._columns is None else self._columns.of_values(data)
        return list(map(self.deserialize, data)) if columns is None else columns.as_list()


class AvroRowSerializationSchema(SerializationSchema):
    """Serializes Rows, tuples and dicts to Avro's binary form, without a header. Times without a zone are in UTC.

    Args:
        record_class: PyFlink's name of a Java class; not supported.
        avro_schema_string: The schema as JSON text.

    Raises:
        ConfigurationError: the schema is missing or wrong, or fastavro is not installed.
    """

    def __init__(self, record_class: str | None = None, avro_schema_string: str | None = None) -> None:
        self._schema = _schema(record_class, avro_schema_string, type(self).__name__)
        self._convert = from_row(self._schema)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (None, self._schema.text)

    def serialize(self, value: Any) -> bytes:
        """Encode a record.

        Raises:
            Exception: the record does not fit the schema; names the field.
        """
        return self._schema.encode(self._convert(value))
