"""Savepoints: a job stops, moves, and goes on elsewhere, with nothing lost and nothing repeated."""

from __future__ import annotations

import copy
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import compactions
from effort import examples
from holdfast.checkpoint.container import pack, unpack
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.savepoint import METADATA, read_savepoint
from holdfast.checkpoint.stores.storage import Storage
from holdfast.errors import (
    CheckpointError,
    ConfigurationError,
    CorruptFile,
    IncompatibleState,
    StorageError,
)
from holdfast.runtime.driver.coordinator import Coordinator
from holdfast.runtime.driver.savepoints import SavepointWriter, new_savepoint
from holdfast.runtime.protocol import events
from holdfast.state.backends import canonical, upkeep

from . import test_large_state as large
from .inprocess import COMMIT_HOOK, LEDGERS, Crash, Lab, LedgerSink
from .programs import UntypedSessions, everything, records, sessions, sessions_model, stream, windows, windows_model
from .test_rescaling import parallelisms
from .test_same_results import backends, config, few, lab, seeds, visible


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Savepoints of several parts."""
    monkeypatch.setattr(canonical, "_PART", 2_000)


def run(job: Lab, after: int, stop: bool = True, drain: bool = False, directory: Path | None = None) -> str:
    """Run a driver that is asked for a savepoint in its epoch number ``after``; the savepoint, once the driver has ended."""
    coordinator = job.coordinator()
    asked: list[Future[str]] = []
    at_epoch(coordinator, after, lambda: asked.append(request(job, coordinator, stop, drain, directory)))
    try:
        coordinator.run()
    finally:
        job.close()
    assert asked, "the input ended before"
    return asked[0].result(timeout=0)


def request(job: Lab, coordinator: Coordinator, stop: bool, drain: bool, directory: Path | None = None) -> Future[str]:
    uri = new_savepoint(str(directory or job.directory / "savepoints"), "abcdef0123", {})
    return coordinator.request_savepoint(uri, stop=stop, drain=drain)


def at_epoch(coordinator: Coordinator, number: int, what: Callable[[], object]) -> None:
    make = coordinator._make_executor

    def making(job: Any, plan: Any) -> Any:
        made: Any = make(job, plan)
        run, left = made.run, [number]

        def running(assignment: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                what()
            return run(assignment)

        made.run = running
        return made

    coordinator._make_executor = making


def moved(savepoint: str) -> str:
    """The savepoint in another place; there is nothing left in the first."""
    old = Path(savepoint.removeprefix("file://"))
    new = Path(tempfile.mkdtemp(prefix="holdfast-moved-")) / "here"
    shutil.move(old, new)
    return str(new)


@settings(few, max_examples=examples(2))
@given(
    seed=seeds,
    kinds=st.tuples(backends, backends),
    widths=st.tuples(parallelisms, parallelisms),
    after=st.integers(1, 6),
    function=st.sampled_from([UntypedSessions, UntypedSessions.__base__]),
)
@example(seed=1, kinds=("rocksdb", "rocksdb"), widths=(1, 2), after=3, function=UntypedSessions)  # in one task, then in two
@example(seed=1, kinds=("rocksdb", "hashmap"), widths=(2, 1), after=3, function=UntypedSessions.__base__)
def test_a_job_that_is_stopped_goes_on_in_another_directory_on_another_backend(seed, kinds, widths, after, function):
    data = records(seed, 300, keys=20)
    build = sessions(data, cut=20, function=function)
    with lab(build, parallelism=widths[0], budget=40, config=config(kinds[0], "64")) as first:
        savepoint = moved(run(first, after))
        with ExitStack() as stack:
            elsewhere = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            second = Lab(
                build, elsewhere, parallelism=widths[1], budget=60, config=config(kinds[1], "64"), savepoint=savepoint
            )
            second.run([("after complete", 3), ("before complete", 2)])
        assert visible() == sessions_model(data)


@settings(few, max_examples=examples(3))
@given(
    seed=seeds,
    kind=backends,
    widths=st.sampled_from([(2, 2), (3, 3), (1, 2)]),
    commit=st.integers(1, 9),
    dies=st.booleans(),
)
def a_failure_after_a_start_from_a_savepoint_finds_all_changes_since(seed, kind, widths, commit, dies):
    """The local store is reused: it may hold rows that are newer than the savepoint's, which the checkpoint refers to."""
    data = records(seed, 300, keys=20)
    build = sessions(data, cut=20)
    with ExitStack() as stack:
        first = stack.enter_context(lab(build, parallelism=widths[0], budget=40, config=config(kind, "64")))
        savepoint = run(first, 4)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(upkeep, "due", compactions.anything(seed))
        with tempfile.TemporaryDirectory() as elsewhere:
            options = {"budget": 60, "config": config("rocksdb", "64"), "savepoint": savepoint}
            second = Lab(build, Path(elsewhere), parallelism=widths[1], **options)
            if dies:
                second.run([("before commit", commit)])
            else:
                left = iter(range(commit))

                def fail(point: str) -> None:
                    if point == "before commit" and next(left, None) == commit - 1:
                        raise ConnectionError("the broker is away")

                COMMIT_HOOK["out"] = fail
                try:
                    second.coordinator().run()
                finally:
                    del COMMIT_HOOK["out"]
                    second.close()
        assert visible() == sessions_model(data)


@settings(few, max_examples=examples(2))
@given(seed=seeds, backend=backends, after=st.integers(1, 6), failures=st.sampled_from([0.05, 0.15]))
def a_stop_while_tasks_die_gives_a_whole_savepoint_or_the_job_goes_on(seed, backend, after, failures):
    data = records(seed, 300, keys=20)
    build = sessions(data, cut=20)
    with lab(build, budget=40, config=config(backend, "64"), failures=failures, repeats=0.1, seed=seed) as first:
        coordinator = first.coordinator()
        asked: list[Future[str]] = []
        at_epoch(coordinator, after, lambda: asked.append(request(first, coordinator, stop=True, drain=False)))
        coordinator.run()
        first.close()
        (savepoint,) = asked
        assert savepoint.done()
        if savepoint.exception() is None:
            with tempfile.TemporaryDirectory() as elsewhere:
                Lab(build, Path(elsewhere), parallelism=3, budget=60, savepoint=savepoint.result()).run()
        assert visible() == sessions_model(data)


@settings(few, max_examples=examples(2))
@given(seed=seeds, backend=backends, after=st.integers(1, 6), width=parallelisms)
def test_a_savepoint_of_a_running_job_holds_what_was_read_when_it_was_taken(seed, backend, after, width):
    data = records(seed, 300)
    with lab(windows(data, cut=20), budget=40, config=config(backend, "64")) as first:
        coordinator = first.coordinator()
        asked: list[Future[str]] = []
        then: list[Any] = []
        at_epoch(coordinator, after, lambda: asked.append(request(first, coordinator, stop=False, drain=False)))
        write = coordinator._write_savepoint

        def writing(instruction: Any) -> None:
            then.append(copy.deepcopy(LEDGERS["out"].committed))
            write(instruction)

        coordinator._write_savepoint = writing  # type: ignore[method-assign]
        coordinator.run()
        first.close()
        assert visible() == windows_model(data), "the job has gone on as if nothing had been"
        LEDGERS["out"].committed = then[0]
        with tempfile.TemporaryDirectory() as elsewhere:
            second = Lab(windows(data, cut=50), Path(elsewhere), parallelism=width, budget=60, savepoint=asked[0].result(0))
            second.run([("before commit", 2)])
        assert visible() == windows_model(data)


@settings(few, max_examples=examples(2))
@given(seed=seeds, backend=backends, after=st.integers(1, 5))
def test_a_drained_job_has_fired_everything_and_begins_event_time_anew(seed, backend, after):
    data = records(seed, 200)

    def counted() -> Counter[str]:
        return Counter(element for value in LEDGERS["out"].values if value[0] == "all" for element in value[4])

    with lab(windows(data, cut=20), budget=40, config=config(backend, "64")) as job:
        job.savepoint = run(job, after, drain=True)
        opened = read_savepoint(job.savepoint)
        positions = opened.savepoint.checkpoint.sources["source"].enumerator
        read = [record for name, split in data.items() for record in split[: positions[name]]]
        assert counted() == Counter(map(repr, read))
        job.run()
        assert counted() == Counter(map(repr, everything(data)))


@pytest.mark.parametrize(
    "happens", ["written", "not written", "killed", "killed before its output is visible", "commit fails", "not complete"]
)
def the_rest_of_the_input_of_a_drained_job_is_read_by_its_next_run(happens, monkeypatch):
    data = records(3, 200)
    asked: list[Future[str]] = []
    write, failures = SavepointWriter.write, iter([Crash() if "killed" in happens else StorageError("the disk is full")])
    completed: list[int] = []

    def fail() -> None:
        for failure in failures:
            raise failure

    def writing(*arguments: Any) -> None:
        if happens in ("not written", "killed"):
            fail()
        write(*arguments)

    def completing(checkpoint: CheckpointMetadata, *more: Any) -> None:
        if asked:
            completed.append(checkpoint.checkpoint_id)
        if happens == "not complete" and len(completed) == 2:
            fail()
        complete(checkpoint, *more)

    def committing(point: str) -> None:
        if happens in ("killed before its output is visible", "commit fails") and len(completed) == 2:
            fail()

    monkeypatch.setattr(SavepointWriter, "write", writing)
    monkeypatch.setitem(COMMIT_HOOK, "out", committing)
    with lab(windows(data, cut=20), budget=40, config=config("rocksdb", "64")) as job:
        coordinator = job.coordinator()
        complete = coordinator._log.complete
        coordinator._log.complete = completing  # type: ignore[method-assign]
        at_epoch(coordinator, 3, lambda: asked.append(request(job, coordinator, stop=True, drain=True)))
        with ExitStack() as stack:
            if "killed" in happens:
                stack.enter_context(pytest.raises(Crash))
            coordinator.run()
        job.close()
        assert next(failures, None) is None or happens == "written", "nothing happened"
        read = [value for value in LEDGERS["out"].values if value[0] == "all"]
        if happens in ("written", "commit fails", "not complete"):
            opened = read_savepoint(asked[0].result(0)).savepoint.checkpoint
            before = [
                record for name, split in data.items() for record in split[: opened.sources["source"].enumerator[name]]
            ]
            assert len(before) < len(everything(data))
            assert Counter(element for value in read for element in value[4]) == Counter(map(repr, before))
        elif happens == "not written":
            with pytest.raises(CheckpointError, match="the disk is full"):
                asked[0].result(0)
        job.run()
        counted = Counter(element for value in LEDGERS["out"].values if value[0] == "all" for element in value[4])
        assert counted == Counter(map(repr, everything(data)))


@pytest.mark.parametrize("types", large.TYPES, ids=["declared", "pickled"])
@pytest.mark.parametrize("kinds", [("rocksdb", "hashmap"), ("hashmap", "rocksdb")])
def test_maps_and_lists_of_any_size_are_in_savepoints(types, kinds):
    small = {"state.backend.cache.size": "1kb"}
    with lab(large.program(types), budget=130, config={**small, "state.backend.type": kinds[0]}) as first:
        savepoint = moved(run(first, 8))
        with tempfile.TemporaryDirectory() as elsewhere:
            settings = {**small, "state.backend.type": kinds[1]}
            Lab(large.program(types), Path(elsewhere), 3, 130, settings, savepoint=savepoint).run([("after complete", 5)])
        assert sorted(LEDGERS["out"].values) == sorted(large.model())


@pytest.fixture
def job():
    with lab(sessions(records(5, 300, keys=20), cut=20), budget=40) as made:
        yield made


MODEL = sessions_model(records(5, 300, keys=20))


def a_savepoint_that_the_user_deletes_later_is_not_missed(job):
    job.savepoint = run(job, 3)
    job._run_until("after complete", 3)
    shutil.rmtree(job.savepoint.removeprefix("file://"))
    job.run()
    assert visible() == MODEL


def a_claimed_savepoint_is_deleted_once_the_job_has_its_copy(job):
    job.savepoint, job.claim = run(job, 3), True
    job._run_until("after complete", 3)
    left = Path(job.savepoint.removeprefix("file://"))
    assert not left.exists() or not list(left.iterdir())
    job.run()
    assert visible() == MODEL


def a_savepoint_that_was_written_anew_at_its_path_is_another_one(job):
    job.savepoint = run(job, 3)
    place = Path(job.savepoint.removeprefix("file://"))
    job._run_until("after complete", 4)
    first = read_savepoint(job.savepoint).name
    with lab(sessions(records(5, 300, keys=20), cut=20), budget=40) as other:
        written = Path(run(other, 5).removeprefix("file://"))
        shutil.rmtree(place)
        shutil.copytree(written, place)
    again = read_savepoint(job.savepoint).name
    assert job.coordinator()._log.started_from() == first != again
    job.run()
    assert job.coordinator()._log.started_from() == again


def a_savepoint_that_was_written_anew_where_a_claimed_one_was_stays(job, monkeypatch):
    job.savepoint, job.claim = run(job, 3), True
    place = Path(job.savepoint.removeprefix("file://"))
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.runtime.driver.savepoints.ClaimedSavepoint.delete", lambda *_, **__: None)
        job._run_until("after complete", 3)
    job.savepoint = ""
    metadata = place / "_metadata"
    metadata.write_bytes(metadata.read_bytes() + b"of another one")
    job.run()
    assert metadata.exists()
    assert visible() == MODEL


def a_driver_that_dies_while_it_copies_the_savepoint_is_followed_by_one_that_copies_it_again(job, monkeypatch):
    job.savepoint = run(job, 3)
    from holdfast.checkpoint import savepoint as module

    left = [1]
    copy_file = module.copy_file

    def dying(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Crash
        copy_file(*arguments)

    monkeypatch.setattr(module, "copy_file", dying)
    with pytest.raises(Crash):
        job.coordinator().run()
    monkeypatch.setattr(module, "copy_file", copy_file)
    job.run()
    assert visible() == MODEL
    stored = {path.name for path in (job.directory / "checkpoints" / "job" / "state").iterdir()}
    assert len(stored) < 400, "what the first copy left was swept"


def the_generation_goes_on_from_the_savepoints(job):
    savepoint = run(job, 3)
    before = read_savepoint(savepoint).savepoint.checkpoint.generation
    with tempfile.TemporaryDirectory() as elsewhere:
        second = Lab(job.build, Path(elsewhere), budget=40, savepoint=savepoint)
        second.run()
        assert second.coordinator()._log.started_from() == read_savepoint(savepoint).name
        taken = second.coordinator()._log.take_over()
    assert taken.generation > before + 1
    assert visible() == MODEL


def test_a_file_and_a_directory_of_the_metadata_s_name_are_no_savepoints(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="file' is not a savepoint: it is a file; a savepoint is a directory"):
        read_savepoint(str(tmp_path / "file"))
    (tmp_path / METADATA).mkdir()
    with pytest.raises(ConfigurationError, match=f"is not a savepoint: .*{METADATA} is a directory"):
        read_savepoint(str(tmp_path))


def a_directory_that_is_no_savepoint_is_refused_with_what_it_is(tmp_path):
    def refused(directory: Path) -> str:
        with pytest.raises(ConfigurationError, match="is not a savepoint") as error:
            read_savepoint(str(directory))
        return str(error.value)

    assert f"{METADATA} does not exist. Give the path that trigger_savepoint()" in refused(tmp_path / "nothing")
    unfinished = Path(new_savepoint(str(tmp_path), "abcdef0123", {}).removeprefix("file://"))
    assert f"{METADATA} does not exist: this savepoint was not completed. Give" in refused(unfinished)
    shutil.rmtree(unfinished)
    assert f"{METADATA} does not exist. Give" in refused(tmp_path)
    for name in ("savepoint-b", "savepoint-a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / METADATA).touch()
    assert f"{METADATA} does not exist; the directory contains savepoint-a and savepoint-b. Give" in refused(tmp_path)


@pytest.mark.parametrize("place", ["s3://", "gs:///", "hdfs:"])
def test_a_savepoint_is_not_written_where_the_bucket_is_missing(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="needs the name of a bucket or host"):
        new_savepoint(place, "abcdef0123", {})
    assert list(tmp_path.iterdir()) == []


def completed(job: Lab) -> CheckpointMetadata:
    """The last checkpoint of a driver that has died."""
    job._run_until("after complete", 3)
    restored = job.coordinator()._log.take_over().restored
    assert restored is not None
    return restored


def the_first_failure_of_a_savepoint_is_reported_although_its_files_cannot_be_deleted(job, monkeypatch):
    from holdfast.runtime.driver import savepoints

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    def stuck(*_: Any) -> None:
        raise StorageError("read-only")

    checkpoint = completed(job)
    monkeypatch.setattr(savepoints, "write_part", full)
    monkeypatch.setattr(Storage, "list", stuck)
    with pytest.raises(OSError, match="No space left"):
        savepoints.SavepointWriter(job.storage, job.plan().settings).write(
            checkpoint, str(job.directory / "savepoint"), False, lambda task, parts: [task(part) for part in parts]
        )


def a_directory_that_cannot_be_written_is_refused_when_the_savepoint_is_asked_for(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError, match="no savepoint can be written into"):
        new_savepoint(str(tmp_path / "file"), "abcdef", {})


def a_job_that_ends_before_says_so(job):
    coordinator = job.coordinator()
    coordinator.run()
    with pytest.raises(CheckpointError, match="the job has ended"):
        request(job, coordinator, stop=False, drain=False).result(timeout=0)


class Inbox(SimpleQueue):  # type: ignore[type-arg]
    """Gets a cancellation right before the end of a savepoint, and both at once."""

    cancelled = False

    def put(self, event: Any, block: bool = True, timeout: float | None = None) -> None:
        if isinstance(event, events.SavepointWritten):
            super().put(events.Cancel())
        super().put(event)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        event = super().get(block or self.cancelled, 10 if self.cancelled else timeout)
        self.cancelled = isinstance(event, events.Cancel)
        return event


def a_job_can_be_cancelled_in_the_moment_in_which_its_savepoint_is_complete(job):
    coordinator = job.coordinator()
    coordinator._inbox = Inbox()
    asked = []
    at_epoch(coordinator, 3, lambda: asked.append(request(job, coordinator, stop=True, drain=False)))
    coordinator.run()
    job.close()
    with pytest.raises(CheckpointError, match="the job has ended"):
        asked[0].result(timeout=0)
    job.run()
    assert visible() == MODEL


def a_storage_that_does_not_answer_behind_a_savepoint_lets_the_job_stop(job, monkeypatch):
    coordinator, left = job.coordinator(), [StorageError("away")]
    check = coordinator._log.check_ownership

    def away() -> None:
        if left:
            raise left.pop()
        check()

    monkeypatch.setattr(coordinator._log, "check_ownership", away)
    asked = []
    at_epoch(coordinator, 3, lambda: asked.append(request(job, coordinator, stop=True, drain=False)))
    coordinator.run()
    job.close()
    assert not left
    read_savepoint(asked[0].result(timeout=0))


def a_job_without_a_checkpoint_yet_makes_one_for_the_savepoint(job):
    coordinator = job.coordinator()
    asked = request(job, coordinator, stop=True, drain=False)
    coordinator.run()
    job.close()
    job.savepoint = asked.result(timeout=0)
    job.run()
    assert visible() == MODEL


def a_changed_job_is_refused_with_the_list_of_what_is_missing(job):
    job.savepoint = run(job, 3)

    def other(env: Any) -> None:
        stream(env, records(5, 300, keys=20)).map(str).sink_to(LedgerSink("out"))

    with tempfile.TemporaryDirectory() as elsewhere:
        changed = Lab(other, Path(elsewhere), savepoint=job.savepoint)
        with pytest.raises(IncompatibleState, match="which the program does not have"):
            changed.run()


def a_damaged_savepoint_is_refused_before_any_input_is_read_and_an_intact_one_accepted_afterwards(job):
    savepoint = run(job, 3)
    dump = max(Path(savepoint.removeprefix("file://")).glob("*.dump"), key=lambda each: each.stat().st_size)
    content = dump.read_bytes()
    before = visible()
    with tempfile.TemporaryDirectory() as elsewhere:
        job = Lab(job.build, Path(elsewhere), budget=40, savepoint=savepoint)

        def refused(reason: str) -> None:
            with pytest.raises(CorruptFile, match=reason) as error:
                job.run()
            assert error.value.path == f"file://{dump}"
            assert re.search(
                r"holds '\w+'.* of operator .*\(uid '.*put it back from a copy of the savepoint", str(error.value)
            )
            assert visible() == before

        dump.write_bytes(content[:-1])
        refused("truncated")
        dump.unlink()
        refused("missing")
        for at in (len(content) // 3, len(content) - 1):
            altered = bytearray(content)
            altered[at] ^= 1
            dump.write_bytes(altered)
            refused("altered")
        dump.write_bytes(content)
        job.run()
    assert visible() == MODEL


def a_savepoint_of_a_newer_format_is_refused(job):
    savepoint = run(job, 3)
    metadata = Path(savepoint.removeprefix("file://")) / METADATA
    newer = {**msgspec.msgpack.decode(unpack(metadata.read_bytes(), "")), "format_version": 99}
    metadata.write_bytes(pack(msgspec.msgpack.encode(newer)))
    with pytest.raises(IncompatibleState, match="format 99"):
        read_savepoint(savepoint)
    for other in (b"", b"something else", pack(b"something else")):
        metadata.write_bytes(other)
        with pytest.raises(CorruptFile, match=r"_metadata: .*put it back from a copy of the savepoint"):
            read_savepoint(savepoint)
