"""JSON objects as records."""

from __future__ import annotations

from holdfast.common.formats_json import JsonRowDeserializationSchema, JsonRowSerializationSchema

__all__ = ["JsonRowDeserializationSchema", "JsonRowSerializationSchema"]
