"""A PostgreSQL server, and sources that read from it; a Redis server; runs of sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from connector_harness import SinkRun, SourceRun, eventually
from postgres_server import CREATE, FULL, ORDERS, PostgresServer, postgres_server
from redis_server import RedisServer, redis_server

from holdfast.datastream.connectors.postgres import PostgresCdcSource


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.fixture
def postgres(server: PostgresServer) -> Iterator[PostgresServer]:
    """The server, with empty tables ``orders`` and ``notes``, and without slots and publications."""
    server.execute(CREATE, FULL, "CREATE TABLE notes (id int8, name text)", "ALTER TABLE notes REPLICA IDENTITY FULL")
    yield server
    server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = 'postgres'"
    )
    eventually(
        lambda: (
            server.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active",
                "SELECT count(*) FROM pg_replication_slots",
            )
            == [(0,)]
        )
    )
    publications = server.execute("SELECT pubname FROM pg_publication")
    server.execute(*(f"DROP PUBLICATION {name}" for (name,) in publications), "DROP SCHEMA public CASCADE")
    server.execute("CREATE SCHEMA public", "GRANT ALL ON SCHEMA public TO public")


@pytest.fixture
def started(postgres: PostgresServer, tmp_path: Path) -> Iterator[Callable[..., SourceRun]]:
    """Makes runs of sources, by default of the orders."""
    runs: list[SourceRun] = []

    def make(tables: Any = None, start: bool = True, **options: Any) -> SourceRun:
        slot = options.pop("slot_name", f"slot_{len(runs)}")
        source: Any = PostgresCdcSource(
            options.pop("url", postgres.url()), tables or {"public.orders": ORDERS}, slot, **options
        )
        runs.append(SourceRun(source, f"file://{tmp_path}/{slot}"))
        return runs[-1].start() if start else runs[-1]

    yield make
    for run in runs:
        run.close()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Callable[..., SinkRun]]:
    """Makes runs of sinks."""
    made: list[SinkRun] = []

    def make(sink: Any, **more: Any) -> SinkRun:
        made.append(SinkRun(sink, f"file://{tmp_path}", **more))
        return made[-1]

    yield make
    for run in made:
        run.close()


@pytest.fixture(scope="module")
def redis_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def redis(redis_of_module: RedisServer) -> RedisServer:
    """The server, without keys."""
    with redis_of_module.client() as client:
        client.flushall()
    return redis_of_module
