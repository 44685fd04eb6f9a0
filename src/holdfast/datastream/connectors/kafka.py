"""Kafka topics as source and sink: PyFlink's builders, on confluent-kafka, without a jar."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.common.system.jvm_only import refusing
from holdfast.connectors.kafka.offsets import KafkaOffsetResetStrategy, KafkaOffsetsInitializer, KafkaTopicPartition
from holdfast.connectors.kafka.sink.producer_record import KafkaSinkContext, ProducerRecord
from holdfast.connectors.kafka.sink.record_schema import (
    KafkaRecordSerializationSchema,
    KafkaRecordSerializationSchemaBuilder,
    KafkaTopicSelector,
)
from holdfast.connectors.kafka.sink.sink import KafkaSink, KafkaSinkBuilder
from holdfast.connectors.kafka.source.consumer_record import ConsumerRecord, KafkaRecordDeserializationSchema
from holdfast.connectors.kafka.source.source import KafkaSource, KafkaSourceBuilder

__all__ = [
    "ConsumerRecord",
    "KafkaOffsetResetStrategy",
    "KafkaOffsetsInitializer",
    "KafkaRecordDeserializationSchema",
    "KafkaRecordSerializationSchema",
    "KafkaRecordSerializationSchemaBuilder",
    "KafkaSink",
    "KafkaSinkBuilder",
    "KafkaSinkContext",
    "KafkaSource",
    "KafkaSourceBuilder",
    "KafkaTopicPartition",
    "KafkaTopicSelector",
    "ProducerRecord",
]


if not TYPE_CHECKING:
    __getattr__ = refusing(
        __name__,
        {
            "FlinkKafkaConsumer": "it is Flink's older source on the JVM; use KafkaSource.builder()",
            "FlinkKafkaConsumerBase": "it is Flink's older source on the JVM; use KafkaSource.builder()",
            "FlinkKafkaProducer": "it is Flink's older sink on the JVM; use KafkaSink.builder()",
            "FlinkKafkaProducerBase": "it is Flink's older sink on the JVM; use KafkaSink.builder()",
            "Semantic": "it belongs to FlinkKafkaProducer; use DeliveryGuarantee",
        },
    )
