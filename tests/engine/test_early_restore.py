"""State that a task slot restores before its first epoch, while Spark starts."""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.ids import CheckpointId
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.paths import JobPaths
from holdfast.connectors.base import JobInfo
from holdfast.runtime.host.local_directory import LocalDirectory
from holdfast.runtime.host.slot import SlotClient
from holdfast.runtime.host.slot_starter import start_slots
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.plan.task_messages import JobSetup
from holdfast.runtime.task.early_restore import EarlyRestore, RestoreRequest
from holdfast.runtime.task.keyed_states import KeyedSubtask
from holdfast.state.store.host_lock import HostLock
from holdfast.testing.executor import InProcessExecutor

from .inprocess import Lab
from .programs import records, sessions, sessions_model
from .small_programs import visible

RECORDS = records(5, 2_000, keys=50)
PROGRAM = sessions(RECORDS)


def request(lab: Lab, checkpoint: int) -> RestoreRequest:
    plan = lab.plan()
    subtasks = [KeyedSubtask.of(vertex, n) for vertex in plan.vertices for n in range(vertex.parallelism)]
    return RestoreRequest(
        plan.name,
        str(lab.directory / "checkpoints"),
        {},
        str(lab.disk),
        plan.settings.state_backend,
        CheckpointId(checkpoint),
        tuple(subtask for subtask in subtasks if subtask.operators),
    )


def newest(lab: Lab) -> int:
    return CheckpointLog(lab.storage, JobPaths.of("job"), 3).read_retained()[0].checkpoint_id


def finish(lab: Lab, early: EarlyRestore) -> None:
    """Run the next driver to the end of the job; its subtasks may take the restored state."""
    coordinator = lab.coordinator()

    def executor(job: JobInfo, plan: JobPlan) -> InProcessExecutor:
        made = InProcessExecutor(JobSetup(plan, job, uuid.uuid4().hex), lab.storage, str(lab.disk), early=early)
        lab.executor = made  # type: ignore[assignment]
        return made

    coordinator._make_executor = executor
    coordinator.run()
    lab.close()
    early.close()


@pytest.mark.parametrize("keep_disk", [True, False])
@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
@pytest.mark.parametrize(("age", "more"), [(0, 0), (1, 0), (0, 1)], ids=["as is", "older checkpoint", "other parallelism"])
def the_results_are_those_of_a_late_restore(job: Any, keep_disk: bool, backend: str, age: int, more: int) -> None:
    config = {"state.backend.type": backend}
    lab = job(PROGRAM, "early", budget=300, config=config, keep_disk=keep_disk)
    assert not lab._run_until("after complete", 4)
    if not keep_disk:
        shutil.rmtree(lab.disk, ignore_errors=True)
    wanted = request(lab, newest(lab) - age)
    others = tuple(replace(subtask, parallelism=subtask.parallelism + more) for subtask in wanted.subtasks)
    early = EarlyRestore(replace(wanted, subtasks=others))
    early._thread.join()
    assert len(early._restored) == lab.parallelism
    finish(lab, early)
    assert visible() == sessions_model(RECORDS)


def a_checkpoint_that_cannot_be_read_is_left_to_the_first_epoch(job: Any) -> None:
    lab = job(PROGRAM, "early", budget=300)
    assert not lab._run_until("after complete", 4)
    finish(lab, EarlyRestore(request(lab, 10_000)))
    assert visible() == sessions_model(RECORDS)


def the_store_of_an_older_driver_is_left_alone_while_it_runs(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.state.store.host_lock._PATIENCE", 0.0)
    lab = job(PROGRAM, "early", budget=300)
    assert not lab._run_until("after complete", 4)
    wanted = request(lab, newest(lab))
    stores = [path for path in Path(lab.disk).iterdir() if list(path.glob("db-*"))]
    held = [HostLock(str(path)) for path in stores]
    assert stores
    assert all(lock.acquire() for lock in held)
    early = EarlyRestore(wanted)
    early.close()
    assert not [path for store in stores for path in store.iterdir() if path.name.startswith("private-")]
    for lock in held:
        lock.release()


def the_state_that_no_subtask_takes_is_closed(job: Any) -> None:
    lab = job(PROGRAM, "early", budget=300)
    assert not lab._run_until("after complete", 4)
    early = EarlyRestore(request(lab, newest(lab)))
    early.close()
    for path in Path(lab.disk).iterdir():
        lock = HostLock(str(path))
        assert lock.acquire()
        lock.release()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def a_slot_restores_before_its_first_task_and_lets_go_when_it_ends(job: Any, tmp_path: Path) -> None:
    lab = job(PROGRAM, "early", budget=300)
    assert not lab._run_until("after complete", 4)
    wanted = request(lab, newest(lab))
    directory = LocalDirectory(str(tmp_path), str(tmp_path / "slots"))
    start_slots(directory, 1, os.getpid(), os.environ)
    client = SlotClient(directory, 0)
    client.restore_early(pickle.dumps(wanted))
    stores = [str(path) for path in Path(lab.disk).iterdir()]

    def free() -> bool:
        with open(f"{stores[0]}/lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    while free():  # the slot restores in the background
        time.sleep(0.01)
    client.retire()
    assert free()
