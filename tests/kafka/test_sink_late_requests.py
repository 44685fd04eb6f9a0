"""Requests of the transaction protocol that arrive late, twice or not at all change nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast.connectors.base import Committable
from holdfast.connectors.kafka.sink import producers
from holdfast.connectors.kafka.sink.committable import KafkaCommittable
from holdfast.connectors.kafka.sink.transactions import Outcome, TransactionClient, TransactionState
from holdfast.testing.kafka import KafkaBroker, KafkaCluster
from holdfast.testing.proxy import ApiKey, KafkaProxy, Side
from kafka_fixtures import FAST_TIMEOUTS, committed_values
from kafka_sink_helpers import Driver, both

pytestmark = pytest.mark.kafka

Start = Callable[..., Driver]


@pytest.fixture(scope="module")
def proxied() -> Iterator[KafkaProxy]:
    broker = KafkaBroker(properties=FAST_TIMEOUTS | {"transaction.max.timeout.ms": "30000"})
    proxy = KafkaProxy(broker)
    with broker, proxy:
        yield proxy


@pytest.fixture
def proxy(proxied: KafkaProxy) -> Iterator[KafkaProxy]:
    yield proxied
    proxied.calm()


@pytest.fixture
def start(proxy: KafkaProxy, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    topic = f"{request.node.name.translate({ord('['): '-', ord(']'): None})[-80:]}-{uuid4().hex[:6]}"
    proxy.broker.create_topic(topic, partitions=2)
    drivers: list[Driver] = []

    def begin(generation: int = 1) -> Driver:
        driver = Driver(proxy.bootstrap_servers, topic, tmp_path, generation, **{"transaction.timeout.ms": 30_000})
        if not drivers:
            driver.sink.validate()
        drivers.append(driver)
        return driver

    yield begin
    proxy.calm()
    for driver in drivers:
        driver.close()


def visible(driver: Driver) -> list[str]:
    return sorted(committed_values(driver.servers, driver.topic))


def half_an_epoch(driver: Driver, epoch: int) -> None:
    for subtask, writer in enumerate(driver.writers):
        writer.begin_epoch(epoch, "half", driver.completed)
        writer.write([f"half of e{epoch}/{subtask}"], None)
        assert writer._open is not None
        writer._open.flush()


def other_half(driver: Driver, epoch: int) -> list[Committable]:
    prepared = []
    for subtask, writer in enumerate(driver.writers):
        writer.write([f"rest of e{epoch}/{subtask}"], None)
        prepared += [Committable("sink", subtask, data) for data in writer.prepare_commit()]
    return prepared


def test_a_commit_that_arrives_four_epochs_late_commits_nothing(start: Start, proxy: KafkaProxy) -> None:
    driver = start()
    driver.committer.recover([])
    first = driver.prepare(1, ["e1"])
    late = proxy.hold(ApiKey.END_TXN, matching=lambda m: m.client_id == "holdfast-transactions", times=2, sever=True)
    driver.commit(1, first)  # its requests are on the way for long; it repeats them
    late.wait(1)
    for epoch in range(2, 5):
        driver.commit(epoch, driver.prepare(epoch, [f"e{epoch}"]))
    half_an_epoch(driver, 5)
    before = both("e1", "e2", "e3", "e4")
    assert visible(driver) == before
    late.release()
    late.wait_answered(len(late.caught))
    assert visible(driver) == before
    driver.commit(5, other_half(driver, 5))
    assert visible(driver) == sorted(before + both("half of e5", "rest of e5"))


def test_a_repeated_commit_arrives_while_the_slots_next_epoch_is_open(start: Start, proxy: KafkaProxy) -> None:
    driver = start()
    driver.committer.recover([])
    again = proxy.repeat(ApiKey.END_TXN, times=None)  # of any client: the committer's, and the producers' own
    for epoch in range(1, 10):
        driver.commit(epoch, driver.prepare(epoch, [f"e{epoch}"]))
    half_an_epoch(driver, 10)
    copies = len(again.caught)
    again.release()
    again.wait_answered(copies)
    assert visible(driver) == both(*(f"e{e}" for e in range(1, 10)))
    driver.commit(10, other_half(driver, 10))
    assert visible(driver) == both(*(f"e{e}" for e in range(1, 10)), "half of e10", "rest of e10")


@pytest.mark.parametrize("generation", [1, 2])
def test_going_back_to_a_checkpoint_commits_nothing_of_the_epoch_that_is_open(start: Start, generation: int) -> None:
    driver = start()
    driver.committer.recover([])
    prepared = [driver.prepare(epoch, [f"e{epoch}"]) for epoch in range(1, 5)]
    for epoch, one in enumerate(prepared, 1):
        driver.commit(epoch, one)
    half_an_epoch(driver, 5)
    back = start(generation)
    back.committer.recover(prepared[0])
    assert visible(back) == both("e1", "e2", "e3", "e4")
    assert TransactionState.ONGOING not in back.transactions().values()


def test_a_writer_goes_back_to_an_earlier_epoch_and_leaves_later_prepared_output_alone(start: Start) -> None:
    driver = start()
    driver.committer.recover([])
    for epoch in (1, 2):
        driver.commit(epoch, driver.prepare(epoch, [f"e{epoch}"]))
    for epoch in (3, 4, 5):
        driver.prepare(epoch, ["never complete"])
    driver.completed = 2
    for epoch in range(3, 8):
        driver.commit(epoch, driver.prepare(epoch, [f"e{epoch}"]))
    assert visible(driver) == both(*(f"e{e}" for e in range(1, 8)))


def test_the_end_of_an_epochs_transaction_ends_no_other(start: Start) -> None:
    driver = start()
    driver.committer.recover([])
    seen = set()
    for epoch in range(1, 14):
        prepared = driver.prepare(epoch, [f"e{epoch}"])
        transactions = {KafkaCommittable.decode(c).transaction for c in prepared}
        assert not transactions & seen
        seen |= transactions
        driver.commit(epoch, prepared)
    assert len({t.transactional_id for t in seen}) == 8  # ids are used again, identities are not
    last = {t for c in prepared for t in [KafkaCommittable.decode(c).transaction]}
    ended = driver.committer._client.end(sorted(seen, key=str), commit=True)
    outcomes = {t: ended[t] for t in last}
    assert set(outcomes.values()) <= {Outcome.DONE, Outcome.LOST}
    assert visible(driver) == both(*(f"e{e}" for e in range(1, 14)))


def test_a_late_clean_up_leaves_the_slots_next_epoch_alone(start: Start, proxy: KafkaProxy) -> None:
    driver = start()
    driver.committer.recover([])
    first = driver.prepare(1, ["e1"])
    slow = proxy.hold(ApiKey.LIST_TRANSACTIONS, times=None)
    driver.committer.commit(first)
    slow.wait()
    for _epoch in (2, 3, 4):  # nothing was written in these
        driver.committer.commit([])
    driver.completed = 4
    prepared = driver.prepare(5, ["e5"], driver.more_writers())
    slow.release()
    driver.settle()
    driver.commit(5, prepared)
    assert visible(driver) == both("e1", "e5")


def test_fencing_an_id_that_another_producer_has_acquired_does_nothing(proxy: KafkaProxy) -> None:
    client = TransactionClient({"bootstrap.servers": proxy.bootstrap_servers})
    client.fence(["hands"], 30_000)
    old = client.describe(["hands"])["hands"]
    client.fence(["hands"], 30_000)
    client.fence(["hands"], 30_000)
    new = client.describe(["hands"])["hands"]
    assert old is not None
    client.fence_only([old[1]], 30_000)
    assert client.describe(["hands"])["hands"] == new
    client.close()


def test_recovery_keeps_to_the_transaction_timeout_that_the_brokers_allow(start: Start) -> None:
    driver = start()
    half_an_epoch(driver, 1)
    later = start(2)
    later.committer.recover([])  # fences what is open, with a timeout that the brokers accept
    later.commit(1, later.prepare(1, ["e1"]))
    assert visible(later) == both("e1")


def test_commits_do_not_wait_for_the_clean_up_of_earlier_ones(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = start()
    driver.committer.recover([])
    reachable = threading.Event()
    really_list = driver.committer._cleaner.list

    def list_slowly(prefix: str, patience: float = 0.0) -> dict[str, TransactionState]:
        assert reachable.wait(600)
        return really_list(prefix, patience)

    monkeypatch.setattr(driver.committer._cleaner, "list", list_slowly)
    for epoch in range(1, 7):
        driver.committer.commit(driver.prepare(epoch, [f"e{epoch}"]))
        driver.completed = epoch
    assert visible(driver) == both(*(f"e{e}" for e in range(1, 7)))
    reachable.set()
    driver.settle()
    assert driver.outbox() == []


def test_a_broker_that_does_not_answer_costs_the_list_its_own_transactions_only() -> None:
    with KafkaCluster(2) as cluster:
        proxies = [KafkaProxy(broker) for broker in cluster.brokers]
        for broker, proxy in zip(cluster.brokers, proxies, strict=True):
            broker.restart()
            proxy.start()
        client = TransactionClient({"bootstrap.servers": proxies[0].bootstrap_servers}, budget=60.0)
        ids = [f"id-{i}" for i in range(16)]  # coordinated by both
        client.fence(ids, 30_000)
        assert sorted(client.list("id-")) == sorted(ids)
        for side in Side:
            proxies[1].cut(side)
        left = client.list("id-")
        assert 0 < len(left) < len(ids)
        proxies[1].restore()
        assert sorted(client.list("id-", patience=60.0)) == sorted(ids)
        client.close()
        for proxy in proxies:
            proxy.close()


def test_a_takeover_of_an_id_that_was_given_up_and_arrives_late_costs_no_transaction(
    start: Start, proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = start()
    driver.committer.recover([])
    half_an_epoch(driver, 1)
    late = proxy.hold(ApiKey.INIT_PRODUCER_ID, times=2)
    with monkeypatch.context() as patience:
        patience.setattr(producers, "_INIT_BUDGET_S", 0.5)
        driver.commit(1, other_half(driver, 1))
        for writer in driver.writers:  # what was begun ahead for the next epoch
            for lane in [lane for slot in writer._pool._slots for lane in slot if lane.next is not None]:
                assert lane.next is not None
                assert lane.next.exception(30) is not None
    half_an_epoch(driver, 2)
    late.release()
    late.wait_answered(2)
    driver.commit(2, other_half(driver, 2))
    assert visible(driver) == both("half of e1", "half of e2", "rest of e1", "rest of e2")
