"""Pytest plugin: one real Kafka broker for the test session, and what tests need around it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from holdfast.common import kafka_refusals
from holdfast.testing.kafka import KafkaBroker

FAST_TIMEOUTS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "transaction.max.timeout.ms": "900000",
    "log.cleaner.backoff.ms": "200",
    "log.initial.task.delay.ms": "200",
}
"""The broker looks for timed-out transactions and for segments to compact several times a second."""

_numbers = itertools.count()
_running = ExitStack()
"""The broker of the session."""
_no_longer_needed: set[str] = set()
"""The tests behind the last one that uses the broker."""


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """A running broker, shared by the session: leave it running, use topics of your own."""
    with _running:
        yield _running.enter_context(KafkaBroker(properties=FAST_TIMEOUTS))


@pytest.fixture
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of addresses without a broker: after a request without an answer, the login is asked for briefly."""
    monkeypatch.setattr(kafka_refusals, "_LOGIN_S", 0.1)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    behind = itertools.takewhile(lambda item: "kafka" not in getattr(item, "fixturenames", ()), reversed(items))
    _no_longer_needed.update(item.nodeid for item in behind)


def pytest_runtest_logstart(nodeid: str) -> None:
    """Stop the broker when no later test needs it: an idle one takes 3 % of a processor."""
    if nodeid in _no_longer_needed:
        _running.close()


@pytest.fixture
def new_topic(kafka: KafkaBroker) -> Callable[..., str]:
    """Creates a topic with a name of its own: ``new_topic(partitions=3, cleanup_policy="compact")``."""

    def create(partitions: int = 1, **config: str) -> str:
        name = f"t{os.getpid()}-{next(_numbers)}"
        kafka.create_topic(name, partitions, **config)
        return name

    return create


def produce(
    bootstrap_servers: str,
    topic: str,
    values: Any,
    *,
    partition: int = 0,
    timestamps: list[int] | None = None,
    **config: Any,
) -> None:
    """Write values (and nothing else) to one partition, in this order, acknowledged by the broker."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 1, "enable.idempotence": True, **config})
    failed: list[Any] = []
    for i, value in enumerate(values):
        producer.produce(
            topic,
            value,
            partition=partition,
            timestamp=timestamps[i] if timestamps else 0,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        if i % 10_000 == 0:
            producer.poll(0)
    producer.flush()
    assert not failed, failed[0]


def read_all(bootstrap_servers: str, topic: str, *, isolation: str = "read_committed", timeout: float = 300.0) -> list[Any]:
    """All records of a topic up to its end, partition by partition, as an independent client sees them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "verifier",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=120).topics[topic].partitions
        consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        records: dict[int, list[Any]] = {p: [] for p in partitions}
        open_ends = set(partitions)
        while open_ends:
            message = consumer.poll(timeout)
            assert message is not None, f"no end of {topic} within {timeout:g} s"
            if message.error():
                assert message.error().name() == "_PARTITION_EOF", message.error()
                open_ends.discard(message.partition())
            else:
                records[message.partition()].append(message)
        return [m for p in sorted(records) for m in records[p]]
    finally:
        consumer.close()


def committed_values(bootstrap_servers: str, topic: str) -> list[str]:
    """What a read_committed reader sees, as text."""
    return [m.value().decode() for m in read_all(bootstrap_servers, topic)]
