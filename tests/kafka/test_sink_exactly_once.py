from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from awaiting import until
from holdfast.connectors.base import Committable
from holdfast.connectors.delivery import DeliveryGuarantee
from holdfast.connectors.kafka.sink import committer
from holdfast.connectors.kafka.sink.committable import KafkaCommittable, TransactionalId
from holdfast.connectors.kafka.sink.committer import KafkaCommitter
from holdfast.connectors.kafka.sink.serializer import RecordSerializer
from holdfast.connectors.kafka.sink.sink import KafkaSink
from holdfast.connectors.kafka.sink.tokens import read_tokens, token_topic
from holdfast.connectors.kafka.sink.transactions import Outcome, TransactionClient, TransactionState
from holdfast.errors import ConfigurationError, CorruptFile, Fenced, HoldfastError, ServiceUnavailable, StorageError
from kafka_fixtures import committed_values, read_all
from kafka_sink_helpers import Driver, both

pytestmark = pytest.mark.kafka


Start = Callable[..., Driver]


@pytest.fixture
def start(kafka: Any, new_topic: Any, tmp_path: Path) -> Iterator[Start]:
    topic = new_topic(partitions=2)
    drivers = []

    def begin(generation: int = 1, identity: str = "0a", storage: Path | None = None, **properties: Any) -> Driver:
        where = storage or tmp_path / f"of-{identity}"
        driver = Driver(kafka.bootstrap_servers, topic, where, generation, identity, **properties)
        if not drivers:
            driver.sink.validate()
        drivers.append(driver)
        return driver

    yield begin
    for driver in drivers:
        driver.close()


def visible(driver: Driver) -> list[str]:
    return sorted(committed_values(driver.servers, driver.topic))


def test_output_is_visible_with_its_commit_and_not_before(start: Start) -> None:
    driver = start()
    driver.committer.recover([])
    for epoch in range(1, 12):
        prepared = driver.prepare(epoch, [f"e{epoch}"])
        assert visible(driver) == both(*(f"e{e}" for e in range(1, epoch)))
        driver.commit(epoch, prepared)
    assert visible(driver) == both(*(f"e{e}" for e in range(1, 12)))
    assert len(driver.transactions()) <= 8  # producers are used again
    driver.committer.close()
    assert driver.outbox() == []


def test_an_epoch_without_output_has_nothing_to_commit(start: Start) -> None:
    driver = start()
    writer = driver.writers[0]
    writer.begin_epoch(1, "a", -1)
    writer.write([], None)
    assert writer.prepare_commit() == []
    assert driver.transactions() == {}
    driver.committer.commit([])


def test_the_next_epochs_are_written_while_one_waits_for_its_commit(start: Start) -> None:
    driver = start()
    prepared = [driver.prepare(epoch, [f"e{epoch}"]) for epoch in range(1, 5)]
    for epoch, one in enumerate(prepared, 1):
        driver.commit(epoch, one)
    assert visible(driver) == both("e1", "e2", "e3", "e4")
    for epoch in range(5, 9):
        driver.prepare(epoch, ["x"])
    with pytest.raises(HoldfastError, match="epoch 9 begins although epoch 5 is not yet committed"):
        driver.prepare(9, ["x"])


def test_committing_twice_and_recovering_twice_changes_nothing(start: Start) -> None:
    driver = start()
    prepared = driver.prepare(1, ["a"])
    driver.commit(1, prepared)
    driver.committer.commit(prepared)
    later = start(2)
    for _ in range(3):
        later.committer.recover(prepared)
    assert visible(driver) == both("a")


def test_prepared_output_outlives_its_writers(start: Start) -> None:
    driver = start()
    prepared = driver.prepare(1, ["a"])
    driver.close()
    driver.writers = []
    later = start(2)
    later.committer.recover(prepared)
    assert visible(later) == both("a")
    assert later.outbox() == []


def _prepare_and_die(servers: str, topic: str, storage: Path, pipe: Any) -> None:
    driver = Driver(servers, topic, storage)
    pipe.send([(c.subtask, c.data) for c in driver.prepare(1, ["a", "b"])])
    driver.writers[0].begin_epoch(2, "x", -1)
    driver.writers[0].write(["half an epoch"], None)
    driver.writers[0]._open.flush()  # type: ignore[union-attr]
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.fault
def test_a_process_killed_between_prepare_and_commit_loses_and_repeats_nothing(start: Start) -> None:
    driver = start(2)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_prepare_and_die, args=(driver.servers, driver.topic, Path(driver.job.storage_uri or ""), theirs)
    )
    process.start()
    prepared = [Committable("sink", subtask, data) for subtask, data in ours.recv()]
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert visible(driver) == []
    driver.committer.recover(prepared)
    assert visible(driver) == both("a", "b")
    # nothing is left open: a reader gets to the end of what later drivers write
    assert TransactionState.ONGOING not in driver.transactions().values()
    driver.commit(2, driver.prepare(2, ["c"]))
    assert visible(driver) == both("a", "b", "c")


def test_open_transactions_of_a_dead_attempt_are_aborted_with_the_epochs_commit(start: Start) -> None:
    driver = start()
    driver.committer.recover([])
    dead = driver.more_writers()
    loser = driver.prepare(1, ["loser"], dead)
    prepared = driver.prepare(1, ["winner"])
    driver.commit(1, prepared)
    assert visible(driver) == both("winner")
    assert set(driver.transactions().values()) == {TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT} or (
        TransactionState.ONGOING not in driver.transactions().values()
    )
    assert len(loser) == 2
    # the loser's writers notice, and write on with other producers
    prepared = driver.prepare(5, ["five"], dead)
    driver.commit(5, prepared)
    assert visible(driver) == both("five", "winner")


def test_a_transaction_that_an_overtaken_attempt_opens_when_the_job_is_idle_is_aborted(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "_FIRST_LOOK_S", 0.05)
    monkeypatch.setattr(committer, "_LAST_LOOK_S", 0.2)
    driver = start()
    driver.committer.recover([])
    for epoch in (1, 2):
        driver.commit(epoch, driver.prepare(epoch, [f"e{epoch}"]))
    for epoch in (1, 2):
        with suppress(HoldfastError):  # it may come too late to write before it is aborted
            driver.prepare(epoch, ["overtaken"], driver.more_writers())
    until(lambda: TransactionState.ONGOING not in driver.transactions().values())
    driver.commit(3, driver.prepare(3, ["e3"]))
    assert visible(driver) == both("e1", "e2", "e3")


def test_an_abandoned_attempt_is_never_committed_by_its_own_writer(start: Start) -> None:
    driver = start()
    driver.prepare(1, ["loser"])
    winners = driver.more_writers()
    driver.committer._client.end(
        [KafkaCommittable.decode(c).transaction for c in driver.prepare(1, ["winner"], winners)], commit=True
    )  # without the clean-up that follows a commit
    driver.completed = 4
    driver.commit(5, driver.prepare(5, ["five"]))
    assert visible(driver) == both("five", "winner")


def test_an_abandoned_epoch_is_run_again_by_the_same_writers(start: Start) -> None:
    driver = start()
    for writer in driver.writers:
        writer.begin_epoch(1, "a", -1)
        writer.write(["abandoned"], None)
        writer.abort_epoch()
    driver.writers[0].begin_epoch(1, "b", -1)
    driver.writers[0].write(["abandoned without a word"], None)
    driver.prepare(1, ["prepared, then run again"])
    driver.commit(1, driver.prepare(1, ["taken"]))
    assert visible(driver) == both("taken")
    for epoch in range(2, 8):
        driver.commit(epoch, driver.prepare(epoch, [f"e{epoch}"]))
    assert visible(driver) == both("taken", *(f"e{e}" for e in range(2, 8)))


def time_out(driver: Driver, prepared: list[Committable]) -> None:
    """Wait until the brokers have aborted the transactions."""
    ids = [KafkaCommittable.decode(c).transaction.transactional_id for c in prepared]
    deadline = time.monotonic() + 600
    while {s for i, s in driver.transactions().items() if i in ids} != {TransactionState.COMPLETE_ABORT}:
        assert time.monotonic() < deadline, driver.transactions()
        time.sleep(0.05)


def test_output_whose_transaction_timed_out_is_rewritten(start: Start) -> None:
    driver = start(**{"transaction.timeout.ms": 1500})
    driver.committer.recover([])
    driver.commit(1, driver.prepare(1, ["one"]))
    prepared = driver.prepare(2, ["two"])
    time_out(driver, prepared)
    with pytest.raises(HoldfastError, match=r"epoch 2, subtask 0 was lost .* written again when the job restarts"):
        driver.committer.commit(prepared)
    later = start(2)
    later.committer.recover(prepared)
    assert visible(later) == both("one", "two")
    later.committer.recover(prepared)  # and again, after a crash right behind it
    assert visible(later) == both("one", "two")
    later.commit(3, later.prepare(3, ["three"]))
    assert visible(later) == both("one", "two", "three")
    later.committer.close()
    assert later.outbox() == []


def test_the_token_shows_that_a_lost_transaction_was_committed(start: Start) -> None:
    driver = start()
    prepared = driver.prepare(1, ["a"])
    ours = [KafkaCommittable.decode(c) for c in prepared]
    driver.committer._client.end([c.transaction for c in ours], commit=True)  # whose answer nobody got
    driver.committer._client.fence([c.transaction.transactional_id for c in ours], 30_000)
    assert set(driver.committer._client.end([c.transaction for c in ours], commit=True).values()) == {Outcome.LOST}
    later = start(2)
    later.committer.recover(prepared)
    assert visible(later) == both("a")
    tokens = read_tokens(driver.sink.properties, token_topic(driver.topic))
    assert {t.id for t in tokens.values()} == {c.token for c in ours}


@pytest.mark.parametrize("dies_after", ["init", "send", "flush", "commit"])
def test_a_rewrite_can_be_killed_at_every_step(start: Start, monkeypatch: pytest.MonkeyPatch, dies_after: str) -> None:
    from holdfast.connectors.kafka.sink import committer as module

    class Dies(module.TransactionalProducer):
        def _maybe(self, step: str) -> None:
            if step == dies_after:
                raise KeyboardInterrupt(step)

        def open(self) -> None:
            self._maybe("init")
            super().open()

        def send(self, batch: Any) -> None:
            super().send(batch)
            self._maybe("send")

        def flush(self) -> None:
            super().flush()
            self._maybe("flush")

        def commit(self) -> None:
            super().commit()
            self._maybe("commit")

        def discard(self) -> None:
            self._producer = None  # a killed process says no good-bye

    driver = start()
    prepared = driver.prepare(1, ["a", "b"])
    driver.committer._client.fence([KafkaCommittable.decode(c).transaction.transactional_id for c in prepared], 30_000)
    original = module.TransactionalProducer
    monkeypatch.setattr(module, "TransactionalProducer", Dies)
    for generation in (2, 3):
        with pytest.raises(KeyboardInterrupt):
            start(generation).committer.recover(prepared)
    monkeypatch.setattr(module, "TransactionalProducer", original)
    later = start(4)
    later.committer.recover(prepared)
    assert visible(later) == both("a", "b")
    assert TransactionState.ONGOING not in later.transactions().values()


def test_a_lost_copy_is_an_error_and_never_a_silent_loss(start: Start) -> None:
    driver = start()
    prepared = driver.prepare(1, ["a"])
    driver.committer._client.fence([KafkaCommittable.decode(c).transaction.transactional_id for c in prepared], 30_000)
    path = Path(driver.outbox()[0])
    data = path.read_bytes()
    path.write_bytes(data[:-12] + b"x" + data[-11:])
    with pytest.raises(CorruptFile, match="checksum does not match"):
        start(2).committer.recover(prepared)
    for name in driver.outbox():
        Path(name).unlink()
    with pytest.raises(CorruptFile, match=r"missing; it holds epoch 1 of subtask \d"):
        start(3).committer.recover(prepared)


def test_a_later_driver_fences_the_earlier_one(start: Start) -> None:
    old = start(1)
    old.committer.recover([])
    old.commit(1, old.prepare(1, ["one"]))
    for writer in old.writers:  # open, as a paused process has it
        writer.begin_epoch(2, "a", 1)
        writer.write(["zombie"], None)
        writer._open.flush()  # type: ignore[union-attr]
    zombies = old.prepare(3, ["prepared zombie"], old.more_writers())
    new = start(2)
    new.committer.recover([])
    new.commit(2, new.prepare(2, ["two"]))
    with pytest.raises(HoldfastError, match="records were not delivered"):  # noqa: PT012
        old.writers[0].write(["zombie again"], None)
        old.writers[0].prepare_commit()
    with pytest.raises(Fenced, match=r"a later driver \(generation 2, this one is 1\)"):
        old.committer.commit(zombies)
    assert visible(new) == both("one", "two")
    old.writers[0]._open = old.writers[1]._open = None


def test_a_recovery_does_not_need_the_storages_listings(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = start().prepare(1, ["a"])
    new = start(2)

    def fail() -> list[str]:
        raise StorageError("listings fail")

    monkeypatch.setattr(new.committer._files, "names", fail)
    new.committer.recover(prepared)
    new.commit(2, new.prepare(2, ["b"]))
    assert visible(new) == both("a", "b")


def test_an_overtaken_recovery_that_continues_leaves_its_successor_the_prepared_output(start: Start) -> None:
    first = start(1)
    lost = first.prepare(1, ["a"])
    first.committer._client.fence([KafkaCommittable.decode(c).transaction.transactional_id for c in lost], 30_000)
    overtaken, successor = start(2), start(3)
    successor.committer.recover(lost)
    prepared = successor.prepare(2, ["b"])
    copies = successor.outbox()
    with pytest.raises(Fenced, match="generation 3, this one is 2"):
        overtaken.committer.recover(lost)  # continues only now
    assert successor.outbox() == copies
    successor.committer.commit(prepared)
    assert visible(successor) == both("a", "b")


def test_an_overtaken_recovery_rewrites_nothing_even_if_the_copies_still_exist(start: Start) -> None:
    driver = start()
    prepared = driver.prepare(1, ["a"])
    driver.committer._client.fence([KafkaCommittable.decode(c).transaction.transactional_id for c in prepared], 30_000)
    copies = {path: Path(path).read_bytes() for path in driver.outbox()}
    assert len(copies) == 2
    new = start(3)
    new.committer.recover(prepared)
    new.commit(2, new.prepare(2, ["b"]))
    for path, copy in copies.items():  # a listing that lagged has hidden them from the one who deletes
        Path(path).write_bytes(copy)
    overtaken = start(2)
    overtaken.committer.recover(prepared)
    assert visible(new) == both("a", "b")


def lose(driver: Driver, prepared: list[Committable]) -> None:
    """End prepared transactions as their timeout does."""
    driver.committer._client.fence([KafkaCommittable.decode(c).transaction.transactional_id for c in prepared], 30_000)


@pytest.mark.parametrize("deleted", [True, False])
def the_output_whose_token_was_deleted_may_be_written_twice_and_that_is_told(
    kafka: Any, start: Start, caplog: pytest.LogCaptureFixture, deleted: bool
) -> None:
    driver = start()
    tokens = token_topic(driver.topic)
    prepared = driver.prepare(1, ["a"])
    ours = [KafkaCommittable.decode(c) for c in prepared]
    driver.committer._client.end([c.transaction for c in ours], commit=True)  # whose answer nobody got
    lose(driver, prepared)
    if deleted:
        kafka.delete_topic(tokens)
        until(lambda: tokens not in kafka.admin().list_topics().topics)
        with pytest.raises(HoldfastError, match=f"there is no topic {tokens}"):
            driver.prepare(2, ["b"])
    later = start(2)
    later.committer.recover(prepared)
    assert visible(later) == sorted(both("a") * (2 if deleted else 1))
    told = f"the topic {tokens} with the tokens of this sink was deleted"
    assert caplog.text.count(told) == (1 if deleted else 0)
    later.commit(2, later.prepare(2, ["c"]))


def a_token_topic_that_is_deleted_under_a_running_job_is_created_again_by_its_restart_in_place(
    kafka: Any, start: Start
) -> None:
    driver = start()
    tokens = token_topic(driver.topic)
    driver.commit(1, driver.prepare(1, ["a"]))
    kafka.delete_topic(tokens)
    until(lambda: tokens not in kafka.admin().list_topics().topics)
    with pytest.raises(HoldfastError, match=f"there is no topic {tokens}"):
        driver.prepare(2, ["b"])
    restarted = start(2)  # without the checks before the start of a program
    restarted.committer.recover([])
    restarted.commit(2, restarted.prepare(2, ["b"]))
    assert visible(restarted) == both("a", "b")


def test_the_tokens_of_another_job_do_not_show_that_lost_output_was_committed(start: Start) -> None:
    one = start()
    one.committer.recover([])
    one.commit(1, one.prepare(1, ["one"]))
    lost = one.prepare(2, ["lost"])
    lose(one, lost)
    other = start(5, identity="0b")
    other.committer.recover([])
    for epoch in range(3, 6):
        other.commit(epoch, other.prepare(epoch, [f"other {epoch}"]))
    start(2).committer.recover(lost)
    assert visible(one) == both("one", "lost", "other 3", "other 4", "other 5")


def test_a_job_is_refused_a_prefix_with_which_another_job_has_an_open_transaction(start: Start) -> None:
    one = start()
    one.committer.recover([])
    one.commit(1, one.prepare(1, ["one"]))
    prepared = one.prepare(2, ["two"])
    newcomer = start(identity="0b")
    with pytest.raises(ConfigurationError, match=r"job 'job0a' \(identity 0a; this one is job 'job0b', identity 0b\)"):
        newcomer.committer.recover([])
    one.commit(2, prepared)
    newcomer.committer.recover([])
    newcomer.commit(1, newcomer.prepare(1, ["new"]))
    open_ = newcomer.prepare(2, ["newer"])
    again = start(2)
    again.committer.recover(prepared)  # one that has had the prefix goes on beside the other
    again.commit(3, again.prepare(3, ["three"]))
    newcomer.commit(2, open_)
    assert visible(one) == both("one", "two", "three", "new", "newer")


def test_a_job_that_starts_from_the_checkpoint_of_another_one_commits_its_output_and_ends_its_transactions(
    start: Start,
) -> None:
    one = start()
    one.committer.recover([])
    prepared = one.prepare(1, ["one"])
    for writer in one.writers:
        writer.begin_epoch(2, "a", 1)
        writer.write(["zombie"], None)
        writer._open.flush()  # type: ignore[union-attr]
    copy = start(2, identity="0b")
    copy.committer.recover(prepared)
    copy.commit(3, copy.prepare(3, ["copy"]))
    assert visible(one) == both("one", "copy")
    one.writers[0]._open = one.writers[1]._open = None


def test_output_prepared_with_another_prefix_is_committed_once(start: Start, new_topic: Any) -> None:
    one = start()
    committed, lost = one.prepare(1, ["one"])[:1], one.prepare(2, ["two"])
    one.committer.commit(committed)
    lose(one, committed)
    lose(one, lost)
    renamed = start(2)
    renamed.sink = KafkaSink(
        properties=renamed.sink.properties,
        record_serializer=renamed.sink.serializer,
        delivery_guarantee=DeliveryGuarantee.EXACTLY_ONCE,
        transactional_id_prefix=new_topic(),
    )
    renamed.committer.close()
    renamed.committer = KafkaCommitter(renamed.sink, renamed.job, "sink")
    renamed.committer.recover([*committed, *lost])
    assert visible(one) == sorted(["one/0", "two/0", "two/1"])


def test_output_prepared_before_a_return_to_an_older_checkpoint_is_committed_once_by_the_driver_that_goes_back(
    start: Start,
) -> None:
    one = start()
    one.committer.recover([])
    one.commit(1, one.prepare(1, ["one"]))
    prepared = one.prepare(2, ["two"])  # the driver dies before the commit
    back = start(2)
    back.committer.recover(prepared)  # that of the checkpoint that it passes over; checkpoint 1 had its own committed
    back.commit(4, back.prepare(4, ["other"]))
    start(3).committer.recover(prepared)
    assert visible(one) == both("one", "two", "other")
    start(4).committer.recover(prepared)
    assert visible(one) == both("one", "two", "other")


@pytest.mark.parametrize("committed", [True, False])
def test_output_and_tokens_of_a_release_without_identities_are_recognised(start: Start, committed: bool) -> None:
    old = start(identity="")
    old.committer.recover([])
    old.commit(1, old.prepare(1, ["one"]))
    prepared = old.prepare(2, ["two"])
    if committed:
        old.committer._client.end([KafkaCommittable.decode(c).transaction for c in prepared], commit=True)
    lose(old, prepared)
    new = start(2, storage=Path(old.job.storage_uri or ""), name=old.job.job_name)
    new.committer.recover(prepared)
    new.commit(3, new.prepare(3, ["three"]))
    assert visible(old) == both("one", "two", "three")


def test_invalid_sinks_are_refused_before_the_start(kafka: Any, new_topic: Any) -> None:
    def sink(topic: str = "t", prefix: str = "p", **properties: Any) -> KafkaSink:
        properties = {"bootstrap.servers": kafka.bootstrap_servers, **properties}
        return KafkaSink(
            properties=properties,
            record_serializer=RecordSerializer(topic),
            delivery_guarantee=DeliveryGuarantee.EXACTLY_ONCE,
            transactional_id_prefix=prefix,
        )

    with pytest.raises(ConfigurationError, match="set_transactional_id_prefix"):
        sink(prefix="")
    with pytest.raises(ConfigurationError, match=r"transactional\.id=x cannot be set"):
        sink(**{"transactional.id": "x"})
    with pytest.raises(ConfigurationError, match="there-is-none"):
        sink(topic="there-is-none").validate()
    with pytest.raises(ConfigurationError, match=r"transaction.timeout.ms=90000000"):
        sink(topic=new_topic(), **{"transaction.timeout.ms": 90_000_000}).validate()
    with pytest.raises(ServiceUnavailable, match="Check that the broker runs"):
        sink(**{"bootstrap.servers": "127.0.0.1:1"}).validate()


def test_transactional_ids_of_other_sinks_are_left_alone(kafka: Any, start: Start) -> None:
    driver = start()
    client = TransactionClient(driver.sink.properties)
    other = TransactionalId(driver.topic, "sink-2", 0, 1, "ab", 0, 1)
    client.fence([str(other)], 30_000)
    identity = client.describe([str(other)])[str(other)]
    driver.committer.recover([])
    assert client.describe([str(other)])[str(other)] == identity
    client.close()


def test_an_aborted_epoch_leaves_no_trace_for_readers(start: Start) -> None:
    driver = start()
    writer = driver.writers[0]
    writer.begin_epoch(1, "a", -1)
    writer.write(["gone"] * 100, None)
    writer._open.flush()  # type: ignore[union-attr]
    writer.abort_epoch()
    driver.commit(1, driver.prepare(1, ["kept"]))
    assert visible(driver) == both("kept")
    assert len(read_all(driver.servers, driver.topic, isolation="read_uncommitted")) == 102
