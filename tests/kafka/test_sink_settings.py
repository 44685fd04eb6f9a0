"""What the sink checks and says before and while it writes: topics, retention, properties."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from awaiting import until
from holdfast.common.kafka_properties import consumer_properties, producer_properties
from holdfast.connectors.base import JobInfo, WriterContext
from holdfast.connectors.delivery import DeliveryGuarantee
from holdfast.connectors.kafka.sink import tokens
from holdfast.connectors.kafka.sink.committable import KafkaCommittable
from holdfast.connectors.kafka.sink.producer_record import ProducerRecord
from holdfast.connectors.kafka.sink.producers import TransactionalProducer
from holdfast.connectors.kafka.sink.serializer import RecordSerializer
from holdfast.connectors.kafka.sink.sink import KafkaSink
from holdfast.connectors.kafka.sink.tokens import create_token_topic, token_topic
from holdfast.connectors.kafka.sink.transactions import Prepared
from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema
from holdfast.errors import ConfigurationError, HoldfastError, UserCodeError
from holdfast.runtime.driver.sink_checks import check_exclusive
from holdfast.testing.kafka import KafkaBroker, KafkaCluster, create_topic
from kafka_fixtures import committed_values
from kafka_sink_helpers import Driver

pytestmark = pytest.mark.kafka

_DAY_MS = 86_400_000


def sink_of(servers: str, topic: Any, guarantee: DeliveryGuarantee, **properties: Any) -> KafkaSink:
    prefix = topic if isinstance(topic, str) else "chosen"
    return KafkaSink(
        properties={"bootstrap.servers": servers, **properties},
        record_serializer=RecordSerializer(topic),
        delivery_guarantee=guarantee,
        transactional_id_prefix=prefix,
    )


def a_record_that_the_broker_refuses_is_told_with_its_own_reason(kafka, new_topic):
    sink = sink_of(kafka.bootstrap_servers, new_topic(1), DeliveryGuarantee.AT_LEAST_ONCE)
    writer = sink.create_writer(WriterContext(JobInfo("j", "j", 1, None), "sink", 0, 1))
    now = round(time.time() * 1000)
    writer.begin_epoch(1, "a", 0)
    writer.write(["in time", "tomorrow", "in time"], [now, now + _DAY_MS, now])
    with pytest.raises(HoldfastError, match="INVALID_TIMESTAMP"):
        writer.prepare_commit()
    with pytest.raises(HoldfastError, match="INVALID_TIMESTAMP"):
        writer.close()


_REFUSED: dict[str, tuple[dict[str, str], ProducerRecord, str]] = {
    "too large for the topic": (
        {"max_message_bytes": "2000"},
        ProducerRecord("", value="x" * 9_999),
        "max.message.bytes",
    ),
    "too large for the client": ({}, ProducerRecord("", value="x" * 3_000_000), "message.max.bytes"),
    "no key": ({"cleanup_policy": "compact"}, ProducerRecord("", value="x"), "no record without a key"),
    "unknown partition": ({}, ProducerRecord("", key="k", value="x", partition=7), "no such partition"),
    "in the future": ({}, ProducerRecord("", key="k", value="x", timestamp=33_000_000_000_000), "LogAppendTime"),
    "no topic's name": ({}, ProducerRecord("a b/c", key="k", value="x"), "No topic can have this name"),
}


@pytest.mark.parametrize("case", _REFUSED)
@pytest.mark.parametrize("guarantee", list(DeliveryGuarantee))
def test_a_record_that_kafka_never_takes_is_named(
    kafka: Any, new_topic: Any, tmp_path: Path, case: str, guarantee: DeliveryGuarantee
) -> None:
    config, bad, remedy = _REFUSED[case]
    topic = new_topic(**config)

    class Whole(KafkaRecordSerializationSchema):
        def serialize(self, element: Any, context: Any, timestamp: int | None) -> ProducerRecord:
            record = bad if element == "bad" else ProducerRecord("", key="k", value=element)
            return record if record.topic else record._replace(topic=topic)

    sink = KafkaSink(
        bootstrap_servers=kafka.bootstrap_servers,
        record_serializer=Whole(),
        delivery_guarantee=guarantee,
        transactional_id_prefix=topic,
    )
    sink.validate()
    records = []
    for _ in range(2):  # the attempt after a restart names the same record, so the job ends
        writer = sink.create_writer(WriterContext(JobInfo("j", "j", 1, str(tmp_path), identity="0a"), "sink", 0, 1))
        writer.begin_epoch(1, "a", 0)
        with pytest.raises(UserCodeError, match=remedy) as raised:  # noqa: PT012
            writer.write(["good", "bad", "good"], None)
            writer.prepare_commit()
            writer.close()
        writer.abort_epoch()
        with contextlib.suppress(HoldfastError):
            writer.close()
        records.append(raised.value.record)
        assert raised.value.uid == "sink"
    assert records[0] == records[1]
    assert f"topic {bad.topic or topic}, key {None if bad.key is None else b'k'}, value b'x" in records[0]


def written(sink: KafkaSink, storage: Path, values: list[str], timestamps: list[int]) -> None:
    sink.validate()
    writer = sink.create_writer(WriterContext(JobInfo("j", "j", 1, str(storage)), "sink", 0, 1))
    for epoch in (1, 2):
        writer.begin_epoch(epoch, "a", 0)
        writer.write(values, timestamps)
        writer.prepare_commit()
    writer.close()


@pytest.mark.parametrize("guarantee", list(DeliveryGuarantee))
def test_records_that_the_topic_is_about_to_delete_are_reported_once(
    kafka: Any, new_topic: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, guarantee: DeliveryGuarantee
) -> None:
    topic = new_topic(retention_ms=str(7 * _DAY_MS))
    now = int(time.time() * 1000)
    with caplog.at_level(logging.WARNING, "holdfast"):
        written(sink_of(kafka.bootstrap_servers, topic, guarantee), tmp_path, ["a", "b"], [now, now - 30 * _DAY_MS])
    (told,) = [r.getMessage() for r in caplog.records if "about to delete" in r.getMessage()]
    assert f"topic {topic} keeps records for 7 days (retention.ms=604800000)" in told
    assert "LogAppendTime" in told


@pytest.mark.parametrize(
    ("config", "age_days"),
    [
        ({"retention_ms": str(7 * _DAY_MS)}, 6),
        ({"retention_ms": "-1"}, 3000),
        ({"retention_ms": "1000", "message_timestamp_type": "LogAppendTime"}, 30),
        ({"retention_ms": "1000", "cleanup_policy": "compact"}, 30),
    ],
)
def test_records_within_the_retention_are_written_without_a_warning(
    kafka: Any, new_topic: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, config: dict[str, str], age_days: int
) -> None:
    topic = new_topic(**config)
    timestamp = int(time.time() * 1000) - age_days * _DAY_MS
    serializer = RecordSerializer(lambda _: topic, key_schema=lambda v: v)
    sink = KafkaSink(
        properties={"bootstrap.servers": kafka.bootstrap_servers},
        record_serializer=serializer,
        delivery_guarantee=DeliveryGuarantee.AT_LEAST_ONCE,
    )
    with caplog.at_level(logging.WARNING, "holdfast"):
        written(sink, tmp_path, ["a", "b"], [timestamp, -(2**63)])
    assert caplog.records == []


def test_each_client_gets_the_properties_it_knows(kafka: Any, capfd: pytest.CaptureFixture[str]) -> None:
    every = {"bootstrap.servers": kafka.bootstrap_servers, "transaction.timeout.ms": 20_000, "linger.ms": 3}
    every |= {"fetch.min.bytes": 1, "session.timeout.ms": 9000, "compression.type": "zstd", "group.id": "g"}
    Producer(producer_properties(every)).list_topics(timeout=120)
    consumer = Consumer(consumer_properties(every))
    consumer.list_topics(timeout=120)
    consumer.close()
    assert capfd.readouterr().err == ""


def test_a_recovery_that_reads_the_tokens_prints_nothing(
    kafka: Any, new_topic: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    properties = {"transaction.timeout.ms": 20_000, "compression.type": "zstd"}
    driver = Driver(kafka.bootstrap_servers, new_topic(2), tmp_path, **properties)
    driver.sink.validate()
    prepared = driver.prepare(1, ["a"])
    ids = [KafkaCommittable.decode(c).transaction.transactional_id for c in prepared]
    driver.committer._client.fence(ids, 20_000)
    driver.committer.recover(prepared)
    assert sorted(committed_values(driver.servers, driver.topic)) == ["a/0", "a/1"]
    driver.close()
    assert "CONFWARN" not in capfd.readouterr().err


def test_two_sinks_of_a_job_need_prefixes_of_their_own() -> None:
    one, two = (sink_of("localhost:1", "t", DeliveryGuarantee.EXACTLY_ONCE) for _ in range(2))
    weaker = sink_of("localhost:1", "t", DeliveryGuarantee.AT_LEAST_ONCE)
    with pytest.raises(ConfigurationError, match=r"uids a and c\) have the transactional id prefix 't'"):
        check_exclusive([("a", one), ("b", weaker), ("c", two)])
    check_exclusive([("a", one), ("b", weaker), ("c", weaker), ("d", sink_of("h:1", "u", DeliveryGuarantee.EXACTLY_ONCE))])


@pytest.mark.parametrize("of", ["tokens", "output"])
def a_topic_that_a_broker_does_not_know_yet_is_asked_for_again(
    kafka: KafkaBroker, new_topic: Any, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    output = f"{new_topic()}-later"
    topic = token_topic(output) if of == "tokens" else output
    asked, answer = threading.Event(), tokens._result
    properties = {"bootstrap.servers": kafka.bootstrap_servers}

    def told(futures: Any) -> Any:
        try:
            return answer(futures)
        finally:
            asked.set()

    monkeypatch.setattr(tokens, "_result", told)
    with ThreadPoolExecutor(1) as pool:
        if of == "tokens":
            checked = pool.submit(tokens.check_permissions, properties, topic)
        else:
            checked = pool.submit(create_token_topic, properties, token_topic(output), output)
        assert asked.wait(60)
        kafka.create_topic(topic)
        checked.result(60)


def test_the_tokens_are_as_safe_as_the_output(caplog: pytest.LogCaptureFixture) -> None:
    stock = {"default.replication.factor": "1", "min.insync.replicas": "1"}  # whatever the topics say themselves
    with KafkaCluster(2, properties=stock) as cluster:
        properties = {"bootstrap.servers": cluster.bootstrap_servers}

        def replicas(topic: str) -> int:
            def partitions() -> Any:  # a broker may not know a topic yet that another one has just created
                return AdminClient(properties).list_topics(topic, timeout=120).topics[topic].partitions

            return len(until(partitions)[0].replicas)

        cluster.create_topic("safe", 1, min_insync_replicas="2")
        with caplog.at_level(logging.INFO, "holdfast"):
            sink_of(cluster.bootstrap_servers, "safe", DeliveryGuarantee.EXACTLY_ONCE).validate()
        assert replicas(token_topic("safe")) == 2
        assert "2 replicas" in caplog.text
        caplog.clear()
        create_topic(cluster.admin(), "less", 1, 1, {})
        assert replicas("less") == 1
        create_topic(cluster.admin(), token_topic("less"), 1, 1, {"cleanup_policy": "compact"})
        create_token_topic(properties, token_topic("less"), "less")
        create_token_topic(properties, token_topic("chosen"), None)
        assert caplog.records == []
        create_token_topic(properties, token_topic("less"), "safe")
        assert "has 1 replicas, not 2 as the output needs" in caplog.text


def test_a_new_producer_knows_a_broker_and_its_topics_before_it_acquires_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Client:
        def __init__(self, *settings: Any, **more: Any) -> None:
            pass

        def list_topics(self, topic: str, timeout: float) -> None:
            calls.append(topic)
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))  # what acquires the id waits longer

        def init_transactions(self, timeout: float) -> None:
            calls.append("acquire")

    class Brokers:
        def describe(self, ids: list[str]) -> dict[str, Any]:
            return {name: (None, Prepared(name, 1, 2)) for name in ids}

    monkeypatch.setattr("holdfast.connectors.kafka.sink.producers.Producer", Client)
    for topics in (["tokens", "output"], ["tokens"]):
        made = TransactionalProducer({}, "here", "id", 1000, cast("Any", Brokers()), topics)
        assert made.identity == Prepared("id", 1, 2)
    assert calls == ["tokens", "output", "acquire", "tokens", "tokens", "acquire"]


def test_a_sink_that_may_not_read_its_tokens_is_refused_at_the_start() -> None:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:root",
    }
    with KafkaBroker(heap="256m", properties=settings) as broker:
        broker.create_topic("out")
        sink = sink_of(broker.bootstrap_servers, "out", DeliveryGuarantee.EXACTLY_ONCE)
        for operation in (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE):
            one = AclBinding(
                ResourceType.TOPIC, token_topic("out"), ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation,
                AclPermissionType.ALLOW,
            )  # fmt: skip
            broker.admin().create_acls([one])[one].result()
        with pytest.raises(ConfigurationError, match=f"tokens in the topic {token_topic('out')}.* Read is missing"):
            sink.validate()
