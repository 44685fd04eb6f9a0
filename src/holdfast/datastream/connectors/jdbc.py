"""Databases as a sink, with PyFlink's names; on Python's libraries, without a jar."""

from __future__ import annotations

from holdfast.connectors.jdbc_options import JdbcConnectionOptions, JdbcExecutionOptions
from holdfast.connectors.jdbc_sink import JdbcSink

__all__ = ["JdbcConnectionOptions", "JdbcExecutionOptions", "JdbcSink"]
