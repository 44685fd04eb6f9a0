"""Both ends of the job under test: the feed, which writes the input, and readers of committed output."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from holdfast.errors import HoldfastError

__all__ = ["Feed", "Given", "Records", "Watcher", "read_messages", "read_topic"]

_ANSWER_MS = 10_000
"""How long a request to a broker that stands still waits before it is repeated."""
_LEADER_S = 240.0
"""Seconds to wait for a partition's new leader."""
_LEADER_CHANGES = (
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError._TIMED_OUT,
)


class Given(NamedTuple):
    """A record for the feed."""

    partition: int
    value: bytes
    timestamp: int = 0
    """Kafka's timestamp, in ms since 1970; 0: now."""


class Records(Protocol):
    """The source of a feed's records."""

    def next(self, seconds: float) -> Given:
        """The next record, ``seconds`` after the start of the feed."""

    def last(self) -> Iterable[Given]:
        """The records that end the input: they move event time past all others."""


class Feed:
    """Writes input records at a steady rate; waits while the brokers are unavailable.

    Args:
        bootstrap_servers: The brokers.
        topic: The input topic.
        records: The records to write.
        rate: Records per second.
    """

    def __init__(self, bootstrap_servers: str, topic: str, records: Records, rate: float) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "message.timeout.ms": 0,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
                "socket.timeout.ms": _ANSWER_MS,
                "topic.metadata.refresh.interval.ms": 1000,
                "log_level": 0,
            }
        )
        self._topic = topic
        self._records = records
        self._rate = rate
        self._stopping = threading.Event()
        self._failed: list[KafkaError] = []
        self._thread = threading.Thread(target=self._run, name="feed")
        self.written = 0
        """The number of records written so far."""

    def start(self) -> None:
        """Start the feed."""
        self._thread.start()

    def pause(self) -> None:
        """Pause the feed; returns when all its records are acknowledged. `stop` continues with the last records."""
        self._stopping.set()
        self._thread.join()
        self._flush()

    def stop(self) -> None:
        """End the input with its last records.

        Raises:
            HoldfastError: Kafka did not take a record.
        """
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        for given in self._records.last():
            self._send(given)
        self._flush()

    def abandon(self) -> None:
        """Stop without writing the last records."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _flush(self) -> None:
        left = self._producer.flush(60.0)
        if left or self._failed:
            raise HoldfastError(f"the input could not be written: {self._failed[:1] or f'{left} records are stuck'}")

    def _run(self) -> None:
        began, sent = time.monotonic(), 0
        pending: Given | None = None
        while not self._stopping.wait(0.02):
            now = time.monotonic()
            while sent < (now - began) * self._rate:
                pending = pending or self._records.next(now - began)
                if not self._send(pending):
                    break  # the client's queue is full: the brokers are unavailable
                pending = None
                sent += 1
            self._producer.poll(0)

    def _send(self, given: Given) -> bool:
        try:
            self._producer.produce(
                self._topic,
                given.value,
                partition=given.partition,
                timestamp=given.timestamp,
                on_delivery=self._delivered,
            )
        except BufferError:
            return False
        finally:
            self._producer.poll(0)
        self.written += 1
        return True

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._failed.append(error)


class Watcher:
    """Follows the outputs as a read_committed reader, and tracks how current they are.

    Args:
        bootstrap_servers: The brokers.
        topics: The outputs.
        sent: Returns an output's kind and its input's send time (wall clock, ms); None if the output lacks it.
        kinds: The kinds of output to track.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topics: Sequence[str],
        sent: Callable[[Any], tuple[str, int] | None],
        kinds: Sequence[str],
    ) -> None:
        self._consumer = Consumer(_reading(bootstrap_servers))
        self._consumer.assign([p for topic in topics for p in _partitions(self._consumer, topic)])
        self._sent = sent
        self._stopping = threading.Event()
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self.counts: Counter[str] = Counter()
        """Number of records per topic."""
        self.kinds: Counter[str] = Counter()
        """Number of records per kind, the first of their values."""
        self.newest = 0
        """Send time (wall clock, ms) of the newest input seen in the output, for the kind that is furthest behind."""
        self._newest = dict.fromkeys(kinds, 0)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait for new visible output, at most for this time."""
        with self._news:
            self._news.wait(seconds)

    def close(self) -> None:
        """Stop following."""
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            messages = [m for m in self._consumer.consume(2000, 0.1) if m.error() is None]
            for message in messages:
                self.counts[message.topic()] += 1
                value = orjson.loads(message.value())
                self.kinds[value[0]] += 1
                told = self._sent(value)
                if told is not None:
                    self._newest[told[0]] = max(told[1], self._newest[told[0]])
            if messages:
                with self._news:
                    self.newest = min(self._newest.values())
                    self._news.notify_all()


def _reading(bootstrap_servers: str, isolation: str = "read_committed") -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "judge",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": isolation,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 20,
        "topic.metadata.refresh.interval.ms": 2000,
        "reconnect.backoff.max.ms": 500,
        "socket.timeout.ms": _ANSWER_MS,
        "log_level": 0,
    }


def _partitions(consumer: Consumer, topic: str) -> list[TopicPartition]:
    """The topic's partitions, once the broker that is asked knows it: the topic may have just been created by another one.

    Raises:
        HoldfastError: the broker still does not know the topic.
    """
    deadline = time.monotonic() + _LEADER_S
    while not (found := consumer.list_topics(topic, timeout=60).topics[topic].partitions):
        if time.monotonic() > deadline:
            raise HoldfastError(f"{topic}: the brokers do not know this topic")
        time.sleep(0.1)  # brokers tell nobody when they have heard of it
    return [TopicPartition(topic, partition, 0) for partition in sorted(found)]


def read_topic(bootstrap_servers: str, topic: str, patience: float = 30.0) -> list[list[Any]]:
    """Read all committed records of a topic, parsed: a list per partition, in order of offset.

    Raises:
        HoldfastError: readers do not reach the end of a partition: a transaction was left open in it.
    """
    return [[orjson.loads(m.value()) for m in part] for part in read_messages(bootstrap_servers, topic, patience)]


def read_messages(bootstrap_servers: str, topic: str, patience: float = 30.0) -> list[list[Any]]:
    """Read all committed records of a topic as Kafka messages; otherwise like `read_topic`."""
    consumer = Consumer(_reading(bootstrap_servers))
    try:
        partitions = _partitions(consumer, topic)
        found: list[list[Any]] = [[] for _ in partitions]
        consumer.assign(partitions)
        ends = _ends(bootstrap_servers, partitions)
        open_ends = set(ends)
        deadline = time.monotonic() + patience
        while open_ends:
            for message in consumer.consume(10_000, 0.2):
                error = message.error()
                if error is None:
                    found[message.partition()].append(message)
                    deadline = time.monotonic() + patience
                elif error.code() == KafkaError._PARTITION_EOF and message.offset() >= ends[message.partition()]:
                    open_ends.discard(message.partition())
            if time.monotonic() > deadline:
                raise HoldfastError(
                    f"{topic}: readers do not reach the end of partitions {sorted(open_ends)}: a transaction is open there"
                )
    finally:
        consumer.close()
    return found


def _ends(bootstrap_servers: str, partitions: list[TopicPartition]) -> dict[int, int]:
    """The ends of the partitions, including open transactions."""
    consumer = Consumer(_reading(bootstrap_servers, "read_uncommitted"))
    try:
        return {p.partition: _end(consumer, p) for p in partitions}
    finally:
        consumer.close()


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    """The end of a partition, once its leader knows it: a new leader does not at first (KIP-207)."""
    deadline = time.monotonic() + _LEADER_S
    while True:
        try:
            end: int = consumer.get_watermark_offsets(partition, timeout=20)[1]
            return end
        except KafkaException as error:
            if error.args[0].code() not in _LEADER_CHANGES or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
