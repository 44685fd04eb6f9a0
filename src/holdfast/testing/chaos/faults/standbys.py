"""Faults of a job with standby drivers: its owner dies, pauses or leaves in order, and another driver takes over."""

from __future__ import annotations

import os
import signal

from holdfast.testing.chaos.faults.drivers import must_be_fenced
from holdfast.testing.chaos.processes import DriverProcess
from holdfast.testing.chaos.stage import Stage

__all__ = ["kill_all", "kill_owner", "kill_standby", "owner", "pause_owner", "stop_owner"]

_TAKES_OVER = "this driver takes the job over"
_PATIENCE_S = 240.0


def owner(stage: Stage) -> DriverProcess:
    """The driver that owns the job, or is taking it over; waits for one."""

    def owners() -> list[DriverProcess]:
        return [driver for driver in stage.live_drivers if _TAKES_OVER in driver.log() and not driver.stopped]

    if not stage.until(lambda: len(owners()) == 1, _PATIENCE_S):
        stage.violation(f"{len(owners())} drivers own the job, after {_PATIENCE_S:.0f} s")
    return owners()[0]


def kill_owner(stage: Stage) -> str:
    """``kill -9`` for the owner; another standby driver is added."""
    dead = owner(stage)
    _follow_another(stage, dead)
    dead.kill(dead.process.pid)
    dead.process.wait()
    stage.start_beside()
    return f"driver {dead.number} killed while {len(stage.live_drivers) - 1} stood by"


def kill_standby(stage: Stage) -> str:
    """``kill -9`` for a driver that stands by; another one is added."""
    chief = owner(stage)
    dead = stage.random.choice([driver for driver in stage.live_drivers if driver is not chief])
    _follow_another(stage, dead)
    dead.kill(dead.process.pid)
    stage.start_beside()
    return f"standby driver {dead.number} killed"


def kill_all(stage: Stage) -> str:
    """``kill -9`` for all drivers; new ones are started, none of which saw the job run."""
    dead = stage.live_drivers
    for driver in dead:
        driver.kill(driver.process.pid)
        driver.process.wait()
    stage.start_driver()
    for _ in dead[1:]:
        stage.start_beside()
    return f"all {len(dead)} drivers killed and replaced"


def stop_owner(stage: Stage) -> str:
    """SIGTERM for the owner, which leaves the job to a standby driver."""
    old = owner(stage)
    _follow_another(stage, old)
    old.process.terminate()
    if old.process.wait(_PATIENCE_S) != 0:
        stage.violation(f"stopped in order, driver {old.number} ends with {old.exit_code}: {old.last_error()}")
    stage.start_beside()
    return f"driver {old.number} stopped in order"


def pause_owner(stage: Stage) -> str:
    """The owner pauses until another driver has taken over; after it resumes, it must stop by itself."""
    old = owner(stage)
    _follow_another(stage, old)
    old.pause(old.process.pid)
    new = owner(stage)
    stage.recovered()
    stage.driver = new
    os.kill(old.process.pid, signal.SIGCONT)
    old.stopped.clear()
    told = must_be_fenced(stage, old)
    stage.start_beside()
    return f"paused, {told}"


def _follow_another(stage: Stage, leaving: DriverProcess) -> None:
    """Let the stage watch a driver that does not leave."""
    stage.driver = next(driver for driver in stage.live_drivers if driver is not leaving)
