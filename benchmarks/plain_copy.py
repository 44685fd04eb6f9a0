"""A plain transactional loop from Kafka to Kafka: what the machine and the broker allow, without an engine.

One process reads what has arrived, counts it per user in a dict, writes the results, and commits them with its offsets in
one transaction; then it begins again. It keeps no state beyond its memory, and has one partition of work. It is the limit
beside `benchmarks.latency`, which starts it with ``--engine plain``.
"""

from __future__ import annotations

import sys
import time

import orjson
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks.kafka_jobs import PARTITIONS


def copy(servers: str, until: float, emit_every: int) -> None:
    """Copy from "input" to "output" until the time ``until``."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "plain",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 20,
        }
    )
    consumer.assign([TopicPartition("input", n, 0) for n in range(PARTITIONS)])
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "plain", "linger.ms": 5})
    producer.init_transactions(60)
    counts: dict[str, int] = {}
    while time.time() < until:
        first = consumer.poll(0.1)
        if first is None:
            continue
        producer.begin_transaction()
        for message in [first, *consumer.consume(100_000, 0)]:
            if message.error() is not None:
                raise KafkaException(message.error())
            record = orjson.loads(message.value())
            counts[record["user_id"]] = counts.get(record["user_id"], 0) + 1
            if record["number"] % emit_every == 0:
                producer.produce("output", str(record["sent"]))
        positions = [p for p in consumer.position(consumer.assignment()) if p.offset >= 0]
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 60)
        producer.commit_transaction(60)
    consumer.close()


if __name__ == "__main__":
    copy(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
