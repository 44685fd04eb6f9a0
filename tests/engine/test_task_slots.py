"""Task slots: processes that live for months, and what they must not keep or wait for."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import weakref
from pathlib import Path

import cloudpickle
import pytest

from holdfast.connectors.base import JobInfo
from holdfast.runtime import slot
from holdfast.runtime.order import EpochOrder, JobSetup
from holdfast.runtime.slot import SlotClient, TaskHost

from .inprocess import Lab
from .programs import records, sessions


@pytest.fixture
def as_in_a_slot():
    """Python's cycle collector as slots have it: between calls, and only over what is new."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def a_subtask_that_begins_anew_leaves_nothing_of_its_state_in_memory(tmp_path: Path, as_in_a_slot):
    plan = Lab(sessions(records(5, 100, keys=30)), tmp_path).plan()
    plan.config["io.tmp.dirs"] = str(tmp_path / "local")
    job = JobInfo("j", "job", 1, str(tmp_path / "checkpoints"))
    host = TaskHost(pickle.dumps(([], [], cloudpickle.dumps(JobSetup(plan, job, "started")))), str(tmp_path))
    keyed = next(vertex for vertex in plan.vertices if vertex.keyed)

    def fail() -> None:
        order = EpochOrder(2, 0, 0, 0, 1, 0, 0, {})
        report = pickle.loads(host.run(cloudpickle.dumps((order, keyed.id, 0)), iter(()), lambda number, frame: None))
        assert "no barrier of epoch 2" in str(report.error)

    fail()
    subtask = host._subtasks[(keyed.id, 0)]
    subtask._prepare(EpochOrder(2, 0, 0, 0, 1, 0, 0, {}))
    state = weakref.ref(subtask._state)
    gc.collect(1)  # as between calls: it is old from now on
    fail()
    fail()
    assert state() is None
    host.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def the_end_of_a_job_does_not_wait_for_a_slot_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    client = SlotClient(str(tmp_path), 0)
    wire = client._connect()
    process = wire.peer()
    wire.close()
    os.kill(process, signal.SIGSTOP)
    monkeypatch.setattr(slot, "_ANSWER_TIMEOUT", 0.2)
    client.retire()
    slot._await_end(process)
