"""The sink's writers in the task."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from holdfast.checkpoint.handles import inline_limit
from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.checkpoint.paths import new_attempt
from holdfast.common.kafka_properties import producer_properties
from holdfast.connectors.base import WriterContext
from holdfast.connectors.job_files import JobFiles
from holdfast.connectors.kafka.sink.committable import KafkaCommittable, TransactionalId
from holdfast.connectors.kafka.sink.outbox import OutboxFile, outbox_name
from holdfast.connectors.kafka.sink.output import KafkaOutput
from holdfast.connectors.kafka.sink.pool import ProducerPool
from holdfast.connectors.kafka.sink.producer_record import KafkaSinkContext
from holdfast.connectors.kafka.sink.producers import RecordProducer, TransactionalProducer
from holdfast.connectors.kafka.sink.retention import RetentionCheck
from holdfast.connectors.kafka.sink.tokens import Token, token_topic
from holdfast.connectors.kafka.sink.transactions import TransactionClient

__all__ = ["PlainWriter", "TransactionalWriter"]


class PlainWriter:
    """Writes records that become visible at once: at-least-once with ``flush``, otherwise without a guarantee."""

    def __init__(self, sink: KafkaOutput, context: WriterContext, *, flush: bool) -> None:
        self._serializer = sink.serializer
        self._context = _sink_context(sink, context)
        self._flush = flush
        where = f"Kafka sink (uid {context.uid})"
        self._producer = RecordProducer(producer_properties(sink.properties), where, context.uid)
        self._retention = RetentionCheck(sink.properties, where, context.warn)

    def begin_epoch(self, epoch: Epoch, attempt: str, committed: CheckpointId) -> None:
        """Do nothing: this writer has no transaction."""

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Send the records."""
        if values:
            batch = self._serializer.to_batch(values, timestamps, self._context)
            self._retention.look_at(batch)
            self._producer.send(batch)

    def prepare_commit(self) -> list[Any]:
        """With at-least-once, wait until the brokers have all records."""
        if self._flush:
            self._producer.flush()
        return []

    def abort_epoch(self) -> None:
        """Do nothing: sent records are visible already."""

    def close(self) -> None:
        """Send the remaining records, and close the client."""
        try:
            self._producer.flush()
        finally:
            self._producer.close()


class TransactionalWriter:
    """Writes each epoch in a transaction for the committer to end, and keeps a copy until the commit.

    The copy is a file in the outbox, or, if it is small, part of the committable.
    """

    def __init__(self, sink: KafkaOutput, context: WriterContext) -> None:
        self._sink = sink
        self._context = context
        self._sink_context = _sink_context(sink, context)
        self._where = f"Kafka sink (uid {context.uid}, subtask {context.subtask})"
        self._writer = uuid.uuid4().hex[:8]
        self._closed = threading.Event()
        self._client = TransactionClient(sink.properties, cancelled=self._closed.is_set)
        self._retention = RetentionCheck(sink.properties, f"Kafka sink (uid {context.uid})", context.warn)
        self._pool = ProducerPool(self._where, self._make)
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kafka-outbox")
        self._token_topic = token_topic(sink.transactional_id_prefix)
        self._topics = [self._token_topic] if sink.topic is None else [self._token_topic, sink.topic]
        self._files = None if context.job.storage_uri is None else JobFiles(context.job, "sinks", context.uid)
        self._epoch = Epoch(-1)
        self._open: TransactionalProducer | None = None
        self._outbox = OutboxFile()

    def begin_epoch(self, epoch: Epoch, attempt: str, committed: CheckpointId) -> None:
        """Start an epoch; its transaction opens with the first record."""
        self.abort_epoch()
        self._epoch = epoch
        self._pool.begin(epoch, committed)

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Write the records into the epoch's transaction."""
        if not values:
            return
        batch = self._sink.serializer.to_batch(values, timestamps, self._sink_context)
        if not batch.values:  # the serializer has left them all out
            return
        self._retention.look_at(batch)
        if self._open is None:
            self._outbox = OutboxFile()
            self._open = self._pool.take(self._epoch)
        self._open.send(batch)
        if self._files is not None:
            self._outbox.add(batch)

    def prepare_commit(self) -> list[Any]:
        """Write the token into the transaction, flush it to the brokers, and store a large copy."""
        producer = self._open
        if producer is None:
            return []
        context, job = self._context, self._context.job
        token = Token(job.generation, self._epoch, new_attempt(), job.job_name)
        producer.send(token.record(self._token_topic, context.uid, context.subtask, job.identity))
        name: str | None = None
        copy: bytes | None = None
        stored: Future[None] | None = None
        if self._files is not None:
            name = outbox_name(job.generation, self._epoch, context.subtask, token.id)
            copy = self._outbox.finish()
            if len(copy) > inline_limit(job.inline_bytes, context.parallelism * job.sinks):
                stored, copy = self._background.submit(self._files.put, name, copy), None
        transaction = self._pool.prepare(self._epoch)
        if stored is not None:
            stored.result()
        self._open = None
        return [KafkaCommittable(transaction, job.generation, self._epoch, context.subtask, token.id, name, copy).encode()]

    def abort_epoch(self) -> None:
        """Abort the transaction."""
        self._open = None
        self._pool.drop()

    def close(self) -> None:
        """Close the clients. A prepared transaction stays prepared: only the committer ends it."""
        self._closed.set()
        self.abort_epoch()
        # The ids of coming epochs may still be on their way, for half a second: nobody waits for them.
        self._background.submit(self._close_clients)
        self._background.shutdown(wait=False)

    def _close_clients(self) -> None:
        self._pool.close()
        self._client.close()

    def _make(self, slot: int, lane: int) -> TransactionalProducer:
        sink, context = self._sink, self._context
        prefix, job = sink.transactional_id_prefix, context.job
        name = TransactionalId(prefix, context.uid, context.subtask, job.generation, self._writer, slot, lane, job.identity)
        return TransactionalProducer(
            sink.properties, self._where, str(name), sink.transaction_timeout_ms, self._client, self._topics, context.uid
        )


def _sink_context(sink: KafkaOutput, context: WriterContext) -> KafkaSinkContext:
    return KafkaSinkContext(sink.properties, context.uid, context.subtask, context.parallelism)
