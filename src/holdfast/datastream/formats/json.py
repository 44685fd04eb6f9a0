"""JSON objects as records."""

from __future__ import annotations

from holdfast.common.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema

__all__ = ["JsonRowDeserializationSchema", "JsonRowSerializationSchema"]
