"""Lines of separated values as records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.common.formats.csv import CsvRowDeserializationSchema, CsvRowSerializationSchema
from holdfast.common.system.jvm_only import refusing

__all__ = ["CsvRowDeserializationSchema", "CsvRowSerializationSchema"]


if not TYPE_CHECKING:
    __getattr__ = refusing(
        __name__,
        {
            "CsvSchema": "it belongs to a CSV reader on the JVM; use CsvRowDeserializationSchema",
            "CsvSchemaBuilder": "it belongs to a CSV reader on the JVM; use CsvRowDeserializationSchema",
            "CsvReaderFormat": "it belongs to a CSV reader on the JVM; use CsvRowDeserializationSchema",
            "CsvBulkWriters": "it belongs to a CSV reader on the JVM; use CsvRowDeserializationSchema",
        },
    )
