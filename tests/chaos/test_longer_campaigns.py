"""A campaign with large state, the log in Kafka, or change data of PostgreSQL, or one in which Kafka loses records."""

from __future__ import annotations

import pytest

from holdfast.testing.postgres import binaries

from .campaigns import TIMEOUT, check_some

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.fault, pytest.mark.timeout(TIMEOUT)]


def test_random_faults_with_large_state_lost_input_a_log_in_kafka_or_change_data_lose_nothing_else() -> None:
    check_some("large", "log", "tail", *(["cdc"] if binaries() is not None else []))
