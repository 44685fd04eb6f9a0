"""Parquet files."""

from __future__ import annotations

from holdfast.connectors.file.bulk import ParquetBulkWriters

__all__ = ["ParquetBulkWriters"]
