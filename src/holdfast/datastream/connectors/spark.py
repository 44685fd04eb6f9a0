"""Sinks of Spark: tables and directories that it writes, and Python data sources; a checkpoint's output at a time."""

from __future__ import annotations

from holdfast.spark.data_source_sink import DataSourceSink
from holdfast.spark.table_sink import SparkTableSink

__all__ = ["DataSourceSink", "SparkTableSink"]
