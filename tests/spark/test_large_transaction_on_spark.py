"""A large transaction flows from PostgreSQL through Spark to a table, and no process holds it.

A run of the suite has 100,000 rows, ``make test EFFORT=10 ARGS=tests/spark/test_large_transaction_on_spark.py`` has
a million.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from effort import examples
from holdfast.common import Configuration, Types, WatermarkStrategy
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.connectors.postgres import PostgresCdcSource, PostgresSink

sys.path.append(str(Path(__file__).parents[1] / "connectors"))
from postgres_server import PostgresServer, postgres_server

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(3600)]

ROWS = examples(100_000)
EVENTS = Types.ROW_NAMED(["id", "text"], [Types.LONG(), Types.STRING()])
FILL = "INSERT INTO events SELECT i, lpad(i::text, 300, '.') FROM generate_series({}, {}) i"
MOST_MB = 30
"""How much a process of Python may grow; the rows of the short form are 30 MB, and 60 MB as objects of Python."""


def memory() -> dict[int, int]:
    """The memory of this process and of those that it has started, in MB."""
    found = {}
    for process in [own := psutil.Process(), *own.children(recursive=True)]:
        try:
            if "java" not in process.name():
                found[process.pid] = process.memory_info().rss >> 20
        except psutil.Error:
            continue  # it has ended
    return found


def arrived(server: PostgresServer) -> int:
    return int(server.execute("SELECT count(*) FROM target")[0][0])


def test_no_process_holds_a_large_transaction(tmp_path: Path) -> None:
    with postgres_server(max_wal_size="2GB") as server:
        server.execute(
            "CREATE TABLE events (id int8 PRIMARY KEY, text text)", "ALTER TABLE events REPLICA IDENTITY FULL",
            "CREATE TABLE target (id int8 PRIMARY KEY, text text)",
        )  # fmt: skip
        config = Configuration()
        settings = {"rest.port": "0", "restart-strategy.type": "none", "parallelism.default": "1"}
        for name, value in settings.items():
            config.set_string(name, value)
        env = StreamExecutionEnvironment.get_execution_environment(config)
        env.get_checkpoint_config().set_checkpoint_storage_dir((tmp_path / "checkpoints").as_uri())
        source: Any = PostgresCdcSource(server.url(), {"public.events": EVENTS}, "large")
        sink: Any = PostgresSink(server.url(), "public.target", EVENTS, primary_key=["id"])
        env.from_source(source, WatermarkStrategy.no_watermarks(), "events").uid("events").sink_to(sink).uid("target")
        client = env.execute_async("large")
        try:

            def until(rows: int) -> dict[int, int]:
                """Wait for rows in the target; the most memory of each process meanwhile."""
                most: dict[int, int] = {}
                deadline = time.monotonic() + 3000
                while arrived(server) < rows:
                    for pid, size in memory().items():
                        most[pid] = max(size, most.get(pid, 0))
                    assert time.monotonic() < deadline, f"{arrived(server)} of {rows} rows"
                    assert client.get_job_status().result().name in ("CREATED", "RUNNING")
                    time.sleep(0.2)
                return most

            server.execute(FILL.format(1, 2000))
            until(2000)
            server.execute(FILL.format(2001, 4000))
            until(4000)
            before = memory()
            server.execute(FILL.format(4001, 4000 + ROWS))
            most = until(4000 + ROWS)
            after = memory()
            grown = {pid: most.get(pid, before[pid]) - before[pid] for pid in before}
            told = {pid: (before[pid], most.get(pid, 0), after.get(pid, 0)) for pid in before}
            print(f"{ROWS} rows, MB before, most and after by process, {os.getpid()} is the driver: {told}")
            assert max(grown.values()) < MOST_MB
        finally:
            client.cancel().result(120)
