"""Schemas between records and bytes, for connectors and file sinks."""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic

from holdfast.common.system.jvm_only import refusing
from holdfast.common.types import Row
from holdfast.common.values.type_variables import IN, OUT
from holdfast.errors import ConfigurationError

__all__ = [
    "ByteArraySchema",
    "DeserializationSchema",
    "Encoder",
    "FlatDeserializationSchema",
    "RowFieldExtractorSchema",
    "SerializationSchema",
    "SimpleStringSchema",
]


class SerializationSchema(Generic[IN]):
    """Serializes records to bytes. Subclasses define `serialize`, which must not keep state between calls."""

    def serialize(self, value: IN) -> bytes | None:
        """Serialize a record; None writes no value (in Kafka: a tombstone).

        Raises:
            Exception: the record does not fit the schema.
        """
        raise NotImplementedError(f"{type(self).__name__} must define serialize(value)")

    def serialize_batch(self, values: Sequence[IN]) -> list[bytes | None]:
        """Serialize each record, in order."""
        serialize = self.serialize
        return [serialize(value) for value in values]


class DeserializationSchema(Generic[OUT]):
    """Deserializes bytes to records. Subclasses define `deserialize`, which must not keep state between calls."""

    def deserialize(self, data: bytes) -> OUT | None:
        """Deserialize one record; return None to emit nothing.

        Raises:
            Exception: the bytes do not fit the schema.
        """
        raise NotImplementedError(f"{type(self).__name__} must define deserialize(data)")

    def deserialize_batch(self, data: Sequence[bytes]) -> list[Any]:
        """Deserialize each byte string, in order; the result has None where no record is emitted."""
        deserialize = self.deserialize
        return [deserialize(item) for item in data]


class FlatDeserializationSchema(DeserializationSchema[OUT]):
    """Deserializes each byte string to any number of records, in order. Subclasses define `deserialize_flat`."""

    def deserialize_flat(self, data: bytes) -> list[OUT]:
        """Deserialize one byte string.

        Raises:
            Exception: the bytes do not fit the schema.
        """
        raise NotImplementedError(f"{type(self).__name__} must define deserialize_flat(data)")

    def deserialize(self, data: bytes) -> OUT | None:
        """Deserialize one byte string that holds at most one record, where there is no place for more: in lines of a file.

        Raises:
            ValueError: it holds several.
        """
        found = self.deserialize_flat(data)
        if len(found) > 1:
            raise ValueError(
                f"{len(found)} records are in one input, where one is taken: read the bytes or lines, and call "
                f"flat_map with the deserialize_flat of {type(self).__name__}"
            )
        return found[0] if found else None


def _codec(charset: str) -> str:
    try:
        return codecs.lookup(charset).name
    except LookupError:
        raise ConfigurationError(f"unknown charset {charset!r}") from None


class SimpleStringSchema(SerializationSchema[str], DeserializationSchema[str]):
    """Converts strings to bytes in a charset and back.

    Args:
        charset: the name of the charset.

    Raises:
        ConfigurationError: there is no such charset.
    """

    def __init__(self, charset: str = "UTF-8") -> None:
        self._charset = _codec(charset)

    def serialize(self, value: Any) -> bytes:
        """Encode a string.

        Raises:
            TypeError: the value is not a string.
        """
        if not isinstance(value, str):
            raise TypeError(f"SimpleStringSchema writes strings, got {value!r}; map the records to str first")
        return value.encode(self._charset)

    def serialize_batch(self, values: Sequence[Any]) -> list[bytes | None]:
        """Encode each string.

        Raises:
            TypeError: a value is not a string.
        """
        own = type(self).serialize is not SimpleStringSchema.serialize
        if not own and self._charset == "utf-8" and set(map(type, values)) == {str}:
            return list(map(str.encode, values))
        return super().serialize_batch(values)

    def deserialize(self, data: bytes) -> str:
        """Decode a string.

        Raises:
            UnicodeDecodeError: the bytes are not valid in this charset.
        """
        return str(data, self._charset)

    def deserialize_batch(self, data: Sequence[bytes]) -> list[Any]:
        """Decode each byte string."""
        if type(self).deserialize is not SimpleStringSchema.deserialize:
            return super().deserialize_batch(data)
        charset = self._charset
        if charset == "utf-8":
            with contextlib.suppress(TypeError):  # another buffer than bytes
                return list(map(bytes.decode, data))
        return [str(item, charset) for item in data]


class ByteArraySchema(SerializationSchema[bytes], DeserializationSchema[bytes]):
    """Passes bytes through unchanged."""

    def serialize(self, value: Any) -> bytes:
        """Return the value itself.

        Raises:
            TypeError: the value is not bytes.
        """
        if not isinstance(value, (bytes, bytearray)):
            raise TypeError(f"ByteArraySchema writes bytes, got {value!r}")
        return bytes(value)

    def deserialize(self, data: bytes) -> bytes:
        """Return the bytes themselves."""
        return data

    def deserialize_batch(self, data: Sequence[bytes]) -> list[Any]:
        """Return the byte strings themselves."""
        return list(data)


class RowFieldExtractorSchema(SerializationSchema[Row]):
    """Serializes one bytes field of a Row, e.g. field 0 as a Kafka record's key and field 1 as its value.

    Args:
        field_index: the field's position, from 0.

    Raises:
        ConfigurationError: the position is negative.
    """

    def __init__(self, field_index: int) -> None:
        if not isinstance(field_index, int) or field_index < 0:
            raise ConfigurationError(f"field_index must be a position from 0, got {field_index!r}")
        self._index = field_index

    def serialize(self, value: Any) -> bytes | None:
        """Return the field's bytes; None if the field is None.

        Raises:
            TypeError: the value is not a Row, or the field does not hold bytes.
            ValueError: the Row is too short.
        """
        if not isinstance(value, Row):
            raise TypeError(f"RowFieldExtractorSchema writes a field of a Row, got {value!r}")
        if self._index >= len(value):
            raise ValueError(f"RowFieldExtractorSchema: there is no field {self._index} in {value!r}")
        field = value[self._index]
        if field is not None and not isinstance(field, (bytes, bytearray)):
            raise TypeError(f"RowFieldExtractorSchema: field {self._index} must hold bytes, got {field!r}")
        return None if field is None else bytes(field)


class Encoder:
    """Record format of a row-wise file sink. Create one with `simple_string_encoder`."""

    def __init__(self, charset: str, text: Callable[[Any], str] = str) -> None:
        self._charset = _codec(charset)
        self._text = text

    def writing(self, text: Callable[[Any], str]) -> Encoder:
        """Return this encoder with another text for a record than ``str(record)``."""
        return Encoder(self._charset, text)

    @staticmethod
    def simple_string_encoder(charset_name: str = "UTF-8") -> Encoder:
        """Create an encoder of text lines: ``str(record)``, or Flink's text if the stream has a declared type.

        Raises:
            ConfigurationError: there is no such charset.
        """
        return Encoder(charset_name)

    def encode_batch(self, values: Sequence[Any]) -> bytes:
        """Encode the records, in order."""
        text = self._text
        return "".join([f"{text(value)}\n" for value in values]).encode(self._charset)


if not TYPE_CHECKING:
    __getattr__ = refusing(
        __name__,
        {
            "BulkWriterFactory": "it wraps an object of the JVM; use ParquetBulkWriters or AvroBulkWriters",
            "RowDataBulkWriterFactory": "it wraps an object of the JVM; use ParquetBulkWriters.for_row_type()",
        },
    )
