"""Creates the AOT cache of Kafka's classes: ``python -m holdfast.testing.kafka_training``.

With it, a broker starts in about half the time. A broker runs once, takes and gives a few records, and its JVM writes the
cache when it ends.
"""

from __future__ import annotations

import sys

from confluent_kafka import Consumer, Producer, TopicPartition

from holdfast.errors import HoldfastError
from holdfast.runtime.jvm.aot_cache import AotCache
from holdfast.runtime.jvm.java import Java, find_java
from holdfast.runtime.spark.aot_training import create
from holdfast.testing.kafka import KafkaBroker
from holdfast.testing.kafka_distribution import kafka_jars

_TOPIC = "training"
_END_S = 300.0
"""Timeout for the JVM to write the cache, in seconds."""


def _train(java: Java, options: list[str]) -> None:
    """Run a broker as tests do, and end it gracefully."""
    broker = KafkaBroker()
    broker.jvm_options = options
    with broker:
        broker.create_topic(_TOPIC)
        servers = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        producer = Producer({**servers, "transactional.id": _TOPIC})
        producer.init_transactions()
        for n in range(5):
            producer.begin_transaction()
            producer.produce(_TOPIC, b"%d" % n)
            producer.commit_transaction()
        consumer = Consumer({**servers, "group.id": _TOPIC})
        consumer.assign([TopicPartition(_TOPIC, 0, 0)])
        consumer.consume(5, 30.0)
        consumer.commit(offsets=[TopicPartition(_TOPIC, 0, 5)], asynchronous=False)
        consumer.close()
        broker.stop(_END_S)


def _main() -> int:
    try:
        java = find_java()
        cache = AotCache.of(java, kafka_jars(java), "kafka")
        if cache.path is not None and cache.lock() is None:
            print("Another process makes the AOT cache of Kafka")
            return 0
        print(f"Kafka on Java {java.version}: {create(cache, _train)}")
    except (HoldfastError, OSError) as error:
        print(f"Kafka's brokers start without an AOT cache: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
