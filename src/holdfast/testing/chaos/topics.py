"""Both ends of the job under test: the feed, which writes numbered records, and readers that see what is committed."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any

import orjson
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from holdfast.errors import HoldfastError
from holdfast.testing.chaos.program import DELAY_MS, ELEMENTS, INPUT, MINUTE_MS, TOTALS, Record

__all__ = ["PARTITIONS", "Feed", "Watcher", "read_topic", "records_of"]

PARTITIONS = 4
_SPEED = 10
"""Event time passes so much faster than the clock."""


class Feed:
    """Writes the input, record after record, at a steady rate; waits while the brokers are away.

    Args:
        bootstrap_servers: The brokers.
        rate: Records a second.
        keys: How many keys there are.
        seed: Of the choice of keys and of the disorder of event time.
    """

    def __init__(self, bootstrap_servers: str, rate: float, keys: int, seed: int) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "message.timeout.ms": 0,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._rate = rate
        self._keys = keys
        self._random = random.Random(seed)
        self._numbers: Counter[int] = Counter()
        self._stopping = threading.Event()
        self._failed: list[KafkaError] = []
        self._thread = threading.Thread(target=self._run, name="feed")
        self._time = 1_700_000_000_000

    @property
    def written(self) -> int:
        """How many records there are so far."""
        return sum(self._numbers.values())

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the input: a last record in every partition moves event time past all that came before.

        Raises:
            HoldfastError: Kafka did not take a record.
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._thread.join()
        end = self._time + 60 * MINUTE_MS
        for partition in range(PARTITIONS):
            self._send(f"end-{partition}", 1, end, partition)
        left = self._producer.flush(60.0)
        if left or self._failed:
            raise HoldfastError(f"the input could not be written: {self._failed[:1] or f'{left} records are stuck'}")

    def abandon(self) -> None:
        """End without more ado."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        sent = 0
        start = self._time
        while not self._stopping.wait(0.02):
            passed = time.monotonic() - began
            self._time = start + int(passed * 1000 * _SPEED)
            while sent < passed * self._rate:
                key = self._random.randrange(self._keys)
                number = self._numbers[key] + 1
                jitter = self._random.randrange(DELAY_MS)
                if not self._send(f"k{key}", number, self._time - jitter, key % PARTITIONS):
                    break  # the client holds all it may: the brokers are away
                self._numbers[key] = number
                sent += 1

    def _send(self, key: str, number: int, event_time: int, partition: int) -> bool:
        value = orjson.dumps((key, number, event_time, time.time_ns() // 1_000_000))
        try:
            self._producer.produce(INPUT, value, partition=partition, on_delivery=self._delivered)
        except BufferError:
            return False
        finally:
            self._producer.poll(0)
        return True

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._failed.append(error)


class Watcher:
    """Follows the outputs as a read_committed reader; knows how current they are."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._consumer = Consumer(_reading(bootstrap_servers))
        self._consumer.assign([TopicPartition(t, p, 0) for t in (ELEMENTS, TOTALS) for p in range(PARTITIONS)])
        self._stopping = threading.Event()
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self.counts: Counter[str] = Counter()
        """Records of each topic."""
        self.newest = 0
        """When the newest record seen in the output was sent as input (wall clock, ms)."""
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Return when something new is visible, at the latest after so long."""
        with self._news:
            self._news.wait(seconds)

    def close(self) -> None:
        """End."""
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            messages = [m for m in self._consumer.consume(2000, 0.1) if m.error() is None]
            newest = self.newest
            for message in messages:
                self.counts[message.topic()] += 1
                if message.topic() == ELEMENTS:
                    value = orjson.loads(message.value())
                    if value[0] == "seen" and value[6] > newest:
                        newest = value[6]
            if messages:
                with self._news:
                    self.newest = newest
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
        "reconnect.backoff.max.ms": 500,
        "log_level": 0,
    }


def read_topic(bootstrap_servers: str, topic: str, patience: float = 30.0) -> list[list[Any]]:
    """All committed records of a topic, parsed, partition by partition in the order of their offsets.

    Raises:
        HoldfastError: readers do not reach the end of a partition: a transaction was left open in it.
    """
    consumer = Consumer(_reading(bootstrap_servers))
    records: list[list[Any]] = [[] for _ in range(PARTITIONS)]
    try:
        partitions = [TopicPartition(topic, p, 0) for p in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = _ends(bootstrap_servers, partitions)
        open_ends = set(ends)
        deadline = time.monotonic() + patience
        while open_ends:
            for message in consumer.consume(10_000, 0.2):
                error = message.error()
                if error is None:
                    records[message.partition()].append(orjson.loads(message.value()))
                    deadline = time.monotonic() + patience
                elif error.code() == KafkaError._PARTITION_EOF and message.offset() >= ends[message.partition()]:
                    open_ends.discard(message.partition())
            if time.monotonic() > deadline:
                raise HoldfastError(
                    f"{topic}: readers do not reach the end of partitions {sorted(open_ends)}: a transaction is open there"
                )
    finally:
        consumer.close()
    return records


def _ends(bootstrap_servers: str, partitions: list[TopicPartition]) -> dict[int, int]:
    """Where the partitions end, open transactions included."""
    consumer = Consumer(_reading(bootstrap_servers, "read_uncommitted"))
    try:
        return {p.partition: consumer.get_watermark_offsets(p, timeout=20)[1] for p in partitions}
    finally:
        consumer.close()


def records_of(parsed: list[list[Any]]) -> list[list[Record]]:
    """The input's records as the job sees them."""
    return [[(r[0], r[1], r[2], r[3]) for r in part] for part in parsed]
