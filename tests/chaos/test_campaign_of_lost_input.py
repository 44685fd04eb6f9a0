"""A campaign in which Kafka loses acknowledged records."""

from __future__ import annotations

import pytest

from .campaigns import TIMEOUT, check

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.fault, pytest.mark.timeout(TIMEOUT)]


def a_lost_tail_of_the_input_is_reported_and_nothing_else_is_lost_or_repeated() -> None:
    check("tail")
