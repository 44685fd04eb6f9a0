"""A standby takes over: the source's slot is there (PostgreSQL 17), and what was lost with the primary is told.

The programs of a PostgreSQL 17 (``initdb``, ``pg_ctl``, ``postgres``) are in the directory ``HOLDFAST_POSTGRES_17``, or are
Debian's. ``tests/connectors/fetch_postgres_17`` brings some with Maven.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from connector_harness import Crash, SinkRun, SourceRun, eventually
from postgres_replica import Replica, catch_up, table
from postgres_server import CREATE, FULL, ORDERS, PostgresServer, postgres_server

from holdfast.common import Row, Types
from holdfast.datastream.connectors.postgres import PostgresCdcSource, PostgresSink
from holdfast.errors import ConfigurationError, InputLost


def programs() -> Path:
    """The programs of a PostgreSQL that has failover slots; without them, the test is skipped."""
    named = os.environ.get("HOLDFAST_POSTGRES_17")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parts[-2]))
    if named:
        return Path(named)
    if not found or int(found[-1].parts[-2]) < 17:
        pytest.skip("PostgreSQL 17 is not installed (tests/connectors/fetch_postgres_17, HOLDFAST_POSTGRES_17)")
    return found[-1]


@contextmanager
def pair(programs: Path | None, **settings: str) -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary, and a standby; with version 17, it keeps failover slots."""
    slots = {} if programs is None else {"sync_replication_slots": "on"}
    with postgres_server(programs=programs, **settings) as primary:
        primary.execute("SELECT pg_create_physical_replication_slot('standby')", CREATE, FULL)
        primary.stop("fast")
        directory = primary.directory.with_name(primary.directory.name + "-standby")
        try:
            shutil.copytree(primary.directory, directory)
            for path in (directory, *directory.rglob("*")):
                shutil.chown(path, primary.directory.owner(), primary.directory.group())
            primary.start()
            standby = PostgresServer(
                directory, programs=programs, hot_standby="on", hot_standby_feedback="on", primary_slot_name="standby",
                wal_receiver_status_interval="1", **slots,
                primary_conninfo=f"host=127.0.0.1 port={primary.port} user=postgres dbname=postgres",
            )  # fmt: skip
            signal = directory / "data" / "standby.signal"
            signal.touch()
            shutil.chown(signal, directory.owner(), directory.group())
            standby.start()
            try:
                yield primary, standby
            finally:
                standby.stop()
                standby.release()
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def url_of(primary: PostgresServer, standby: PostgresServer) -> str:
    """That of whichever of the two can be written to."""
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"


def source(primary: PostgresServer, standby: PostgresServer, directory: Path) -> SourceRun:
    made: Any = PostgresCdcSource(url_of(primary, standby), {"public.orders": ORDERS}, "slot", failover=True)
    return SourceRun(made, f"file://{directory}")


def arrive(primary: PostgresServer, standby: PostgresServer) -> None:
    """Wait until the standby has what the primary has."""
    written = primary.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    eventually(lambda: standby.execute(f"SELECT pg_last_wal_replay_lsn() >= '{written}'::pg_lsn") == [(True,)])


def cut(standby: PostgresServer) -> None:
    """Let nothing more arrive there."""
    standby.execute("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
    eventually(lambda: standby.execute("SELECT count(*) FROM pg_stat_wal_receiver") == [(0,)])


def synchronized(standby: PostgresServer) -> bool:
    return standby.execute("SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = 'slot'") == [(True,)]


def a_standby_takes_over_and_nothing_is_lost_or_repeated(tmp_path: Path) -> None:
    with pair(programs(), synchronized_standby_slots="standby") as (primary, standby):
        primary.execute("INSERT INTO orders SELECT i, 'n', i FROM generate_series(1, 50) i")
        run, replica = source(primary, standby, tmp_path).start(), Replica()
        try:
            catch_up(run, replica, primary)

            def work(server: PostgresServer) -> None:
                server.execute(
                    "UPDATE orders SET amount = amount + 1 WHERE id % 3 = 0", "DELETE FROM orders WHERE id % 10 = 7",
                    "INSERT INTO orders SELECT 1 + max(id), 'more', 0 FROM orders",
                )  # fmt: skip

            work(primary)
            catch_up(run, replica, primary)

            def moves() -> None:
                primary.execute("SELECT pg_log_standby_snapshot()")  # a slot is kept from a consistent point on
                replica.read(run)

            eventually(lambda: synchronized(standby), moves)
            work(primary)  # is not read before the switch
            arrive(primary, standby)
            primary.kill()
            standby.execute("SELECT pg_promote()")
            work(standby)
            run.crash()
            catch_up(run, replica, standby)
            assert replica.table == table(standby)
            assert run.state["timeline"] == 2
            run.crash()
        finally:
            run.close()


def a_standby_without_what_the_job_has_read_is_refused(tmp_path: Path) -> None:
    with pair(programs()) as (primary, standby):
        run, replica = source(primary, standby, tmp_path).start(), Replica()
        try:

            def moves() -> None:
                primary.execute("SELECT pg_log_standby_snapshot()")
                replica.read(run)

            eventually(lambda: synchronized(standby), moves)
            cut(standby)
            primary.execute("INSERT INTO orders VALUES (1)")
            catch_up(run, replica, primary)
            primary.kill()
            standby.execute("SELECT pg_promote()")
            standby.execute("INSERT INTO orders SELECT i, repeat('x', 100) FROM generate_series(1, 1000) i")
            with pytest.raises(InputLost, match=r"took over \(timeline 2\) without all that the job has read.*timeline 1"):
                run.crash()
        finally:
            run.close()


def a_slot_that_standbys_do_not_keep_is_refused(tmp_path: Path) -> None:
    with postgres_server(programs=programs()) as server:
        server.execute(CREATE, FULL, "SELECT pg_create_logical_replication_slot('slot', 'pgoutput')")
        tables: Any = {"public.orders": ORDERS}
        made: Any = PostgresCdcSource(server.url(), tables, "slot", snapshot=False, failover=True)
        with pytest.raises(ConfigurationError, match=r"standbys do not keep: ALTER_REPLICATION_SLOT \"slot\""):
            SourceRun(made, f"file://{tmp_path}").start()


def a_server_that_is_too_old_for_failover_is_refused(tmp_path: Path) -> None:
    with postgres_server() as server:
        if server.execute("SHOW server_version_num")[0][0] >= "170000":
            pytest.skip("the server has failover slots")
        server.execute(CREATE, FULL)
        made: Any = PostgresCdcSource(server.url(), {"public.orders": ORDERS}, "slot", failover=True)
        with pytest.raises(ConfigurationError, match="whose standbys keep no slots: failover=True needs version 17"):
            SourceRun(made, f"file://{tmp_path}").start()


def the_rows_that_a_standby_does_not_have_are_missed_when_it_takes_over(tmp_path: Path) -> None:
    totals = Types.ROW_NAMED(["name", "total"], [Types.STRING(), Types.LONG()])
    with pair(None) as (primary, standby):
        primary.execute("CREATE TABLE totals (name text PRIMARY KEY, total int8)")
        sink: Any = PostgresSink(url_of(primary, standby), "public.totals", totals, primary_key=["name"])
        run = SinkRun(sink, f"file://{tmp_path}")
        try:
            run.epoch([[Row("a", 1)], []])
            with pytest.raises(Crash):
                run.epoch([[Row("b", 2)], []], crash_at="complete")
            arrive(primary, standby)
            cut(standby)
            run.start()
            with pytest.raises(Crash):
                run.epoch([[Row("c", 3)], []], crash_at="complete")
            primary.kill()
            standby.execute("SELECT pg_promote()")
            with pytest.raises(InputLost, match=r": 1 that were in public\.totals_holdfast_"):
                run.start()
            assert standby.execute("SELECT * FROM totals") == [("a", 1)]
        finally:
            run.close()
