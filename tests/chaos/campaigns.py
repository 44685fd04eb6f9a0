"""Short runs of the campaigns that ``make chaos`` runs for as long as it is told.

A run of the suite takes some of them by chance, ``make test EFFORT=6 ARGS=tests/chaos`` all, for six times as long.
"""

from __future__ import annotations

import random

from effort import EFFORT, examples
from holdfast.testing.chaos.campaign import Limits, run
from holdfast.testing.chaos.scenarios import SCENARIOS

TIMEOUT = 1800
"""Seconds for one campaign, on a machine under any load."""
_RATE = 250.0
"""Records per second: so few that a slow machine is not busy with the backlog."""
_SECONDS = {"processes": 12.0, "large": 15.0}
"""How long faults are injected; a scenario that is not named has eight seconds."""


def check(scenario: str) -> None:
    """Run a scenario with a random seed, and show its story if a guarantee was broken."""
    seed = random.randrange(10**6)
    log: list[str] = []
    limits = Limits(EFFORT * _SECONDS.get(scenario, 8.0))
    report = run(SCENARIOS[scenario], limits, seed, rate=_RATE, say=log.append)
    told = "\n".join([*log, report.table])
    assert report.injections, told
    assert not report.violations, told


def check_some(count: int, *scenarios: str) -> None:
    """Run so many of these by chance, more with an effort."""
    for scenario in random.sample(scenarios, min(examples(count), len(scenarios))):
        check(scenario)
