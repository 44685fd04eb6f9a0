"""Debezium's engine on the same tables as a second witness: it sees each change that PostgresCdcSource sees, in its order.

Its jars are those in the directory ``HOLDFAST_DEBEZIUM``; ``tests/connectors/debezium/fetch`` brings them with Maven.
``make test EFFORT=20 ARGS=tests/connectors/test_postgres_beside_debezium.py`` tries twenty times as many writers.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from connector_harness import SourceRun, eventually
from postgres_replica import done
from postgres_server import PostgresServer
from postgres_writer import TEXT_KEYS, TEXT_TABLE, Writer

from effort import examples
from holdfast.common import RowKind
from holdfast.connectors.postgres.pgoutput import parse_lsn
from holdfast.datastream.connectors.postgres import Truncated

PROGRAM = Path(__file__).with_name("debezium") / "Changes.java"


JARS, JAVA = os.environ.get("HOLDFAST_DEBEZIUM"), shutil.which("java")


@contextmanager
def debezium(server: PostgresServer, directory: Path) -> Iterator[tuple[Path, Callable[[Callable[[], bool]], None]]]:
    """Debezium's engine in a process; its events are lines of the file. Waits for a condition that comes of them."""
    directory.mkdir()
    events = directory / "events"
    events.touch()
    settings = {
        "name": "witness", "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": "witness", "plugin.name": "pgoutput", "slot.name": "witness", "publication.name": "witness",
        "publication.autocreate.mode": "filtered", "table.include.list": "public.orders", "skipped.operations": "none",
        "database.hostname": "127.0.0.1", "database.port": str(server.port), "database.user": "postgres",
        "database.password": "none", "database.dbname": "postgres", "converter.schemas.enable": "false",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore", "poll.interval.ms": "50",
    }  # fmt: skip
    (directory / "settings").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    command = [str(JAVA), "-Xmx256m", "-cp", f"{JARS}/*", str(PROGRAM), str(directory / "settings"), str(events)]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)

    def until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 400
        while not condition():
            assert process.poll() is None, f"it has ended: {(directory / 'log').read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"never: {(directory / 'log').read_text()[-3000:]}"
            time.sleep(0.05)

    try:
        yield events, until
    finally:
        process.kill()
        process.wait()


def events_of(file: Path) -> list[Any]:
    """Debezium's events as ``(op, before, after)``; the last line may be half there."""
    found = []
    for line in file.read_text().split("\n")[:-1]:
        event = json.loads(line)
        rows = [each and (each["id"], each["name"], each["amount"]) for each in (event.get("before"), event.get("after"))]
        found.append((event["op"], *rows))
    return found


class Seen:
    """What a source has read, as Debezium writes it."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._before: Any = None

    def read(self, run: SourceRun, most: int) -> None:
        for split, elements in sorted(run.epoch(most).items()):
            for element in elements:
                self._take(element, "c" if split == "log" else "r")

    def _take(self, element: Any, insert: str) -> None:
        if isinstance(element, Truncated):
            self.events.append(("t", None, None))
            return
        kind, values = element.get_row_kind(), tuple(element)
        if kind is RowKind.INSERT:
            self.events.append((insert, None, values))
        elif kind is RowKind.UPDATE_BEFORE:
            self._before = values
        elif kind is RowKind.UPDATE_AFTER:
            self.events.append(("u", self._before, values))
        else:
            self.events.append(("d", values, None))


@pytest.mark.skipif(
    not JARS or JAVA is None, reason="no jars of Debezium (tests/connectors/debezium/fetch, HOLDFAST_DEBEZIUM)"
)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(examples(1)))
def the_engine_of_debezium_sees_the_same_changes_in_the_same_order(
    started: Any, postgres: PostgresServer, tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    postgres.execute(*TEXT_TABLE)
    writer = Writer(postgres, seed, True)
    writer.write(60)
    writer.end_transaction()
    with debezium(postgres, tmp_path / "debezium") as (file, until):
        run, seen = started({"public.orders": TEXT_KEYS}, chunk_size=7, on_truncate="emit"), Seen()
        seen.read(run, 20)
        eventually(lambda: done(run), lambda: seen.read(run, 20))
        ((rows,),) = postgres.execute("SELECT count(*) FROM orders")
        slot = "SELECT active FROM pg_replication_slots WHERE slot_name = 'witness'"
        until(lambda: len(events_of(file)) == rows and postgres.execute(slot) == [(True,)])
        for _ in range(20):
            writer.write(draw.randrange(30))
            if draw.random() < 0.2:
                run.crash()
            seen.read(run, draw.randint(1, 50))
        writer.close()
        postgres.execute("INSERT INTO orders VALUES ('end', '', 0)")
        end = parse_lsn(postgres.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])
        eventually(lambda: run.state["lsn"] >= end, lambda: seen.read(run, 1000))
        until(lambda: ("c", None, ("end", "", 0)) in events_of(file))
        expected = events_of(file)
    assert sorted(seen.events[:rows]) == sorted(expected[:rows])
    assert seen.events[rows:] == expected[rows:]
    assert len(expected) > rows + 50
    assert {op for op, *_ in expected} >= {"c", "u", "d"}
