"""What the Kafka sink's committer does with what earlier drivers left on the brokers, which are simulated."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import pytest

from holdfast.connectors.base import Committable, JobInfo, WriterContext
from holdfast.connectors.job_files import JobFiles
from holdfast.connectors.kafka.sink.committable import KafkaCommittable, TransactionalId
from holdfast.connectors.kafka.sink.committer import KafkaCommitter
from holdfast.connectors.kafka.sink.outbox import OutboxFile, OutgoingBatch, outbox_name
from holdfast.connectors.kafka.sink.tokens import Token, token_topic
from holdfast.connectors.kafka.sink.transactions import Prepared, TransactionState
from holdfast.connectors.kafka.sink.writer import TransactionalWriter

from .kafka import OUTPUT, Brokers, Serializer, install
from .kafka import TransactionalId as Known
from .world import World

UID = "counts"


@dataclass
class Sink:
    """The sink of a job, with what its drivers have left behind."""

    brokers: Brokers
    identity: str = "1f"

    def job(self, generation: int) -> JobInfo:
        return JobInfo("id", "job", generation, "memory:", identity=self.identity)

    def id_of(self, generation: int, epoch: int, identity: str | None = None) -> str:
        job = self.identity if identity is None else identity
        return str(TransactionalId(OUTPUT.transactional_id_prefix, UID, 0, generation, "0a", epoch % 4, 0, job))

    def lost(self, generation: int, epoch: int, identity: str | None = None, inline: bool = False) -> Committable:
        """An epoch's output, whose transaction no broker knows any more; its record is (generation, epoch)."""
        name = outbox_name(generation, epoch, 0, "c0ffee")
        file = OutboxFile()
        file.add(OutgoingBatch(Serializer.topic, [msgspec.json.encode((generation, epoch))]))
        copy = file.finish() if inline else None
        if copy is None:
            JobFiles(self.job(generation), "sinks", UID).put(name, file.finish())
        prepared = Prepared(self.id_of(generation, epoch, identity), 7, 0)
        data = KafkaCommittable(prepared, generation, epoch, 0, "c0ffee", name, copy).encode()
        return Committable("sink", 0, msgspec.msgpack.decode(msgspec.msgpack.encode(data)))

    def committed(self, generation: int, epoch: int, token: str = "decade", identity: str | None = None) -> None:
        """A writer's last output that was committed."""
        topic, job = token_topic(OUTPUT.transactional_id_prefix), self.identity if identity is None else identity
        record = Token(generation, epoch, token).record(topic, UID, 0, job)
        assert record.keys is not None
        self.brokers.committed.append((topic, record.keys[0], record.values[0]))

    def recover(self, generation: int, *committables: Committable) -> None:
        committer = KafkaCommitter(OUTPUT, self.job(generation), UID)
        try:
            committer.recover(committables)
        finally:
            committer.close()


@pytest.fixture
def sink(monkeypatch):
    world = World(1)
    world.calm = True
    return Sink(install(monkeypatch, world))


@pytest.mark.parametrize("inline", [False, True])
def test_lost_output_is_written_again_once(sink, inline):
    lost = sink.lost(2, 4, inline=inline)
    sink.recover(3, lost)
    assert sink.brokers.visible == [(2, 4)]
    sink.recover(4, lost)
    assert sink.brokers.visible == [(2, 4)]


@pytest.mark.parametrize(("most", "files"), [(0, 1), (20_000, 0)])
def a_writer_puts_a_small_copy_of_its_output_into_the_checkpoint(sink, most, files):
    job = replace(sink.job(2), inline_bytes=most)
    writer = TransactionalWriter(OUTPUT, WriterContext(job, UID, 0, 4))
    writer.begin_epoch(4, "attempt", 3)
    writer.write([(2, 4)], None)
    (data,) = writer.prepare_commit()
    writer.close()
    assert len(JobFiles(job, "sinks", UID).names()) == files
    sink.brokers.ids.clear()  # the transaction is lost
    sink.recover(3, Committable(UID, 0, data))
    assert sink.brokers.visible == [(2, 4)]


@pytest.mark.parametrize("last", [(2, 4, "c0ffee"), (2, 5, "decade")])
def test_output_whose_token_or_a_later_one_was_committed_is_not_written_again(sink, last):
    sink.committed(*last)
    sink.recover(3, sink.lost(2, 4))
    assert sink.brokers.visible == []


def a_later_epoch_of_an_earlier_driver_does_not_tell_that_output_was_committed(sink):
    """Tokens without a job's identity, of earlier releases, have one key for all drivers; the second went back before it."""
    sink.committed(1, 7, identity="")
    sink.recover(3, sink.lost(2, 4, identity=""))
    assert sink.brokers.visible == [(2, 4)]


def the_writers_of_the_driver_before_are_fenced_even_between_two_transactions(sink):
    """Such a writer may live on: a transaction that it began later would stay open, and hold up readers."""
    ids = {generation: sink.id_of(generation, 0) for generation in (1, 2)}
    other = sink.id_of(2, 0, identity="2e")
    for name in (*ids.values(), other):
        sink.brokers.ids[name] = Known(7, 0, TransactionState.COMPLETE_COMMIT)
    sink.recover(3)
    epochs = {generation: sink.brokers.ids[name].epoch for generation, name in ids.items()}
    assert epochs == {1: 0, 2: 1}  # those of older drivers were fenced by the one before
    assert sink.brokers.ids[other].epoch == 0


def test_output_of_drivers_before_leaves_the_outbox_and_that_of_this_driver_and_later_ones_stays(sink):
    for generation in (1, 2, 3, 4):
        sink.lost(generation, 4)
    sink.recover(3)
    names = JobFiles(sink.job(3), "sinks", UID).names()
    assert [int(name.split("-")[0]) for name in names] == [3, 4]
