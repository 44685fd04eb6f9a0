"""What a PostgresCdcSource refuses, before it reads any input: settings of the server, passwords, arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from connector_harness import SourceRun, eventually
from postgres_server import CREATE, FULL, ORDERS, PostgresServer, postgres_server

from holdfast.common import Types
from holdfast.datastream.connectors.postgres import PostgresCdcSource
from holdfast.errors import ConfigurationError, ServiceUnavailable

BAD = [
    (["DROP TABLE orders"], {}, "has no table public.orders"),
    (
        ["ALTER TABLE orders RENAME name TO title"],
        {},
        "has no column 'name' in public.orders; it has id, title, amount, more",
    ),
    (["ALTER TABLE orders ALTER amount TYPE float8"], {}, "'amount' of public.orders as double precision"),
    (
        ["ALTER TABLE orders REPLICA IDENTITY DEFAULT"],
        {},
        "log old rows of public.orders: ALTER TABLE public.orders REPLICA",
    ),
    (["ALTER TABLE orders REPLICA IDENTITY NOTHING"], {"changelog_mode": "upsert"}, "does not log the primary key"),
    (
        ["ALTER TABLE orders REPLICA IDENTITY DEFAULT", "ALTER TABLE orders DROP id", "ALTER TABLE orders ADD id int8"],
        {"changelog_mode": "upsert"},
        "does not log the primary key",
    ),
    (["ALTER TABLE orders SET UNLOGGED"], {}, "SET LOGGED"),
    (
        ["ALTER TABLE orders DROP amount", "ALTER TABLE orders ADD amount numeric GENERATED ALWAYS AS (id + 1) STORED"],
        {},
        "'amount' of public.orders, which is generated",
    ),
    (["CREATE PUBLICATION slot_0 FOR TABLE notes"], {}, 'ALTER PUBLICATION "slot_0" ADD TABLE "public"."orders"'),
    (["CREATE PUBLICATION slot_0 FOR TABLE orders WITH (publish = 'insert')"], {}, "does not publish update, delete, trunc"),
    (["CREATE PUBLICATION slot_0 FOR TABLE orders WHERE (id > 1)"], {}, "publishes only some rows of public.orders"),
    (["CREATE PUBLICATION slot_0 FOR TABLE orders (id, name)"], {}, "does not publish amount of public.orders"),
    (["CREATE VIEW seen AS SELECT * FROM orders"], {"tables": {"public.seen": ORDERS}}, "which is no table"),
    (
        ["SELECT pg_create_physical_replication_slot('s' || i) FROM generate_series(1, 12) i"],
        {},
        r"no free replication slot \(max_replication_slots = 12\)",
    ),
    (["SELECT pg_create_logical_replication_slot('slot_0', 'pgoutput')"], {}, "a replication slot 'slot_0' already"),
    (
        ["SELECT pg_create_logical_replication_slot('slot_0', 'test_decoding')"],
        {"snapshot": False},
        "as a slot of test_decoding",
    ),
    (["SELECT 1"], {"database": "nowhere"}, 'database "nowhere" does not exist; check the URL'),
    (["CREATE ROLE reader LOGIN"], {"user": "reader"}, 'does not let reader replicate: ALTER ROLE "reader" REPLICATION'),
    (["CREATE ROLE reader LOGIN REPLICATION"], {"user": "reader"}, "does not let reader read public.orders: GRANT SELECT"),
    (
        ["CREATE ROLE reader LOGIN REPLICATION", "GRANT SELECT ON orders TO reader"],
        {"user": "reader"},
        "no publication 'slot_0' and does not let the user make it .*CREATE PUBLICATION",
    ),
    (
        [
            "CREATE ROLE reader LOGIN REPLICATION",
            "GRANT SELECT ON orders TO reader",
            "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
        ],
        {"user": "reader"},
        "shows reader only some rows of public.orders",
    ),
]


@pytest.mark.parametrize(("statements", "options", "told"), BAD, ids=[told[:40] for *_, told in BAD])
def a_wrong_setting_is_told_before_any_input_is_read(
    started: Any, postgres: PostgresServer, statements: list[str], options: dict[str, Any], told: str
) -> None:
    if "test_decoding" in told:
        pytest.importorskip("psycopg")
    given = dict(options)
    user, database = given.pop("user", "postgres"), given.pop("database", "postgres")
    try:
        postgres.execute(*statements)
        with pytest.raises(ConfigurationError, match=rf"(?s){told}.*uid 'source'"):
            started(url=postgres.url(user, database), **given)
    finally:
        if user == "reader":
            postgres.execute("DROP OWNED BY reader", "DROP ROLE reader")


def a_wrong_password_is_told_without_it(started: Any, postgres: PostgresServer) -> None:
    conf = postgres.directory / "data" / "pg_hba.conf"
    before = conf.read_text()
    conf.write_text("host all secret 127.0.0.1/32 scram-sha-256\n" + before)
    try:
        postgres.execute("CREATE ROLE secret LOGIN REPLICATION SUPERUSER PASSWORD 'right'", "SELECT pg_reload_conf()")
        run = started(url=postgres.url("secret"), password="right", start=False)
        run.start()
        run.epoch()
        for password in ("wrong-password", None):
            with pytest.raises(ConfigurationError, match="check the URL, the user and the password") as failure:
                started(url=postgres.url("secret"), password=password)
            assert "wrong-password" not in str(failure.value)
        postgres.execute("ALTER ROLE secret PASSWORD 'changed'")
        with pytest.raises(ConfigurationError, match="password authentication failed"):
            run.crash()
        run.close()
    finally:
        conf.write_text(before)
        postgres.execute("SELECT pg_reload_conf()")
        postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'secret'")
        eventually(lambda: not postgres.execute("SELECT FROM pg_stat_activity WHERE usename = 'secret'"))
        postgres.execute("DROP OWNED BY secret", "DROP ROLE secret")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"url": "jdbc:postgresql://host/db"}, "postgresql://user@host"),
        ({"slot_name": "Orders"}, "lower-case letters"),
        ({"tables": {}}, "needs tables"),
        ({"tables": {"orders": ORDERS}}, "with its schema"),
        ({"tables": {"public.orders": Types.LONG()}}, "ROW_NAMED"),
        ({"tables": {"public.orders": Types.ROW_NAMED(["a"], [Types.LIST(Types.LONG())])}}, "column 'a': no column of"),
        ({"changelog_mode": "some"}, "changelog_mode is one of all, upsert"),
        ({"on_truncate": "ignore"}, "on_truncate is one of"),
        ({"missing_columns": "none"}, "missing_columns is one of"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"deserializer": 3}, "deserializer"),
    ],
)
def a_wrong_argument_is_refused(options: dict[str, Any], told: str) -> None:
    given: dict[str, Any] = {"url": "postgresql://h/d", "tables": {"public.orders": ORDERS}, "slot_name": "s", **options}
    with pytest.raises(ConfigurationError, match=told):
        PostgresCdcSource(given.pop("url"), given.pop("tables"), given.pop("slot_name"), **given)


def a_server_without_logical_decoding_is_refused(tmp_path: Path) -> None:
    with postgres_server(wal_level="replica") as server:
        server.execute(CREATE, FULL)
        source: Any = PostgresCdcSource(server.url(), {"public.orders": ORDERS}, "slot")
        with pytest.raises(ConfigurationError, match="wal_level = replica: set wal_level = logical"):
            SourceRun(source, f"file://{tmp_path}").start()
    with pytest.raises(ServiceUnavailable, match=r"(?s)cannot connect to .*does the server run"):
        SourceRun(source, f"file://{tmp_path}").start()
