"""State that is larger than memory, with a large value of each key: what RocksDB keeps beside its rows, under faults."""

from __future__ import annotations

from typing import ClassVar

from holdfast.testing.chaos.faults import disks, drivers, processes
from holdfast.testing.chaos.scenarios.numbers import DRIVER_FAULTS, NumberedScenario
from holdfast.testing.chaos.stage import Stage

__all__ = ["Large"]

_TIMES = 4
"""How many records there are for each one of other scenarios: a subtask looks at the use of values after some thousand."""


class Large(NumberedScenario):
    """The numbered job on Spark, with a large value of each key that is replaced by each record and rarely read.

    Most rows are on the disk. Values are in blob files, which are collected all the time, and stay there when the rest of a
    row is read; bases are hard links.
    """

    name = "large"
    about = "large values on the disk, in blob files and linked bases: slots, drivers, JVM die, stores are lost, damaged"
    without_spark = False
    keys = 3_000
    driver_settings: ClassVar = {"value_bytes": 4_096}
    faults: ClassVar = {
        **DRIVER_FAULTS,
        "Spark's JVM killed": processes.kill_jvm,
        "task slot killed": processes.kill_slot,
        "all task slots killed": processes.kill_slots,
        "task slot paused, driver killed": processes.pause_slot_kill_driver,
        "local stores deleted": disks.delete_stores,
        "checkpoint file damaged": disks.damage,
    }
    kills = (processes.kill_slot, processes.kill_slots, processes.kill_python, drivers.kill_machine)

    def __init__(self, stage: Stage, rate: float) -> None:
        super().__init__(stage, _TIMES * rate)

    def begin_life(self) -> None:
        """With little memory for rows and for RocksDB."""
        self.stage.configuration |= {
            "state.backend.cache.size": "2mb",
            "state.backend.rocksdb.writebuffer.size": "256kb",
        }
        super().begin_life()
