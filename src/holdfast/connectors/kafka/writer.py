"""The sink's half in the task."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.paths import new_attempt
from holdfast.connectors.base import WriterContext
from holdfast.connectors.job_files import JobFiles
from holdfast.connectors.kafka.committable import SLOTS, KafkaCommittable, TransactionalId
from holdfast.connectors.kafka.outgoing import OutboxFile, outbox_name
from holdfast.connectors.kafka.producers import RecordProducer, TransactionalProducer
from holdfast.connectors.kafka.tokens import Token, token_topic
from holdfast.connectors.kafka.transactions import TransactionClient
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.connectors.kafka.sink import KafkaSink

__all__ = ["PlainWriter", "TransactionalWriter"]

_logger = logging.getLogger(__name__)


class PlainWriter:
    """Writes what becomes visible at once: at-least-once if ``flush``, else without a promise."""

    def __init__(self, sink: KafkaSink, context: WriterContext, *, flush: bool) -> None:
        self._serializer = sink.serializer
        self._uid = context.uid
        self._flush = flush
        self._producer = RecordProducer(sink.properties, f"Kafka sink (uid {context.uid})")

    def begin_epoch(self, epoch: int, attempt: str, completed: int) -> None:
        """Nothing to do: there is nothing to hold back."""

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Send the records."""
        if values:
            self._producer.send(self._serializer.serialize(values, timestamps, self._uid))

    def prepare_commit(self) -> list[Any]:
        """Wait until the brokers have everything, if that is promised."""
        if self._flush:
            self._producer.flush()
        return []

    def abort_epoch(self) -> None:
        """What was sent was sent."""

    def close(self) -> None:
        """Send what is left, and end the client."""
        try:
            self._producer.flush()
        finally:
            self._producer.close()


class TransactionalWriter:
    """Writes each epoch in a transaction that the committer ends, and keeps a copy of it in the outbox until then.

    Epoch n uses slot n mod `SLOTS`, so that the next epochs can be written while this one is committed. A slot has
    more than one producer (lane) only after an epoch was run again: the first may be prepared already.
    """

    def __init__(self, sink: KafkaSink, context: WriterContext) -> None:
        self._sink = sink
        self._context = context
        self._where = f"Kafka sink (uid {context.uid}, subtask {context.subtask})"
        self._writer = uuid.uuid4().hex[:8]
        self._client = TransactionClient(sink.properties)
        self._slots: list[list[TransactionalProducer]] = [[] for _ in range(SLOTS)]
        self._lanes = 0
        self._next: tuple[int, Future[TransactionalProducer]] | None = None
        self._background = ThreadPoolExecutor(max_workers=2, thread_name_prefix="kafka-sink")
        self._token_topic = token_topic(sink.transactional_id_prefix)
        self._files = None if context.job.storage_uri is None else JobFiles(context.job, "sinks", context.uid)
        self._epoch = self._completed = -1
        self._open: TransactionalProducer | None = None
        self._outbox = OutboxFile()

    def begin_epoch(self, epoch: int, attempt: str, completed: int) -> None:
        """Nothing is opened before the first record."""
        if self._open is not None:
            self.abort_epoch()
        self._epoch, self._completed = epoch, completed

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Write the records into the epoch's transaction."""
        if not values:
            return
        batch = self._sink.serializer.serialize(values, timestamps, self._context.uid)
        if self._open is None:
            self._outbox = OutboxFile()
            self._open = self._take_producer()
            self._open.open()
        self._open.send(batch)
        if self._files is not None:
            self._outbox.add(batch)

    def prepare_commit(self) -> list[Any]:
        """Token into the transaction, everything to the brokers, the copy into the storage."""
        producer = self._open
        if producer is None:
            return []
        context, job = self._context, self._context.job
        token = Token(job.generation, self._epoch, new_attempt())
        producer.send(token.record(self._token_topic, context.uid, context.subtask))
        name: str | None = None
        if self._files is not None:
            name = outbox_name(job.generation, self._epoch, context.subtask, token.id)
            copy = self._background.submit(self._files.put, name, self._outbox.finish())
            transaction = producer.prepare(self._epoch)
            copy.result()
        else:
            transaction = producer.prepare(self._epoch)
        self._open = None
        self._prepare_next()
        return [KafkaCommittable(transaction, job.generation, self._epoch, context.subtask, token.id, name).encode()]

    def abort_epoch(self) -> None:
        """Abort the transaction; a fresh producer takes the slot."""
        producer, self._open = self._open, None
        if producer is not None:
            self._drop(producer)

    def close(self) -> None:
        """End the clients. A prepared transaction stays as it is: nobody but the committer ends it."""
        self.abort_epoch()
        self._background.shutdown(wait=True)
        if self._next is not None and self._next[1].exception() is None:
            self._next[1].result().discard()
        for lane in self._slots:
            for producer in lane:
                producer.discard()
            lane.clear()
        self._client.close()

    def _take_producer(self) -> TransactionalProducer:
        """A free producer for the open epoch."""
        slot = self._epoch % SLOTS
        for producer in list(self._slots[slot]):
            if not producer.prepared:
                return producer
            if producer.epoch <= self._completed:
                if producer.recycle():
                    return producer
                self._drop(producer)
            elif producer.epoch != self._epoch:
                raise HoldfastError(
                    f"{self._where}: epoch {self._epoch} begins although epoch {producer.epoch} is not committed yet"
                )
        if self._next is not None and self._next[0] == slot:
            made, self._next = self._next[1].result(), None
        else:
            made = self._make(slot)
        self._slots[slot].append(made)
        return made

    def _prepare_next(self) -> None:
        """Have the next epoch's producer ready if its slot has none yet: making one takes several round trips."""
        slot = (self._epoch + 1) % SLOTS
        if self._next is None and not self._slots[slot]:
            self._next = (slot, self._background.submit(self._make, slot))

    def _make(self, slot: int) -> TransactionalProducer:
        self._lanes += 1
        context = self._context
        name = TransactionalId(
            self._sink.transactional_id_prefix,
            context.uid,
            context.subtask,
            context.job.generation,
            self._writer,
            slot,
            self._lanes,
        )
        return TransactionalProducer(
            self._sink.properties, self._where, str(name), self._sink.transaction_timeout_ms, self._client
        )

    def _drop(self, producer: TransactionalProducer) -> None:
        for lane in self._slots:
            if producer in lane:
                lane.remove(producer)
        producer.discard()
