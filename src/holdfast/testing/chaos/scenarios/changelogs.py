"""Several hosts, with the state in changelogs and standby copies on the other host."""

from __future__ import annotations

from typing import ClassVar

from holdfast.testing.chaos.scenarios.hosts import Hosts

__all__ = ["Changelogs"]


class Changelogs(Hosts):
    """The numbered job on a cluster of two hosts, each of which keeps the state of the other one, too."""

    name = "changelogs"
    about = "as hosts, with the state in changelogs, a standby copy of it on the other host, and compaction all the time"
    broker_properties: ClassVar = {
        "log_roll_ms": "3000",
        "log_segment_delete_delay_ms": "1000",
        "log_cleaner_min_cleanable_ratio": "0.01",
        "log_cleaner_backoff_ms": "500",
    }

    def begin_life(self) -> None:
        """With changelogs in the scenario's broker."""
        self.stage.configuration |= {
            "state.changelog.enabled": "true",
            "state.changelog.storage": "kafka",
            "state.changelog.partitions": "3",
            "state.changelog.num-standby-replicas": "1",
            "state.changelog.kafka.bootstrap.servers": self.stage.servers,
            "state.changelog.kafka.transaction.timeout.ms": "20000",
        }
        super().begin_life()

    def judge(self) -> None:
        """Compare the visible output with the model, and tell how often standby copies were of use."""
        super().judge()
        self.stage.say(f"subtasks went on from standby copies {self.stage.told('from its standby copy')} times")
