"""Drivers that die, sleep, and are overtaken."""

from __future__ import annotations

import math
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
    "sleep_at_a_step",
]

_FENCE_S = 90.0
_STEPS = 150
"""So many steps a driver makes from its start to some epochs later."""
_RECOVERY_STEPS = 40
"""So many it makes while it writes output again."""


def kill_driver(stage: Stage) -> str:
    """``kill -9``, and another one starts."""
    number = stage.driver.number
    stage.kill_driver()
    stage.start_driver()
    return f"driver {number} killed, driver {stage.driver.number} started"


def kill_machine(stage: Stage) -> str:
    """The driver and all its processes at the same time, and another one starts."""
    number = stage.driver.number
    stage.driver.kill_all()
    stage.start_driver()
    return f"driver {number} killed with all its processes, driver {stage.driver.number} started"


def kill_driver_repeatedly(stage: Stage) -> str:
    """Again while it recovers: recovery must be repeatable."""
    kill_driver(stage)
    times = stage.random.randint(1, 3)
    for _ in range(times):
        stage.pause(0.3 * stage.start_s, 1.3 * stage.start_s)
        kill_driver(stage)
    return f"driver killed {times + 1} times in a row, driver {stage.driver.number} started"


def die_at_steps(stage: Stage, since: str = "") -> str:
    """Drivers that die at a step of their recovery or of their first epochs, one after the other.

    Args:
        stage: The stage.
        since: From which step on; from their start, if empty.
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
    """Wait until a driver has killed itself at the step it was told, or kill it."""
    stage.until(lambda: driver.exit_code is not None, stage.start_s + 3.0, tend=False)
    stage.report.kills["driver"] += driver.died_as_told
    stage.kill_driver()


def lose_machine(stage: Stage) -> str:
    """All processes and the local stores are gone."""
    stage.kill_driver()
    stage.driver.kill_all()
    shutil.rmtree(stage.state_directory, ignore_errors=True)
    stage.start_driver()
    return f"all processes killed, local stores deleted, driver {stage.driver.number} started"


def overtake(stage: Stage) -> str:
    """A rival takes the job over from a driver that lives."""
    old = stage.driver
    stage.start_driver()
    stage.recovered()
    return must_be_fenced(stage, old)


def pause_driver(stage: Stage) -> str:
    """A driver stands still while its successor completes epochs; then it wakes up, and must stop by itself."""
    return _pause(stage, ["driver"])


def pause_everything(stage: Stage) -> str:
    """As `pause_driver`, with all its processes."""
    return _pause(stage, list(KINDS))


def sleep_at_a_step(stage: Stage, since: str = "") -> str:
    """A driver falls asleep at a step of its recovery, and goes on with it when its successor has completed epochs.

    Args:
        stage: The stage.
        since: From which step on; from its start, if empty.
    """
    stage.kill_driver()
    sleeper = stage.start_driver(step=_step(stage, signal.SIGSTOP, since))
    if stage.until(lambda: STEP in sleeper.log(), stage.start_s + 3.0):
        sleeper.stopped.append(sleeper.process.pid)
    else:
        sleeper.pause(sleeper.process.pid)
    stage.expected_stop = "Fenced"  # who falls asleep before it takes the job over does so when it wakes up
    return _succeed(stage, sleeper, f"slept {_reached(sleeper)}")


def must_be_fenced(stage: Stage, old: DriverProcess) -> str:
    """Wait for the end of a driver that was overtaken, and see that it ends as it must."""

    def ended() -> bool:
        old.wake()  # it may have reached the step at which it falls asleep only now
        return old.exit_code is not None

    if not stage.until(ended, _FENCE_S):
        stage.violation(f"driver {old.number} goes on {_FENCE_S:.0f} s after driver {stage.driver.number} took over")
        old.end()
    elif "Fenced" not in old.log():
        stage.violation(f"driver {old.number} was taken over and does not say so: {old.last_error()}")
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
    """Small numbers as often as large ones."""
    most = _STEPS if not since else _RECOVERY_STEPS
    number = math.ceil(math.exp(stage.random.uniform(0, math.log(most))))
    return {"number": number, "what": what.value, "since": since}


def _reached(driver: DriverProcess) -> str:
    return next((line.split(STEP, 1)[1] for line in driver.log().splitlines() if STEP in line), "at a random moment")
