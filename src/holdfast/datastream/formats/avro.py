"""Avro: records in Avro's binary form, and Avro container files."""

from __future__ import annotations

from typing import Any

from holdfast.common.formats.avro import AvroSchema, GenericRecordAvroTypeInfo
from holdfast.common.formats.avro_schema import AvroRowDeserializationSchema, AvroRowSerializationSchema
from holdfast.connectors.file.bulk import AvroBulkWriters
from holdfast.connectors.file.source import FileSource
from holdfast.connectors.file.stream_format import StreamFormat

__all__ = [
    "AvroBulkWriters",
    "AvroInputFormat",
    "AvroRowDeserializationSchema",
    "AvroRowSerializationSchema",
    "AvroSchema",
    "GenericRecordAvroTypeInfo",
]


class AvroInputFormat(FileSource[dict[str, Any]]):
    """A source of the records of Avro container files, as dicts; for ``env.create_input`` or ``env.from_source``.

    Args:
        path: A file, or a directory of files.
        schema: The reader's schema, to which records of other schemas are converted.
    """

    def __init__(self, path: str, schema: AvroSchema) -> None:
        super().__init__(StreamFormat.avro(schema), [path])
