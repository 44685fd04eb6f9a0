"""Standby copies: another host's copy of the state, at any moment of its life, is one that a driver can go on with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast.checkpoint.changelog
import holdfast.runtime.task.changelogs
import holdfast.state.backends.rocksdb
import holdfast.state.changelogs.changelog_copy
import holdfast.state.changelogs.keyed_changelog
import holdfast.state.stored.delta_files
from effort import examples
from holdfast.checkpoint.changelog import ChangelogSettings
from holdfast.runtime.plan.settings import JobSettings
from holdfast.state.backends import compaction
from holdfast.state.changelogs.changelog_copy import COPY, ChangelogCopy
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.store.host_lock import HostLock
from holdfast.state.stored.layout import END, FIRST

from .changelog_model import Broker
from .inprocess import CRASH_POINTS
from .programs import records, sessions, sessions_model
from .standby_host import MOST, ROCKSDB, StandbyHost
from .test_changelog import KAFKA, assert_read_from_files, changelogs, check_log
from .test_same_results import few, lab, seeds, visible

PARTITIONS = 3


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The model's transactions end at once; bases come early."""
    monkeypatch.setattr(holdfast.state.changelogs.keyed_changelog, "PATIENCE", 0.0)
    monkeypatch.setattr(compaction, "MOST_DELTAS", 3)
    new_changelog = holdfast.runtime.task.changelogs.new_changelog
    yield
    holdfast.runtime.task.changelogs.new_changelog = new_changelog


@settings(few, max_examples=examples(4))
@given(
    seed=seeds,
    drivers=st.lists(
        st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from(CRASH_POINTS), st.integers(1, 4), st.booleans()),
        min_size=1,
        max_size=5,
    ),
    loses=st.sampled_from([0.0, 0.0, 0.2]),
)
def a_standby_takes_over_whenever_the_host_dies(tmp_path_factory, seed, drivers, loses):
    data = records(seed, 300, keys=20)
    broker = Broker(seed, loses, PARTITIONS)
    with lab(sessions(data, cut=20), budget=20, config=changelogs(broker), failures=0.001) as job:
        for number, (parallelism, point, count, killed) in enumerate(drivers):
            job.parallelism = parallelism
            host = StandbyHost(broker, tmp_path_factory.mktemp("standby"), parallelism, seed + number, chance=0.3)
            ended = job._run_until(point, count)
            host.become(job.disk, killed=killed)
            if ended:
                break
        else:
            job.run()
        assert visible() == sessions_model(data)
        check_log(job, broker)


@pytest.mark.parametrize("killed", [False, True])
def the_state_comes_from_the_standby_and_not_from_the_files_or_the_whole_log(monkeypatch, tmp_path, killed):
    data, broker = records(1, 300, keys=20), Broker(partitions=PARTITIONS)
    with lab(sessions(data, cut=15), budget=15, config=changelogs(broker)) as job:
        host = StandbyHost(broker, tmp_path / "standby", job.parallelism)
        assert not job._run_until("before complete", 12)
        if killed:
            for copy in host.copies.values():
                assert copy._copy is not None
                copy._copy.store.flush()
        host.become(job.disk, killed=killed)
        topic = broker.topics["sessions"]
        records_of_two_epochs, topic.read = 2 * topic.written // 12, 0
        with monkeypatch.context() as patch:
            patch.setattr(holdfast.state.stored.delta_files, "read_delta", assert_read_from_files)
            patch.setattr(holdfast.state.backends.rocksdb, "fetch", assert_read_from_files)
            assert not job._run_until("run", 1)
        assert topic.read <= records_of_two_epochs < len(topic.committed())
        job.run()
        assert visible() == sessions_model(data)


def the_rows_of_an_aborted_transaction_are_in_no_standby(tmp_path):
    broker = Broker(partitions=1)
    changelog = broker.changelog(ChangelogSettings({}), "job", "op", MOST)
    standby = StandbyHost(broker, tmp_path, 1).copy("op", 0)
    topic = broker.topics["op"]
    for transaction, (key, outcome) in enumerate([(b"\x01a", "committed"), (b"\x01b", "aborted"), (b"\x01c", "open")]):
        log = changelog.open(None, "", 0)  # type: ignore[arg-type]
        log.begin(transaction + 1, transaction)
        log.append([holdfast.checkpoint.changelog.Row(0, key, b"1")])
        log.prepare()
        if outcome != "open":
            topic.end(max(topic.states), outcome)
        standby.catch_up(lambda: False)
    assert standby._copy is not None
    assert [key for key, _ in standby._copy.scan(FIRST, END)] == [b"\x01a"]
    assert standby.lag == 0
    topic.end(max(topic.states), "committed")
    standby.catch_up(lambda: False)
    assert [key for key, _ in standby._copy.scan(FIRST, END)] == [b"\x01a", b"\x01c"]
    standby.close()


def a_copy_has_one_owner(tmp_path):
    broker = Broker(partitions=1)
    broker.changelog(ChangelogSettings({}), "job", "op", MOST)
    standby = StandbyHost(broker, tmp_path, 1).copy("op", 0)
    (tmp_path / "op-0").mkdir()
    owner = HostLock(str(tmp_path / "op-0"))
    assert owner.acquire()
    standby.catch_up(lambda: False)
    assert standby.lag is None
    assert not list((tmp_path / "op-0").glob(f"{COPY}*"))
    owner.release()
    standby.catch_up(lambda: False)
    assert standby.lag == 0
    assert not owner.acquire(patience=0)
    owner.release()
    standby.close()
    assert owner.acquire(patience=0)
    owner.release()


def a_copy_that_dies_when_it_learns_that_the_log_was_filled_anew_learns_it_again(tmp_path, monkeypatch):
    """The log lost its tail and was filled from a checkpoint: the copy has a row that nothing will delete."""
    from holdfast.checkpoint.changelog import Marker, MarkerKey, Row

    broker = Broker(partitions=1)
    changelog = broker.changelog(ChangelogSettings({}), "job", "op", MOST)
    topic = broker.topics["op"]

    def write(rows: list[Row], seed: str) -> None:
        log = changelog.open(None, "", 0)  # type: ignore[arg-type]
        log.begin(1, 0)
        log.append(rows)
        log.mark({MarkerKey(0, 0, MOST - 1): Marker("state", seed, [])})
        log.prepare()
        topic.end(max(topic.states), "committed")

    def opened() -> ChangelogCopy:
        return ChangelogCopy(str(tmp_path / "copy"), ROCKSDB, changelog.follow(), KeyGroupRange(0, MOST - 1), MOST)

    write([Row(0, b"\x01kept", b"1"), Row(0, b"\x01lost", b"1")], "before")
    copy = opened()
    copy.catch_up()
    topic.log[0] = []
    write([Row(0, b"\x01kept", b"1")], "after")

    def dies(copy: ChangelogCopy) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ChangelogCopy, "clear", dies)
        with pytest.raises(KeyboardInterrupt):
            copy.catch_up()
    copy.close()
    again = opened()
    again.catch_up()
    assert [key for key, _ in again.scan(FIRST, END)] == [b"\x01kept"]
    again.close()


def a_standby_that_stood_still_for_half_a_day_begins_anew(tmp_path, monkeypatch):
    """Tombstones may be gone from the log."""
    broker = Broker(partitions=1)
    changelog = broker.changelog(ChangelogSettings({}), "job", "op", MOST)
    standby = StandbyHost(broker, tmp_path, 1).copy("op", 0)
    log = changelog.open(None, "", 0)  # type: ignore[arg-type]
    log.begin(1, 0)
    log.append([holdfast.checkpoint.changelog.Row(0, b"\x01deleted", b"1")])
    log.prepare()
    topic = broker.topics["op"]
    topic.end(max(topic.states), "committed")
    standby.catch_up(lambda: False)
    topic.log[0] = []  # compacted: neither the row nor its tombstone is left
    now = holdfast.state.changelogs.changelog_copy._now
    monkeypatch.setattr(holdfast.state.changelogs.changelog_copy, "_now", lambda: now() + 13 * 3_600_000)
    standby.catch_up(lambda: False)
    assert standby._copy is not None
    assert standby._copy.empty
    standby.close()


def the_number_of_standby_replicas_is_a_setting():
    enabled = {**KAFKA, "state.changelog.enabled": "true"}
    found = JobSettings.of({**enabled, "state.changelog.num-standby-replicas": "1"}).changelog
    assert found is not None
    assert found.standby_replicas == 1
    with pytest.raises(Exception, match="num-standby-replicas is '-1'; it must be a number of at least 0"):
        JobSettings.of({**enabled, "state.changelog.num-standby-replicas": "-1"})
