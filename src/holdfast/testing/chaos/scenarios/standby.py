"""Standby drivers that take the job over from each other."""

from __future__ import annotations

import os
import signal
from typing import Any, ClassVar

from holdfast.testing.chaos.faults import standbys
from holdfast.testing.chaos.scenarios.numbers import NumberedScenario

__all__ = ["Standby"]

_STANDBYS = 2
_END_S = 240.0


class Standby(NumberedScenario):
    """The numbered job, with standby drivers that see each other's heartbeats in the checkpoint storage."""

    name = "standby"
    about = "the owner of a job with standby drivers is killed, paused or stopped, and another driver takes over"
    faults: ClassVar = {
        "owner killed": standbys.kill_owner,
        "owner stopped in order": standbys.stop_owner,
        "owner paused": standbys.pause_owner,
        "standby driver killed": standbys.kill_standby,
        "all drivers killed": standbys.kill_all,
    }
    kills = (standbys.kill_owner,)
    row: ClassVar = (3, 8)

    def begin_life(self) -> None:
        """Start the first driver, and those that stand by for it."""
        self.stage.configuration |= {
            "high-availability.type": "STORAGE",
            "heartbeat.interval": "300 ms",
            "heartbeat.timeout": "2 s",
        }
        self.stage.vary = self._machine
        super().begin_life()
        for _ in range(_STANDBYS):
            self.stage.start_beside()

    def _machine(self) -> dict[str, Any]:
        """Half of the drivers are on machines of their own: the others learn of their death by their silence only."""
        if self.stage.random.random() < 0.5:
            return {}
        return {"state_home": str(self.stage.directory / f"home-{self.stage.report.drivers}")}

    def end_job(self) -> None:
        """Cancel the job: all its drivers must end."""
        stage = self.stage
        os.kill(standbys.owner(stage).process.pid, signal.SIGINT)
        if not stage.until(lambda: not stage.live_drivers, _END_S, tend=False):
            stage.violation(f"{len(stage.live_drivers)} drivers still run {_END_S:.0f} s after the job was cancelled")
