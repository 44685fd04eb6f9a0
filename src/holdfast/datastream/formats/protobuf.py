"""Protobuf messages as objects of their generated classes."""

from __future__ import annotations

from holdfast.common.formats.protobuf import ProtobufDeserializationSchema, ProtobufSerializationSchema

__all__ = ["ProtobufDeserializationSchema", "ProtobufSerializationSchema"]
