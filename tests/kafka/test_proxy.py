"""The proxy itself: what it does to single requests between a client and a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from holdfast.connectors.kafka.sink.transactions import Outcome, TransactionClient, TransactionState
from holdfast.testing.kafka import KafkaBroker
from holdfast.testing.proxy import ApiKey, KafkaProxy, Side
from kafka_fixtures import committed_values, produce

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def proxies() -> Iterator[KafkaProxy]:
    broker = KafkaBroker()
    proxy = KafkaProxy(broker)
    with broker, proxy:
        yield proxy


@pytest.fixture
def proxy(proxies: KafkaProxy) -> Iterator[KafkaProxy]:
    yield proxies
    proxies.calm()


def topic_of(proxy: KafkaProxy, name: str) -> str:
    proxy.broker.create_topic(name)
    return name


def test_clients_of_the_proxy_stay_with_it_and_others_pass_it_by(proxy: KafkaProxy) -> None:
    topic = topic_of(proxy, "by")
    before = proxy.seen[ApiKey.PRODUCE]
    produce(proxy.broker.bootstrap_servers, topic, ["a"])
    assert proxy.seen[ApiKey.PRODUCE] == before
    produce(proxy.bootstrap_servers, topic, ["b"])
    assert proxy.seen[ApiKey.PRODUCE] == before + 1
    assert committed_values(proxy.bootstrap_servers, topic) == ["a", "b"]


def test_a_held_request_arrives_when_it_is_released(proxy: KafkaProxy) -> None:
    topic = topic_of(proxy, "held")
    held = proxy.hold(ApiKey.PRODUCE)
    producer = Producer({"bootstrap.servers": proxy.bootstrap_servers, "linger.ms": 0})
    producer.produce(topic, "late")
    held.wait()
    assert committed_values(proxy.broker.bootstrap_servers, topic) == []
    assert len(producer) == 1
    held.release()
    assert producer.flush() == 0
    assert committed_values(proxy.broker.bootstrap_servers, topic) == ["late"]


def test_a_request_that_its_client_has_given_up_still_arrives(proxy: KafkaProxy) -> None:
    client = TransactionClient({"bootstrap.servers": proxy.bootstrap_servers})
    client.fence(["id"], 30_000)
    mine = client.describe(["id"])["id"]
    assert mine is not None
    late = proxy.hold(ApiKey.INIT_PRODUCER_ID, sever=True)
    client.fence(["id"], 30_000)  # its second request is answered
    late.wait()
    between = client.describe(["id"])["id"]
    assert between is not None
    assert between[1].producer_epoch == mine[1].producer_epoch + 1
    late.release()
    while (after := client.describe(["id"])["id"]) == between:
        pass
    assert after is not None
    assert after[1].producer_epoch == mine[1].producer_epoch + 2
    client.close()


def test_a_client_that_is_closed_amid_a_request_leaves_no_socket_open(proxy: KafkaProxy) -> None:
    client = TransactionClient({"bootstrap.servers": proxy.bootstrap_servers})
    client.fence(["closed"], 30_000)
    proxy.cut(Side.REQUEST)
    admin = client._admin
    assert admin is not None
    connections = list(admin._manager._conns.values())
    sockets = [connection.transport._sock for connection in connections]

    async def ask() -> None:
        for connection in connections:
            connection.transport.write(bytes(50_000_000))  # more than the system buffers

    admin._manager.run(ask)
    client.close()
    assert sockets
    assert [sock.fileno() for sock in sockets] == [-1] * len(sockets)


def test_a_lost_request_has_no_effect_and_one_whose_answer_is_lost_has(proxy: KafkaProxy) -> None:
    client = TransactionClient({"bootstrap.servers": proxy.bootstrap_servers})
    client.fence(["lost"], 30_000)
    epochs = []
    for side in (Side.REQUEST, Side.ANSWER):
        lost = proxy.lose(ApiKey.INIT_PRODUCER_ID, side)
        client.fence(["lost"], 30_000)  # tried again until it is answered
        lost.wait()
        described = client.describe(["lost"])["lost"]
        assert described is not None
        epochs.append(described[1].producer_epoch)
    assert epochs == [1, 3]
    client.close()


def test_a_repeated_request_has_its_effect_twice(proxy: KafkaProxy) -> None:
    client = TransactionClient({"bootstrap.servers": proxy.bootstrap_servers})
    client.fence(["twice"], 30_000)
    again = proxy.repeat(ApiKey.INIT_PRODUCER_ID, matching=lambda m: b"twice" in m.request)
    client.fence(["other", "twice"], 30_000)
    assert [m.client_id for m in again.caught] == ["holdfast-transactions"]
    again.release()
    while (found := client.describe(["twice"])["twice"]) is None or found[1].producer_epoch < 2:
        pass
    assert found[0] is TransactionState.EMPTY
    assert client.end([found[1]], commit=False)[found[1]] is Outcome.LOST  # nothing is open
    client.close()


def test_a_cut_one_way_stops_all_of_that_way_and_what_was_sent_arrives_afterwards(proxy: KafkaProxy) -> None:
    topic = topic_of(proxy, "cut")
    producer = Producer({"bootstrap.servers": proxy.bootstrap_servers, "linger.ms": 0, "acks": "all"})
    producer.produce(topic, "w")
    assert producer.flush() == 0
    proxy.cut(Side.ANSWER)
    producer.produce(topic, "x")
    while committed_values(proxy.broker.bootstrap_servers, topic) != ["w", "x"]:
        pass
    assert producer.flush(0.2) == 1  # written, but the producer is not told
    proxy.restore()
    assert producer.flush() == 0
    proxy.cut(Side.REQUEST)
    producer.produce(topic, "y")
    assert producer.flush(0.2) == 1
    assert committed_values(proxy.broker.bootstrap_servers, topic) == ["w", "x"]
    proxy.restore()
    assert producer.flush() == 0
    assert committed_values(proxy.broker.bootstrap_servers, topic) == ["w", "x", "y"]


def test_clients_connect_again_when_they_were_disconnected(proxy: KafkaProxy) -> None:
    topic = topic_of(proxy, "again")
    producer = Producer({"bootstrap.servers": proxy.bootstrap_servers, "linger.ms": 0, "log_level": 0})
    for value in "abc":
        producer.produce(topic, value)
        assert producer.flush() == 0
        proxy.disconnect()
    slow = proxy.delay(ApiKey.PRODUCE, 0.05)
    producer.produce(topic, "d")
    assert producer.flush() == 0
    assert len(slow.caught) == 1
    assert committed_values(proxy.bootstrap_servers, topic) == list("abcd")
