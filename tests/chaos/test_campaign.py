"""A short run of the campaign that ``make chaos`` runs for as long as it is told."""

from __future__ import annotations

import random

import pytest

from holdfast.testing.chaos.campaign import Campaign


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.fault
def test_random_faults_lose_nothing_and_repeat_nothing() -> None:
    seed = random.randrange(10**6)
    log: list[str] = []
    verdict = Campaign(20.0, seed, rate=500.0, say=log.append).run()
    told = "\n".join([*log, verdict.table])
    assert verdict.injections, told
    assert not verdict.violations, told
