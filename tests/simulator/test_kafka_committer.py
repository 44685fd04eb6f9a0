"""What the Kafka sink's committer does with what earlier drivers left on the brokers, which are simulated."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from holdfast.connectors.base import Committable, JobInfo, WriterContext
from holdfast.connectors.job_files import JobFiles
from holdfast.connectors.kafka.sink import committer
from holdfast.connectors.kafka.sink.committable import KafkaCommittable, TransactionalId, rewriter_id
from holdfast.connectors.kafka.sink.committer import KafkaCommitter
from holdfast.connectors.kafka.sink.outbox import OutboxFile, OutgoingBatch, outbox_epoch, outbox_name
from holdfast.connectors.kafka.sink.tokens import Token, token_topic
from holdfast.connectors.kafka.sink.transactions import Prepared, TransactionState
from holdfast.connectors.kafka.sink.writer import TransactionalWriter
from holdfast.errors import ConfigurationError, CorruptFile, Fenced, HoldfastError, IncompatibleState

from .kafka import OUTPUT, Brokers, Record, Serializer, install
from .kafka import TransactionalId as Known
from .world import World

UID = "counts"


@dataclass
class Sink:
    """The sink of a job, with what its drivers have left behind."""

    brokers: Brokers
    world: World
    identity: str = "1f"

    def job(self, generation: int) -> JobInfo:
        return JobInfo("id", "job", generation, "memory:", identity=self.identity)

    def id_of(
        self,
        generation: int,
        epoch: int,
        identity: str | None = None,
        uid: str = UID,
        writer: str = "0a",
        subtask: int = 0,
    ) -> str:
        job = self.identity if identity is None else identity
        return str(TransactionalId(OUTPUT.transactional_id_prefix, uid, subtask, generation, writer, epoch % 4, 0, job))

    def open(self, generation: int, epoch: int, identity: str | None = None, uid: str = UID, writer: str = "0a") -> str:
        """An unfinished transaction, whose record is (generation, epoch)."""
        name = self.id_of(generation, epoch, identity, uid, writer)
        record = Serializer.topic, None, msgspec.json.encode((generation, epoch))
        self.brokers.ids[name] = Known(7, 0, TransactionState.ONGOING, [record])
        return name

    def prepared(self, generation: int, epoch: int) -> Committable:
        """An epoch's output in a transaction that waits for its commit."""
        committable = self.lost(generation, epoch)
        known = self.brokers.ids[self.open(generation, epoch)]
        known.records.append(self.token(generation, epoch, "c0ffee", self.identity))
        return committable

    def copies(self) -> list[tuple[int, int]]:
        """Generation and epoch of the copies in the outbox."""
        return [outbox_epoch(name) or (0, 0) for name in JobFiles(self.job(1), "sinks", UID).names()]

    def lost(
        self,
        generation: int,
        epoch: int,
        identity: str | None = None,
        inline: bool = False,
        subtask: int = 0,
        token: str = "c0ffee",
    ) -> Committable:
        """An epoch's output, whose transaction no broker knows any more; its record is (generation, epoch)."""
        name = outbox_name(generation, epoch, subtask, token)
        file = OutboxFile()
        file.add(OutgoingBatch(Serializer.topic, [msgspec.json.encode((generation, epoch))]))
        copy = file.finish() if inline else None
        if copy is None:
            JobFiles(self.job(generation), "sinks", UID).put(name, file.finish())
        prepared = Prepared(self.id_of(generation, epoch, identity, subtask=subtask), 7, 0)
        data = KafkaCommittable(prepared, generation, epoch, subtask, token, name, copy).encode()
        return Committable("sink", subtask, msgspec.msgpack.decode(msgspec.msgpack.encode(data)))

    def committed(self, generation: int, epoch: int, token: str = "decade", identity: str | None = None) -> None:
        """A writer's last output that was committed."""
        self.brokers.committed.append(self.token(generation, epoch, token, self.identity if identity is None else identity))

    def token(self, generation: int, epoch: int, token: str, job: str) -> Record:
        """A writer's token in the topic of tokens."""
        topic = token_topic(OUTPUT.transactional_id_prefix)
        record = Token(generation, epoch, token, "the other job").record(topic, UID, 0, job)
        assert record.keys is not None
        return topic, record.keys[0], record.values[0]

    def recover(self, generation: int, *committables: Committable) -> None:
        with self.driver(generation) as driver:
            driver.recover(committables)

    @contextmanager
    def driver(self, generation: int, **job: Any) -> Iterator[KafkaCommitter]:
        """A driver's committer. What it does in the background it has done at the end."""
        made = KafkaCommitter(OUTPUT, replace(self.job(generation), **job), UID)
        try:
            yield made
        finally:
            made.close()

    def clean_up(self) -> None:
        """Let the background do all that it has to do now."""
        while self.world.step_any():
            pass


@pytest.fixture
def sink(monkeypatch):
    world = World(1)
    world.calm = True
    return Sink(install(monkeypatch, world), world)


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


# recovery


def a_prepared_transaction_of_the_checkpoint_is_committed_and_no_record_is_written_twice(sink):
    prepared = sink.prepared(2, 4)
    for generation in (3, 4):
        sink.recover(generation, prepared)
        assert sink.brokers.visible == [(2, 4)]


def the_unfinished_transactions_of_earlier_attempts_are_aborted_and_those_of_others_are_not(sink):
    """Readers of committed records wait behind an open transaction."""
    dead = [sink.open(1, 3), sink.open(2, 5), sink.open(2, 6, writer="0b"), sink.open(2, 7, identity="")]
    rewriting = rewriter_id(OUTPUT.transactional_id_prefix, UID, 0, sink.identity)
    others = [sink.open(2, 5, identity="2e"), sink.open(2, 5, uid="another"), "elsewhere"]
    others.append(rewriter_id(OUTPUT.transactional_id_prefix, UID, 0, "2e"))
    for name in (rewriting, *others[2:]):
        sink.brokers.ids[name] = Known(7, 0, TransactionState.ONGOING)
    sink.recover(3)
    assert sorted(sink.brokers.dangling) == sorted(others)
    assert {sink.brokers.ids[name].state for name in (*dead, rewriting)} == {TransactionState.EMPTY}
    assert sink.brokers.visible == []


def a_driver_that_was_overtaken_before_it_recovers_leaves_the_transactions_of_its_successor(sink):
    prepared, theirs = sink.prepared(3, 4), sink.open(5, 6)
    with pytest.raises(Fenced, match=r"a later driver \(generation 5, this one is 4\) owns the output"):
        sink.recover(4, prepared)
    assert sink.brokers.dangling == [theirs]
    assert sink.brokers.visible == [(3, 4)]


def a_transaction_of_another_sink_in_the_checkpoint_is_told(sink):
    transaction = Prepared(sink.id_of(2, 4, uid="another"), 7, 0)
    data = KafkaCommittable(transaction, 2, 4, 0, "c0ffee", None).encode()
    with pytest.raises(IncompatibleState, match=r"holds the transaction simulated-another-0-.*, which is not of this sink"):
        sink.recover(3, Committable("sink", 0, data))


def test_lost_output_is_written_again_in_the_order_of_its_epochs_and_drivers(sink):
    epochs = [(2, 11, 0), (1, 12, 0), (2, 9, 0), (1, 10, 1), (1, 10, 0)]
    sink.recover(3, *(sink.lost(g, epoch, subtask=n, token=f"{g}{epoch}{n}") for g, epoch, n in epochs))
    assert sink.brokers.visible == [(1, 10), (1, 10), (1, 12), (2, 9), (2, 11)]


def test_lost_output_of_a_program_with_another_prefix_is_written_again_with_its_own_tokens(sink):
    """The checkpoint's transactional ids have the prefix that the program had then."""
    before = KafkaCommittable.decode(sink.lost(2, 4))
    name = before.transaction.transactional_id.replace("simulated-", "earlier-", 1)
    lost = replace(before, transaction=Prepared(name, 7, 0))
    for generation in (3, 4):
        sink.recover(generation, Committable("sink", 0, lost.encode()))
        assert sink.brokers.visible == [(2, 4)]
    topics = {topic for topic, _, _ in sink.brokers.committed}
    assert topics == {Serializer.topic, token_topic("earlier")}


def test_lost_output_without_a_copy_is_an_error_that_says_what_is_missing(sink):
    lost = sink.lost(2, 4)
    JobFiles(sink.job(2), "sinks", UID).delete([outbox_name(2, 4, 0, "c0ffee")])
    with pytest.raises(CorruptFile, match="missing; it holds epoch 4 of subtask 0 of the Kafka sink"):
        sink.recover(3, lost)
    without = replace(KafkaCommittable.decode(lost), outbox=None)
    with pytest.raises(HoldfastError, match=r"epoch 4 of subtask 0 was lost .* without checkpoint storage there is no copy"):
        sink.recover(3, Committable("sink", 0, without.encode()))
    with pytest.raises(HoldfastError, match="there is no copy"), sink.driver(3, storage_uri=None) as driver:
        driver.recover([lost])
    assert sink.brokers.visible == []
    assert not sink.brokers.dangling


@pytest.mark.parametrize("known", [False, True])
def a_new_job_whose_prefix_another_job_uses_is_refused_and_told_whose_it_is(sink, known):
    if known:
        sink.committed(5, 7, identity="2e")
    sink.brokers.ids[sink.id_of(5, 1, identity="2e")] = Known(7, 0, TransactionState.COMPLETE_COMMIT)
    sink.recover(1)  # the other job may have ended
    theirs = sink.open(5, 8, identity="2e")
    sink.brokers.ids[theirs].records.append(sink.token(5, 8, "decade", "2e"))  # nobody waits for its end
    with pytest.raises(ConfigurationError) as refused:
        sink.recover(1)
    owner = "job 'the other job'" if known else "another job"
    assert f"{owner} (identity 2e; this one is job 'job'" in str(refused.value)
    assert f"prefix 'simulated': {theirs}" in str(refused.value)
    assert sink.brokers.dangling == [theirs]
    sink.brokers.ids[sink.id_of(1, 1)] = Known(8, 0, TransactionState.COMPLETE_COMMIT)
    sink.recover(2)  # both have used it before: neither touches what is the other's
    assert sink.brokers.dangling == [theirs]


def test_output_whose_tokens_were_deleted_is_written_again_and_said_to_be_there_twice_perhaps(sink, monkeypatch, caplog):
    monkeypatch.setattr(committer, "never_written", lambda properties, topic: topic == token_topic("simulated"))
    sink.recover(3, sink.lost(2, 4), sink.lost(2, 4, subtask=1))
    assert sink.brokers.visible == [(2, 4), (2, 4)]
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "the topic simulated-holdfast-tokens with the tokens of this sink was deleted" in told
    assert "unknown whether the output of epoch 4 was committed. It is written again, and may be there twice" in told
    caplog.clear()
    sink.recover(4)
    assert not caplog.records


# commits


def a_committed_epoch_is_visible_at_once_and_its_copy_goes_in_the_background(sink):
    with sink.driver(2) as driver:
        driver.recover([])
        driver.commit([sink.prepared(2, 4)])
        assert sink.brokers.visible == [(2, 4)]
        later = sink.lost(2, 5)
        assert sink.copies() == [(2, 4), (2, 5)]
        sink.clean_up()
        assert sink.copies() == [(2, 5)]
        sink.open(2, 5)
        driver.commit([later])
    assert sink.brokers.visible == [(2, 4), (2, 5)]
    assert sink.copies() == []


def the_copies_of_earlier_drivers_go_every_thousand_epochs(sink):
    """Recovery could not delete them, or an attempt that it had fenced wrote one afterwards."""
    with sink.driver(3) as driver:
        driver.recover([])
        for generation, epoch in ((2, 9), (3, 999), (3, 1005), (4, 1)):
            sink.lost(generation, epoch)
        for epoch, left in (
            (999, [(2, 9), (3, 1005), (4, 1)]),
            (1000, [(3, 1005), (4, 1)]),
            (1998, [(2, 8), (3, 1005), (4, 1)]),
            (2000, [(4, 1)]),
        ):
            if epoch == 1998:
                sink.lost(2, 8)
            driver.commit([sink.prepared(3, epoch)])
            sink.clean_up()
            assert sink.copies() == left, epoch


def the_open_transactions_of_overtaken_attempts_are_aborted_behind_the_commit_of_their_epoch(sink):
    """In the slot of an epoch that was committed. The next epochs' writers are at work in the other slots."""
    with sink.driver(2) as driver:
        driver.recover([])
        driver.commit([sink.prepared(2, 4)])
        overtaken = sink.open(2, 4, writer="0b")
        earlier, other = sink.open(1, 7), sink.open(3, 4, identity="2e")
        at_work = [sink.open(2, epoch, writer="0c") for epoch in (5, 6, 7)]
        sink.clean_up()
        assert sink.brokers.ids[overtaken].state is not TransactionState.ONGOING
        assert sink.brokers.ids[earlier].state is not TransactionState.ONGOING
        assert sorted(sink.brokers.dangling) == sorted([*at_work, other])


def an_idle_job_looks_for_overtaken_attempts_again_and_again_ever_more_rarely(sink, monkeypatch):
    waits: list[float] = []
    overtaken: list[str] = []

    class Waiting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waits.append(timeout)
            overtaken.append(sink.open(2, 4, writer=f"{len(waits):02x}"))
            return len(waits) == 8  # the next commit

    monkeypatch.setattr(committer, "threading", SimpleNamespace(Event=Waiting, Lock=threading.Lock))
    with sink.driver(2) as driver:
        driver.recover([])
        driver.commit([sink.prepared(2, 4)])
        sink.clean_up()
    assert waits == [2, 4, 8, 16, 32, 60, 60, 60]
    assert set(sink.brokers.dangling) <= {overtaken[-1]}


def the_slot_of_an_epoch_is_left_alone_from_the_second_commit_after_it_on(sink):
    """Then a writer of the epoch that uses the slot next may have begun."""
    with sink.driver(2) as driver:
        driver.recover([])
        driver.commit([sink.prepared(2, 4)])
        sink.clean_up()
        for epoch, aborted in ((5, True), (6, False)):
            overtaken = sink.open(2, 4, writer="0b")
            driver.commit([sink.prepared(2, epoch)])
            sink.clean_up()
            assert (sink.brokers.ids[overtaken].state is not TransactionState.ONGOING) is aborted
        driver.commit([])  # an epoch without output is a commit, too
        overtaken = sink.open(2, 5, writer="0b")
        driver.commit([sink.prepared(2, 7)])
        sink.clean_up()
        assert sink.brokers.ids[overtaken].state is TransactionState.ONGOING


def a_transaction_that_is_lost_before_its_commit_is_an_error_from_which_the_job_recovers(sink):
    with sink.driver(2) as driver:
        driver.recover([])
        both = [sink.prepared(2, 4), sink.lost(2, 4, subtask=1)]
        with pytest.raises(HoldfastError, match="epoch 4, subtask 1 was lost before it could be committed") as failed:
            driver.commit(both)
        assert not isinstance(failed.value, Fenced)
        assert "they are written again when the job restarts" in str(failed.value)
    assert sink.brokers.visible == [(2, 4)]
    sink.recover(3, *both)
    assert sink.brokers.visible == [(2, 4), (2, 4)]


def a_transaction_that_a_later_driver_has_ended_tells_that_the_job_is_its(sink):
    sink.brokers.ids[sink.id_of(9, 1)] = Known(7, 0, TransactionState.COMPLETE_COMMIT)  # of a checkpoint log that is gone
    with sink.driver(2) as driver:
        driver.recover([])
        sink.brokers.ids[sink.id_of(3, 1, identity="2e")] = Known(7, 0, TransactionState.COMPLETE_COMMIT)
        with pytest.raises(HoldfastError, match="was lost before it could be committed"):
            driver.commit([sink.lost(2, 4)])
        sink.open(3, 5)
        with pytest.raises(Fenced, match=r"a later driver \(generation 3, this one is 2\) owns the output"):
            driver.commit([sink.lost(2, 4)])
