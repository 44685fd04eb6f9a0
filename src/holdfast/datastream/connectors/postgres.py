"""PostgreSQL's changes as a source, without a jar."""

from __future__ import annotations

from holdfast.connectors.postgres.cdc_source import PostgresCdcSource
from holdfast.connectors.postgres.row_changes import Change, Truncated

__all__ = ["Change", "PostgresCdcSource", "Truncated"]
