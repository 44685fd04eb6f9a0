"""KafkaChangelogLog: a changelog topic as one subtask reads and writes it."""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from holdfast.checkpoint.changelog import Delivered, LogRecord, LogTruncated, Marker, MarkerKey, Row
from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.checkpoint.paths import new_attempt
from holdfast.connectors.base import Committable
from holdfast.connectors.kafka.cluster import BrokerUnavailable, ClusterView
from holdfast.connectors.kafka.committable import KafkaCommittable, TransactionalId
from holdfast.connectors.kafka.config import consumer_properties
from holdfast.connectors.kafka.offsets import KafkaTopicPartition
from holdfast.connectors.kafka.outbox import OutgoingBatch
from holdfast.connectors.kafka.output import KafkaOutput
from holdfast.connectors.kafka.pool import ProducerPool
from holdfast.connectors.kafka.producers import TransactionalProducer
from holdfast.connectors.kafka.transactions import TransactionClient
from holdfast.errors import HoldfastError

__all__ = ["KafkaChangelogLog"]

_GROUP = struct.Struct(">H")
_MARKER = struct.Struct(">HHH")
_MARKED = 0xFFFF
_AT_ONCE = 10_000
"""Records read or written together."""
_POLL_S = 0.05
"""The client waits this long for more records, however few it has."""
_SILENCE_S = 60.0
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Marker).decode


class _Producer(TransactionalProducer):
    """A producer that notes where its records are."""

    _told_of = "delivery.report.only.error", False

    def __init__(self, *args: Any) -> None:
        self.first: dict[int, int] = {}
        self.end: dict[int, int] = {}
        super().__init__(*args)

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            super()._on_delivery(error, message)
            return
        partition, offset = message.partition(), message.offset()
        self.first.setdefault(partition, offset)
        self.end[partition] = offset + 1


class KafkaChangelogLog:
    """A changelog topic in a task.

    Args:
        output: The brokers and the transactional id prefix.
        topic: The topic.
        partitions: Its number of partitions.
        max_parallelism: The operator's number of key groups.
        generation: The driver's.
        uid: That of the committables.
        subtask: The number of the subtask.
        tombstone_ms: For how long the topic keeps tombstones, in ms.
    """

    def __init__(
        self,
        output: KafkaOutput,
        topic: str,
        partitions: int,
        max_parallelism: int,
        generation: int,
        uid: str,
        subtask: int,
        tombstone_ms: int,
    ) -> None:
        self._output = output
        self._topic = topic
        self.partitions = partitions
        self.tombstone_ms = tombstone_ms
        self._max_parallelism = max_parallelism
        self._generation = generation
        self._uid = uid
        self._subtask = subtask
        self._where = f"changelog topic {topic}"
        self._committed = ClusterView(output.properties, read_committed=True)
        self._all = ClusterView(output.properties, read_committed=False)
        found = self._committed.topics([topic])[topic]
        if found is None:
            raise HoldfastError(
                f"the {self._where} is gone. The job restarts: start it anew if that does not help, and it creates the topic"
            )
        self.id = found.id
        self._writer = uuid.uuid4().hex[:8]
        self._closed = False
        self._client = TransactionClient(output.properties, cancelled=lambda: self._closed)
        self._pool = ProducerPool(self._where, self._make)
        self._epoch = Epoch(-1)
        self._open: _Producer | None = None

    def _make(self, slot: int, lane: int) -> TransactionalProducer:
        output = self._output
        name = TransactionalId(
            output.transactional_id_prefix, self._uid, self._subtask, self._generation, self._writer, slot, lane
        )
        return _Producer(output.properties, self._where, str(name), output.transaction_timeout_ms, self._client)

    # writing

    def begin(self, epoch: Epoch, completed: CheckpointId) -> None:
        """Begin an epoch; the transaction opens with the first record."""
        self._open = None
        self._pool.drop()
        self._epoch = epoch
        self._pool.begin(epoch, completed)

    def append(self, rows: Iterable[Row]) -> None:
        """Write rows in the epoch's transaction."""
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        partitions: list[int] = []
        for group, key, value in rows:
            keys.append(_GROUP.pack(group) + key)
            values.append(value)
            partitions.append(group * self.partitions // self._max_parallelism)
            if len(keys) >= _AT_ONCE:
                self._send(keys, values, partitions)
                keys, values, partitions = [], [], []
        if keys:
            self._send(keys, values, partitions)

    def mark(self, markers: Mapping[MarkerKey, Marker | None]) -> None:
        """Write markers in the epoch's transaction."""
        keys: list[bytes | None] = [_MARKER.pack(_MARKED, key.first, key.last) for key in markers]
        values = [None if marker is None else _encode(marker) for marker in markers.values()]
        self._send(keys, values, [key.partition for key in markers])

    def _send(self, keys: list[bytes | None], values: list[bytes | None], partitions: list[int]) -> None:
        if self._open is None:
            producer = self._pool.take(self._epoch)
            assert isinstance(producer, _Producer)
            self._open = producer
        self._open.send(OutgoingBatch(self._topic, values, keys, partitions=partitions))

    def prepare(self) -> tuple[list[Any], Delivered]:
        """Flush the transaction to the brokers."""
        producer = self._open
        if producer is None:
            return [], Delivered({}, {})
        transaction = self._pool.prepare(self._epoch)
        self._open = None
        committable = KafkaCommittable(transaction, self._generation, self._epoch, self._subtask, new_attempt(), None)
        return [committable.encode()], Delivered(producer.first, producer.end)

    # reading

    def commit(self, committables: Sequence[Any]) -> None:
        """Commit the transactions of a complete checkpoint, unless they are gone."""
        ours = [KafkaCommittable.decode(Committable(self._uid, self._subtask, data)) for data in committables]
        self._client.end([each.transaction for each in ours], commit=True)

    def read(self, starts: Mapping[int, int]) -> Iterator[list[LogRecord]]:
        """Read the committed records from these offsets, up to the present end."""
        ends = {
            partition.partition: end
            for partition, end in self._committed.ends([KafkaTopicPartition(self._topic, p) for p in starts]).items()
        }
        for partition, end in ends.items():
            if starts[partition] > end:
                raise LogTruncated(f"partition {partition} of the {self._where} ends at {end}, not at {starts[partition]}")
        left = {partition for partition, end in ends.items() if starts[partition] < end}
        if not left:
            return
        consumer = Consumer(
            {
                **consumer_properties(self._output.properties),
                "log_level": 0,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            }
        )
        try:
            consumer.assign([TopicPartition(self._topic, p, starts[p] or OFFSET_BEGINNING) for p in left])
            heard = time.monotonic()
            while left:
                messages = consumer.consume(_AT_ONCE, _POLL_S)
                if messages:
                    heard = time.monotonic()
                elif time.monotonic() - heard > _SILENCE_S:
                    raise BrokerUnavailable(
                        f"no answer from Kafka for {_SILENCE_S:.0f} s while reading the {self._where}. Check that the "
                        "brokers run; a running job restarts from its last checkpoint"
                    )
                records = []
                for message in messages:
                    error = message.error()
                    if error is None:
                        records.append(_record(message))
                    elif error.code() != KafkaError._PARTITION_EOF:
                        if not error.retriable():
                            raise KafkaException(error)
                    elif message.offset() >= ends[message.partition()]:
                        left.discard(message.partition())
                if records:
                    yield records
        finally:
            consumer.close()

    def settled(self, partitions: Iterable[int]) -> bool:
        """Whether no transaction in these partitions is open."""
        asked = [KafkaTopicPartition(self._topic, partition) for partition in partitions]
        everything = self._all.ends(asked)
        return self._committed.ends(asked) == everything

    def close(self) -> None:
        """Abort the open transaction, and close the clients. A prepared transaction stays prepared."""
        self._closed = True
        self._open = None
        self._pool.close()
        self._client.close()


def _record(message: Any) -> LogRecord:
    key = message.key()
    (group,) = _GROUP.unpack_from(key)
    partition, value = message.partition(), message.value()
    if group != _MARKED:
        return LogRecord(partition, message.offset(), Row(group, key[_GROUP.size :], value))
    _, first, last = _MARKER.unpack(key)
    return LogRecord(
        partition, message.offset(), (MarkerKey(partition, first, last), None if value is None else _decode(value))
    )
