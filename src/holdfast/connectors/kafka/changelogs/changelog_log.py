"""KafkaChangelogLog: a changelog topic as one subtask reads and writes it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from confluent_kafka import KafkaError

from holdfast.checkpoint.changelog import Delivered, LogRecord, Marker, MarkerKey, Row, writer_of
from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.checkpoint.paths import new_attempt
from holdfast.connectors.base import Committable, JobInfo
from holdfast.connectors.kafka.changelogs.changelog_reader import GROUP, MARKED, MARKER, KafkaChangelogReader
from holdfast.connectors.kafka.cluster import ClusterView
from holdfast.connectors.kafka.offsets import KafkaTopicPartition
from holdfast.connectors.kafka.sink.committable import KafkaCommittable, TransactionalId
from holdfast.connectors.kafka.sink.outbox import OutgoingBatch
from holdfast.connectors.kafka.sink.output import KafkaOutput
from holdfast.connectors.kafka.sink.pool import ProducerPool
from holdfast.connectors.kafka.sink.producers import TransactionalProducer
from holdfast.connectors.kafka.sink.transactions import TransactionClient

__all__ = ["KafkaChangelogLog"]

_AT_ONCE = 10_000
"""Records written together."""
_encode = msgspec.msgpack.Encoder().encode


class _Producer(TransactionalProducer):
    """A producer that notes where its records are."""

    _told_of = "delivery.report.only.error", False

    def __init__(self, output: KafkaOutput, where: str, name: str, client: TransactionClient, topic: str, uid: str) -> None:
        self.first: dict[int, int] = {}
        self.end: dict[int, int] = {}
        super().__init__(output.properties, where, name, output.transaction_timeout_ms, client, [topic], uid)

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
        job: The job.
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
        job: JobInfo,
        uid: str,
        subtask: int,
        tombstone_ms: int,
    ) -> None:
        self._output = output
        self._topic = topic
        self.partitions = partitions
        self.tombstone_ms = tombstone_ms
        self._max_parallelism = max_parallelism
        self._job = job
        self._uid = uid
        self._subtask = subtask
        self._where = f"changelog topic {topic}"
        self._reader = KafkaChangelogReader(output.properties, topic, partitions, tombstone_ms)
        self._all = ClusterView(output.properties, read_committed=False)
        self.id = self._reader.id
        self.writer = writer_of(job.identity, job.storage_uri)
        self._attempt = uuid.uuid4().hex[:8]
        self._closed = False
        self._client = TransactionClient(output.properties, cancelled=lambda: self._closed)
        self._pool = ProducerPool(self._where, self._make)
        self._epoch = Epoch(-1)
        self._open: _Producer | None = None

    def _make(self, slot: int, lane: int) -> TransactionalProducer:
        output = self._output
        name = TransactionalId(
            output.transactional_id_prefix,
            self._uid,
            self._subtask,
            self._job.generation,
            self._attempt,
            slot,
            lane,
            self._job.identity,
        )
        return _Producer(output, self._where, str(name), self._client, self._topic, self._uid)

    # writing

    def begin(self, epoch: Epoch, committed: CheckpointId) -> None:
        """Begin an epoch; the transaction opens with the first record."""
        self._open = None
        self._pool.drop()
        self._epoch = epoch
        self._pool.begin(epoch, committed)

    def append(self, rows: Iterable[Row]) -> None:
        """Write rows in the epoch's transaction."""
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        partitions: list[int] = []
        for group, key, value in rows:
            keys.append(GROUP.pack(group) + key)
            values.append(value)
            partitions.append(group * self.partitions // self._max_parallelism)
            if len(keys) >= _AT_ONCE:
                self._send(keys, values, partitions)
                keys, values, partitions = [], [], []
        if keys:
            self._send(keys, values, partitions)

    def mark(self, markers: Mapping[MarkerKey, Marker | None]) -> None:
        """Write markers in the epoch's transaction."""
        keys: list[bytes | None] = [MARKER.pack(MARKED, key.first, key.last) + key.writer.encode() for key in markers]
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
        committable = KafkaCommittable(transaction, self._job.generation, self._epoch, self._subtask, new_attempt(), None)
        return [committable.encode()], Delivered(producer.first, producer.end)

    # reading

    def commit(self, committables: Sequence[Any]) -> None:
        """Commit the transactions of a complete checkpoint, unless they are gone."""
        ours = [KafkaCommittable.decode(Committable(self._uid, self._subtask, data)) for data in committables]
        self._client.end([each.transaction for each in ours], commit=True)

    def ends(self, partitions: Iterable[int]) -> Mapping[int, int]:
        """The last stable offsets of these partitions."""
        return self._reader.ends(partitions)

    def read(self, starts: Mapping[int, int]) -> Iterator[list[LogRecord]]:
        """Read the committed records from these offsets, up to the present end."""
        return self._reader.read(starts)

    def settled(self, partitions: Iterable[int]) -> bool:
        """Whether no transaction in these partitions is open."""
        asked = list(partitions)
        everything = self._all.ends([KafkaTopicPartition(self._topic, partition) for partition in asked])
        return self._reader.ends(asked) == {at.partition: end for at, end in everything.items()}

    def close(self) -> None:
        """Abort the open transaction, and close the clients. A prepared transaction stays prepared."""
        self._closed = True
        self._open = None
        self._pool.close()
        self._client.close()
        self._reader.close()
