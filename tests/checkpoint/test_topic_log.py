"""Checkpoint logs in a topic: what only they have. The other tests of logs run on a topic, too (`storage`)."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.checkpoint import manifests, retention
from holdfast.checkpoint.container import unpack
from holdfast.checkpoint.entries import FORMAT_VERSION, decode_entry
from holdfast.checkpoint.ids import CheckpointId, LogPosition
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.manifests import read_checkpoint
from holdfast.checkpoint.retention import Retention, referenced
from holdfast.checkpoint.stores import topic as topics_of_logs
from holdfast.checkpoint.stores.directory_store import DirectoryStore
from holdfast.checkpoint.stores.log_router import LogRouter
from holdfast.checkpoint.stores.signed_store import KEY_FILE, SignedStore, SigningKey, read_keys
from holdfast.checkpoint.stores.storage import Storage, Unavailable
from holdfast.checkpoint.stores.topic import Record, RecordKey
from holdfast.errors import CheckpointError, ConfigurationError, CorruptFile, Fenced, StorageError
from holdfast.runtime.plan.settings import JobSettings
from holdfast.state_api import open_snapshot, sign
from holdfast.testing.memory_store import MemoryStore
from holdfast.testing.memory_topic import MemoryTopic

from .conftest import QUICK, checkpoint

LOG = "execution.checkpointing.log"
BROKERS = f"{LOG}.kafka.bootstrap.servers"


class Leader(MemoryTopic):
    """A topic whose next append may be interfered with."""

    def __init__(self):
        super().__init__()
        self.before, self.after = [], []
        self.truncated = []

    def append(self, records):
        while self.before:
            self.before.pop()()
        last = super().append(records)
        while self.after:
            self.after.pop()()
        return last

    def truncate(self, offset):
        self.truncated.append(offset)
        super().truncate(offset)


@pytest.fixture
def topic():
    return Leader()


def opened(memory, topic, name="log", keys=()):
    def signed(store):
        return SignedStore(store, keys) if keys else store

    return Storage(LogRouter(signed(memory), lambda name: topic, lambda directory: name, signed), QUICK)


def driver(memory, topic, paths, retained=2, **settings):
    log = CheckpointLog(opened(memory, topic, **settings), paths, retained)
    log.take_over()
    return log


def complete(log, epochs=1, upkeep=None):
    for _ in range(epochs):
        made = checkpoint(log.owned.next_id, log.owned.generation)
        log.complete(made)
        if upkeep is not None:
            upkeep.collect()
    return made


def fails():
    raise Unavailable("no answer")


def an_epoch_is_one_record_and_no_object(memory, topic, paths):
    log = driver(memory, topic, paths)
    before = set(memory.objects)
    complete(log, 10)
    assert set(memory.objects) == before
    assert len(topic.records) == 1 + 10
    asked = log._storage.requests.drain()
    assert (asked.log_records, asked.put) == (10, 1)  # the first one said where the log is


def a_record_that_arrives_after_a_take_over_is_ignored_by_every_driver(memory, topic, paths):
    first = driver(memory, topic, paths)
    complete(first)
    late = []

    def overtaken():
        late.append(driver(memory, topic, paths))

    topic.before.append(overtaken)
    with pytest.raises(Fenced, match="generation 2"):
        complete(first)
    second = late[0]
    assert complete(second).checkpoint_id == 4
    assert [c.checkpoint_id for c in driver(memory, topic, paths).owned.retained] == [4, 2]


def an_older_of_two_drivers_that_begin_a_log_at_once_is_fenced(memory, topic, paths):
    started = []
    topic.before.append(lambda: started.append(driver(memory, topic, paths)))
    later = driver(memory, topic, paths)
    assert (started[0].owned.generation, later.owned.generation) == (1, 2)
    with pytest.raises(Fenced):
        complete(started[0])
    complete(later)


def an_entry_whose_answer_is_lost_is_completed_once(memory, topic, paths):
    log = driver(memory, topic, paths)
    topic.after.append(fails)
    complete(log)
    complete(log)
    assert [c.checkpoint_id for c in driver(memory, topic, paths).owned.retained] == [3, 2]


def a_driver_that_dies_after_its_record_has_completed_the_checkpoint(memory, topic, paths):
    log = driver(memory, topic, paths)

    def dies():
        raise KeyboardInterrupt

    topic.after.append(dies)
    with pytest.raises(KeyboardInterrupt):
        complete(log)
    assert driver(memory, topic, paths).owned.retained[0].checkpoint_id == 2


def an_entry_of_several_records_is_there_with_its_last_one(memory, topic, paths, monkeypatch):
    log = driver(memory, topic, paths)
    monkeypatch.setattr(topics_of_logs, "LARGEST_PART", 40)
    complete(log, 2)
    parts = len(topic.records)
    assert parts > 1 + 2
    assert driver(memory, topic, paths).owned.retained[0].checkpoint_id == 3
    topic.records, topic.end = topic.records[: parts - 1], parts - 1  # the driver died before the last part
    again = driver(memory, topic, paths)
    assert again.owned.retained[0].checkpoint_id == 2
    assert complete(again).checkpoint_id == 4


def the_parts_of_two_drivers_are_not_mixed(memory, topic, paths, monkeypatch):
    monkeypatch.setattr(topics_of_logs, "LARGEST_PART", 40)
    first, others = driver(memory, topic, paths), []
    complete(first)
    start = len(topic.records)
    topic.before.append(lambda: others.append(driver(memory, topic, paths)))
    with pytest.raises(Fenced):
        complete(first)
    own, theirs = topic.records[-2:], topic.records[start:-2]
    mixed = [*topic.records[:start], theirs[0], own[0], *theirs[1:], *own[1:]]
    topic.records = [Record(n, key, value) for n, (_, key, value) in enumerate(mixed)]
    assert driver(memory, topic, paths).owned.generation == 3
    assert complete(driver(memory, topic, paths)).checkpoint_id == 6


def the_content_that_outlives_its_records_is_copied_to_the_store(memory, topic, paths, monkeypatch):
    monkeypatch.setattr(retention, "_TRIM_EVERY", 10)
    monkeypatch.setattr(manifests, "LARGEST_LAYER", 0)  # each checkpoint has a manifest
    log = driver(memory, topic, paths)
    upkeep = Retention(log._storage, paths, log)
    with upkeep.hold(complete(log).checkpoint_id):
        complete(log, 30, upkeep)
        assert topic.truncated
        assert topic.records[0].offset > 20
        restarted = driver(memory, topic, paths)
        assert [c.checkpoint_id for c in restarted.owned.retained] == [32, 31]
        assert read_checkpoint(restarted._storage, paths, 2).checkpoint_id == 2  # it is held
        kept = {path for path in memory.objects if "/kept/" in path}
        assert {int(path[-20:]) for path in kept} == {1, 2}  # the take-over, the held checkpoint
    upkeep = Retention(restarted._storage, paths, restarted)
    complete(restarted, 20, upkeep)
    upkeep.sweep()
    kept = {path for path in memory.objects if "/kept/" in path}
    assert {int(path[-20:]) for path in kept} == {33}
    assert not [path for path in memory.objects if path.startswith(paths.state_prefix)]


def a_driver_that_was_cut_off_and_trims_late_leaves_what_its_successor_needs(memory, topic, paths, monkeypatch):
    monkeypatch.setattr(retention, "_TRIM_EVERY", 3)
    complete(driver(memory, topic, paths), 6)
    cut_off = driver(memory, topic, paths)
    late = Retention(cut_off._storage, paths, cut_off)
    successor = driver(memory, topic, paths)
    upkeep = Retention(successor._storage, paths, successor)
    complete(successor, 6)
    assert not cut_off.still_mine(), "it has read the log to its end, and goes on with what it is about"
    upkeep.collect()
    assert RecordKey.decode(topic.records[0].key).position > 9, "the successor's take-over is copied"
    late._trim(cut_off.owned)
    assert driver(memory, topic, paths).owned.retained[0].checkpoint_id == 15


def a_driver_that_starts_while_records_are_deleted_finds_the_end_of_the_log(memory, topic, paths, monkeypatch):
    """If it took the end that it knew for that of the log, and took over there, both would believe they own the job."""
    monkeypatch.setattr(retention, "_TRIM_EVERY", 3)
    owner = driver(memory, topic, paths)
    complete(owner, 3)
    starting = CheckpointLog(opened(memory, topic), paths, 2)
    assert [each.checkpoint_id for each in starting.read_retained()] == [4, 3]
    complete(owner, 3)
    read = topic.read

    def overtaken(start, end):
        monkeypatch.setattr(topic, "read", read)
        Retention(owner._storage, paths, owner).collect()
        assert start < topic.records[0].offset < end
        return read(start, end)

    monkeypatch.setattr(topic, "read", overtaken)
    starting.take_over()
    assert [each.checkpoint_id for each in starting.owned.retained] == [7, 6]
    with pytest.raises(Fenced):
        complete(owner)


def a_late_record_between_the_parts_of_the_first_entry_is_not_taken_for_it(memory, topic, paths, monkeypatch):
    monkeypatch.setattr(retention, "_TRIM_EVERY", 1)
    monkeypatch.setattr(topics_of_logs, "LARGEST_PART", 60)
    cut_off, late = driver(memory, topic, paths), []
    append = topic.append

    def between(records):
        for record in records:
            append([record])
            late and append(late.pop())
        return topic.end - 1

    monkeypatch.setattr(topic, "append", lambda records: late.append(records) or fails())
    with pytest.raises(StorageError):
        complete(cut_off)
    monkeypatch.setattr(topic, "append", append)
    owner = driver(memory, topic, paths, retained=1)
    del late[1:]
    complete(owner, 3)
    monkeypatch.setattr(topic, "append", between)
    complete(owner)
    Retention(owner._storage, paths, owner).collect()
    complete(owner)
    assert driver(memory, topic, paths).owned.retained[0].checkpoint_id == 7


def an_entry_that_is_deleted_while_it_is_read_is_read_from_its_copy(memory, topic, paths, monkeypatch):
    monkeypatch.setattr(retention, "_TRIM_EVERY", 1)
    monkeypatch.setattr(topics_of_logs, "LARGEST_PART", 60)
    owner = driver(memory, topic, paths)
    complete(owner, 3)
    reader = opened(memory, topic)
    reader.exists(paths.log_entry(LogPosition(1)))
    read = topic.read

    def overtaken(start, end):
        first = read(start, end)[:1]
        monkeypatch.setattr(topic, "read", read)
        Retention(owner._storage, paths, owner).collect()
        assert topic.records[0].offset >= end, "the other parts are deleted"
        return first

    monkeypatch.setattr(topic, "read", overtaken)
    data = reader.get(paths.log_entry(LogPosition(1)))
    assert decode_entry(data, "").driver == owner._driver


def a_file_that_was_copied_although_its_records_stay_is_deleted_with_its_copy(memory, topic, paths, monkeypatch):
    monkeypatch.setattr(retention, "_TRIM_EVERY", 3)
    monkeypatch.setattr(manifests, "LARGEST_LAYER", 0)
    owner = driver(memory, topic, paths)
    upkeep = Retention(owner._storage, paths, owner)
    monkeypatch.setattr(topic, "truncate", lambda offset: fails())
    complete(owner, 5, upkeep)
    copied = {path for path in memory.objects if path.startswith(paths.state_prefix)}
    assert copied <= referenced(owner.owned.retained)


def a_later_driver_deletes_the_copies_of_one_whose_records_stay(memory, topic, paths, monkeypatch):
    monkeypatch.setattr(retention, "_TRIM_EVERY", 3)
    monkeypatch.setattr(manifests, "LARGEST_LAYER", 0)
    first = driver(memory, topic, paths)
    monkeypatch.setattr(topic, "truncate", lambda offset: fails())
    complete(first, 4, Retention(first._storage, paths, first))
    before = {path for path in memory.objects if path.startswith(paths.state_prefix)}
    assert before
    owner = driver(memory, topic, paths, retained=1)
    upkeep = Retention(owner._storage, paths, owner)
    upkeep.sweep()
    complete(owner, 1, upkeep)
    assert not before & set(memory.objects)


def the_late_part_of_a_file_that_is_deleted_does_not_stop_the_deletion_of_records(memory, topic, paths, monkeypatch):
    monkeypatch.setattr(retention, "_TRIM_EVERY", 3)
    monkeypatch.setattr(manifests, "LARGEST_LAYER", 0)
    monkeypatch.setattr(topics_of_logs, "LARGEST_PART", 60)
    owner = driver(memory, topic, paths)
    upkeep = Retention(owner._storage, paths, owner)
    append, late = topic.append, []

    def held_back(records):
        if RecordKey.decode(records[0][0]).position:
            return append(records)
        monkeypatch.setattr(topic, "append", append)
        append(records[:-1])
        late.append(records[-1:])
        raise Unavailable("no answer")

    monkeypatch.setattr(topic, "append", held_back)
    complete(owner, 8, upkeep)
    topic.append(*late)
    before = topic.records[0].offset
    complete(owner, 8, upkeep)
    assert topic.records[0].offset > before + 8


def an_entry_that_is_held_in_the_store_stays_there_when_the_log_in_the_topic_is_trimmed(memory, topic, paths, monkeypatch):
    monkeypatch.setattr(retention, "_TRIM_EVERY", 5)
    before = CheckpointLog(Storage(memory, QUICK), paths, 2)
    before.take_over()
    complete(before)
    log = driver(memory, topic, paths)
    upkeep = Retention(log._storage, paths, log)
    with upkeep.hold(CheckpointId(2)):
        complete(log, 12, upkeep)
        assert topic.truncated
        assert read_checkpoint(log._storage, paths, CheckpointId(2)).checkpoint_id == 2


def a_crash_between_the_copies_and_the_deletion_loses_nothing(memory, topic, paths, monkeypatch):
    monkeypatch.setattr(retention, "_TRIM_EVERY", 10)
    log = driver(memory, topic, paths)
    upkeep = Retention(log._storage, paths, log)
    monkeypatch.setattr(topic, "truncate", lambda offset: fails())
    complete(log, 12, upkeep)
    monkeypatch.undo()
    again = driver(memory, topic, paths)
    assert again.owned.retained[0].checkpoint_id == 13
    upkeep = Retention(again._storage, paths, again)
    monkeypatch.setattr(retention, "_TRIM_EVERY", 10)
    complete(again, 3)
    upkeep.collect()
    assert driver(memory, topic, paths).owned.retained[0].checkpoint_id == 17


def a_log_in_the_store_goes_on_in_the_topic_and_fences_its_driver(memory, topic, paths):
    before = CheckpointLog(Storage(memory, QUICK), paths)
    before.take_over()
    complete(before, 2)
    moved = driver(memory, topic, paths)
    assert [c.checkpoint_id for c in moved.owned.retained] == [3, 2]
    assert not before.still_mine()
    with pytest.raises(Fenced, match="has moved the log to a topic"):
        complete(before)
    complete(moved, 2)
    assert [c.checkpoint_id for c in driver(memory, topic, paths).owned.retained] == [6, 5]
    with pytest.raises(ConfigurationError, match=r"in topic log since position 4\. Set execution\.checkpointing\.log"):
        CheckpointLog(Storage(memory, QUICK), paths).take_over()


def a_reader_learns_that_the_log_is_in_a_topic_by_now(memory, topic, paths):
    before = CheckpointLog(Storage(memory, QUICK), paths)
    before.take_over()
    complete(before, 2)
    reader = CheckpointLog(opened(memory, topic), paths)
    storage, end = opened(memory, topic), reader.end()
    assert (end.tail, len(storage.list(paths.log_prefix))) == (3, 3)
    complete(driver(memory, topic, paths), 2)
    assert reader.end(end).tail == 6
    assert len(storage.list(paths.log_prefix)) == 6
    assert [record.checkpoint_id for record in reader.read_retained()] == [6, 5]


@pytest.mark.parametrize("new_reader", [False, True])
def a_listing_of_the_whole_store_has_the_entries_that_are_in_a_topic(memory, topic, paths, new_reader):
    log = driver(memory, topic, paths)
    complete(log, 2)
    log._storage.put("another/file", b"")
    storage = opened(memory, topic) if new_reader else log._storage
    entries = [paths.log_entry(n) for n in (1, 2, 3)]
    assert sorted(storage.list("")) == sorted(["another/file", *entries])
    assert sorted(storage.list(f"{paths.directory}/")) == sorted(entries)
    assert storage.list(entries[1]) == [entries[1]]


def a_driver_that_dies_before_its_first_record_leaves_the_log_to_the_next(memory, topic, paths):
    before = CheckpointLog(Storage(memory, QUICK), paths)
    before.take_over()
    complete(before)

    def dies():
        raise KeyboardInterrupt

    topic.before.append(dies)
    with pytest.raises(KeyboardInterrupt):
        driver(memory, topic, paths)
    with pytest.raises(Fenced):
        complete(before)
    assert driver(memory, topic, paths).owned.retained[0].checkpoint_id == 2


def a_release_without_topics_refuses_the_log_by_its_version(memory, topic, paths):
    driver(memory, topic, paths)
    payload = unpack(memory.objects[paths.log_entry(1)], "")
    assert msgspec.msgpack.decode(payload)["format_version"] > FORMAT_VERSION


def a_topic_that_was_deleted_is_told_by_name(memory, topic, paths):
    complete(driver(memory, topic, paths))
    topic.identity = ""
    with pytest.raises(ConfigurationError, match=r"topic log, where the checkpoint log of .* is, was deleted, or"):
        driver(memory, topic, paths)
    topic.create()
    with pytest.raises(ConfigurationError, match=r"was deleted and created anew"):
        driver(memory, topic, paths)


def a_topic_with_the_log_of_another_job_is_refused(memory, topic, paths):
    complete(driver(MemoryStore(), topic, paths))
    with pytest.raises(ConfigurationError, match=r"topic log is to have the checkpoint log of .*, but has records"):
        driver(memory, topic, paths)
    assert not memory.objects


def a_topic_into_which_another_job_writes_is_told_by_name(memory, topic, paths):
    log = driver(memory, topic, paths)
    other = MemoryTopic()
    complete(driver(MemoryStore(), other, paths))
    topic.append([(record.key, record.value) for record in other.records])
    with pytest.raises(ConfigurationError, match=r"has a record of another job's checkpoint log.*log\.topic"):
        complete(log)


def a_log_whose_topic_has_another_name_now_is_refused(memory, topic, paths):
    driver(memory, topic, paths)
    with pytest.raises(ConfigurationError, match=r"is in topic log, not in other: set execution\.checkpointing\.log\.topic"):
        driver(memory, topic, paths, name="other")


def a_topic_that_has_lost_its_end_is_told(memory, topic, paths):
    log = driver(memory, topic, paths)
    complete(log, 3)
    topic.records, topic.end = topic.records[:2], 2
    with pytest.raises(StorageError, match="it ends at offset 2, but had 4: records were lost"):
        log.still_mine()


def a_topic_that_has_lost_all_records_is_told(memory, topic, paths):
    complete(driver(memory, topic, paths), 3)
    topic.truncate(topic.end)
    with pytest.raises(StorageError, match=r"it has lost the checkpoint log of memory:/a-job.*: its records were deleted"):
        driver(memory, topic, paths)


def a_topic_whose_end_is_lost_before_visible_output_is_refused(memory, topic, paths):
    log = driver(memory, topic, paths)
    complete(log, 2)
    log.output_becomes_visible(3)
    topic.records, topic.end = topic.records[:2], 2
    with pytest.raises(CorruptFile, match="missing, and its output may be visible"):
        driver(memory, topic, paths)


def an_entry_in_a_topic_is_signed(memory, topic, paths):
    keys = (SigningKey(b"k" * 32),)
    complete(driver(memory, topic, paths, keys=keys), 2)
    assert driver(memory, topic, paths, keys=keys).owned.retained[0].checkpoint_id == 3
    last = topic.records[-1]
    topic.records[-1] = last._replace(value=last.value[:50] + bytes([last.value[50] ^ 1]) + last.value[51:])
    with pytest.raises(CorruptFile, match="altered"):
        driver(memory, topic, paths, keys=keys)


@pytest.mark.parametrize("signed", [False, True])
def a_log_in_a_topic_is_not_signed_again_but_refused_by_name(topic, paths, tmp_path, signed):
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text("6b" * 32)
    complete(driver(DirectoryStore(str(tmp_path / "c")), topic, paths, keys=read_keys(str(file)) if signed else ()), 2)
    place, options = f"{tmp_path}/c/{paths.directory}", {KEY_FILE: str(file)}
    before = {path: path.read_bytes() for path in (tmp_path / "c").rglob("*") if path.is_file()}
    for adopts in (False, True):
        with pytest.raises(ConfigurationError, match=r"is in topic log, and records of a topic cannot be signed again\."):
            sign(place, options, adopt_unsigned=adopts)
    assert before == {path: path.read_bytes() for path in (tmp_path / "c").rglob("*") if path.is_file()}
    with pytest.raises(CorruptFile, match=r"missing\. .* goes on in topic log since position 1\. Set execution"):
        open_snapshot(f"{place}/log/{3:020d}", options if signed else {})


def a_jobs_data_is_deleted_with_its_records(memory, topic, paths):
    log = driver(memory, topic, paths)
    complete(log, 2)
    log._storage.delete_job(paths)
    assert not memory.objects
    assert not topic.records
    assert driver(memory, topic, paths).owned.retained == ()


def a_log_can_be_read_without_owning_it(memory, topic, paths):
    log = driver(memory, topic, paths)
    complete(log, 2)
    reader = CheckpointLog(opened(memory, topic), paths)
    assert [record.checkpoint_id for record in reader.read_retained()] == [3, 2]
    end = reader.end()
    complete(log)
    assert reader.end(end).tail == end.tail + 1
    with pytest.raises(CheckpointError):
        reader.owned


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({LOG: "kafak"}, r"execution\.checkpointing\.log is 'kafak'; it must be storage or kafka"),
        ({LOG: "kafka"}, r"log\.kafka\.bootstrap\.servers is not set"),
        ({LOG: "kafka", BROKERS: "b:9092", "execution.checkpointing.dir": ""}, r"set execution\.checkpointing\.dir"),
    ],
)
def a_bad_setting_is_told_before_the_job_starts(settings, said):
    with pytest.raises(ConfigurationError, match=said):
        JobSettings.of({"execution.checkpointing.dir": "/checkpoints", **settings})


def a_property_that_kafkas_client_does_not_know_is_told_by_name(tmp_path):
    with pytest.raises(ConfigurationError, match=r"properties of the checkpoint log.*no\.such\.property"):
        Storage.open(str(tmp_path), {LOG: "kafka", BROKERS: "b:9092", f"{LOG}.kafka.no.such.property": "1"})


def a_job_with_its_log_in_a_topic_starts_at_once_where_requests_cost_something():
    settings = {"execution.checkpointing.dir": "s3://bucket/checkpoints"}
    assert JobSettings.of(settings).pace.first_cost > 0
    assert JobSettings.of({**settings, LOG: "kafka", BROKERS: "b:9092"}).pace.first_cost == 0
