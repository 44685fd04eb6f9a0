"""The campaign: injects a scenario's faults, one after the other, and has it judged what came out."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.testing.chaos.report import Injection, Report
from holdfast.testing.chaos.scenario import Scenario
from holdfast.testing.chaos.stage import Stage

__all__ = ["Limits", "run"]

_STORM = "several kills in a row"
_LONGEST_START_S = 12.0
"""Faults do not wait longer for a driver that is starting, however slow the machine."""
_TURNS = 3
"""If kills are counted, all but one of so many faults are kills in a row."""
_FAULTS_AT_LEAST = 4
"""No fault lasts longer than would leave time for so many."""
_BEGIN_S = 20.0
_OUTPUT_S = 5.0


@dataclass(frozen=True)
class Limits:
    """When a campaign ends: at the first that is reached."""

    seconds: float
    """For so long faults are injected."""
    kills: int | None = None
    """So many living processes are killed; most faults are then several kills in a row."""


def run(
    kind: type[Scenario],
    limits: Limits,
    seed: int,
    *,
    rate: float = 1000.0,
    directory: Path | None = None,
    only: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Run one scenario.

    Args:
        kind: Which.
        limits: For how long.
        seed: Decides on faults and input.
        rate: Input records a second.
        directory: Where everything is kept; a new temporary one, removed on success, if None.
        only: Only faults whose names contain one of these.
        say: Told what happens.
    """
    stage = Stage(kind.name, seed, directory, say)
    try:
        scenario = kind(stage, rate)
        scenario.prepare()
        took = stage.recovered()
        stage.start_s = min(took, _LONGEST_START_S)
        stage.began = time.monotonic()
        stage.longest_fault_s = limits.seconds / _FAULTS_AT_LEAST
        say(f"{kind.name}, seed {seed}: the job runs in {stage.directory} (first output after {took:.1f} s)")
        _inject_all(scenario, limits, only)
        stage.report.seconds = time.monotonic() - stage.began
        scenario.judge()
    except HoldfastError as error:
        stage.violation(str(error))
    except Exception as error:  # other scenarios may follow
        stage.violation(f"the campaign itself has failed: {''.join(traceback.format_exception(error))}")
    finally:
        stage.close()
    return stage.report


def _inject_all(scenario: Scenario, limits: Limits, only: Sequence[str]) -> None:
    stage = scenario.stage
    faults = {n: f for n, f in scenario.deck().items() if not only or any(part in n for part in only)}
    drawn: list[str] = []
    until = stage.began + limits.seconds
    turn = 0
    while time.monotonic() < until and (limits.kills is None or stage.kills < limits.kills):
        turn += 1
        if limits.kills is not None and turn % _TURNS:
            _inject(stage, _STORM, lambda: _storm(scenario, limits.kills))
        else:
            drawn = drawn or stage.random.sample(sorted(faults), len(faults))
            name = drawn.pop()
            _inject(stage, name, faults[name])
        stage.pause(0.2, 2.0)


def _inject(stage: Stage, name: str, fault: Callable[[], str]) -> None:
    injection = Injection(time.monotonic() - stage.began, name, "")
    stage.report.injections.append(injection)
    stage.say(f"{injection.at:6.1f} s  {name}")
    injection.what = fault()
    injection.recovered = stage.recovered()
    stage.expected_stop = ""
    stage.say(f"          {injection.what}; new output after {injection.recovered:.1f} s")


def _storm(scenario: Scenario, most: int | None) -> str:
    """Kill after kill: some while what the one before has broken is still being mended, some amid the next epochs."""
    stage, before = scenario.stage, scenario.stage.kills
    for _ in range(stage.random.randint(*scenario.row)):
        stage.until(lambda: stage.driver.begun, _BEGIN_S)  # who has done nothing yet breaks nothing by its end
        if stage.random.random() < 0.5:
            stage.pause(0.0, 1.5)
        else:
            seen = stage.watcher.newest
            stage.until(lambda: stage.watcher.newest > seen, _OUTPUT_S)  # noqa: B023
            stage.pause(0.0, 0.5)
        stage.random.choice(scenario.kills)(stage)
        if most is not None and stage.kills >= most:
            break
    return f"{stage.kills - before} processes killed in a row"
