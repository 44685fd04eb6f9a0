"""Savepoints that cannot be written: told with place and reason, the job goes on, and a later one is whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import compactions
import holdfast.state.backends.upkeep
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.savepoint import BEGUN, METADATA, read_savepoint
from holdfast.checkpoint.stores import directory_store
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import Types
from holdfast.datastream import CheckpointedFunction, KeyedProcessFunction, ListStateDescriptor, ValueStateDescriptor
from holdfast.errors import CheckpointError, ConfigurationError, CorruptFile, StorageError
from holdfast.runtime.driver.savepoints import SavepointWriter, new_savepoint
from holdfast.state.backends import canonical
from holdfast.state.stored.delta_files import verify_contents

from .inprocess import Lab
from .programs import UntypedSessions, records, sessions, sessions_model
from .small_programs import program
from .test_same_results import IN_FILES, config, lab, visible
from .test_savepoints import at_epoch, completed

DATA = records(5, 300, keys=20)


@pytest.fixture(params=["rocksdb", "hashmap"])
def job(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(canonical, "_PART", 2_000)  # savepoints of several parts
    with lab(sessions(DATA, cut=20, function=UntypedSessions), budget=40, config=config(request.param, "64")) as made:
        yield made


class AtOnce:
    """Writes savepoints between two epochs, so that the input does not end before a failure is known."""

    def submit(self, write: Callable[[], None]) -> None:
        write()

    def shutdown(self, wait: bool) -> None:
        pass


def first_there_then_here(job: Lab, uri: str, stop: bool) -> tuple[CheckpointError, str]:
    """The failure of a savepoint in a place that refuses it, and the savepoint that is asked for afterwards."""
    coordinator = job.coordinator()
    coordinator._writes.shutdown()
    coordinator._writes = AtOnce()  # type: ignore[assignment]
    asked: list[Future[str]] = []

    def ask(where: str, stop: bool) -> None:
        asked.append(coordinator.request_savepoint(where, stop=stop, drain=False))

    def ask_twice() -> None:
        ask(uri, stop)
        here = new_savepoint(str(job.directory / "good"), "abcdef0123", {})
        asked[0].add_done_callback(lambda _: ask(here, True))

    at_epoch(coordinator, 3, ask_twice)
    coordinator.run()
    job.close()
    first, second = asked
    failure = first.exception(timeout=0)
    assert isinstance(failure, CheckpointError)
    assert uri in str(failure)
    assert "the job goes on" in str(failure)
    return failure, second.result(timeout=0)


def goes_on_from(job: Lab, savepoint: str, tmp_path: Path) -> None:
    whole = read_savepoint(savepoint)
    verify_contents(whole.storage, whole.savepoint.checkpoint)
    second = Lab(job.build, tmp_path / "second", parallelism=3, budget=60, savepoint=savepoint)
    second.run()
    second.close()
    assert visible() == sessions_model(DATA), "nothing is lost or repeated"


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("room", [0, 300, "metadata"])
def a_device_without_room_for_a_savepoint_does_not_end_the_job(job, stop, room, tmp_path, monkeypatch):
    uri = new_savepoint(str(tmp_path / "small"), "abcdef0123", {})
    directory = uri.removeprefix("file://")
    write, written = os.write, [0]

    def limited(descriptor: int, data: Any) -> int:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if name.startswith(directory):
            full = METADATA in name if room == "metadata" else written[0] >= room
            if full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[: max(1, len(data) // 2)]  # a short write, as the last one before the device is full
            written[0] += len(data)
        return write(descriptor, data)

    monkeypatch.setattr(directory_store.os, "write", limited)
    failure, savepoint = first_there_then_here(job, uri, stop)
    assert f"cannot put {directory}/" in str(failure)
    assert "No space left on device; free space" in str(failure)
    assert os.listdir(directory) == [BEGUN]
    with pytest.raises(ConfigurationError, match="is not a savepoint"):
        read_savepoint(uri)
    goes_on_from(job, savepoint, tmp_path)


class Refusing:
    """Credentials that are refused after some requests."""

    def __init__(self, allowed: int) -> None:
        self.left = allowed

    def pop(self, _: int) -> str:
        self.left -= 1
        return "" if self.left >= 0 else "403"


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("allowed", [0, 2])
def test_credentials_that_a_bucket_refuses_amid_a_savepoint_do_not_end_the_job(job, stop, allowed, relay, tmp_path):
    handler, bucket = relay
    job.config = {**job.config, **bucket}
    uri = new_savepoint(f"s3://checkpoints/{tmp_path.name}", "abcdef0123", bucket)
    handler.faults = Refusing(allowed)
    try:
        failure, savepoint = first_there_then_here(job, uri, stop)
    finally:
        handler.faults = []
    assert f"cannot put {uri}/" in str(failure)
    assert "the credentials must allow" in str(failure)
    assert BEGUN in Storage.open(uri, bucket).list("")
    with pytest.raises(ConfigurationError, match="is not a savepoint"):
        read_savepoint(uri, bucket)
    goes_on_from(job, savepoint, tmp_path)


def test_credentials_that_a_bucket_refuses_are_told_when_the_savepoint_is_asked_for(relay, tmp_path):
    handler, bucket = relay
    handler.faults = Refusing(0)
    with pytest.raises(ConfigurationError) as refused:
        new_savepoint(f"s3://checkpoints/{tmp_path.name}", "abcdef0123", bucket)
    handler.faults = []
    assert f"no savepoint can be written into s3://checkpoints/{tmp_path.name}: cannot put" in str(refused.value)
    assert "the credentials must allow" in str(refused.value)


def write(job: Lab) -> Storage:
    """Write a savepoint of the last checkpoint of a driver that has died."""
    return write_of(job, completed(job))


def write_of(job: Lab, checkpoint: CheckpointMetadata) -> Storage:
    target = Storage.open(new_savepoint(str(job.directory / "savepoints"), "abcdef0123", {}))
    SavepointWriter(job.storage, job.plan().settings).write(
        checkpoint, target.uri, False, lambda task, parts: [task(part) for part in parts]
    )
    return target


def test_metadata_whose_put_is_not_confirmed_is_deleted_first(job, monkeypatch):
    put_new, delete = Storage.put_new, Storage.delete

    def unconfirmed(self: Storage, path: str, data: bytes) -> None:
        put_new(self, path, data)
        if path == METADATA:
            raise StorageError("no answer")

    def one_of(self: Storage, paths: Any) -> None:
        delete(self, list(paths)[:1])
        raise StorageError("no answer")

    monkeypatch.setattr(Storage, "put_new", unconfirmed)
    monkeypatch.setattr(Storage, "delete", one_of)
    with pytest.raises(StorageError, match="no answer"):
        write(job)
    (directory,) = (job.directory / "savepoints").iterdir()
    with pytest.raises(ConfigurationError, match="is not a savepoint"):
        read_savepoint(str(directory))


class CountsAndRows(KeyedProcessFunction, CheckpointedFunction):
    """Keyed state, and a list in a file of its own."""

    def initialize_state(self, context):
        self.rows = context.get_operator_state_store().get_list_state(ListStateDescriptor("rows", Types.STRING()))

    def snapshot_state(self, context):
        self.rows.update([f"{n:0100}" for n in range(100)])

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        yield value


@pytest.mark.parametrize("damage", ["missing", "altered"])
@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
def a_damaged_file_of_the_checkpoint_is_told_with_its_operator_and_states(backend, damage, monkeypatch):
    monkeypatch.setattr(holdfast.state.backends.upkeep, "due", compactions.anything(1))
    values = [(f"k{n % 7}", n, n) for n in range(700)]
    with lab(program(CountsAndRows(), values, cut=90), budget=90, config=config(backend, "64") | IN_FILES) as job:
        checkpoint = completed(job)
        (state, *_) = checkpoint.operators["keyed"].subtasks
        keyed, listed = next(state.keyed[0].handles()), state.lists["rows"][0].file
        assert listed is not None
        for name, file in (("count", keyed), ("rows", listed)):
            path = Path(job.storage.locate(file.path).removeprefix("file://"))
            whole = path.read_bytes()
            path.unlink()
            if damage == "altered":
                path.write_bytes(whole[:-40] + bytes(40))
            with pytest.raises(
                CorruptFile, match=f"it holds '{name}'.* of operator .* .uid 'keyed'.: put it back from a copy"
            ):
                write_of(job, checkpoint)
            path.write_bytes(whole)
        (left,) = {tuple(each.name for each in where.iterdir()) for where in (job.directory / "savepoints").iterdir()}
        assert left == (BEGUN,)
        write_of(job, checkpoint)


def a_savepoint_is_complete_although_its_mark_cannot_be_deleted(job, monkeypatch, caplog):
    def stuck(*_: Any) -> None:
        raise StorageError("read-only")

    monkeypatch.setattr(Storage, "delete", stuck)
    whole = read_savepoint(write(job).uri)
    verify_contents(whole.storage, whole.savepoint.checkpoint)
    assert "is complete" in caplog.text
    assert "read-only" in caplog.text
