"""Brokers that take requests and do not answer: an epoch survives it, or fails with an error that names the broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from uuid import uuid4

import pytest

from holdfast.connectors.base import ReaderContext
from holdfast.connectors.kafka import look_back
from holdfast.connectors.kafka.cluster import BrokerUnavailable
from holdfast.connectors.kafka.sink import producers, tokens, transactions
from holdfast.connectors.kafka.sink.committer import KafkaCommitter
from holdfast.connectors.kafka.source import reader
from holdfast.errors import HoldfastError
from holdfast.testing.kafka import KafkaBroker
from holdfast.testing.proxy import ApiKey, KafkaProxy
from kafka_fixtures import FAST_TIMEOUTS, committed_values, produce
from kafka_sink_helpers import Driver, both
from kafka_source_helpers import INFO, Job, source

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def proxied() -> Iterator[KafkaProxy]:
    broker = KafkaBroker(properties=FAST_TIMEOUTS)
    proxy = KafkaProxy(broker)
    with broker, proxy:
        yield proxy


@pytest.fixture
def driver(
    proxied: KafkaProxy, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Driver]:
    monkeypatch.setattr(transactions, "_ATTEMPT_S", 3.0)
    topic = f"{request.node.name.translate({ord('['): '-', ord(']'): None})[-80:]}-{uuid4().hex[:6]}"
    proxied.broker.create_topic(topic, partitions=2)
    driver = Driver(proxied.bootstrap_servers, topic, tmp_path, **{"transaction.timeout.ms": 15_000})
    driver.sink.validate()
    driver.committer.recover([])
    yield driver
    proxied.calm()
    driver.close()


@pytest.mark.parametrize(
    "kind", [ApiKey.PRODUCE, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.INIT_PRODUCER_ID, ApiKey.FIND_COORDINATOR]
)
def test_a_request_that_is_never_answered_costs_no_epoch(
    proxied: KafkaProxy, driver: Driver, kind: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "_INIT_BUDGET_S", 10.0)
    silence = proxied.hold(kind, matching=lambda m: m.client_id == "rdkafka")
    driver.commit(1, driver.prepare(1, ["e1"]))
    assert silence.caught
    assert sorted(committed_values(driver.servers, driver.topic)) == both("e1")


@pytest.mark.parametrize(
    "kind", [ApiKey.FIND_COORDINATOR, ApiKey.END_TXN, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_TRANSACTIONS]
)
def test_a_request_of_the_committer_that_is_never_answered_is_repeated(
    proxied: KafkaProxy, driver: Driver, kind: ApiKey
) -> None:
    silence = proxied.hold(kind, matching=lambda m: m.client_id == "holdfast-transactions")
    driver.commit(1, driver.prepare(1, ["e1"]))
    assert silence.caught
    assert sorted(committed_values(driver.servers, driver.topic)) == both("e1")


def test_commits_do_not_wait_for_listings_that_are_never_answered(
    proxied: KafkaProxy, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_ATTEMPT_S", 600.0)
    driver.committer.close()
    driver.committer = KafkaCommitter(driver.sink, driver.job, "sink")
    driver.committer.recover([])
    silence = proxied.hold(ApiKey.LIST_TRANSACTIONS, times=None)
    for epoch in (1, 2, 3):
        prepared = driver.prepare(epoch, [f"e{epoch}"])
        commit = Thread(target=driver.committer.commit, args=(prepared,), daemon=True)
        commit.start()
        if epoch == 1:
            silence.wait()
        commit.join(60)
        assert not commit.is_alive()
        driver.completed = epoch
    assert sorted(committed_values(driver.servers, driver.topic)) == both("e1", "e2", "e3")
    silence.stop()


def test_a_broker_that_stays_silent_is_named_and_the_epoch_can_run_again(proxied: KafkaProxy, driver: Driver) -> None:
    silence = proxied.hold(ApiKey.PRODUCE, times=None)
    topic = rf"{re.escape(driver.topic)}(-holdfast-tokens)?"  # the token is a record, too, and may be late first
    place = rf"topic {topic}, partition [01]: .* its leader, 127.0.0.1:{proxied.port}\."
    with pytest.raises(HoldfastError, match=rf"{place} Check .*; a running job restarts .* writes the records again"):
        driver.prepare(1, ["e1"])
    silence.stop()
    driver.commit(1, driver.prepare(1, ["e1 again"]))
    assert sorted(committed_values(driver.servers, driver.topic)) == both("e1 again")


@pytest.mark.parametrize("kind", [ApiKey.CREATE_TOPICS, ApiKey.DESCRIBE_CONFIGS, ApiKey.METADATA])
def test_a_recovery_whose_token_topic_stays_unknown_can_be_repeated(
    proxied: KafkaProxy, driver: Driver, kind: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_TIMEOUT_S", 2.0)
    silence = proxied.hold(kind, times=None)
    with pytest.raises(BrokerUnavailable, match=r"for the tokens of the Kafka sink: .*; a running job restarts"):
        tokens.create_token_topic(driver.sink.properties, tokens.token_topic(driver.topic), driver.topic)
    silence.stop()
    tokens.create_token_topic(driver.sink.properties, tokens.token_topic(driver.topic), driver.topic)


def test_a_read_that_no_broker_answers_ends_with_the_leaders_name_and_a_new_reader_gets_the_records(
    proxied: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxied.broker.create_topic("read")
    produce(proxied.broker.bootstrap_servers, "read", ["a", "b"])
    with Job(source(proxied, topics=("read",))) as job:
        ranges = job.enumerator.plan(10).ranges
        silence = proxied.hold(ApiKey.FETCH, times=None)
        told = rf"topic read, partition 0 for 2 s \(offsets 0 to 2 .* its leader, 127.0.0.1:{proxied.port}\. Check"
        with monkeypatch.context() as patience:
            patience.setattr(reader, "_PATIENCE_S", 2.0)
            with pytest.raises(BrokerUnavailable, match=told):
                job.read(ranges)
        silence.stop()
        job.reader.close()
        job.reader = source(proxied, topics=("read",)).create_reader(ReaderContext(INFO, "u", 0, 1))
        assert job.read(ranges) == ["a", "b"]


@pytest.mark.parametrize("kind", [ApiKey.FETCH, ApiKey.LIST_OFFSETS])
def test_a_look_back_that_no_broker_answers_names_the_leader(
    proxied: KafkaProxy, monkeypatch: pytest.MonkeyPatch, kind: ApiKey
) -> None:
    topic = f"look-{kind.name}"
    proxied.broker.create_topic(topic)
    produce(proxied.broker.bootstrap_servers, topic, ["a", "b"])
    silence = proxied.hold(kind, times=None)
    properties = {"bootstrap.servers": proxied.bootstrap_servers}
    told = rf"topic {topic}, partition 0: .* its leader, 127.0.0.1:{proxied.port}\."
    with monkeypatch.context() as patience:
        patience.setattr(look_back, "_PATIENCE_S", 2.0)
        with pytest.raises(BrokerUnavailable, match=told):
            look_back.newest_epoch_before(properties, topic, 0, 2)
    silence.stop()
    assert look_back.newest_epoch_before(properties, topic, 0, 2) == 0


def test_a_reader_whose_client_is_stuck_goes_on_with_another_client(
    proxied: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_RENEWAL_S", 0.5)
    monkeypatch.setattr(reader, "_PATIENCE_S", 60.0)
    proxied.broker.create_topic("stuck", partitions=2)
    for partition in range(2):
        produce(proxied.broker.bootstrap_servers, "stuck", [b"%d" % n for n in range(50)], partition=partition)
    with Job(source(proxied, topics=("stuck",), properties={"socket.timeout.ms": 300_000})) as job:
        ranges = job.enumerator.plan(100).ranges
        silence = proxied.hold(ApiKey.FETCH)  # this connection gets no answer any more
        assert job.read(ranges) == [str(n) for n in range(50)] * 2
        assert silence.caught
