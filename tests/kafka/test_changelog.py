"""Changelogs in topics of a real broker."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

import holdfast.state.backends.rocksdb
import holdfast.state.stored.delta_files
from awaiting import until
from engine.inprocess import LEDGERS, Lab
from engine.programs import records, sessions, sessions_model
from engine.test_restore_check import Counts, check, program, value, verdicts
from engine.test_same_results import config, visible
from holdfast.checkpoint.changelog import ChangelogSettings, LogRecord, Marker, MarkerKey, Row
from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.checkpoint.metadata import changelog_uid
from holdfast.common import Types
from holdfast.connectors.base import JobInfo
from holdfast.connectors.kafka import cluster
from holdfast.connectors.kafka.changelogs.changelog import KafkaChangelog, changelog_topic
from holdfast.connectors.kafka.changelogs.changelog_log import KafkaChangelogLog
from holdfast.connectors.kafka.cluster import BrokerUnavailable
from holdfast.errors import ConfigurationError, HoldfastError, UserCodeError
from holdfast.runtime.task.keyed_states import local_state
from holdfast.state.backends.backend import StateBackendSettings
from holdfast.state.changelogs.standby_copy import StandbyCopy
from holdfast.state.keys.key_groups import key_group_range
from holdfast.testing.kafka import KafkaBroker
from kafka_fixtures import read_all

pytestmark = pytest.mark.kafka

TOPIC = changelog_topic("job", "sessions")


def read_from_files(*_: Any) -> Any:
    raise AssertionError("the state was read from the checkpoint's files")


def the_state_comes_back_from_its_topic(kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = records(7, 800, keys=20)
    settings = {
        **config("rocksdb", "64"),
        "state.changelog.enabled": "true",
        "state.changelog.storage": "kafka",
        "state.changelog.partitions": "3",
        "state.changelog.kafka.bootstrap.servers": kafka.bootstrap_servers,
    }
    LEDGERS["out"].committed.clear()
    job = Lab(sessions(data, cut=20), tmp_path, budget=20, config=settings)
    counted = [0]
    read = KafkaChangelogLog.read

    def reading(log: KafkaChangelogLog, starts: Mapping[int, int]) -> Iterator[list[LogRecord]]:
        for found in read(log, starts):
            counted[0] += len(found)
            yield found

    monkeypatch.setattr(KafkaChangelogLog, "read", reading)
    try:
        assert not job._run_until("before complete", 3)
        with monkeypatch.context() as patch:
            patch.setattr(holdfast.state.stored.delta_files, "read_delta", read_from_files)
            patch.setattr(holdfast.state.backends.rocksdb, "fetch", read_from_files)
            shutil.rmtree(job.disk)
            assert not job._run_until("after complete", 6)  # the next driver commits the last transaction
            counted[0] = 0
            assert not job._run_until("run", 1)  # by the copy on the disk
            assert 0 < counted[0] < len(read_all(kafka.bootstrap_servers, TOPIC)) / 2
            shutil.rmtree(job.disk)
            job.parallelism = 3
            assert not job._run_until("before commit", 1)
        kafka.delete_topic(TOPIC)
        assert not job._run_until("before commit", 2)  # the start creates the topic again
        with monkeypatch.context() as patch:
            patch.setattr(holdfast.state.stored.delta_files, "read_delta", read_from_files)
            patch.setattr(holdfast.state.backends.rocksdb, "fetch", read_from_files)
            shutil.rmtree(job.disk)
            assert not job._run_until("before complete", 1)
        standbys = [standby(kafka, tmp_path / "standby", number, job.parallelism) for number in range(job.parallelism)]
        for copy in standbys:
            copy.catch_up(lambda: False)
        assert not job._run_until("before complete", 2)
        for copy in standbys:
            copy.catch_up(lambda: False)
            assert copy.lag == 0
            copy.close()
        shutil.rmtree(job.disk)
        shutil.copytree(tmp_path / "standby", job.disk)
        with monkeypatch.context() as patch:
            patch.setattr(holdfast.state.stored.delta_files, "read_delta", read_from_files)
            patch.setattr(holdfast.state.backends.rocksdb, "fetch", read_from_files)
            counted[0] = 0
            assert not job._run_until("run", 1)  # by the standby copies
            assert counted[0] < len(read_all(kafka.bootstrap_servers, TOPIC)) / 2
        job.run()
        assert visible() == sessions_model(data)
    finally:
        job.close()
    assert read_all(kafka.bootstrap_servers, TOPIC)


def standby(kafka: KafkaBroker, disk: Path, number: int, parallelism: int) -> StandbyCopy:
    changelog = KafkaChangelog(ChangelogSettings({"bootstrap.servers": kafka.bootstrap_servers}, 3), "job", "sessions", 128)
    groups, settings = key_group_range(128, parallelism, number), StateBackendSettings.of({}).rocksdb
    return StandbyCopy(local_state(str(disk), "sessions", number), settings, changelog.follow, groups, 128)


def a_row_may_have_megabytes_and_one_that_no_broker_takes_is_named(kafka: KafkaBroker) -> None:
    changelog = KafkaChangelog(ChangelogSettings({"bootstrap.servers": kafka.bootstrap_servers}, 1), "large", "rows", 128)
    changelog.validate()
    log = changelog.open(JobInfo("j", "large", 1, None), "rows", 0)
    try:
        log.begin(Epoch(1), CheckpointId(0))
        log.append([Row(0, b"key", b"x" * 30_000_000)])
        committables, _ = log.prepare()
        start = log.ends([0])
        log.commit(committables)
        until(lambda: log.settled([0]))  # Kafka answers before the marker is in the partition
        (found,) = [record for records in log.read(start) for record in records if record.content is not None]
        assert isinstance(found.content, Row)
        assert len(found.content.value or b"") == 30_000_000
        log.begin(Epoch(2), CheckpointId(1))
        with pytest.raises(UserCodeError, match=r"value b'xxx.* \(105,000,005 bytes\).*max\.message\.bytes"):
            log.append([Row(0, b"key", b"x" * 105_000_000)])
    finally:
        log.close()


def a_job_is_refused_the_changelog_in_which_another_one_of_its_name_has_an_open_transaction(kafka: KafkaBroker) -> None:
    changelog = KafkaChangelog(ChangelogSettings({"bootstrap.servers": kafka.bootstrap_servers}, 1), "shared", "rows", 128)
    changelog.validate()
    uid = changelog_uid("rows")
    log = changelog.open(JobInfo("j", "shared", 1, "/there", identity="0a"), uid, 0)
    newcomer = changelog.create_committer(JobInfo("k", "shared", 1, "/here", identity="0b"), uid)
    try:
        log.begin(Epoch(1), CheckpointId(0))
        log.append([Row(0, b"key", b"value")])
        committables, _ = log.prepare()
        with pytest.raises(ConfigurationError, match=r"another job of this name, .*identity 0a; .*pipeline\.name"):
            newcomer.recover([])
        log.commit(committables)
        newcomer.recover([])
    finally:
        newcomer.close()
        log.close()


def the_markers_of_two_jobs_stand_side_by_side(kafka: KafkaBroker) -> None:
    changelog = KafkaChangelog(ChangelogSettings({"bootstrap.servers": kafka.bootstrap_servers}, 1), "marked", "rows", 128)
    changelog.validate()
    keys = [MarkerKey(0, 0, 127), MarkerKey(0, 0, 127, "0a"), MarkerKey(0, 0, 127, "0b")]  # the first is an older release's
    written = {key: Marker(f"state {key.writer}", "seed", [3], f"others {key.writer}") for key in keys}
    log = changelog.open(JobInfo("j", "marked", 1, "/there", identity="0a"), changelog_uid("rows"), 0)
    try:
        log.begin(Epoch(1), CheckpointId(0))
        log.mark(written)
        log.commit(log.prepare()[0])
        until(lambda: log.settled([0]))
        read = [each.content for records in log.read({0: 0}) for each in records if each.content is not None]
        assert dict(read) == written  # type: ignore[arg-type]
    finally:
        log.close()


def a_topic_that_is_deleted_under_a_running_job_is_named_within_seconds(kafka: KafkaBroker) -> None:
    changelog = KafkaChangelog(ChangelogSettings({"bootstrap.servers": kafka.bootstrap_servers}, 1), "deleted", "rows", 128)
    changelog.validate()
    log = changelog.open(JobInfo("j", "deleted", 1, None), "rows", 0)
    try:
        log.begin(Epoch(1), CheckpointId(0))
        log.append([Row(0, b"key", b"value")])
        log.commit(log.prepare()[0])
        kafka.delete_topic(changelog.topic)
        log.begin(Epoch(2), CheckpointId(1))
        log.append([Row(0, b"key", b"other")])
        with pytest.raises(HoldfastError, match=f"there is no topic {changelog.topic} at .* creates those again"):
            log.prepare()
    finally:
        log.close()


def a_topic_that_would_lose_rows_is_refused(kafka: KafkaBroker) -> None:
    properties = {"bootstrap.servers": kafka.bootstrap_servers}
    changelog = KafkaChangelog(ChangelogSettings(properties, 4), "refused", "counts", 128)
    changelog.validate()
    changelog.validate()
    admin = AdminClient(properties)
    described = ConfigResource(ResourceType.TOPIC, "refused-counts-changelog")
    assert admin.describe_configs([described])[described].result(30)["cleanup.policy"].value == "compact"
    with pytest.raises(ConfigurationError, match=r"has 4 partitions, but state\.changelog\.partitions asks for 5"):
        KafkaChangelog(ChangelogSettings(properties, 5), "refused", "counts", 128).validate()
    deletes = NewTopic("refused-sums-changelog", 4, 1, config={"cleanup.policy": "compact,delete"})
    admin.create_topics([deletes])["refused-sums-changelog"].result(30)
    with pytest.raises(ConfigurationError, match=r"cleanup\.policy=.*delete.*set it to compact"):
        KafkaChangelog(ChangelogSettings(properties, 4), "refused", "sums", 128).validate()
    with pytest.raises(BrokerUnavailable, match="does not answer"):
        KafkaChangelog(ChangelogSettings({"bootstrap.servers": "127.0.0.1:1"}, 4), "refused", "counts", 128).validate()


def test_whether_a_job_with_changelogs_can_restore_is_told_before_it_runs(
    kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        **config("rocksdb", "64"),
        "execution.checkpointing.dir": f"{tmp_path}/checkpoints",
        "state.changelog.enabled": "true",
        "state.changelog.storage": "kafka",
        "state.changelog.partitions": "3",
        "state.changelog.kafka.bootstrap.servers": kafka.bootstrap_servers,
    }
    changelog = KafkaChangelog(ChangelogSettings({"bootstrap.servers": kafka.bootstrap_servers}, 3), "job", "counts", 128)
    changelog.validate()
    same = program(Counts(value("count")))
    job = Lab(same, tmp_path, budget=20, config=settings)
    try:
        assert not job._run_until("before commit", 3)  # a transaction of the changelog is prepared
    finally:
        job.close()

    found = check(None, same, **settings)
    assert (found.problems, found.notes) == ((), ())
    assert verdicts(found) == {"count": "as is"}
    other_type = check(None, program(Counts(value("count", Types.STRING()))), **settings)
    assert ["stored:   a value state of INT" in each for each in other_type.problems] == [True]
    gone = check(None, program(Counts(value("count")), uid="renamed"), **settings)
    assert ["'counts' (uid 'counts')" in each for each in gone.problems] == [True]
    assert ["job-renamed-changelog of operator uid 'renamed' does not exist" in each for each in gone.notes] == [True]
    more = check(None, same, **{**settings, "state.changelog.partitions": "5"})
    assert ["has 3 partitions, but state.changelog.partitions asks for 5" in each for each in more.problems] == [True]
    assert [each.verdict for each in more.operators if each.uid == "counts"] == ["incompatible"]

    off = check(None, same, **{**settings, "state.changelog.enabled": "false"})
    assert (off.problems, off.notes) == ((), ())

    kafka.delete_topic(changelog.topic)
    without = check(None, same, **settings)
    assert without.restorable
    assert ["job-counts-changelog of operator uid 'counts' does not exist" in each for each in without.notes] == [True]
    assert not changelog.exists()  # the check creates nothing

    monkeypatch.setattr(cluster, "ANSWER_TIMEOUT_S", 1.0)
    with kafka.paused():
        silent = check(None, same, **settings)
    assert silent.restorable
    (note,) = silent.notes
    assert note.startswith("the changelogs could not be checked: ")
    assert "a start waits until the brokers answer" in note
    away = check(None, same, **{**settings, "state.changelog.kafka.bootstrap.servers": "127.0.0.1:1"})
    assert ["127.0.0.1:1" in each for each in away.notes] == [True]
