"""The campaign: injects a scenario's faults one after the other, then lets the scenario judge the output."""

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
"""The longest wait of a fault for a starting driver, however slow the machine."""
_TURNS = 3
"""With a limit of kills, one of this many faults is a single one; the others are kills in a row."""
_FAULTS_AT_LEAST = 4
"""No fault may last longer than leaves time for this many."""
_BEGIN_S = 20.0
_OUTPUT_S = 5.0


@dataclass(frozen=True)
class Limits:
    """The end of a campaign: the first limit that is reached."""

    seconds: float
    """Seconds of fault injection."""
    kills: int | None = None
    """Number of live processes to kill; most faults are then several kills in a row."""


def run(
    kind: type[Scenario],
    limits: Limits,
    seed: int,
    *,
    rate: float = 1000.0,
    directory: Path | None = None,
    only: Sequence[str] = (),
    unaligned: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Run one scenario.

    Args:
        kind: The scenario.
        limits: The limits of the campaign.
        seed: Seed of faults and input.
        rate: Input records per second.
        directory: The working directory; None: a new temporary one, removed on success.
        only: Use only faults with one of these in their name.
        unaligned: Most drivers make unaligned checkpoints, and one key of the numbered job is slow.
        say: Called with progress messages.
    """
    stage = Stage(kind.name, seed, directory, say, unaligned=unaligned)
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
        stage.violation(f"the campaign itself failed: {''.join(traceback.format_exception(error))}")
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
    """Kill again and again: sometimes during recovery from the last kill, sometimes in the epochs after it."""
    stage, before = scenario.stage, scenario.stage.kills
    for _ in range(stage.random.randint(*scenario.row)):
        stage.until(lambda: stage.driver.begun, _BEGIN_S)  # killing a driver that has done nothing breaks nothing
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
