"""A campaign with large state, or one in which Kafka loses acknowledged records."""

from __future__ import annotations

import pytest

from .campaigns import TIMEOUT, check_some

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.fault, pytest.mark.timeout(TIMEOUT)]


def test_random_faults_with_large_state_or_lost_input_lose_nothing_else_and_repeat_nothing() -> None:
    check_some("large", "tail")
