"""The demo on change data: a PostgreSQL, a writer, and the job in processes of its own, which are killed at random.

Payments are inserted, changed and deleted in transactions of any length. The job keeps balances and alerts in its state and
in two tables; SQL computes the same from the payments, and the view shows where the two differ.
"""

from __future__ import annotations

import argparse
import random
import re
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.columns import Columns
from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from holdfast.demo.changes_job import SLOT, TABLES
from holdfast.demo.outputs import get_metrics, metrics_url
from holdfast.demo.view import METRICS, grid, job_rows, moment
from holdfast.errors import HoldfastError
from holdfast.testing.chaos.processes import DriverProcess
from holdfast.testing.postgres import PostgresServer

if TYPE_CHECKING:
    from holdfast.demo.interrupt import Interrupt
    from holdfast.demo.view import PlainView, RichView

__all__ = ["Comparison", "compare", "run"]

_ACCOUNTS = 300
_KEPT = 20_000
"""Payments above which the oldest are deleted."""
_REFRESH_S = 0.5
_COMPARED_S = 2.0
_CATCH_UP_S = 300.0
_END_S = 90.0
_COMPARE = """
WITH sums AS (SELECT account, count(*) AS payments, sum(amount)::int8 AS balance FROM payments GROUP BY account),
 due AS (SELECT account, balance FROM sums WHERE balance < 0),
 wrong AS ((TABLE sums EXCEPT SELECT account, payments, balance FROM balances)
           UNION (SELECT account, payments, balance FROM balances EXCEPT TABLE sums)),
 amiss AS ((TABLE due EXCEPT SELECT account, balance FROM alerts)
           UNION (SELECT account, balance FROM alerts EXCEPT TABLE due))
SELECT (SELECT count(*) FROM payments), (SELECT count(*) FROM balances), (SELECT count(DISTINCT account) FROM wrong),
       (SELECT count(*) FROM alerts), (SELECT count(DISTINCT account) FROM amiss)
"""


@dataclass(frozen=True)
class Comparison:
    """What SQL says of the tables, in one snapshot."""

    payments: int = 0
    balances: int = 0
    balances_differ: int = 0
    """Accounts whose balance is not the sum of their payments."""
    alerts: int = 0
    alerts_differ: int = 0
    """Accounts that are below zero without their alert, or the other way round."""

    @property
    def equal(self) -> bool:
        """Whether the job's tables are what SQL computes."""
        return not self.balances_differ and not self.alerts_differ

    def __str__(self) -> str:
        return (
            f"{self.payments:,} payments; {self.balances:,} balances, {self.balances_differ} differ; "
            f"{self.alerts:,} alerts, {self.alerts_differ} differ"
        )


def compare(server: PostgresServer) -> Comparison:
    """Compare the job's tables with the payments, by SQL."""
    ((*numbers,),) = server.execute(_COMPARE)
    return Comparison(*numbers)


@dataclass
class _Figures:
    """The content of the view."""

    status: str = "starting"
    metrics: Mapping[str, float] = field(default_factory=dict)
    url: str = ""
    written: int = 0
    compared: Comparison = field(default_factory=Comparison)
    drivers: int = 0
    kills: deque[str] = field(default_factory=lambda: deque(maxlen=12))
    killed: int = 0

    def rows(self) -> list[tuple[str, str]]:
        return [*job_rows(self.status, self.metrics), *self._compared(), ("killed", f"{self.killed} processes")]

    def _compared(self) -> list[tuple[str, str]]:
        it = self.compared
        return [
            ("changes written", f"{self.written:,}"),
            ("payments", f"{it.payments:,}"),
            ("balances", f"{it.balances:,} ({it.balances_differ:,} on their way)"),
            ("alerts", f"{it.alerts:,} ({it.alerts_differ:,} on their way)"),
        ]

    def screen(self) -> Group:
        job = grid([*job_rows(self.status, self.metrics), ("driver", str(self.drivers))])
        kills = grid([(when, what) for when, _, what in (line.partition(" ") for line in reversed(self.kills))])
        return Group(
            Columns([Panel(job, title="Holdfast on Spark"), Panel(grid(self._compared()), title="tables, by SQL")]),
            Panel(kills, title=f"killed so far: {self.killed} processes"),
            Text(f"metrics: {self.url}   Ctrl-C stops the writer, lets the job catch up, and compares", style="dim"),
        )


class _Writer:
    """Changes payments, in transactions, in a thread."""

    def __init__(self, server: PostgresServer, rate: float) -> None:
        self._server = server
        self._rate = rate
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-writer", daemon=True)
        self._low, self._high = server.execute("SELECT coalesce(min(id), 1), coalesce(max(id), 0) FROM payments")[0]
        self._random = random.Random()
        self.written = 0
        self.failed: Exception | None = None
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._server.connect() as connection:
                began = time.monotonic()
                while not self._stopping.wait(0.02):
                    while self.written < (time.monotonic() - began) * self._rate and not self._stopping.is_set():
                        self._transaction(connection)
        except Exception as error:  # the demo tells it, and ends
            self.failed = error

    def _transaction(self, connection: Any) -> None:
        draw = self._random
        with connection.transaction(force_rollback=draw.random() < 0.05):
            for _ in range(draw.choice((1, 1, 2, 5, 40))):
                with connection.transaction(force_rollback=draw.random() < 0.1):  # a savepoint
                    self._statement(connection)
                self.written += 1

    def _statement(self, connection: Any) -> None:
        draw, turn = self._random, self._random.random()
        amount = draw.randint(-100, 105)
        if self._high - self._low > _KEPT:
            connection.execute("DELETE FROM payments WHERE id = %s", (self._low,))
            self._low += 1
        elif turn < 0.7 or self._high < self._low:
            self._high += 1
            account = draw.randrange(_ACCOUNTS)
            connection.execute("INSERT INTO payments VALUES (%s, %s, %s)", (self._high, account, amount))
        else:
            number = draw.randint(self._low, self._high)
            if turn < 0.9:
                connection.execute("UPDATE payments SET amount = %s WHERE id = %s", (amount, number))
            else:
                connection.execute("DELETE FROM payments WHERE id = %s", (number,))


class _Run:
    """The running demo."""

    def __init__(self, view: PlainView | RichView, directory: Path, server: PostgresServer, kill_every: float) -> None:
        self._view = view
        self._directory = directory
        self._server = server
        self._kill_every = kill_every
        self._random = random.Random()
        self._news: list[str] = []
        self._killed_at = -1.0
        """The checkpoint at the last kill."""
        self._next_kill = 0.0
        self._next_comparison = 0.0
        self._expected_end = True
        self.figures = _Figures()
        self.driver = self._start()

    def show(self, *, kill: bool) -> None:
        """Look after the driver, kill something if it is due, and show all that."""
        figures = self.figures
        self._tend()
        self._update()
        if kill and self._kill_every > 0:
            self._kill()
        if time.monotonic() >= self._next_comparison:
            self._next_comparison = time.monotonic() + _COMPARED_S
            figures.compared = compare(self._server)
        self._view.show(figures, self._news)
        self._news.clear()
        time.sleep(_REFRESH_S)

    def stop(self) -> None:
        """Stop the job in order."""
        self.driver.process.terminate()
        self.driver.process.wait(_END_S)

    def _start(self) -> DriverProcess:
        directory = self._directory
        self.figures.drivers += 1
        configuration = {
            "spark.master": "local[2,4]",
            "spark.ui.enabled": "false",
            "spark.driver.memory": "512m",
            "rest.port": "0",
            "io.tmp.dirs": str(directory.resolve() / "local"),
            "execution.checkpointing.dir": (directory / "checkpoints").resolve().as_uri(),
            "holdfast.epoch.target-duration": "500 ms",
        }
        settings = {
            "program": "holdfast.demo.changes_job",
            "job": "holdfast-demo-cdc",
            "url": self._server.url(),
            "configuration": configuration,
        }
        logs = directory / "logs"
        logs.mkdir(exist_ok=True)
        return DriverProcess(self.figures.drivers, logs, settings)

    def _tend(self) -> None:
        """Start another driver if this one has ended."""
        if self.driver.exit_code is None:
            return
        if not self._expected_end:
            raise HoldfastError(f"the job's driver ended by itself: {self.driver.last_error()} (see {self.driver.log_file})")
        self._expected_end = False
        self.driver.end()
        self.driver = self._start()
        self.figures.url, self.figures.metrics = "", {}
        self._tell(f"START driver {self.figures.drivers}, which goes on from the last checkpoint")

    def _update(self) -> None:
        figures = self.figures
        if not figures.url and (found := re.search(r"the REST API is on (\S+)", self.driver.log())):
            figures.url = metrics_url(found[1]) or ""
        metrics = get_metrics(figures.url, METRICS) if figures.url else None
        figures.status = "starting" if metrics is None else "running"
        figures.metrics = metrics or figures.metrics

    def _kill(self) -> None:
        """Kill something, if checkpoints were completed since the last time."""
        checkpoint = self.figures.metrics.get("lastCompletedCheckpointId", -1)
        if checkpoint <= self._killed_at + 1 or time.monotonic() < self._next_kill:
            return
        first = self._next_kill == 0.0
        self._next_kill = time.monotonic() + self._kill_every * self._random.uniform(0.5, 1.5)
        if first:
            return
        self._killed_at = checkpoint
        driver, slots = self.driver, self.driver.members("slot")
        what, pids = self._random.choice(
            [
                ("a task slot", slots[:1]),
                ("all task slots", slots),
                ("the driver", [driver.process.pid]),
                ("the driver, Spark and all slots", [pid for kind in ("driver", "jvm", "daemon", "worker", "slot")
                                                     for pid in driver.members(kind)]),
            ]
        )  # fmt: skip
        self._expected_end = driver.process.pid in pids
        driver.kill(*pids)
        if self._expected_end:
            driver.process.wait()
        self.figures.killed += len(pids)
        self._tell(f"KILL {what} ({len(pids)} processes, kill -9)")

    def _tell(self, text: str) -> None:
        now = moment(time.time_ns() // 1_000_000)
        self.figures.kills.append(f"{now} {text}")
        self._news.append(f"{now} {text}")


def run(view: PlainView | RichView, directory: Path, options: argparse.Namespace, interrupt: Interrupt) -> int:
    """Run the demo until Ctrl-C or the time limit, then compare; returns the exit status: 1 if the tables differ."""
    server = _start_server(view, directory)
    try:
        running = _Run(view, directory, server, options.kill_every)
        try:
            return _run(running, view, server, options, interrupt)
        finally:
            running.driver.end()
    finally:
        server.stop("fast")
        server.release()


def _start_server(view: PlainView | RichView, directory: Path) -> PostgresServer:
    view.note("starting PostgreSQL ...")
    (directory / "postgres").mkdir(exist_ok=True)
    server = PostgresServer(directory / "postgres").start()
    if not server.execute("SELECT to_regclass('payments') IS NOT NULL")[0][0]:
        server.execute(*TABLES)
    view.note(f"PostgreSQL: payments -> balances, alerts (slot {SLOT}). Look yourself: psql {server.url()}")
    return server


def _run(
    running: _Run, view: PlainView | RichView, server: PostgresServer, options: argparse.Namespace, interrupt: Interrupt
) -> int:
    writer = _Writer(server, options.rate)
    figures = running.figures
    deadline: float | None = None
    try:
        while not interrupt.seen and (deadline is None or time.monotonic() < deadline):
            figures.written = writer.written
            if writer.failed is not None:
                raise HoldfastError(f"the writer failed: {writer.failed}")
            if deadline is None and options.seconds is not None and figures.metrics.get("numRecordsIn"):
                deadline = time.monotonic() + options.seconds
            running.show(kill=True)
    except KeyboardInterrupt:
        pass
    writer.stop()
    view.note("the writer has stopped; the job catches up ...")
    patience = time.monotonic() + _CATCH_UP_S
    while not compare(server).equal and time.monotonic() < patience:
        running.show(kill=False)
    running.stop()
    final = compare(server)
    view.note(
        f"compared by SQL: {final}, after {figures.killed} killed processes and with {figures.drivers} drivers. "
        + (f"Everything is kept in {options.state_dir}: start again to resume." if final.equal else "THE TABLES DIFFER.")
    )
    return 0 if final.equal else 1
