"""Faults of drivers: kills, pauses and take-overs."""

from __future__ import annotations

import math
import os
import shutil
import signal
from typing import Any

from holdfast.testing.chaos.processes import KINDS, STEP, DriverProcess
from holdfast.testing.chaos.stage import Stage

__all__ = [
    "await_step",
    "die_at_steps",
    "kill_driver",
    "kill_driver_repeatedly",
    "kill_machine",
    "lose_machine",
    "must_be_fenced",
    "overtake",
    "pause_driver",
    "pause_everything",
    "rescale",
    "rescale_and_die",
    "sleep_at_a_step",
]

_FENCE_S = 240.0
_STEPS = 150
"""Approximate steps of a driver from its start until some epochs later."""
_RESCALED = "runs at parallelism"
"""In a driver's log when the parallelism has changed."""
_RECOVERY_STEPS = 40
"""Approximate steps of a driver while it rewrites output."""


def kill_driver(stage: Stage) -> str:
    """``kill -9``; another driver starts."""
    number = stage.driver.number
    stage.kill_driver()
    stage.start_driver()
    return f"driver {number} killed, driver {stage.driver.number} started"


def kill_machine(stage: Stage) -> str:
    """Kill the driver and all its processes at the same time; another driver starts."""
    number = stage.driver.number
    stage.driver.kill_all()
    stage.start_driver()
    return f"driver {number} killed with all its processes, driver {stage.driver.number} started"


def kill_driver_repeatedly(stage: Stage) -> str:
    """Kill the driver again during its recovery, which must be repeatable."""
    kill_driver(stage)
    times = stage.random.randint(1, 3)
    for _ in range(times):
        stage.pause(0.3 * stage.start_s, 1.3 * stage.start_s)
        kill_driver(stage)
    return f"driver killed {times + 1} times in a row, driver {stage.driver.number} started"


def die_at_steps(stage: Stage, since: str = "") -> str:
    """Several drivers in turn die at a step of their recovery or of their first epochs.

    Args:
        stage: The stage.
        since: The step from which to count; empty: from the start.
    """
    stage.kill_driver()
    told = []
    for _ in range(stage.random.randint(1, 4)):
        driver = stage.start_driver(step=_step(stage, signal.SIGKILL, since))
        await_step(stage, driver)
        told.append(_reached(driver))
    stage.start_driver()
    return f"drivers died {', '.join(told)}; driver {stage.driver.number} started"


def await_step(stage: Stage, driver: DriverProcess) -> None:
    """Wait until a driver has killed itself at its step, or kill it."""
    stage.until(lambda: driver.exit_code is not None, stage.start_s + 3.0, tend=False)
    stage.report.kills["driver"] += driver.died_as_told
    stage.kill_driver()


def rescale(stage: Stage) -> str:
    """Change the parallelism of the running job."""
    driver = stage.driver
    before = driver.log().count(_RESCALED)

    def rescaled() -> bool:
        return stage.driver is not driver or driver.log().count(_RESCALED) > before

    os.kill(driver.process.pid, signal.SIGUSR1)
    if not stage.until(rescaled, _FENCE_S):
        stage.violation(f"driver {driver.number} is not rescaled within {_FENCE_S:.0f} s: {driver.last_error()}")
    return f"driver {driver.number} rescaled while it ran"


def rescale_and_die(stage: Stage) -> str:
    """Kill the driver, or everything, while the parallelism of the running job changes."""
    driver = stage.driver
    os.kill(driver.process.pid, signal.SIGUSR1)
    stage.pause(0.0, 1.5)
    if stage.random.random() < 0.5:
        driver.kill_all()
    else:
        stage.kill_driver()
    stage.start_driver()
    return f"driver {driver.number} killed while it was rescaled, driver {stage.driver.number} started"


def lose_machine(stage: Stage) -> str:
    """Kill all processes and delete the local stores."""
    stage.kill_driver()
    stage.driver.kill_all()
    shutil.rmtree(stage.state_directory, ignore_errors=True)
    stage.start_driver()
    return f"all processes killed, local stores deleted, driver {stage.driver.number} started"


def overtake(stage: Stage) -> str:
    """A rival takes over the job of a live driver."""
    old = stage.driver
    stage.start_driver()
    stage.recovered()
    return must_be_fenced(stage, old)


def pause_driver(stage: Stage) -> str:
    """Pause a driver while its successor completes epochs; after it resumes, it must stop by itself."""
    return _pause(stage, ["driver"])


def pause_everything(stage: Stage) -> str:
    """Like `pause_driver`, with all the driver's processes."""
    return _pause(stage, list(KINDS))


def sleep_at_a_step(stage: Stage, since: str = "") -> str:
    """A driver pauses at a step of its recovery, and resumes after its successor has completed epochs.

    Args:
        stage: The stage.
        since: The step from which to count; empty: from the start.
    """
    stage.kill_driver()
    sleeper = stage.start_driver(step=_step(stage, signal.SIGSTOP, since))
    if stage.until(lambda: STEP in sleeper.log(), stage.start_s + 3.0):
        sleeper.stopped.append(sleeper.process.pid)
    else:
        sleeper.pause(sleeper.process.pid)
    stage.expected_stop = "Fenced"  # a driver paused before its take-over takes over when it resumes
    return _succeed(stage, sleeper, f"slept {_reached(sleeper)}")


def must_be_fenced(stage: Stage, old: DriverProcess) -> str:
    """Wait for the end of an overtaken driver, and check that it ends fenced."""

    def ended() -> bool:
        old.wake()  # it may have reached its pause only now
        return old.exit_code is not None

    if not stage.until(ended, _FENCE_S):
        stage.violation(f"driver {old.number} still runs {_FENCE_S:.0f} s after driver {stage.driver.number} took over")
        old.end()
    elif "Fenced" not in old.log():
        stage.violation(f"driver {old.number} was overtaken but does not report it: {old.last_error()}")
    return f"driver {old.number} was overtaken by driver {stage.driver.number} and ended fenced"


def _pause(stage: Stage, kinds: list[str]) -> str:
    old = stage.driver
    old.pause(*(pid for kind in kinds for pid in old.members(kind)))
    return _succeed(stage, old, f"paused ({', '.join(kinds)})")


def _succeed(stage: Stage, old: DriverProcess, what: str) -> str:
    stage.start_driver()
    stage.recovered()
    stage.pause(0.3 * stage.start_s, 1.0 * stage.start_s)
    old.resume()
    return f"driver {old.number} {what}; {must_be_fenced(stage, old)}"


def _step(stage: Stage, what: signal.Signals, since: str) -> dict[str, Any]:
    """Small and large step numbers are equally likely."""
    most = _STEPS if not since else _RECOVERY_STEPS
    number = math.ceil(math.exp(stage.random.uniform(0, math.log(most))))
    return {"number": number, "what": what.value, "since": since}


def _reached(driver: DriverProcess) -> str:
    return next((line.split(STEP, 1)[1] for line in driver.log().splitlines() if STEP in line), "at a random moment")
