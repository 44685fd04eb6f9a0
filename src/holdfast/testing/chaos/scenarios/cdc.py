"""Change data: a PostgreSQL with a random writer, read and written by a job on Spark, all of which die."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from holdfast.testing.chaos.faults import databases, drivers, processes
from holdfast.testing.chaos.programs.changes import DIFFERENCES, TABLES
from holdfast.testing.chaos.scenario import Scenario
from holdfast.testing.chaos.scenarios.numbers import DRAIN_S
from holdfast.testing.chaos.tables import TableWatcher, TableWriter
from holdfast.testing.postgres import PostgresServer
from holdfast.testing.tcp_proxy import TcpProxy

__all__ = ["Cdc"]

_SHARE = 0.3
"""The share of the campaign's rate that one writer makes as statements."""
_KILLS = 2
_BEGIN_S = 120.0


class Cdc(Scenario):
    """A copy and a journal of two tables, judged by SQL."""

    name = "cdc"
    about = "PostgreSQL to PostgreSQL: server, slots, drivers die, the network is cut, while a writer changes all it can"
    faults: ClassVar = {
        "server killed": databases.kill_server,
        "server killed again and again": databases.kill_server_again_and_again,
        "server and driver killed": databases.kill_server_and_driver,
        "sessions ended": databases.end_sessions,
        "network cut": databases.cut,
        "connections closed": databases.disconnect,
        "driver killed": drivers.kill_driver,
        "driver killed several times": drivers.kill_driver_repeatedly,
        "driver dies at steps of its recovery": drivers.die_at_steps,
        "driver paused, successor takes over": drivers.pause_driver,
        "rescaled while it runs": drivers.rescale,
        "Spark's JVM killed": processes.kill_jvm,
        "task slot killed": processes.kill_slot,
        "all task slots killed": processes.kill_slots,
        "task slot paused": processes.pause_slot,
        "task slot paused, driver killed": processes.pause_slot_kill_driver,
    }
    kills = (processes.kill_slot, processes.kill_slots, processes.kill_python, drivers.kill_machine)
    row: ClassVar = (4, 12)
    share = 0.5

    def prepare(self) -> None:
        """Start server, writer and driver; some drivers die while they read the tables."""
        stage = self.stage
        directory = Path(tempfile.mkdtemp(prefix="hfchaos-postgres-", dir="/tmp"))
        stage.at_the_end(lambda: shutil.rmtree(directory, ignore_errors=True))
        self.server = stage.database = PostgresServer(directory)
        stage.at_the_end(self.server.release)
        stage.at_the_end(self.server.stop)
        self.server.start().execute(*TABLES)
        stage.database_proxy = TcpProxy(self.server.port).start()
        stage.at_the_end(stage.database_proxy.close)
        self.writer = TableWriter(self.server, stage.seed, self.rate * _SHARE)
        stage.at_the_end(self.writer.abandon)
        watcher: Any = TableWatcher(self.server)  # the stage needs only what both kinds of watchers have
        stage.watcher = watcher
        stage.at_the_end(watcher.close)
        stage.program = "holdfast.testing.chaos.programs.changes"
        stage.settings = {"url": f"postgresql://postgres@127.0.0.1:{stage.database_proxy.port}/postgres"}
        self.writer.start()
        stage.start_driver()
        for _ in range(stage.random.randint(0, _KILLS)):
            stage.until(lambda: stage.driver.begun, _BEGIN_S)
            stage.pause(0.0, 4.0)
            drivers.kill_driver(stage)

    def judge(self) -> None:
        """Compare the job's tables with SQL's answer."""
        stage = self.stage
        self.writer.stop()
        stage.say(f"the input ends after {self.writer.statements} statements; the job drains")
        drained = stage.until(lambda: not any(self._differences().values()), DRAIN_S)
        stage.pause(2.0, 2.0)  # give surplus output time to appear
        stage.stop_driver()
        if not drained:
            stage.say("the job does not drain")
        for what, rows in self._differences().items():
            if rows:
                stage.violation(f"{len(rows)} {what}: {', '.join(map(repr, rows[:4])):.600}")
        ((events, outputs),) = self.server.execute(
            "SELECT (SELECT count(*) FROM accounts) + (SELECT count(*) FROM ledger), (SELECT count(*) FROM copy) + "
            "(SELECT count(*) FROM journal)"
        )
        stage.report.events, stage.report.outputs = events, outputs

    def _differences(self) -> dict[str, list[object]]:
        return {what: self.server.execute(query) for what, query in DIFFERENCES.items()}
