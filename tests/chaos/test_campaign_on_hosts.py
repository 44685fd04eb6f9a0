"""A campaign on a cluster of several hosts."""

from __future__ import annotations

import pytest

from .campaigns import TIMEOUT, check

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.fault, pytest.mark.timeout(TIMEOUT)]


def test_random_faults_of_hosts_lose_nothing_and_repeat_nothing() -> None:
    check("hosts")
