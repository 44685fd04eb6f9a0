"""Arrow IPC files."""

from __future__ import annotations

from holdfast.connectors.file.bulk import ArrowBulkWriters

__all__ = ["ArrowBulkWriters"]
