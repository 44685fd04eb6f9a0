"""Short runs of the campaigns that ``make chaos`` runs for as long as it is told."""

from __future__ import annotations

import random

import pytest

from effort import EFFORT
from holdfast.testing.chaos.campaign import Limits, run
from holdfast.testing.chaos.scenarios import SCENARIOS

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.fault, pytest.mark.timeout(600)]

SECONDS = {"processes": 12.0}
"""How long faults are injected; a scenario that is not named has eight seconds."""


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_random_faults_lose_nothing_and_repeat_nothing(scenario: str) -> None:
    seed = random.randrange(10**6)
    log: list[str] = []
    limits = Limits(EFFORT * SECONDS.get(scenario, 8.0))
    report = run(SCENARIOS[scenario], limits, seed, rate=500.0, say=log.append)
    told = "\n".join([*log, report.table])
    assert report.injections, told
    assert not report.violations, told
