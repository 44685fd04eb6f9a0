"""Reads what the job has committed: new lines of its output files, or of its output topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

__all__ = ["Tail", "tail_files", "tail_topic"]

Tail = Callable[[], list[Any]]
"""Gives what has come since the last call."""


def tail_files(directory: Path) -> Tail:
    """The records of the files that appear from now on, oldest first."""
    seen: set[Path] = set()

    def new_files() -> list[Path]:
        # Directories are hours; only the latest two can still get files.
        hours = sorted(path for path in directory.glob("[!.]*") if path.is_dir())[-2:]
        files = {path for hour in hours for path in hour.glob("[!.]*")}
        fresh = files - seen
        seen.intersection_update(files)
        seen.update(fresh)
        return sorted(fresh, key=lambda path: path.stat().st_mtime_ns)

    new_files()
    return lambda: [orjson.loads(line) for path in new_files() for line in path.read_bytes().splitlines()]


def tail_topic(bootstrap_servers: str, topic: str, partitions: int) -> Tail:
    """The committed records of a topic from now on."""
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "holdfast-demo-view",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    assignment = []
    for partition in range(partitions):
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
        assignment.append(TopicPartition(topic, partition, end))
    consumer.assign(assignment)

    def poll() -> list[Any]:
        records = []
        for message in consumer.consume(10_000, timeout=0.05):
            error = message.error()
            if error is None:
                records.append(orjson.loads(message.value()))
            elif error.code() != KafkaError._PARTITION_EOF and not error.retriable():
                raise KafkaException(error)
        return records

    return poll
