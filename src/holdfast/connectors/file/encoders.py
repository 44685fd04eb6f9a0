"""Encoders: records as bytes of a file, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO, Protocol

import orjson

from holdfast.common.formats.json import plain_row, with_named_floats
from holdfast.common.serialization import SerializationSchema
from holdfast.common.types import Row
from holdfast.common.values.type_variables import IN
from holdfast.connectors.file.chunks import BulkWriter, Chunks, EncodedChunks

__all__ = ["BatchEncoder", "EncodedParts", "JsonLinesEncoder", "SchemaEncoder"]


class BatchEncoder(Protocol[IN]):
    """Encodes records as bytes of a file, as every `holdfast.common.Encoder` does."""

    def encode_batch(self, values: Sequence[IN]) -> bytes:
        """Encode the records, in order."""


class JsonLinesEncoder:
    r"""Writes each record as JSON on a line of its own; named Rows as objects, NaN and infinities as strings.

    Examples:
        >>> JsonLinesEncoder().encode_batch([{"a": 1}, [True, None]])
        b'{"a":1}\n[true,null]\n'
    """

    def encode_batch(self, values: Sequence[Any]) -> bytes:
        """Encode the records as lines.

        Raises:
            TypeError: JSON cannot represent a record.
        """
        options = orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
        data = b"".join([orjson.dumps(value, _jsonable, options) for value in values])
        if b"null" in data:  # maybe of NaN or an infinity
            data = b"".join([orjson.dumps(with_named_floats(value), _jsonable, options) for value in values])
        return data


def _jsonable(value: Any) -> Any:
    if isinstance(value, Row):
        return plain_row(value)
    raise TypeError(f"JSON has no form for a {type(value).__qualname__}")


class SchemaEncoder:
    """Writes each record on a line of its own, serialized by a schema."""

    def __init__(self, schema: SerializationSchema) -> None:
        self._schema = schema

    def encode_batch(self, values: Sequence[Any]) -> bytes:
        """Encode the records as lines; those without bytes are left out."""
        lines = [data for data in self._schema.serialize_batch(values) if data is not None]
        return b"".join([line if line.endswith(b"\n") else line + b"\n" for line in lines])


class EncodedParts:
    """Makes writers of part files that hold one encoded record after the other."""

    def __init__(self, encoder: BatchEncoder) -> None:
        self._encoder = encoder

    def create(self, file: BinaryIO) -> BulkWriter:
        """Create the writer of a new part file."""
        return _EncodedPart(self._encoder, file)

    def chunks(self) -> Chunks:
        """The form in which records wait for their file."""
        return EncodedChunks(self.create)


class _EncodedPart:
    def __init__(self, encoder: BatchEncoder, file: BinaryIO) -> None:
        self._encoder = encoder
        self._file = file

    def add(self, values: Sequence[Any]) -> None:
        self._file.write(self._encoder.encode_batch(values))

    def add_encoded(self, data: bytes) -> None:
        """Add encoded records."""
        self._file.write(data)

    def finish(self) -> None:
        """Nothing is left to write."""

    def abandon(self) -> None:
        """Nothing is held."""
