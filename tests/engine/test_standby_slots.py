"""A task slot stands by for a subtask of another host, and goes on with its copy when the subtask comes."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cloudpickle
import pytest

import holdfast.runtime.slots.standbys
import holdfast.runtime.task.changelogs
import holdfast.state.backends.rocksdb
import holdfast.state.stored.delta_files
from awaiting import until
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.manifests import read_checkpoint
from holdfast.checkpoint.paths import JobPaths
from holdfast.connectors.base import JobInfo
from holdfast.runtime.host.dependencies import Dependencies
from holdfast.runtime.host.local_directory import LocalDirectory
from holdfast.runtime.host.slot import SlotClient
from holdfast.runtime.host.wire import connect
from holdfast.runtime.plan.task_messages import EpochAssignment, JobSetup, StandbyStatus
from holdfast.runtime.slots.slot_server import SlotServer
from holdfast.runtime.slots.standbys import StandbyNeighbours, StandbyRequest

from .changelog_model import Broker
from .inprocess import Lab
from .programs import records, sessions
from .test_changelog import assert_read_from_files, changelogs


@pytest.fixture
def broker() -> Iterator[Broker]:
    new_changelog = holdfast.runtime.task.changelogs.new_changelog
    yield Broker(partitions=3)
    holdfast.runtime.task.changelogs.new_changelog = new_changelog


class Neighbour:
    """The server of slot 1, in a thread of this process."""

    def __init__(self, directory: Path) -> None:
        self.server = SlotServer(str(directory / "slot-1.sock"), os.getpid())
        self.thread = threading.Thread(target=self.server.serve)
        self.thread.start()
        self.client = SlotClient(LocalDirectory(str(directory), str(directory)), 1)

    def stop(self) -> None:
        self.client.retire()
        self.thread.join()


@pytest.fixture
def neighbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Neighbour]:
    monkeypatch.setattr(SlotServer, "_watch_executor", lambda self: None)
    monkeypatch.setattr(holdfast.runtime.slots.standbys, "_REFRESH_S", 0.0)
    monkeypatch.setattr(holdfast.runtime.slots.standbys, "_ROUND_S", 0.01)
    (tmp_path / "slots").mkdir(mode=0o700)
    found = Neighbour(tmp_path / "slots")
    connected = until(lambda: connect(found.client._path))
    connected.close()
    yield found
    if found.thread.is_alive():
        found.stop()
    gc.enable()


def the_subtask_goes_on_with_the_copy_of_the_slot_that_stood_by(
    tmp_path: Path, broker: Broker, neighbour: Neighbour, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Lab(sessions(records(3, 300, keys=20), cut=20), tmp_path, budget=20, config=changelogs(broker))
    assert not job._run_until("before complete", 8)
    plan = job.plan()
    plan = replace(plan, settings=replace(plan.settings, temporary_directory=str(tmp_path / "local")))
    keyed = next(vertex for vertex in plan.vertices if any(chained.uid == "sessions" for chained in vertex.chain))
    task = (keyed.id, 1)

    def setup(generation: int) -> bytes:
        info = JobInfo("j", "job", generation, str(tmp_path / "checkpoints"))
        return pickle.dumps(([], [], Dependencies(), cloudpickle.dumps(JobSetup(plan, info, "start")), None))

    slots = LocalDirectory(str(tmp_path / "slots"), str(tmp_path / "slots"))
    asking = StandbyNeighbours(slots, os.getpid(), "start", setup(7), 7)

    def whole() -> StandbyStatus | None:
        return next((each for each in asking.refresh({1: [task]}, 20) if each.lag == 0), None)

    status = until(whole, 120)
    assert status.task == task
    assert status.lag_seconds is not None

    def of(generation: int) -> list[StandbyStatus] | None:
        request = pickle.dumps(StandbyRequest([task], 20, generation))
        answer = neighbour.client.stand_by(f"start {generation}", setup(generation), request)
        return pickle.loads(answer) if answer else None

    assert of(6) is None, "an earlier driver's slot is late"
    broker.topics["sessions"].read = 0
    monkeypatch.setattr(holdfast.state.stored.delta_files, "read_delta", assert_read_from_files)
    monkeypatch.setattr(holdfast.state.backends.rocksdb, "fetch", assert_read_from_files)
    storage = job.storage
    newest = CheckpointLog(storage, JobPaths.of("job"), 3).read_retained()[0].checkpoint_id
    assert read_checkpoint(storage, JobPaths.of("job"), newest).operators["sessions"].subtasks[1].keyed
    order = EpochAssignment(newest + 1, 0, newest, newest, 7, 0, 0, {task: "token"})
    call = cloudpickle.dumps((order, *task))
    ((_, answer),) = neighbour.client.run("start", lambda: setup(7), call, iter(()))
    report = pickle.loads(answer)
    assert report.stood_by is not None
    assert report.stood_by.lag == 0
    assert "no barrier" in str(report.error), "the state was restored, and the test sends no input"
    assert broker.topics["sessions"].read == 0, "the copy was whole"

    request = pickle.dumps(StandbyRequest([task], newest + 2, 7))
    assert pickle.loads(neighbour.client.stand_by("start", setup(7), request)) == [], "it has just run here"
    request = pickle.dumps(StandbyRequest([task], newest + 3, 7))
    (again,) = pickle.loads(neighbour.client.stand_by("start", setup(7), request))
    assert again.task == task, "it has gone elsewhere"
    neighbour.stop()
    assert neighbour.server._host is None
