"""A campaign on a cluster of several hosts, with changelogs and standby copies."""

from __future__ import annotations

import pytest

from .campaigns import TIMEOUT, check

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.fault, pytest.mark.timeout(TIMEOUT)]


def the_standby_copies_lose_nothing_and_repeat_nothing() -> None:
    check("changelogs")
