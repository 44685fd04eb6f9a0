"""Standby drivers of a job whose checkpoint log is in a topic."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from holdfast.checkpoint.stores.kafka_topic import KafkaTopic
from holdfast.checkpoint.stores.log_settings import LOG, LOG_TOPIC
from holdfast.testing.chaos.faults import standbys
from holdfast.testing.chaos.scenarios.standby import Standby
from holdfast.testing.chaos.stage import Stage

pytestmark = [pytest.mark.kafka, pytest.mark.fault, pytest.mark.timeout(1800)]


class InTopic(Standby):
    """The numbered job with its log in a topic, and two standby drivers."""

    def begin_life(self) -> None:
        """With the log in the scenario's broker."""
        self.stage.configuration |= {
            LOG: "kafka",
            LOG_TOPIC: "checkpoints",
            f"{LOG}.kafka.bootstrap.servers": self.stage.servers,
        }
        super().begin_life()


def a_standby_driver_takes_over_from_an_owner_that_is_killed_or_paused_and_the_paused_one_is_fenced(tmp_path: Path) -> None:
    told: list[str] = []
    stage = Stage("standby", random.randrange(10**6), tmp_path, told.append)
    try:
        job = InTopic(stage, 100.0)
        job.prepare()
        stage.recovered()
        for fault in (standbys.kill_owner, standbys.pause_owner):
            told.append(fault(stage))
            stage.recovered()
        job.judge()
        records = KafkaTopic("checkpoints", {"bootstrap.servers": stage.kafka.bootstrap_servers}).bounds()[1]
        entries = len(list((stage.checkpoints / "log").iterdir()))
    finally:
        stage.close()
    assert not stage.report.violations, "\n".join(told)
    assert records > 3  # the take-overs of three owners, and checkpoints
    assert entries == 1  # it names the topic
