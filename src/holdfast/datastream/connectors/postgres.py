"""PostgreSQL: changes as a source, and tables as a sink, both exactly once; without a jar."""

from __future__ import annotations

from holdfast.connectors.postgres.cdc_source import PostgresCdcSource
from holdfast.connectors.postgres.row_changes import Change, Truncated
from holdfast.connectors.postgres.sink import PostgresSink

__all__ = ["Change", "PostgresCdcSource", "PostgresSink", "Truncated"]
