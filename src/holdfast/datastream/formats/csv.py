"""Lines of separated values as records."""

from __future__ import annotations

from holdfast.common.formats_csv import CsvRowDeserializationSchema, CsvRowSerializationSchema

__all__ = ["CsvRowDeserializationSchema", "CsvRowSerializationSchema"]
