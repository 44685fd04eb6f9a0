"""KafkaChangelogReader: reads a changelog topic, once for a restore, or again and again for a standby copy."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from holdfast.checkpoint.changelog import LogRecord, LogTruncated, Marker, MarkerKey, Row
from holdfast.common.kafka_properties import consumer_properties
from holdfast.common.kafka_refusals import OF_THE_GROUP, REFUSED
from holdfast.connectors.kafka.cluster import BrokerUnavailable, ClusterView
from holdfast.connectors.kafka.offsets import KafkaTopicPartition
from holdfast.errors import ConfigurationError, CorruptFile, HoldfastError

__all__ = ["GROUP", "MARKED", "MARKER", "KafkaChangelogReader", "record_of"]

GROUP = struct.Struct(">H")
"""The key group, with which a record's key begins."""
MARKER = struct.Struct(">HHH")
"""How the key of a marker begins: `MARKED`, and the first and the last key group of its subtask. Its writer follows."""
MARKED = 0xFFFF
_AT_ONCE = 10_000
"""Records read together."""
_POLL_S = 0.05
"""The client waits this long for more records, however few it has."""
_SILENCE_S = 60.0
_FOREIGN = (struct.error, ValueError, TypeError, msgspec.MsgspecError, RecursionError)
"""What reading a record raises that is of another form."""
_decode = msgspec.msgpack.Decoder(Marker).decode


class KafkaChangelogReader:
    """Reads a changelog topic.

    Args:
        properties: The user's client properties.
        topic: The topic.
        partitions: Its number of partitions.
        tombstone_ms: For how long the topic keeps tombstones, in ms.
        keeps: Whether the client stays connected between two reads.

    Raises:
        HoldfastError: the topic is gone.
    """

    def __init__(
        self, properties: Mapping[str, Any], topic: str, partitions: int, tombstone_ms: int, *, keeps: bool = False
    ) -> None:
        self._properties = properties
        self._topic = topic
        self.partitions = partitions
        self.tombstone_ms = tombstone_ms
        self._keeps = keeps
        self._kept: Consumer | None = None
        self._committed = ClusterView(properties, read_committed=True)
        found = self._committed.topics([topic])[topic]
        if found is None:
            raise HoldfastError(
                f"the changelog topic {topic} is gone. The job restarts: start it anew if that does not help, and it "
                "creates the topic"
            )
        self.id = found.id

    def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """The last stable offsets of these partitions."""
        asked = [KafkaTopicPartition(self._topic, partition) for partition in partitions]
        return {at.partition: end for at, end in self._committed.ends(asked).items()}

    def read(self, starts: Mapping[int, int]) -> Iterator[list[LogRecord]]:
        """Read the committed records from these offsets, up to the present end; an empty list while Kafka is silent."""
        ends = self.ends(starts)
        for partition, end in ends.items():
            if starts[partition] > end:
                raise LogTruncated(
                    f"partition {partition} of the changelog topic {self._topic} ends at {end}, not at {starts[partition]}"
                )
        left = {partition for partition, end in ends.items() if starts[partition] < end}
        if not left:
            return
        consumer, self._kept = self._kept or self._consumer(), None
        try:
            consumer.assign([TopicPartition(self._topic, p, starts[p] or OFFSET_BEGINNING) for p in left])
            yield from self._records(consumer, ends, left)
            if self._keeps:
                consumer.unassign()
                self._kept = consumer
        finally:
            if self._kept is not consumer:
                consumer.close()

    def _records(self, consumer: Consumer, ends: Mapping[int, int], left: set[int]) -> Iterator[list[LogRecord]]:
        heard = time.monotonic()
        while left:
            messages = consumer.consume(_AT_ONCE, _POLL_S)
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENCE_S:
                raise BrokerUnavailable(
                    f"no answer from Kafka for {_SILENCE_S:.0f} s while reading the changelog topic {self._topic}. Check "
                    "that the brokers run; a running job restarts from its last checkpoint"
                )
            records = []
            for message in messages:
                error = message.error()
                if error is None:
                    records.append(record_of(message))
                elif error.code() == OF_THE_GROUP:
                    continue
                elif error.code() != KafkaError._PARTITION_EOF:
                    if error.code() in REFUSED:
                        raise ConfigurationError(f"Kafka refuses to read the changelog topic {self._topic}: {error.str()}")
                    if not error.retriable():
                        raise HoldfastError(
                            f"the changelog topic {self._topic} could not be read: {error.str()} ({error.name()}). A "
                            "running job restarts from its last checkpoint"
                        )
                elif message.offset() >= ends[message.partition()]:
                    left.discard(message.partition())
                    records.append(LogRecord(message.partition(), message.offset() - 1, None))
            yield records

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                **consumer_properties(self._properties),
                "log_level": 0,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            }
        )

    def close(self) -> None:
        """Close the client."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()


def record_of(message: Any) -> LogRecord:
    """The record in a message of the topic.

    Raises:
        CorruptFile: Holdfast did not write it.
    """
    key, partition, value = message.key(), message.partition(), message.value()
    try:
        (group,) = GROUP.unpack_from(key)
        if group != MARKED:
            return LogRecord(partition, message.offset(), Row(group, key[GROUP.size :], value))
        _, first, last = MARKER.unpack_from(key)
        at = MarkerKey(partition, first, last, key[MARKER.size :].decode())
        return LogRecord(partition, message.offset(), (at, None if value is None else _decode(value)))
    except _FOREIGN as error:
        raise CorruptFile(
            f"changelog topic {message.topic()}, partition {partition}, offset {message.offset()}",
            f"not a record of a changelog: {error}. Something else writes to the topic: see who may. If you delete it, "
            "the job restores from its checkpoint's files, and fills it again",
        ) from error
