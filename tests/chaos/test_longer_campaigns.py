"""A campaign with large state, one in which Kafka loses acknowledged records, or one on change data of PostgreSQL."""

from __future__ import annotations

import pytest

from holdfast.testing.postgres import binaries

from .campaigns import TIMEOUT, check_some

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.fault, pytest.mark.timeout(TIMEOUT)]


def test_random_faults_with_large_state_lost_input_or_change_data_lose_nothing_else_and_repeat_nothing() -> None:
    check_some("large", "tail", *(["cdc"] if binaries() is not None else []))
