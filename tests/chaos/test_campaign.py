"""Campaigns with a driver on this machine: with Spark in each run of the suite, some of the others by chance."""

from __future__ import annotations

import pytest

from holdfast.testing.chaos.scenarios import SCENARIOS

from .campaigns import TIMEOUT, check, check_some

OTHERS = ("cdc", "changelogs", "hosts", "large", "log", "processes", "tail")
"""Those with tests of their own."""

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.fault, pytest.mark.timeout(TIMEOUT)]


def test_random_faults_of_sparks_processes_lose_nothing_and_repeat_nothing() -> None:
    check("processes")


def test_random_faults_lose_nothing_and_repeat_nothing() -> None:
    check_some(2, *(name for name in SCENARIOS if name not in OTHERS))
