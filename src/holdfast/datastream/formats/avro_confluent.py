"""Avro records whose schemas are in a Confluent schema registry, and Debezium's change events among them."""

from __future__ import annotations

from holdfast.connectors.confluent_avro import (
    ConfluentRegistryAvroDeserializationSchema,
    ConfluentRegistryAvroSerializationSchema,
)
from holdfast.connectors.debezium_avro import DebeziumAvroDeserializationSchema, DebeziumAvroSerializationSchema

__all__ = [
    "ConfluentRegistryAvroDeserializationSchema",
    "ConfluentRegistryAvroSerializationSchema",
    "DebeziumAvroDeserializationSchema",
    "DebeziumAvroSerializationSchema",
]
