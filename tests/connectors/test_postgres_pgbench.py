"""A PostgresCdcSource behind pgbench: its transactions keep four tables in balance, and so does every epoch."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

from connector_harness import eventually
from postgres_replica import Replica, done
from postgres_server import PostgresServer

from holdfast.common import Types
from holdfast.connectors.postgres.pgoutput import parse_lsn
from holdfast.testing.postgres import binaries

TRANSFER = r"""
\set aid random(1, 500)
\set tid random(1, 10)
\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = 1;
INSERT INTO pgbench_history (tid, bid, aid, delta) VALUES (:tid, 1, :aid, :delta);
END;
"""
"""pgbench's own transaction, on fewer accounts."""
UNDONE = r"""
\set aid random(1, 500)
\set delta random(-5000, 5000)
BEGIN;
SAVEPOINT undone;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
INSERT INTO pgbench_history (tid, bid, aid, delta) VALUES (0, 1, :aid, :delta);
ROLLBACK TO undone;
SAVEPOINT kept;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = 1;
RELEASE kept;
\sleep 30 ms
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = 1;
INSERT INTO pgbench_history (tid, bid, aid, delta) VALUES (1, 1, :aid, :delta);
END;
"""
"""The same with savepoints, in a transaction that stays open while others commit."""
TABLES = {
    "public.pgbench_accounts": Types.ROW_NAMED(["aid", "abalance"], [Types.INT(), Types.INT()]),
    "public.pgbench_tellers": Types.ROW_NAMED(["tid", "tbalance"], [Types.INT(), Types.INT()]),
    "public.pgbench_branches": Types.ROW_NAMED(["bid", "bbalance"], [Types.INT(), Types.INT()]),
    "public.pgbench_history": Types.ROW_NAMED(["tid", "aid", "delta"], [Types.INT(), Types.INT(), Types.INT()]),
}


def prepare(postgres: PostgresServer) -> None:
    postgres.execute(
        "CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84))",
        "CREATE TABLE pgbench_tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84))",
        "CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int, filler char(88))",
        "CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22))",
        "INSERT INTO pgbench_accounts SELECT i, 1, 0, '' FROM generate_series(1, 500) i",
        "INSERT INTO pgbench_tellers SELECT i, 1, 0, '' FROM generate_series(1, 10) i",
        "INSERT INTO pgbench_branches VALUES (1, 0, '')",
        *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in TABLES),
    )


def the_tables_are_in_balance_after_each_epoch_behind_pgbench(
    started: Any, postgres: PostgresServer, tmp_path: Path
) -> None:
    prepare(postgres)
    for name, script in (("transfer", TRANSFER), ("undone", UNDONE)):
        (tmp_path / name).write_text(script)
    programs = binaries()
    assert programs is not None
    command = [
        programs / "pgbench",
        "-n",
        "-c",
        "4",
        "-t",
        "60",
        "-f",
        f"{tmp_path}/transfer@4",
        "-f",
        f"{tmp_path}/undone@1",
    ]
    with (tmp_path / "errors").open("wb") as errors:
        bench = subprocess.Popen([*command, postgres.url()], stdout=subprocess.DEVNULL, stderr=errors)
    run, draw = started(TABLES, chunk_size=200), random.Random(1)
    run.max_batch = 100
    replicas = {name: Replica(None if "history" in name else 0) for name in TABLES}
    history: list[int] = []

    def epoch() -> None:
        if draw.random() < 0.1:
            run.crash()
        for _, elements in sorted(run.epoch(300).items()):
            for table, row in elements:
                if "history" in table:
                    history.append(row.delta)  # only inserts, of which equal ones may be
                else:
                    replicas[table].take([row])
        if done(run) and run.state["lsn"] >= run.enumerator._settled:
            sums = [sum(row[1] for row in replicas[name].rows.values()) for name in TABLES if "history" not in name]
            assert {*sums, sum(history)} == {sums[0]}

    eventually(lambda: bench.poll() is not None, epoch)
    assert bench.returncode == 0, (tmp_path / "errors").read_text()
    end = parse_lsn(postgres.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])
    eventually(lambda: done(run) and run.state["lsn"] >= end, epoch)
    for name, row in TABLES.items():
        found = sorted(postgres.execute(f"SELECT {', '.join(row.get_field_names())} FROM {name}"))
        if "history" in name:
            assert sorted(history) == sorted(delta for _, _, delta in found)
            assert len(history) == 240
        else:
            assert replicas[name].table == sorted(found, key=repr)
