"""Keyed state in changelogs: the same results, and a log that holds the state, whatever happens between two epochs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import compactions
import holdfast.runtime.task.changelogs
import holdfast.state.backends.rocksdb
import holdfast.state.backends.upkeep
import holdfast.state.changelogs.keyed_changelog
import holdfast.state.stored.delta_files
import holdfast.testing.executor
from effort import examples
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.manifests import read_checkpoint
from holdfast.checkpoint.paths import JobPaths
from holdfast.errors import ConfigurationError
from holdfast.runtime.plan.redistribution import assigned
from holdfast.runtime.plan.settings import JobSettings
from holdfast.runtime.task.keyed_states import KeyedStates, KeyedSubtask
from holdfast.state.backends.backend import StateBackendSettings
from holdfast.state.backends.compaction import Base
from holdfast.state.backends.rocksdb import RocksDBLocalStore
from holdfast.state.changelogs.changelog import matches, name_of
from holdfast.state.keys.key_groups import key_group_range
from inline_uploads import Inline

from .changelog_model import Broker
from .inprocess import CRASH_POINTS, LEDGERS, Lab
from .programs import UntypedSessions, records, sessions, sessions_model, windows, windows_model
from .test_same_results import budgets, config, crashes, few, lab, seeds, visible
from .test_savepoints import run as stopped

parallelisms = st.sampled_from([1, 2, 3, 4])

losses = st.sampled_from([0.0, 0.0, 0.2])
moves = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, 5]), st.sampled_from(CRASH_POINTS), st.integers(1, 4), st.booleans()),
    min_size=1,
    max_size=5,
)
"""Drivers: at which parallelism each runs, where it dies, and whether the host's disk is lost with it."""
KAFKA = {"state.changelog.storage": "kafka", "state.changelog.kafka.bootstrap.servers": "broker:9092"}


@pytest.fixture(autouse=True)
def early_bases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdfast.state.backends.upkeep, "due", compactions.anything(1))


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's transactions end at once."""
    monkeypatch.setattr(holdfast.state.changelogs.keyed_changelog, "PATIENCE", 0.0)


def changelogs(broker: Broker, cache: str = "256mb") -> dict[str, str]:
    """The configuration of a job with changelogs in the broker."""
    holdfast.runtime.task.changelogs.new_changelog = broker.changelog  # type: ignore[assignment]
    return {
        **config("rocksdb", "64", cache),
        "state.changelog.enabled": "true",
        "state.changelog.storage": "kafka",
        "state.changelog.kafka.bootstrap.servers": "in memory",
    }


@pytest.fixture(autouse=True)
def original() -> Iterator[None]:
    new_changelog = holdfast.runtime.task.changelogs.new_changelog
    yield
    holdfast.runtime.task.changelogs.new_changelog = new_changelog


@settings(few, max_examples=examples(4))
@given(
    seed=seeds,
    drivers=moves,
    last=parallelisms,
    budget=st.sampled_from([15, 40]),
    function=st.sampled_from([UntypedSessions, UntypedSessions.__base__]),
    cache=st.sampled_from(["256mb", "2kb"]),
    loses=losses,
)
def the_state_of_all_kinds_comes_back_from_its_log(seed, drivers, last, budget, function, cache, loses):
    data = records(seed, 300, keys=20)
    broker = Broker(seed, loses)
    options = {"budget": budget, "config": changelogs(broker, cache), "failures": 0.001}
    with lab(sessions(data, cut=budget, function=function), **options) as job:
        run(job, drivers, last)
        assert visible() == sessions_model(data)
        check_log(job, broker)


@settings(few, max_examples=examples(3))
@given(seed=seeds, drivers=moves, last=parallelisms, budget=budgets, loses=losses)
def the_windows_come_back_from_their_log(seed, drivers, last, budget, loses):
    data = records(seed, 300)
    broker = Broker(seed, loses)
    with lab(windows(data, cut=budget), budget=budget, config=changelogs(broker), failures=0.001) as job:
        run(job, drivers, last)
        assert visible() == windows_model(data)
        check_log(job, broker)


def run(job: Lab, drivers: list[tuple[int, str, int, bool]], last: int) -> None:
    for parallelism, point, count, wiped in drivers:
        job.parallelism = parallelism
        if job._run_until(point, count):
            return
        if wiped:
            shutil.rmtree(job.disk, ignore_errors=True)
    job.parallelism = last
    job.run()


def a_store_made_of_the_log_has_no_file_of_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """RocksDB numbers the files of each store from the same number on, so that another file has the same name."""
    monkeypatch.setattr(
        holdfast.state.backends.upkeep, "due", lambda handles, *_: Base() if len(handles[-1].deltas) > 1 else None
    )
    opened = RocksDBLocalStore.open
    shared: list[str] = []

    def checked(self: RocksDBLocalStore, handles: Any, schema: Any) -> Any:
        state = opened(self, handles, schema)
        for file in self.files:
            local = Path(self.store.path, file.name)
            if file.name.endswith(".sst") and local.exists():
                assert xxhash.xxh3_128_digest(local.read_bytes()) == file.checksum, file.name
                shared.append(file.name)
        return state

    monkeypatch.setattr(RocksDBLocalStore, "open", checked)
    # Otherwise a base may come after the crash.
    monkeypatch.setattr(holdfast.testing.executor, "ThreadPoolExecutor", lambda _: Inline())
    data, broker = records(7, 300, keys=20), Broker(7)
    with lab(sessions(data, cut=40), budget=15, config=changelogs(broker, "2kb")) as job:
        for _ in range(2):
            job._run_until("after complete", 6)
            shutil.rmtree(job.disk)
            job._run_until("after complete", 2)  # the store is made of the log
            job.config = config("rocksdb", "64", "2kb")
            job._run_until("after complete", 3)  # the store of the log goes on without it, and stores a base
            job._run_until("after complete", 2)
            job.config = changelogs(broker, "2kb")
        job.run()
        assert visible() == sessions_model(data)
    assert shared


@few
@given(seed=seeds, crashes=crashes)
def a_task_dies_or_runs_twice(seed, crashes):
    data, broker = records(seed, 200), Broker(seed)
    options = {"budget": 60, "config": changelogs(broker, "2kb"), "failures": 0.03, "repeats": 0.1, "seed": seed}
    with lab(sessions(data, cut=40), **options) as job:
        job.run(crashes)
        assert visible() == sessions_model(data)
        check_log(job, broker)


def assert_read_from_files(*_: Any) -> Any:
    raise AssertionError("the state was read from the checkpoint's files")


@pytest.mark.parametrize("wiped", [False, True])
def a_host_reads_the_log_and_not_the_files_of_the_checkpoint(monkeypatch, wiped):
    data, broker = records(1, 300, keys=20), Broker()
    with lab(sessions(data, cut=15), budget=15, config=changelogs(broker)) as job:
        assert not job._run_until("before complete", 12)
        if wiped:
            shutil.rmtree(job.disk)
        topic = broker.topics["sessions"]
        records_of_two_epochs, topic.read = 2 * topic.written // 12, 0
        monkeypatch.setattr(holdfast.state.stored.delta_files, "read_delta", assert_read_from_files)
        monkeypatch.setattr(holdfast.state.backends.rocksdb, "fetch", assert_read_from_files)
        assert not job._run_until("run", 1)
        whole = len(topic.committed())
        assert topic.read >= whole if wiped else topic.read <= 2 * records_of_two_epochs
        monkeypatch.undo()
        job.run()
        assert visible() == sessions_model(data)


def a_log_that_was_created_anew_is_filled_from_the_checkpoint():
    data, broker = records(2, 300, keys=20), Broker()
    with lab(sessions(data, cut=40), budget=40, config=changelogs(broker)) as job:
        assert not job._run_until("before complete", 3)
        del broker.topics["sessions"]
        assert not job._run_until("after complete", 2)
        job.run()
        assert visible() == sessions_model(data)
        check_log(job, broker)


def a_log_is_filled_when_it_is_switched_on_and_forgotten_when_switched_off():
    data, broker = records(3, 300, keys=20), Broker()
    with lab(sessions(data, cut=20), budget=20, config=config("rocksdb", "64")) as job:
        assert not job._run_until("run", 3)
        job.config = changelogs(broker)
        assert not job._run_until("after complete", 3)
        job.config = config("rocksdb", "64")
        assert not job._run_until("before complete", 2)
        job.config = changelogs(broker)
        job.run()
        assert visible() == sessions_model(data)
        check_log(job, broker)


def a_lost_tail_of_the_log_is_noticed():
    data, broker = records(4, 300, keys=20), Broker()
    with lab(sessions(data, cut=20), budget=20, config=changelogs(broker), failures=0.0001) as job:
        coordinator = job.coordinator()
        complete, epochs = coordinator._log.complete, [0]

        def completing(*checkpoint: Any) -> None:
            epochs[0] += 1
            if epochs[0] == 4:
                for partition, entries in broker.topics["sessions"].log.items():
                    del entries[len(entries) // 2 :]
                    broker.topics["sessions"].ends[partition] = entries[-1].offset + 1 if entries else 0
            complete(*checkpoint)

        coordinator._log.complete = completing  # type: ignore[method-assign]
        coordinator.run()
        assert visible() == sessions_model(data)
        check_log(job, broker)


@settings(few, max_examples=examples(4))
@given(
    seed=seeds,
    widths=st.tuples(parallelisms, parallelisms, parallelisms),
    logged=st.tuples(st.booleans(), st.booleans()),
    after=st.integers(1, 6),
    crash=st.tuples(st.sampled_from(CRASH_POINTS), st.integers(1, 4)),
    wiped=st.booleans(),
    loses=losses,
)
def a_job_starts_from_a_savepoint_whatever_its_topics_hold(seed, widths, logged, after, crash, wiped, loses):
    """The topics are those of the savepoint, of a job that went on from it, or of none."""
    data = records(seed, 300, keys=20)
    build, broker = sessions(data, cut=20), Broker(seed)
    configs = [changelogs(broker) if each else config("rocksdb", "64") for each in (*logged, True)]
    with lab(build, parallelism=widths[0], budget=40, config=configs[0]) as first, tempfile.TemporaryDirectory() as root:
        savepoint = stopped(first, after)
        committed = dict(LEDGERS["out"].committed)
        for topic in (broker, *broker.topics.values()):
            topic.loses = loses
        options = {"budget": 60, "savepoint": savepoint, "failures": 0.001}
        goes_on = Lab(build, Path(root) / "second", parallelism=widths[1], config=configs[1], **options)
        goes_on._run_until("after complete", 3)
        for topic in broker.topics.values():
            topic.time_out()
        LEDGERS["out"].committed.clear()
        LEDGERS["out"].committed.update(committed)
        again = Lab(build, Path(root) / "third", parallelism=widths[2], config=configs[2], **options)
        done = again._run_until(*crash)
        if wiped:
            shutil.rmtree(again.disk, ignore_errors=True)
        if not done:
            again.run()
        assert visible() == sessions_model(data)
        check_log(again, broker)


def check_log(job: Lab, broker: Broker, shared: bool = False) -> None:
    """Where the markers say that a topic holds the state of the newest checkpoint, it holds its rows and no others."""
    storage, paths = job.storage, JobPaths.of("job")
    newest = CheckpointLog(storage, paths, 3).read_retained()[0].checkpoint_id
    uploads = ThreadPoolExecutor(1)
    for uid, operator in read_checkpoint(storage, paths, newest).operators.items():
        most, parallelism = operator.max_parallelism, len(operator.subtasks)
        for number in range(parallelism if uid in broker.topics else 0):
            topic, groups = broker.topics[uid], key_group_range(most, parallelism, number)
            snapshot = assigned(operator, parallelism, number)
            markers = topic.markers(groups)
            if name_of(snapshot.state.keyed) and not matches(snapshot.state.keyed, groups, markers, topic.partitions, most):
                assert broker.loses or shared, "the markers name another state"
                continue
            subtask = KeyedSubtask(0, number, parallelism, most, {uid: uid})
            with tempfile.TemporaryDirectory() as directory:
                states = KeyedStates(storage, paths, subtask, StateBackendSettings.of({}), directory, uploads)
                state = states.open({uid: snapshot})[uid]
                states.replay()
                expected = dict(state.stored_rows())
                states.close()
            if name_of(snapshot.state.keyed):
                assert topic.committed(groups) == expected
    uploads.shutdown()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"state.changelog.storage": "kafak"}, "it must be kafka"),
        ({"state.changelog.storage": "kafka"}, r"state\.changelog\.kafka\.bootstrap\.servers is not set"),
        ({**KAFKA, "state.changelog.partitions": "none"}, r"state\.changelog\.partitions is 'none'"),
        ({**KAFKA, "state.changelog.partitions": "0"}, r"state\.changelog\.partitions is '0'"),
        ({**KAFKA, "state.backend.type": "hashmap"}, r"set state\.backend\.type to rocksdb"),
    ],
)
def a_setting_that_cannot_work_is_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        JobSettings.of({"state.changelog.enabled": "true", **settings})


def the_settings_of_a_flink_job_have_no_effect() -> None:
    assert JobSettings.of({"state.changelog.enabled": "true"}).changelog is None
    assert JobSettings.of({"state.changelog.enabled": "true", "state.changelog.storage": "filesystem"}).changelog is None
    assert JobSettings.of(KAFKA).changelog is None
    found = JobSettings.of({**KAFKA, "state.changelog.enabled": "true"}).changelog
    assert found is not None
    assert (found.properties, found.partitions) == ({"bootstrap.servers": "broker:9092"}, 8)
