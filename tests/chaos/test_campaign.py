"""Campaigns with a driver on this machine."""

from __future__ import annotations

import pytest

from holdfast.testing.chaos.scenarios import SCENARIOS

from .campaigns import TIMEOUT, check

LONGER = ("cdc", "changelogs", "hosts", "large", "log", "tail")
"""Those with files of their own."""

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.fault, pytest.mark.timeout(TIMEOUT)]


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name not in LONGER])
def test_random_faults_lose_nothing_and_repeat_nothing(scenario: str) -> None:
    check(scenario)
