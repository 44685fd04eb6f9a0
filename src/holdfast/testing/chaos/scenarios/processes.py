"""Everything on one machine with Spark: faults of processes, disks and brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from holdfast.testing.chaos.faults import brokers, disks, drivers, processes
from holdfast.testing.chaos.scenarios.numbers import DRIVER_FAULTS, NumberedScenario

__all__ = ["Processes"]


class Processes(NumberedScenario):
    """The numbered job on Spark."""

    name = "processes"
    about = "Spark's processes, task slots, drivers, disks and a broker die, sleep, fill up"
    without_spark = False
    faults: ClassVar = {
        **DRIVER_FAULTS,
        "everything paused, successor takes over": drivers.pause_everything,
        "Spark's JVM killed": processes.kill_jvm,
        "Python worker killed": processes.kill_worker,
        "Python daemon killed": processes.kill_daemon,
        "task slot killed": processes.kill_slot,
        "all task slots killed": processes.kill_slots,
        "slot starter and a slot killed": processes.kill_starter,
        "slot starter paused, a slot killed": processes.pause_starter,
        "task slot paused": processes.pause_slot,
        "task slot paused, driver killed": processes.pause_slot_kill_driver,
        "local stores deleted": disks.delete_stores,
        "broker killed": brokers.kill_broker,
        "broker killed again and again": brokers.kill_broker_again_and_again,
        "brokers away for minutes": brokers.brokers_away,
        "broker paused": brokers.pause_broker,
        "broker and driver killed": brokers.kill_broker_and_driver,
        "checkpoint file damaged": disks.damage,
    }
    kills = (
        processes.kill_slot,
        processes.kill_slots,
        processes.kill_starter,
        processes.kill_worker,
        processes.kill_daemon,
        processes.kill_python,
        drivers.kill_machine,
    )
    share = 1.5

    def deck(self) -> dict[str, Callable[[], str]]:
        """The faults, with a full disk if the disk is a small one."""
        full = {"disk full": lambda: disks.fill_disk(self.stage)} if self.stage.small_disk else {}
        return {**super().deck(), **full}

    def prepare(self) -> None:
        """Use a small disk."""
        self.stage.small_disk_of_its_own()
        super().prepare()
