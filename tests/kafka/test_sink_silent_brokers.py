"""Brokers that take requests and do not answer: an epoch survives it, or fails with an error that names the broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.connectors.kafka import producers, tokens
from holdfast.connectors.kafka.cluster import BrokerUnavailable
from holdfast.errors import HoldfastError
from holdfast.testing.kafka import KafkaBroker
from holdfast.testing.proxy import ApiKey, KafkaProxy
from kafka_fixtures import FAST_TIMEOUTS, committed_values
from kafka_sink_helpers import Driver, both

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def proxied() -> Iterator[KafkaProxy]:
    broker = KafkaBroker(properties=FAST_TIMEOUTS)
    proxy = KafkaProxy(broker)
    with broker, proxy:
        yield proxy


@pytest.fixture
def driver(proxied: KafkaProxy, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Driver]:
    topic = request.node.name.translate({ord("["): "-", ord("]"): None})[-80:]
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


def test_a_broker_that_stays_silent_is_named_and_the_epoch_can_run_again(proxied: KafkaProxy, driver: Driver) -> None:
    silence = proxied.hold(ApiKey.PRODUCE, times=None)
    place = rf"topic {re.escape(driver.topic)}, partition [01]: .* its leader, broker 1 \(127.0.0.1:{proxied.port}\)"
    with pytest.raises(HoldfastError, match=rf"{place}.* Check .*; a running job restarts"):
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
