"""PostgreSQL's connectors behind a network: TLS, cuts, and other transactions that lock the same rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from certificates import certificate
from connector_harness import SinkRun, SourceRun, attempts, eventually
from postgres_replica import Replica, catch_up, table
from postgres_server import CREATE, FULL, ORDERS, PostgresServer, postgres_server

from awaiting import until
from holdfast.common import Configuration, Row, RowKind, Types, WatermarkStrategy
from holdfast.datastream.connectors.postgres import PostgresCdcSource, PostgresSink
from holdfast.errors import ConfigurationError, ServiceUnavailable
from holdfast.testing import InProcessEnvironment
from holdfast.testing.tcp_proxy import TcpProxy

TOTALS = Types.ROW_NAMED(["name", "total"], [Types.STRING(), Types.LONG()])


def a_server_is_known_by_its_certificate(tmp_path: Path) -> None:
    with postgres_server() as server:
        root = certificate(server.directory)
        key = server.directory / "server.key"
        server.execute(
            f"ALTER SYSTEM SET ssl_cert_file = '{root}'", f"ALTER SYSTEM SET ssl_key_file = '{key}'",
            "ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()", CREATE, FULL, "INSERT INTO orders VALUES (1)",
        )  # fmt: skip
        encrypted = (
            "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name LIKE 'h%'"
        )
        url = f"{server.url()}?sslmode=verify-full&sslrootcert="

        def run(root: Path, slot: str) -> SourceRun:
            source: Any = PostgresCdcSource(f"{url}{root}", {"public.orders": ORDERS}, slot)
            return SourceRun(source, f"file://{tmp_path}/{slot}")

        found = run(root, "known")
        try:
            replica = Replica()
            replica.read(found.start())
            catch_up(found, replica, server)
            assert replica.table == table(server)
            assert server.execute(encrypted) == [(True,)]
        finally:
            found.close()
        (other := tmp_path / "other").mkdir()
        with pytest.raises(ConfigurationError, match=r"certificate verify failed.*check the URL"):
            run(certificate(other), "unknown").start()


def a_cut_connection_is_told_by_name_and_the_next_attempt_goes_on(started: Any, postgres: PostgresServer) -> None:
    with TcpProxy(postgres.port) as proxy:
        run, replica = started(url=f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"), Replica()
        replica.read(run)
        for number in range(3):
            postgres.execute(f"INSERT INTO orders VALUES ({number})")
            proxy.disconnect()
            with pytest.raises(ServiceUnavailable, match=rf"(?s)127.0.0.1:{proxy.port}.*PostgreSQL source, uid") as failure:
                eventually(lambda: None, lambda: run.plan(10))
            assert attempts(failure.value) > 10
            eventually(lambda: replica.table == table(postgres), lambda: replica.read(run.crash()))
        assert replica.table == table(postgres)


def changes(postgres: PostgresServer, directory: Path) -> InProcessEnvironment:
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.dir", f"file://{directory}/checkpoints")
    env = InProcessEnvironment(configuration)
    source: Any = PostgresCdcSource(postgres.url(), {"public.orders": ORDERS}, "served")
    orders = env.from_source(source, WatermarkStrategy.no_watermarks(), "orders").uid("orders")
    totals = orders.map(lambda row: Row.of_kind(RowKind.INSERT, row.name, row.id), TOTALS)
    totals.sink_to(PostgresSink(postgres.url(), "public.totals", TOTALS, primary_key=["name"])).uid("totals")
    return env


def a_job_that_goes_on_waits_for_its_server_and_one_that_begins_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with postgres_server() as server:
        server.execute(CREATE, FULL, "CREATE TABLE totals (name text PRIMARY KEY, total int8)")
        server.execute("INSERT INTO orders VALUES (1, 'a')")
        server.stop()
        with pytest.raises(ConfigurationError, match=r"(?s)cannot connect to .*PostgreSQL sink to public\.totals"):
            changes(server, tmp_path).execute_async("served")
        server.start()
        written = "SELECT name, total FROM totals ORDER BY name"
        first = changes(server, tmp_path).execute_async("served")
        until(lambda: server.execute(written) == [("a", 1)])
        first.cancel().result()
        server.execute("INSERT INTO orders VALUES (2, 'b')")
        server.stop()
        second = changes(server, tmp_path).execute_async("served")
        until(lambda: "goes on from its checkpoint, and waits for a service: cannot connect" in caplog.text)
        until(lambda: "the job failed; restart in" in caplog.text)
        server.start()
        until(lambda: server.execute(written) == [("a", 1), ("b", 2)])
        second.cancel().result()


def a_deadlock_with_another_transaction_is_repeated(postgres: PostgresServer, tmp_path: Path) -> None:
    postgres.execute(
        "CREATE TABLE totals (name text PRIMARY KEY, total int8)", "INSERT INTO totals VALUES ('a', 0), ('b', 0)"
    )
    sink: Any = PostgresSink(postgres.url(), "public.totals", TOTALS, primary_key=["name"])
    run = SinkRun(sink, f"file://{tmp_path}")
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    try:
        with postgres.connect() as other, ThreadPoolExecutor(1) as pool:
            other.execute("SET deadlock_timeout = '60s'")  # so that the server ends the sink's transaction
            other.execute("BEGIN")
            other.execute("UPDATE totals SET total = 1 WHERE name = 'b'")
            done = pool.submit(run.epoch, [[Row("a", 2), Row("b", 2)], []])
            eventually(lambda: postgres.execute(waits) != [(0,)])
            other.execute("UPDATE totals SET total = 1 WHERE name = 'a'")
            other.execute("COMMIT")
            done.result(60)
        assert postgres.execute("SELECT name, total FROM totals ORDER BY 1") == [("a", 2), ("b", 2)]
        assert postgres.execute("SELECT deadlocks > 0 FROM pg_stat_database WHERE datname = 'postgres'") == [(True,)]
    finally:
        run.close()


def two_sinks(postgres: PostgresServer, directory: Path) -> list[SinkRun]:
    sinks: list[Any] = [PostgresSink(postgres.url(), "public.totals", TOTALS, primary_key=["name"]) for _ in range(2)]
    return [SinkRun(sink, f"file://{directory}/{number}") for number, sink in enumerate(sinks)]


def the_sinks_of_two_jobs_write_the_same_rows_in_opposite_orders(postgres: PostgresServer, tmp_path: Path) -> None:
    postgres.execute("CREATE TABLE totals (name text PRIMARY KEY, total int8)")
    runs = two_sinks(postgres, tmp_path)
    names = [f"n{number}" for number in range(40)]
    try:
        with ThreadPoolExecutor(2) as pool:

            def work(number: int) -> None:
                for total in range(12):
                    order = names if number else names[::-1]
                    runs[number].epoch([[Row(name, total) for name in order], []])

            for done in [pool.submit(work, number) for number in range(2)]:
                done.result(120)
        assert postgres.execute("SELECT count(*), min(total), max(total) FROM totals") == [(40, 11, 11)]
    finally:
        for run in runs:
            run.close()
