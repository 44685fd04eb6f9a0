from __future__ import annotations

import gc
import os
import pickle
import time
from typing import Any

import pytest

from holdfast.common.kafka_properties import consumer_properties, producer_properties, protocol_properties
from holdfast.common.serialization import SimpleStringSchema
from holdfast.connectors.base import JobInfo, Sink, Source, WriterContext
from holdfast.connectors.kafka.cluster import BrokerUnavailable
from holdfast.connectors.kafka.offsets import KafkaOffsetsInitializer
from holdfast.connectors.kafka.sink import transactions
from holdfast.connectors.kafka.sink.outbox import OutboxFile, OutgoingBatch, read_outbox
from holdfast.connectors.kafka.sink.producer_record import KafkaSinkContext
from holdfast.connectors.kafka.sink.record_schema import serializer_of
from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.kafka import (
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
    KafkaTopicPartition,
    KafkaTopicSelector,
)
from holdfast.errors import ConfigurationError, CorruptFile, UserCodeError


def builder() -> Any:
    return KafkaSource.builder().set_bootstrap_servers("localhost:9092")


def a_source_needs_no_more_than_servers_and_topics() -> None:
    source = builder().set_topics("a", "b").build()
    assert (source.topics, source.bounded, source.deserializer) == (("a", "b"), False, None)
    assert source.starting_offsets == KafkaOffsetsInitializer.earliest()
    assert isinstance(source, Source)
    assert pickle.loads(pickle.dumps(source)) == source


def the_offsets_may_be_given_by_name() -> None:
    assert (
        builder().set_topics("a").set_starting_offsets("latest").build().starting_offsets == KafkaOffsetsInitializer.latest()
    )
    bounded = builder().set_topics("a").set_bounded("latest").build()
    assert (bounded.bounded, bounded.stopping_offsets) == (True, KafkaOffsetsInitializer.latest())
    with pytest.raises(ConfigurationError, match="unknown offsets 'oldest'"):
        builder().set_starting_offsets("oldest")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KafkaSource.builder().set_topics("a").build(), "set_bootstrap_servers"),
        (lambda: builder().build(), "set_topics"),
        (lambda: builder().set_topics("\ud800"), "topics are named by strings"),
        (lambda: builder().set_partitions({KafkaTopicPartition("\ud800", 0)}).build(), "topics are named by strings"),
        (lambda: builder().set_topics("a").set_group_id("\ud800").build(), "surrogates not allowed"),
        (lambda: builder().set_topics("a").set_topic_pattern("b"), "cannot be set in addition"),
        (lambda: builder().set_topic_pattern("("), "no regular expression"),
        (lambda: builder().set_topics("a").set_property("fetch.sizes", "1").build(), "fetch.sizes"),
        (lambda: builder().set_topics("a").set_property("enable.auto.commit", "true").build(), "part of the checkpoint"),
        (lambda: builder().set_topics("a").set_property("isolation.level", "x").build(), "isolation.level"),
        (lambda: builder().set_topics("a").set_property("auto.offset.reset", "x").build(), "auto.offset.reset"),
        (lambda: builder().set_topics("a").set_property("partition.discovery.interval.ms", "x").build(), "milliseconds"),
        (lambda: builder().set_value_only_deserializer(5), "not int"),
        (lambda: KafkaRecordSerializationSchema.builder().build(), "set_topic"),
        (lambda: KafkaRecordSerializationSchema.builder().set_topic("a").set_topic("b"), "set already"),
        (lambda: KafkaSink.builder().set_bootstrap_servers("b").build(), "set_record_serializer"),
        (lambda: KafkaSink.builder().set_record_serializer(SimpleStringSchema()), "KafkaRecordSerializationSchema.builder"),
        (lambda: KafkaSink.builder().set_delivery_guarantee("exactly"), "DeliveryGuarantee"),
    ],
)
def test_invalid_arguments_are_refused_by_the_builder(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def a_sink_is_built_as_in_pyflink() -> None:
    class ByLength(KafkaTopicSelector):
        def apply(self, data: Any) -> str:
            return f"topic-{len(data)}"

    serializer = (
        KafkaRecordSerializationSchema.builder()
        .set_topic_selector(ByLength())
        .set_key_serialization_schema(lambda v: v[:1])
        .set_value_serialization_schema(SimpleStringSchema())
        .set_header_provider(lambda v: {"length": str(len(v))})
        .build()
    )
    sink = (
        KafkaSink.builder()
        .set_bootstrap_servers("localhost:9092")
        .set_record_serializer(serializer)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix("p")
        .build()
    )
    assert isinstance(sink, Sink)
    out = serializer_of(serializer).to_batch(["ab", "c"], [1, 2], KafkaSinkContext({}, "u"))
    assert out == OutgoingBatch(
        ["topic-2", "topic-1"], [b"ab", b"c"], [b"a", b"c"], [1, 2], [[("length", b"2")], [("length", b"1")]]
    )


def a_record_without_a_schema_must_be_text_or_bytes() -> None:
    serializer = serializer_of(KafkaRecordSerializationSchema.builder().set_topic("t").build())
    assert serializer.to_batch(["é", b"x", None], None, KafkaSinkContext({}, "u")).values == ["é".encode(), b"x", None]
    with pytest.raises(UserCodeError, match="must be str or bytes, not dict") as caught:
        serializer.to_batch(["fine", {"a": 1}], None, KafkaSinkContext({}, "sink-1"))
    assert (caught.value.record, caught.value.uid) == ("{'a': 1}", "sink-1")


def an_outbox_file_gives_back_what_was_put_in() -> None:
    batches = [
        OutgoingBatch("t", [b"a", None], [b"k", None], [1, 2], [[("h", b"v"), ("n", None)], []]),
        OutgoingBatch(["a", "b"], [b"", b"x" * 100_000]),
    ]
    file = OutboxFile()
    for batch in batches:
        file.add(batch)
    data = file.finish()
    back = list(read_outbox(data, "f"))
    assert [b.values for b in back] == [b.values for b in batches]
    assert [(b.topics, b.keys, b.timestamps) for b in back] == [(b.topics, b.keys, b.timestamps) for b in batches]
    assert [tuple(h) for h in back[0].headers[0]] == [("h", b"v"), ("n", None)]  # type: ignore[index]
    assert list(read_outbox(OutboxFile().finish(), "f")) == []
    for damaged in (data[:-1], data[:20] + b"x" + data[21:], b"", b"something else entirely"):
        with pytest.raises(CorruptFile):
            list(read_outbox(damaged, "f"))


def an_outbox_file_of_version_1_can_be_read() -> None:
    golden = bytes.fromhex(GOLDEN_OUTBOX)
    (batch,) = read_outbox(golden, "golden")
    assert batch == OutgoingBatch("alerts", [b"value-1", b"value-2"], [b"k1", None], [5, 6])


GOLDEN_OUTBOX = (
    "48464b4f0128b52ffd00484901000000002595a6616c6572747392c40776616c75652d31c40776616c75652d3292c4026b31"
    "c0920506c09573d97f910bdcd1"
)


def the_properties_of_java_programs_are_understood() -> None:
    java = {
        "bootstrap.servers": "a:1, b:2",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": 'org.apache.ScramLoginModule required username="me" password="it\'s";',
        "ssl.ca.location": "/ca.pem",
        "ssl.endpoint.identification.algorithm": "",
        "fetch.max.wait.ms": "100",
        "key.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
        "enable.auto.commit": "false",
    }
    consumer = consumer_properties(java)
    assert (consumer["sasl.username"], consumer["sasl.password"], consumer["fetch.wait.max.ms"]) == ("me", "it's", "100")
    assert "key.deserializer" not in consumer
    assert consumer["enable.auto.commit"] is False
    assert producer_properties({"max.request.size": 5, "buffer.memory": 1 << 20})["queue.buffering.max.kbytes"] == 1024
    assert protocol_properties(java) == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "me",
        "sasl_plain_password": "it's",
        "ssl_cafile": "/ca.pem",
        "ssl_check_hostname": False,
    }
    with pytest.raises(ConfigurationError, match="PEM"):
        consumer_properties({"ssl.truststore.location": "/x.jks"})
    with pytest.raises(ConfigurationError, match="OAUTHBEARER"):
        protocol_properties({"sasl.mechanism": "OAUTHBEARER"})


def a_source_of_given_partitions_reads_their_topics() -> None:
    source = builder().set_partitions({KafkaTopicPartition("a", 1), KafkaTopicPartition("b", 0)}).build()
    assert source.topics == ("a", "b")


def held() -> tuple[int, int]:
    """Threads and open files of this process."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def await_no_more_than(before: tuple[int, int]) -> None:
    """A thread that has ended is seen for a moment longer."""
    until = time.monotonic() + 300
    while any(now > then for now, then in zip(held(), before)) and time.monotonic() < until:
        time.sleep(0.01)
    assert all(now <= then for now, then in zip(held(), before)), (held(), before)


def a_writer_that_is_closed_ends_its_client_without_the_cycle_collector() -> None:
    serializer = KafkaRecordSerializationSchema.builder().set_topic("t").set_value_serialization_schema(SimpleStringSchema())
    sink = KafkaSink.builder().set_bootstrap_servers("127.0.0.1:1").set_record_serializer(serializer.build()).build()
    gc.disable()
    try:
        before = held()
        sink.create_writer(WriterContext(JobInfo("j", "job", 1, None), "sink", 0, 1)).close()
        await_no_more_than(before)
    finally:
        gc.enable()


def the_transaction_client_leaves_nothing_of_its_attempts_to_find_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_ATTEMPT_S", 0.1)
    before = held()
    client = transactions.TransactionClient({"bootstrap.servers": "127.0.0.1:1"}, budget=0.3)
    with pytest.raises(BrokerUnavailable, match=r"could not list transactions at Kafka 127\.0\.0\.1:1"):
        client.list("")
    await_no_more_than(before)


def the_arguments_of_a_constructor_are_those_of_the_builder() -> None:
    built = builder().set_topics("a", "b").set_group_id("g").set_bounded("latest").set_value_only_deserializer(int)
    source = KafkaSource(
        bootstrap_servers="localhost:9092", topics=["a", "b"], group_id="g", bounded="latest", value_only_deserializer=int
    )
    assert source == built.build()
    schemas = KafkaRecordSerializationSchema.builder().set_topic("t").set_value_serialization_schema(str)
    by_builder = KafkaSink.builder().set_bootstrap_servers("localhost:9092").set_record_serializer(schemas.build()).build()
    records = KafkaRecordSerializationSchema(topic="t", value_serialization_schema=str)
    assert KafkaSink(bootstrap_servers="localhost:9092", record_serializer=records) == by_builder


SERVERS = {"bootstrap_servers": "localhost:9092"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KafkaSource(topics="a"), "argument bootstrap_servers"),
        (lambda: KafkaSource(**SERVERS), "arguments topics, topic_pattern and partitions"),
        (lambda: KafkaSource(**SERVERS, topics="a", topic_pattern="b"), "a topic pattern cannot be set in addition"),
        (lambda: KafkaSource(**SERVERS, topics=[5]), "topics are named by strings, got 5"),
        (lambda: KafkaSource(**SERVERS, topic_pattern="("), "no regular expression"),
        (lambda: KafkaSource(**SERVERS, topics="a", bounded="latest", unbounded="latest"), "not of both"),
        (lambda: KafkaSource(**SERVERS, topics="a", starting_offsets="oldest"), "unknown offsets 'oldest'"),
        (lambda: KafkaSource(**SERVERS, topics="a", value_only_deserializer=5), "not int"),
        (lambda: KafkaSource(**SERVERS, topics="a", deserializer=lambda: 5), "is called with"),
        (lambda: KafkaSource(**SERVERS, topics="a", properties={"fetch.sizes": "1"}), "fetch.sizes"),
        (lambda: KafkaSink(**SERVERS, record_serializer=SimpleStringSchema()), "KafkaRecordSerializationSchema.builder"),
        (lambda: KafkaRecordSerializationSchema(), "arguments topic and topic_selector"),
        (lambda: KafkaRecordSerializationSchema(topic="a", topic_selector=str), "set already"),
        (lambda: KafkaRecordSerializationSchema(topic="a", key_serialization_schema=5), "not int"),
        (lambda: KafkaRecordSerializationSchema(topic="a", upsert_mode=True), "upserts need a key"),
    ],
)
def an_invalid_argument_is_refused_by_the_constructor(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
