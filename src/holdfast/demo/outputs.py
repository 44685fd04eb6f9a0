"""Readers of a job's committed output (new lines of its files, new records of its topics) and of its metrics."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

__all__ = ["Tail", "TopicTail", "end_offsets", "get_metrics", "metrics_url", "tail_files"]

_NOT_READY = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)

Tail = Callable[[], list[Any]]
"""Returns the output since the last call."""


def tail_files(directory: Path) -> Tail:
    """Records of files that appear from now on, oldest first."""
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


class TopicTail:
    """Committed records of a topic from now on."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "holdfast-demo-view",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 2,
            }
        )
        ends = end_offsets(bootstrap_servers, topic, partitions)
        self._consumer.assign([TopicPartition(topic, partition, end) for partition, end in ends.items()])

    def __call__(self) -> list[Any]:
        """Return the records since the last call."""
        records = []
        for message in self._consumer.consume(10_000, timeout=0.05):
            error = message.error()
            if error is None:
                records.append(orjson.loads(message.value()))
            elif error.fatal():  # the client recovers from others, such as an unavailable broker
                raise KafkaException(error)
        return records

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


def end_offsets(bootstrap_servers: str, topic: str, partitions: int) -> dict[int, int]:
    """Return the end offset of each partition of a topic. Waits for newly created partitions."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(partitions)}
    deadline = time.monotonic() + 30
    while True:
        try:
            answers = admin.list_offsets(asked)
            return {where.partition: answer.result(timeout=30).offset for where, answer in answers.items()}
        except KafkaException as failure:
            if failure.args[0].code() not in _NOT_READY or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def get_metrics(url: str, names: Iterable[str]) -> Mapping[str, float] | None:
    """Return metrics from the job's REST API; None if the server does not answer (not started yet, or stopped).

    Args:
        url: Where the job's metrics are: ``http://localhost:8081/jobs/<job-id>/metrics``.
        names: The metrics.
    """
    answer = _get(f"{url}?get={quote(','.join(names))}")
    return None if answer is None else {entry["id"]: float(entry["value"]) for entry in answer}


def metrics_url(server: str) -> str | None:
    """Return where a server's first job has its metrics; None if it does not answer, or has no job.

    Args:
        server: The REST API: ``http://localhost:8081``.
    """
    answer = _get(f"{server}/jobs")
    return f"{server}/jobs/{answer['jobs'][0]['id']}/metrics" if answer and answer["jobs"] else None


def _get(url: str) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5) as answer:
            return json.load(answer)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return None
