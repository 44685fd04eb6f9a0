"""Spark's processes and task slots that die or stand still."""

from __future__ import annotations

from holdfast.testing.chaos.faults.drivers import kill_driver
from holdfast.testing.chaos.stage import Stage

__all__ = [
    "kill_daemon",
    "kill_jvm",
    "kill_python",
    "kill_slot",
    "kill_slots",
    "kill_worker",
    "one_of",
    "pause_slot",
    "pause_slot_kill_driver",
]

_END_S = 90.0


def one_of(stage: Stage, kind: str) -> list[int]:
    """The process id of one of the driver's processes of a kind, if it has any."""
    found = stage.driver.members(kind)
    return [stage.random.choice(found)] if found else []


def kill_jvm(stage: Stage) -> str:
    """The driver cannot go on without it: it must end, with an error, and be started again."""
    driver = stage.driver
    stage.expected_stop = "Spark"
    driver.kill(*driver.members("jvm"))
    ended = stage.until(lambda: stage.driver is not driver, _END_S)
    stage.expected_stop = ""
    if not ended:
        stage.violation(f"driver {driver.number} goes on for {_END_S:.0f} s without its JVM: {driver.last_error()}")
        kill_driver(stage)
    return f"JVM of driver {driver.number} killed, which ended; driver {stage.driver.number} started"


def kill_worker(stage: Stage) -> str:
    """One of the Python workers."""
    pids = one_of(stage, "worker")
    stage.driver.kill(*pids)
    return f"worker {pids} killed"


def kill_daemon(stage: Stage) -> str:
    """The process that forks the Python workers."""
    pids = stage.driver.members("daemon")
    stage.driver.kill(*pids)
    return f"worker daemon {pids} killed"


def kill_slot(stage: Stage) -> str:
    """One of the task slots."""
    pids = one_of(stage, "slot")
    stage.driver.kill(*pids)
    return f"slot {pids} killed"


def kill_slots(stage: Stage) -> str:
    """All task slots."""
    pids = stage.driver.members("slot")
    stage.driver.kill(*pids)
    return f"slots {pids} killed"


def kill_python(stage: Stage) -> str:
    """All task slots, Python workers and their daemon at the same time."""
    pids = [pid for kind in ("slot", "worker", "daemon") for pid in stage.driver.members(kind)]
    stage.driver.kill(*pids)
    return f"processes {pids} killed"


def pause_slot(stage: Stage) -> str:
    """A slot stands still for some seconds."""
    pids = one_of(stage, "slot")
    stage.driver.pause(*pids)
    stage.pause(2.0, 8.0)
    stage.driver.resume()
    return f"slot {pids} paused"


def pause_slot_kill_driver(stage: Stage) -> str:
    """A slot wakes up in the time of another driver."""
    old = stage.driver
    pids = one_of(stage, "slot")
    old.pause(*pids)
    stage.pause(0.0, 1.0)
    kill_driver(stage)
    stage.recovered()
    stage.pause(1.0, 4.0)
    old.resume()
    return f"slot {pids} of driver {old.number} paused, its driver killed, resumed under driver {stage.driver.number}"
