"""The checkpoint log in a topic of brokers that die, too."""

from __future__ import annotations

from typing import ClassVar

from holdfast.checkpoint.stores.kafka_topic import KafkaTopic
from holdfast.checkpoint.stores.log_settings import LOG, LOG_TOPIC
from holdfast.testing.chaos.faults import disks, drivers, processes
from holdfast.testing.chaos.faults.brokers import (
    brokers_away,
    kill_broker,
    kill_broker_again_and_again,
    kill_broker_and_driver,
    pause_broker,
)
from holdfast.testing.chaos.scenarios.numbers import DRIVER_FAULTS, NumberedScenario

__all__ = ["Log"]


class Log(NumberedScenario):
    """The numbered job on Spark, whose checkpoints are records of a topic with three replicas."""

    name = "log"
    about = "the checkpoint log is in a topic; its brokers, drivers, task slots and workers die and pause"
    without_spark = False
    brokers = 3
    faults: ClassVar = {
        **DRIVER_FAULTS,
        "driver overtaken by a rival": drivers.overtake,
        "driver sleeps at a step of its recovery": drivers.sleep_at_a_step,
        "Python worker killed": processes.kill_worker,
        "task slot killed": processes.kill_slot,
        "all task slots killed": processes.kill_slots,
        "local stores deleted": disks.delete_stores,
        "broker killed": kill_broker,
        "broker killed again and again": kill_broker_again_and_again,
        "brokers away for minutes": brokers_away,
        "broker paused": pause_broker,
        "broker and driver killed": kill_broker_and_driver,
    }
    kills = (processes.kill_slot, processes.kill_slots, processes.kill_worker, drivers.kill_machine, drivers.kill_driver)
    row = (4, 12)
    share = 0.7

    def begin_life(self) -> None:
        """With the log in the scenario's brokers."""
        self.stage.configuration |= {
            LOG: "kafka",
            LOG_TOPIC: f"checkpoints-{self.lives + 1}",
            f"{LOG}.kafka.bootstrap.servers": self.stage.servers,
        }
        super().begin_life()

    def judge(self) -> None:
        """Compare the visible output with the model; the checkpoints must be in the topic."""
        super().judge()
        stage = self.stage
        topic = stage.configuration[LOG_TOPIC]
        first, end = KafkaTopic(topic, {"bootstrap.servers": stage.kafka.bootstrap_servers}).bounds()
        stage.say(f"the log's topic has the records from offset {first} to {end}")
        if len(list((stage.checkpoints / "log").iterdir())) > 1 or not end:
            stage.violation(f"the log's entries are not in topic {topic}")
