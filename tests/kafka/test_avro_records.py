"""Avro records of a schema registry in Kafka, and what a job does with bad records and a dead registry."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastavro", reason="needs holdfast[avro]")
sys.path.append(str(Path(__file__).resolve().parents[1] / "formats"))

from registry_server import RegistryServer

from holdfast.common import RestartStrategies, Row, RowKind, Types, WatermarkStrategy
from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from holdfast.datastream.formats.avro import AvroSchema
from holdfast.datastream.formats.avro_confluent import (
    ConfluentRegistryAvroDeserializationSchema,
    ConfluentRegistryAvroSerializationSchema,
    DebeziumAvroDeserializationSchema,
    DebeziumAvroSerializationSchema,
)
from holdfast.errors import ConfigurationError, ServiceUnavailable, UserCodeError
from holdfast.testing import InProcessEnvironment
from holdfast.testing.kafka import KafkaBroker
from kafka_fixtures import produce, read_all

pytestmark = pytest.mark.kafka

PAYMENT = AvroSchema.parse_string(
    json.dumps(
        {"type": "record", "name": "P", "fields": [{"name": "shop", "type": "string"}, {"name": "amount", "type": "long"}]}
    )
)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[RegistryServer]:
    monkeypatch.setattr("holdfast.connectors.schema_registry._PAUSES_S", (0.001,))
    with RegistryServer() as server:
        yield server


def source(kafka: KafkaBroker, topic: str, registry: RegistryServer) -> KafkaSource:
    builder = KafkaSource.builder().set_bootstrap_servers(kafka.bootstrap_servers).set_topics(topic)
    schema = ConfluentRegistryAvroDeserializationSchema.for_row(PAYMENT, registry.url)
    return builder.set_bounded(KafkaOffsetsInitializer.latest()).set_value_only_deserializer(schema).build()


def avro(registry: RegistryServer, *payments: tuple[str, int]) -> list[bytes]:
    write = ConfluentRegistryAvroSerializationSchema.for_generic("in-value", PAYMENT, registry.url)
    return [write.serialize(payment) for payment in payments]


def a_job_reads_and_writes_records_of_the_registry(
    kafka: KafkaBroker, new_topic: Callable[..., str], registry: RegistryServer
) -> None:
    given, taken = new_topic(), new_topic()
    produce(kafka.bootstrap_servers, given, avro(registry, ("a", 3), ("b", 4)))
    env = InProcessEnvironment()
    payments = env.from_source(source(kafka, given, registry), WatermarkStrategy.no_watermarks(), "payments")
    serializer = KafkaRecordSerializationSchema.builder().set_topic(taken)
    written = ConfluentRegistryAvroSerializationSchema.for_generic("out-value", PAYMENT, registry.url)
    sink = KafkaSink.builder().set_bootstrap_servers(kafka.bootstrap_servers)
    sink = sink.set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE).set_transactional_id_prefix(taken)
    sink = sink.set_record_serializer(serializer.set_value_serialization_schema(written).build())
    payments.map(lambda payment: Row(shop=payment.shop, amount=2 * payment.amount)).sink_to(sink.build())
    env.execute("avro")
    read = ConfluentRegistryAvroDeserializationSchema.for_generic(PAYMENT, registry.url)
    values = [read.deserialize(message.value()) for message in read_all(kafka.bootstrap_servers, taken)]
    assert values == [{"shop": "a", "amount": 6}, {"shop": "b", "amount": 8}]


ORDERS = Types.ROW_NAMED(["id", "city"], [Types.LONG(), Types.STRING()])


def a_job_reads_and_writes_debeziums_events(
    kafka: KafkaBroker, new_topic: Callable[..., str], registry: RegistryServer
) -> None:
    given, taken = new_topic(), new_topic()
    write = DebeziumAvroSerializationSchema(ORDERS, given, registry.url)
    rows = [Row(id=1, city="Pune"), Row.of_kind(RowKind.UPDATE_BEFORE, id=1, city="Pune")]
    rows += [Row.of_kind(RowKind.UPDATE_AFTER, id=1, city="Bonn"), Row.of_kind(RowKind.DELETE, id=1, city="Bonn")]
    produce(kafka.bootstrap_servers, given, [*write.serialize_changes(rows)[1], None])

    def changes(topic: str) -> Any:
        builder = KafkaSource.builder().set_bootstrap_servers(kafka.bootstrap_servers).set_topics(topic)
        schema = DebeziumAvroDeserializationSchema(ORDERS, registry.url)
        source = builder.set_bounded(KafkaOffsetsInitializer.latest()).set_value_only_deserializer(schema).build()
        env = InProcessEnvironment().set_restart_strategy(RestartStrategies.no_restart())
        return env.from_source(source, WatermarkStrategy.no_watermarks(), "orders")

    copy = DebeziumAvroSerializationSchema(ORDERS, taken, registry.url, primary_key=["id"])
    record = KafkaRecordSerializationSchema(
        topic=taken, key_serialization_schema=copy.keys(), value_serialization_schema=copy
    )
    sink = KafkaSink.builder().set_bootstrap_servers(kafka.bootstrap_servers).set_record_serializer(record)
    sink = sink.set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE).set_transactional_id_prefix(taken)
    stream = changes(given)
    stream.sink_to(sink.build())
    stream.get_execution_environment().execute("debezium")
    with changes(taken).execute_and_collect() as results:
        assert list(results) == rows
    assert len(set(registry.schemas)) == 3  # of the events of both topics, and of the keys
    produce(kafka.bootstrap_servers, taken, [b"no avro"])
    with pytest.raises(UserCodeError, match=rf"(?s)byte 0 and 4 bytes.*topic {taken}, partition 0, offset \d"):
        list(changes(taken).execute_and_collect())


def a_record_that_is_not_avro_is_named_by_partition_and_offset(
    kafka: KafkaBroker, new_topic: Callable[..., str], registry: RegistryServer
) -> None:
    topic = new_topic()
    produce(kafka.bootstrap_servers, topic, [*avro(registry, ("a", 3)), b"no avro"])
    env = InProcessEnvironment().set_restart_strategy(RestartStrategies.no_restart())
    env.from_source(source(kafka, topic, registry), WatermarkStrategy.no_watermarks(), "payments").print()
    with pytest.raises(UserCodeError, match=rf"does not parse: topic {topic}, partition 0, offset 1, value b'no avro'"):
        env.execute("bad")


def a_registry_that_refuses_is_no_fault_of_the_record(
    kafka: KafkaBroker, new_topic: Callable[..., str], registry: RegistryServer
) -> None:
    topic = new_topic()
    produce(kafka.bootstrap_servers, topic, avro(registry, ("a", 3)))
    registry.password = "user:secret"
    env = InProcessEnvironment().set_restart_strategy(RestartStrategies.no_restart())
    env.from_source(source(kafka, topic, registry), WatermarkStrategy.no_watermarks(), "payments").print()
    with pytest.raises(ConfigurationError, match=r"refused \(401\).*check the user and password"):
        env.execute("refused")


def a_job_waits_for_a_registry_that_is_down(
    kafka: KafkaBroker, new_topic: Callable[..., str], registry: RegistryServer
) -> None:
    topic = new_topic()
    produce(kafka.bootstrap_servers, topic, avro(registry, ("a", 3), ("b", 4)))
    registry.failures = 1_000_000
    asked = len(registry.requests)
    env = InProcessEnvironment()
    payments = env.from_source(source(kafka, topic, registry), WatermarkStrategy.no_watermarks(), "payments")
    recovered = threading.Thread(target=_recover, args=(registry, asked + 6))
    recovered.start()
    with payments.map(lambda payment: payment.amount).execute_and_collect() as results:
        assert list(results) == [3, 4]
    recovered.join()

    registry.failures = 1_000_000
    env = InProcessEnvironment().set_restart_strategy(RestartStrategies.no_restart())
    env.from_source(source(kafka, topic, registry), WatermarkStrategy.no_watermarks(), "payments").print()
    with pytest.raises(ServiceUnavailable, match=r"does not answer GET /schemas/ids/1: 503.*Start it"):
        env.execute("down")


def _recover(registry: RegistryServer, requests: int) -> None:
    """Let the registry answer again after some requests: the job has restarted several times."""
    with registry.asked:
        registry.asked.wait_for(lambda: len(registry.requests) >= requests)
        registry.failures = 0
