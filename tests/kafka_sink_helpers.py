"""Drives an exactly-once Kafka sink as the runtime does: two writers, and a committer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from holdfast.connectors.base import Committable, JobInfo, WriterContext
from holdfast.connectors.delivery import DeliveryGuarantee
from holdfast.connectors.kafka.sink.committer import KafkaCommitter
from holdfast.connectors.kafka.sink.serializer import RecordSerializer
from holdfast.connectors.kafka.sink.sink import KafkaSink
from holdfast.connectors.kafka.sink.transactions import TransactionState
from holdfast.connectors.kafka.sink.writer import TransactionalWriter


class Driver:
    """One generation of the job."""

    def __init__(
        self,
        servers: str,
        topic: str,
        storage: Path,
        generation: int = 1,
        identity: str = "",
        name: str = "",
        **properties: Any,
    ) -> None:
        self.servers, self.topic = servers, topic
        self.sink = KafkaSink(
            properties={"bootstrap.servers": servers, **properties},
            record_serializer=RecordSerializer(topic),
            delivery_guarantee=DeliveryGuarantee.EXACTLY_ONCE,
            transactional_id_prefix=topic,
        )
        self.job = JobInfo("job", name or f"job{identity}", generation, str(storage), identity=identity)
        self.committer = KafkaCommitter(self.sink, self.job, "sink")
        self.others: list[TransactionalWriter] = []
        self.writers = [self.new_writer(s) for s in range(2)]
        self.completed = -1

    def new_writer(self, subtask: int) -> TransactionalWriter:
        return TransactionalWriter(self.sink, WriterContext(self.job, "sink", subtask, 2))

    def more_writers(self) -> list[TransactionalWriter]:
        more = [self.new_writer(s) for s in range(2)]
        self.others += more
        return more

    def prepare(self, epoch: int, values: list[str], writers: list[TransactionalWriter] | None = None) -> list[Committable]:
        prepared = []
        for subtask, writer in enumerate(writers or self.writers):
            writer.begin_epoch(epoch, f"attempt-{time.time_ns()}", self.completed)
            writer.write([f"{v}/{subtask}" for v in values], None)
            prepared += [Committable("sink", subtask, data) for data in writer.prepare_commit()]
        return prepared

    def commit(self, epoch: int, prepared: list[Committable]) -> None:
        self.committer.commit(prepared)
        self.settle()
        self.completed = epoch

    def settle(self) -> None:
        """Wait for the clean-up that follows a commit: until then dead attempts may hold readers up."""
        if self.committer._cleaning is not None:
            self.committer._cleaning.result()

    def outbox(self) -> list[str]:
        return [str(p) for p in Path(self.job.storage_uri or "").rglob("*") if p.is_file()]

    def transactions(self) -> dict[str, TransactionState]:
        return self.committer._client.list(f"{self.topic}-sink-")

    def close(self) -> None:
        for writer in self.writers + self.others:
            writer.close()
        self.committer.close()


def both(*values: str) -> list[str]:
    """What both writers wrote of these, sorted."""
    return sorted(f"{v}/{s}" for v in values for s in range(2))
