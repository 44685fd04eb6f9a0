"""The source and the sink of the programs that the fault tests kill, with the topics that the tests name."""

import json
import os
from collections.abc import Callable
from typing import Any

from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink, KafkaSource


def kafka_source(topic: str) -> KafkaSource:
    """All records of the topic in this environment variable."""
    builder = KafkaSource.builder().set_bootstrap_servers(os.environ["KAFKA"]).set_topics(os.environ[topic])
    return builder.set_starting_offsets("earliest").build()


def results_sink(key: Callable[[Any], str]) -> KafkaSink:
    """Results as JSON, exactly once; their topic begins the names of the transactions, as each test has one of its own."""
    serializer = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(os.environ["RESULTS_TOPIC"])
        .set_key_serialization_schema(key)
        .set_value_serialization_schema(json.dumps)
        .build()
    )
    return (
        KafkaSink.builder()
        .set_bootstrap_servers(os.environ["KAFKA"])
        .set_record_serializer(serializer)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix(os.environ["RESULTS_TOPIC"])
        .build()
    )
