"""Change data of PostgreSQL: the rows of a snapshot and of the log, and rows written to a table, five columns each.

With the jars of Debezium (``HOLDFAST_DEBEZIUM``; ``tests/connectors/debezium/fetch``), its engine reads the same.

The connectors run without Spark, one subtask each, so that the figures hold nothing else; the server has the other core. The
lag is that of single rows, from the return of their commit to the element. A transaction of many rows is read last, with the
memory of the reader and of the server's process that decodes it.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil

from holdfast.common import Row, Types
from holdfast.connectors.base import Committable, JobInfo, ReaderContext, WriterContext
from holdfast.datastream.connectors.postgres import PostgresCdcSource, PostgresSink
from holdfast.testing.postgres import PostgresServer

_ROWS = Types.ROW_NAMED(
    ["id", "name", "amount", "at", "kind"],
    [Types.LONG(), Types.STRING(), Types.BIG_DEC(), Types.SQL_TIMESTAMP(), Types.INT()],
)
_COLUMNS = "(id int8 PRIMARY KEY, name text, amount numeric(12, 2), at timestamp, kind int)"
_FILL = (
    "INSERT INTO events SELECT i, 'customer ' || i % 10007, (i % 99991) / 100.0, "
    "timestamp '2026-01-01' + i * interval '1 second', i % 7 FROM generate_series({} + 1, {}) i"
)
_BATCH = 4096
_EPOCH = 100_000
"""Rows of an epoch that is written."""
_EVERY = 5
"""Batches between two looks at the memory."""
_LAGS = 200
_ENGINE = Path(__file__).parents[1] / "tests" / "connectors" / "debezium" / "Changes.java"


class _Reader:
    """A source that is read epoch by epoch."""

    def __init__(self, server: PostgresServer, mode: Any) -> None:
        self.source: Any = PostgresCdcSource(server.url(), {"public.events": _ROWS}, f"bench_{mode}", changelog_mode=mode)
        job = JobInfo("bench", "bench", 1, None)
        self.enumerator: Any = self.source.create_enumerator(job, "source")
        self.enumerator.start(None)
        self.reader = self.source.create_reader(ReaderContext(job, "source", 0, 1))

    def read(self, elements: int, each: Callable[[], None] = lambda: None) -> None:
        """Read so many elements."""
        while elements > 0:
            self.enumerator.wait(1.0)
            for part in self.enumerator.plan(100_000).ranges:
                for batch in self.reader.read(part, _BATCH):
                    elements -= len(batch.values)
                    each()
            self.enumerator.checkpoint_completed(1, self.enumerator.snapshot())
        assert elements == 0, f"{-elements} elements too many"

    def close(self) -> None:
        self.reader.close()
        self.enumerator.close()


def _postmaster(server: PostgresServer) -> psutil.Process:
    return psutil.Process(int((server.directory / "data" / "postmaster.pid").read_text().split()[0]))


def _server_cpu(server: PostgresServer) -> float:
    first = _postmaster(server)
    times = first.cpu_times()
    spent = times.user + times.system + times.children_user + times.children_system
    for child in first.children():
        try:
            spent += sum(child.cpu_times()[:2])
        except psutil.Error:
            continue  # it has ended, and counts among the children of the first one from now on
    return float(spent)


@contextmanager
def _measured(server: PostgresServer, figures: dict[str, Any], name: str, rows: int) -> Iterator[None]:
    """Rows a second, and the processor time of a million rows here and in the server."""
    began, own, servers = time.perf_counter(), time.process_time(), _server_cpu(server)
    yield
    figures[f"{name}_per_s"] = round(rows / (time.perf_counter() - began))
    figures[f"{name}_cpu_s_per_m"] = round((time.process_time() - own) / rows * 1e6, 2)
    figures[f"{name}_server_cpu_s_per_m"] = round((_server_cpu(server) - servers) / rows * 1e6, 2)


def _read(server: PostgresServer, rows: int, figures: dict[str, Any]) -> None:
    server.execute(_FILL.format(0, rows))
    reader = _Reader(server, "all")
    with _measured(server, figures, "snapshot", rows):
        reader.read(rows)
    for start in range(rows, 2 * rows, 1000):
        server.execute(_FILL.format(start, min(start + 1000, 2 * rows)))
    with _measured(server, figures, "inserts", rows):
        reader.read(rows)
    with server.connect() as connection:
        for start in range(0, rows, 1000):
            connection.execute("UPDATE events SET kind = kind + 1 WHERE id > %s AND id <= %s", (start, start + 1000))
    with _measured(server, figures, "updates", rows):
        reader.read(2 * rows)
    figures["lag_ms"] = round(_lag(server, reader, 2 * rows), 1)
    server.execute(_FILL.format(3 * rows, 4 * rows))
    own, sender = [psutil.Process().memory_info().rss], [0]
    batches = 0

    def look() -> None:
        nonlocal batches
        batches += 1
        if batches % _EVERY == 0:
            own.append(psutil.Process().memory_info().rss)
            senders = [child for child in _postmaster(server).children() if "walsender" in " ".join(child.cmdline())]
            sender.extend(child.memory_info().rss for child in senders)

    with _measured(server, figures, "one_transaction", rows):
        reader.read(rows, look)
    figures["one_transaction_reader_growth_mb"] = round((max(own) - own[0]) / 1e6, 1)
    figures["one_transaction_walsender_mb"] = round(max(sender) / 1e6, 1)
    reader.close()


def _lag(server: PostgresServer, reader: _Reader, above: int) -> float:
    lags = []
    with server.connect() as connection:
        for number in range(above + 1, above + 1 + _LAGS):
            connection.execute("INSERT INTO events (id) VALUES (%s)", (number,))
            committed = time.perf_counter()
            reader.read(1)
            lags.append(time.perf_counter() - committed)
    return statistics.median(lags) * 1e3


def _write(server: PostgresServer, rows: int, figures: dict[str, Any]) -> None:
    """Copy and move rows one after the other; then as a job does, which moves an epoch while it copies the next one."""
    sink: Any = PostgresSink(server.url(), "public.target", _ROWS, primary_key=["id"])
    job = JobInfo("bench", "bench", 1, "file:///bench")
    committer = sink.create_committer(job, "sink")
    committer.recover([])
    writer = sink.create_writer(WriterContext(job, "sink", 0, 1))
    names, start = _ROWS.get_field_names(), datetime.datetime(2026, 1, 1)

    def made(first: int) -> list[Row]:
        fields = ([i, f"customer {i % 10007}", Decimal(i % 99991) / 100, start, i % 7] for i in range(first, first + rows))
        return [Row.of_values(each, names) for each in fields]

    def copied(epoch: int, values: list[Row]) -> list[Committable]:
        writer.begin_epoch(epoch, "a", 0)
        for at in range(0, len(values), _BATCH):
            writer.write(values[at : at + _BATCH], None)
        return [Committable("sink", 0, data) for data in writer.prepare_commit()]

    values = made(0)
    with _measured(server, figures, "copied", rows):
        prepared = copied(1, values)
    with _measured(server, figures, "committed", rows):
        committer.commit(prepared)
    values = made(rows)
    with _measured(server, figures, "written", rows), ThreadPoolExecutor(1) as thread:
        moving = thread.submit(lambda: None)
        for epoch, at in enumerate(range(0, rows, _EPOCH), 2):
            prepared = copied(epoch, values[at : at + _EPOCH])
            moving.result()
            moving = thread.submit(committer.commit, prepared)
        moving.result()
    assert server.execute("SELECT count(*) FROM target") == [(2 * rows,)]
    writer.close()
    committer.close()


def _read_by_debezium(server: PostgresServer, rows: int, figures: dict[str, Any], jars: str) -> None:
    """Read as many rows of a snapshot and of the log by Debezium's engine, which writes JSON to a file."""
    server.execute("TRUNCATE events", _FILL.format(0, rows))
    directory = Path(tempfile.mkdtemp(prefix="holdfast-debezium-"))
    events = directory / "events"
    settings = {
        "name": "bench", "connector.class": "io.debezium.connector.postgresql.PostgresConnector", "topic.prefix": "bench",
        "plugin.name": "pgoutput", "slot.name": "debezium", "publication.name": "debezium", "database.user": "postgres",
        "publication.autocreate.mode": "filtered", "table.include.list": "public.events", "database.password": "none",
        "database.hostname": "127.0.0.1", "database.port": str(server.port), "database.dbname": "postgres",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore", "converter.schemas.enable": "false",
    }  # fmt: skip
    (directory / "settings").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    command = ["java", "-cp", f"{jars}/*", str(_ENGINE), str(directory / "settings"), str(events)]
    engine = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = 0
    try:
        while not events.exists() or not events.stat().st_size:
            assert engine.poll() is None
            time.sleep(0.01)
        with events.open("rb") as file:

            def until(most: int) -> None:
                nonlocal lines
                while lines < most:
                    read = file.read(1 << 20)
                    lines += read.count(b"\n")
                    if not read:
                        assert engine.poll() is None
                        time.sleep(0.01)

            for name, end in (("debezium_snapshot", rows), ("debezium_inserts", 2 * rows)):
                if end > rows:  # what it reads now is written while it stands still
                    while server.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'debezium' AND active") == []:
                        time.sleep(0.01)
                    engine.suspend()
                    for start in range(rows, end, 1000):
                        server.execute(_FILL.format(start, min(start + 1000, end)))
                    engine.resume()
                began, first, spent = time.perf_counter(), lines, sum(engine.cpu_times()[:2])
                until(end)
                figures[f"{name}_per_s"] = round((end - first) / (time.perf_counter() - began))
                figures[f"{name}_cpu_s_per_m"] = round((sum(engine.cpu_times()[:2]) - spent) / (end - first) * 1e6, 2)
    finally:
        engine.kill()
        engine.wait()
        shutil.rmtree(directory, ignore_errors=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sub-command's arguments."""
    parser.add_argument("--rows", type=int, default=1_000_000)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure source and sink on a server of their own."""
    figures: dict[str, Any] = {"rows": options.rows}
    directory = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir="/tmp"))
    try:
        server = PostgresServer(directory, max_wal_size="4GB", shared_buffers="128MB").start()
        try:
            server.execute(
                f"CREATE TABLE events {_COLUMNS}",
                "ALTER TABLE events REPLICA IDENTITY FULL",
                f"CREATE TABLE target {_COLUMNS}",
            )
            _write(server, options.rows, figures)
            _read(server, options.rows, figures)
            if jars := os.environ.get("HOLDFAST_DEBEZIUM"):
                _read_by_debezium(server, options.rows, figures, jars)
        finally:
            server.stop()
            server.release()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print("  ".join(f"{name} {figure}" for name, figure in figures.items()), file=sys.stderr)
    return figures
