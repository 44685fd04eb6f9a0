"""Faults of Spark's processes and task slots: kills and pauses."""

from __future__ import annotations

from holdfast.testing.chaos.faults.drivers import kill_driver
from holdfast.testing.chaos.stage import Stage

__all__ = [
    "kill_daemon",
    "kill_jvm",
    "kill_python",
    "kill_slot",
    "kill_slots",
    "kill_starter",
    "kill_worker",
    "one_of",
    "pause_slot",
    "pause_slot_kill_driver",
    "pause_starter",
]

_END_S = 240.0


def one_of(stage: Stage, kind: str) -> list[int]:
    """Choose the process id of one of the driver's processes of a kind; empty if there is none."""
    found = stage.driver.members(kind)
    return [stage.random.choice(found)] if found else []


def kill_jvm(stage: Stage) -> str:
    """Kill the JVM. The driver cannot continue without it: it must end with an error, and is restarted."""
    driver = stage.driver
    stage.expected_stop = "Spark"
    driver.kill(*driver.members("jvm"))
    ended = stage.until(lambda: stage.driver is not driver, _END_S)
    stage.expected_stop = ""
    if not ended:
        stage.violation(f"driver {driver.number} still runs {_END_S:.0f} s after the end of its JVM: {driver.last_error()}")
        kill_driver(stage)
    return f"JVM of driver {driver.number} killed, which ended; driver {stage.driver.number} started"


def _kill(stage: Stage, name: str, pids: list[int]) -> str:
    stage.driver.kill(*pids)
    return f"{name} {pids} killed"


def kill_worker(stage: Stage) -> str:
    """Kill one Python worker."""
    return _kill(stage, "worker", one_of(stage, "worker"))


def kill_daemon(stage: Stage) -> str:
    """Kill the daemon that forks the Python workers."""
    return _kill(stage, "worker daemon", stage.driver.members("daemon"))


def kill_slot(stage: Stage) -> str:
    """Kill one task slot."""
    return _kill(stage, "slot", one_of(stage, "slot"))


def kill_slots(stage: Stage) -> str:
    """Kill all task slots."""
    return _kill(stage, "slots", stage.driver.members("slot"))


def kill_starter(stage: Stage) -> str:
    """Kill the process that forks the task slots, and one of these, which another one then forks."""
    return _kill(stage, "slot starter and slot", stage.driver.members("starter") + one_of(stage, "slot"))


def pause_starter(stage: Stage) -> str:
    """Pause the process that forks the task slots, and kill one of these."""
    driver = stage.driver
    pids = driver.members("starter")
    driver.pause(*pids)
    killed = one_of(stage, "slot")
    driver.kill(*killed)
    stage.pause(2.0, 8.0)
    driver.resume()
    return f"slot starter {pids} paused, slot {killed} killed"


def kill_python(stage: Stage) -> str:
    """Kill all task slots, Python workers and the processes that fork them at the same time."""
    pids = [pid for kind in ("slot", "starter", "worker", "daemon") for pid in stage.driver.members(kind)]
    return _kill(stage, "processes", pids)


def pause_slot(stage: Stage) -> str:
    """Pause a task slot for some seconds."""
    pids = one_of(stage, "slot")
    stage.driver.pause(*pids)
    stage.pause(2.0, 8.0)
    stage.driver.resume()
    return f"slot {pids} paused"


def pause_slot_kill_driver(stage: Stage) -> str:
    """Pause a task slot until another driver owns the job."""
    old = stage.driver
    pids = one_of(stage, "slot")
    old.pause(*pids)
    stage.pause(0.0, 1.0)
    kill_driver(stage)
    stage.recovered()
    stage.pause(1.0, 4.0)
    old.resume()
    return f"slot {pids} of driver {old.number} paused, its driver killed, resumed under driver {stage.driver.number}"
