"""Drives a Kafka source as the runtime does: plan, read, snapshot."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from confluent_kafka import TopicPartition

from holdfast.connectors.base import JobInfo, ReaderContext
from holdfast.connectors.kafka.source.source import KafkaSource

INFO = JobInfo("job", "test", 1, None)


def source(
    kafka: Any, *, topics: tuple[str, ...] | None = None, properties: dict[str, Any] | None = None, **options: Any
) -> KafkaSource[Any]:
    """A source; options with a dot in the name are client properties."""
    more = {k: v for k, v in options.items() if "." in k}
    fields = {k: v for k, v in options.items() if "." not in k}
    own = {**(properties or {}), **more}
    return KafkaSource(bootstrap_servers=kafka.bootstrap_servers, properties=own, topics=topics, **fields)


class Job:
    """One enumerator and one reader."""

    def __init__(self, source: KafkaSource, state: Any = None) -> None:
        self.info = INFO
        self.enumerator = source.create_enumerator(INFO, "u")
        try:
            self.enumerator.start(state)
        except BaseException:
            self.enumerator.close()
            raise
        self.reader = source.create_reader(ReaderContext(INFO, "u", 0, 1))

    def epoch(self, max_records: int = 1_000_000, max_batch: int = 1000) -> list[Any]:
        """The values of the next epoch."""
        return self.read(self.enumerator.plan(max_records).ranges, max_batch)

    def read(self, ranges: Any, max_batch: int = 1000) -> list[Any]:
        """The values of the ranges, read one after the other."""
        return [v for r in ranges for batch in self.reader.read(r, max_batch) for v in batch.values]

    @staticmethod
    def delete_before(kafka: Any, topic: str, offset: int, partition: int = 0) -> None:
        """Do what retention does."""
        for future in kafka.admin().delete_records([TopicPartition(topic, partition, offset)]).values():
            future.result()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.reader.close()
        self.enumerator.close()
