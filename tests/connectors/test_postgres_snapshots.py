"""The snapshot of a PostgresCdcSource among statements that change its tables as a whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
import pytest
from connector_harness import eventually
from postgres_replica import Replica, catch_up, table
from postgres_server import ORDERS, PostgresServer

from holdfast.common import Configuration, Row, Types, WatermarkStrategy
from holdfast.connectors.postgres.enumerator import PostgresCdcEnumerator
from holdfast.datastream.connectors.postgres import PostgresCdcSource
from holdfast.errors import ServiceUnavailable, StaleRange
from holdfast.testing import InProcessEnvironment

NOTES = Types.ROW_NAMED(["id", "name"], [Types.LONG(), Types.STRING()])


def a_table_that_is_rewritten_waits_for_the_end_of_the_snapshot(started: Any, postgres: PostgresServer) -> None:
    """A snapshot sees no row of a table that is rewritten after it was taken; so none may be, whatever their turn."""
    postgres.execute("INSERT INTO notes VALUES (1, 'a'), (2, 'b')")
    run = started({"public.orders": ORDERS, "public.notes": NOTES})
    with pytest.raises(psycopg.errors.LockNotAvailable):
        postgres.execute("SET lock_timeout = '50ms'; ALTER TABLE notes ALTER id TYPE numeric")
    assert [list(row) for _, row in run.epoch(100_000)["public.notes, chunk 2"]] == [[1, "a"], [2, "b"]]
    postgres.execute("ALTER TABLE notes ALTER id TYPE int8")


def a_statement_that_waits_to_change_a_table_is_named_and_the_next_attempt_lets_it_go_first(
    started: Any, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the snapshot, and new readers of the snapshot wait for it: nobody would ever go on."""
    monkeypatch.setattr("holdfast.connectors.postgres.server._LOCK_MS", 100)
    postgres.execute("INSERT INTO orders SELECT i FROM generate_series(1, 20) i")
    run = started(chunk_size=10)
    replica = Replica()
    replica.read(run)
    with ThreadPoolExecutor(1) as pool:
        altered = pool.submit(postgres.execute, "ALTER TABLE orders ADD COLUMN late int")
        waits = "SELECT pid FROM pg_locks WHERE NOT granted"
        eventually(lambda: postgres.execute(waits))
        ((pid,),) = postgres.execute(waits)
        with pytest.raises(ServiceUnavailable, match=rf"process {pid}.*ALTER TABLE orders ADD COLUMN late"):
            run.plan(10)
        run.crash()
        altered.result(30)
    catch_up(run, replica, postgres)
    assert replica.table == table(postgres)


def a_table_that_was_rewritten_just_before_its_lock_is_not_taken_for_an_empty_one(
    started: Any, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.execute("INSERT INTO orders SELECT i FROM generate_series(1, 5) i")
    hold = PostgresCdcEnumerator._hold

    def late(self: PostgresCdcEnumerator, exported: str | None) -> None:
        postgres.execute("ALTER TABLE orders ALTER more TYPE int8")
        hold(self, exported)

    monkeypatch.setattr(PostgresCdcEnumerator, "_hold", late)
    run = started(start=False)
    with pytest.raises(ServiceUnavailable, match="orders was rewritten while the snapshot was taken; start again"):
        run.start()
    monkeypatch.undo()
    replica = Replica()
    replica.read(run.crash())
    assert len(replica.rows) == 5


@pytest.mark.parametrize("how", ["restarted", "disconnected"])
def a_chunk_whose_snapshot_is_gone_is_planned_anew(started: Any, postgres: PostgresServer, how: str) -> None:
    postgres.execute("INSERT INTO orders SELECT i FROM generate_series(1, 30) i")
    run, replica = started(chunk_size=10), Replica()
    replica.read(run)
    (part,) = run.enumerator.plan(10).ranges
    if how == "restarted":
        postgres.stop()
        postgres.start()
    else:
        run.enumerator._holder.close()
    postgres.execute("UPDATE orders SET name = 'new'", "DELETE FROM orders WHERE id IN (5, 15, 25)")
    with pytest.raises(StaleRange, match=r"the snapshot .* has ended with its transaction"):
        run.read(part)
    run.crash()
    catch_up(run, replica, postgres)
    assert replica.table == table(postgres)


def a_snapshot_of_the_same_name_that_sees_something_else_is_not_read(started: Any, postgres: PostgresServer) -> None:
    """Names are numbers of processes and transactions, which begin again when the server starts again."""
    postgres.execute("INSERT INTO orders SELECT i FROM generate_series(1, 30) i")
    run = started(chunk_size=10)
    (part,) = run.enumerator.plan(10).ranges
    postgres.execute("INSERT INTO orders VALUES (31)")
    with psycopg.connect(postgres.url()) as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        (name,) = other.execute("SELECT pg_export_snapshot()").fetchone() or ("",)
        part.payload["chunk"]["snapshot"] = name
        with pytest.raises(StaleRange, match=r"the snapshot .* has ended"):
            run.read(part)


def a_job_whose_snapshot_is_gone_reads_the_rest_of_the_table_under_a_new_one(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    postgres.execute("INSERT INTO orders SELECT i FROM generate_series(1, 3000) i")
    env = InProcessEnvironment(Configuration().set_string("execution.checkpointing.dir", str(tmp_path)))
    url, gone = postgres.url(), tmp_path / "gone"

    def note(row: Row) -> int:
        if row.id == 1500 and not gone.exists():
            gone.touch()
            with psycopg.connect(url) as other:
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                )
            raise ValueError("its connections are gone, too")
        return int(row.id)

    source = PostgresCdcSource(url, {"public.orders": ORDERS}, "slot_0", chunk_size=1000)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "orders").map(note, Types.LONG())
    with stream.execute_and_collect() as results:
        assert sorted(islice(results, 3000)) == list(range(1, 3001))
