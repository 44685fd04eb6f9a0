"""A campaign on a cluster of several hosts, with large state, the log in Kafka, lost input or change data of PostgreSQL."""

from __future__ import annotations

import pytest

from holdfast.testing.postgres import binaries

from .campaigns import TIMEOUT, check_some

LONGER = ("changelogs", "hosts", "large", "log", "tail")

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.fault, pytest.mark.timeout(TIMEOUT)]


def test_random_faults_of_hosts_and_others_that_take_longer_lose_nothing_else_than_what_kafka_lost() -> None:
    check_some(1, *LONGER, *(["cdc"] if binaries() is not None else []))
