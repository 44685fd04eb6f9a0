"""JSON objects as records, and Debezium's change events in JSON."""

from __future__ import annotations

from holdfast.common.formats.debezium import DebeziumJsonRowDeserializationSchema, DebeziumJsonRowSerializationSchema
from holdfast.common.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema

__all__ = [
    "DebeziumJsonRowDeserializationSchema",
    "DebeziumJsonRowSerializationSchema",
    "JsonRowDeserializationSchema",
    "JsonRowSerializationSchema",
]
