"""Avro records whose schemas are in a Confluent schema registry."""

from __future__ import annotations

from holdfast.connectors.confluent_avro import (
    ConfluentRegistryAvroDeserializationSchema,
    ConfluentRegistryAvroSerializationSchema,
)

__all__ = ["ConfluentRegistryAvroDeserializationSchema", "ConfluentRegistryAvroSerializationSchema"]
