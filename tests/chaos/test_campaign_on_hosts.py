"""A campaign on a cluster of several hosts, without changelogs or with changelogs and standby copies."""

from __future__ import annotations

import pytest

from .campaigns import TIMEOUT, check_some

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.fault, pytest.mark.timeout(TIMEOUT)]


def test_random_faults_of_hosts_lose_nothing_and_repeat_nothing() -> None:
    check_some("hosts", "changelogs")
