"""Roles of PostgreSQL with the rights that the documentation asks for, and those that lack one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from connector_harness import eventually, job_info
from postgres_server import PostgresServer

from holdfast.common import Row, RowKind, Types
from holdfast.connectors.base import WriterContext
from holdfast.connectors.postgres import enumerator
from holdfast.connectors.postgres.libraries import refuses_connection
from holdfast.connectors.postgres.server import Server
from holdfast.datastream.connectors.jdbc import JdbcConnectionOptions, JdbcExecutionOptions, JdbcSink
from holdfast.datastream.connectors.postgres import PostgresSink
from holdfast.errors import ConfigurationError, InputLost, ServiceUnavailable

TOTALS = Types.ROW_NAMED(["name", "total"], [Types.STRING(), Types.LONG()])
ROWS = Types.ROW([Types.STRING(), Types.LONG()])
TABLE = "CREATE TABLE totals (name text PRIMARY KEY, total int8)"


@pytest.fixture
def role(postgres: PostgresServer) -> Iterator[str]:
    """A role without rights, beside an empty table ``totals``."""
    postgres.execute(TABLE, "CREATE ROLE limited LOGIN")
    yield "limited"
    postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'limited'")
    eventually(lambda: not postgres.execute("SELECT FROM pg_stat_activity WHERE usename = 'limited'"))
    postgres.execute("DROP OWNED BY limited", "DROP ROLE limited")


def sink(postgres: PostgresServer, role: str, key: Any = ("name",)) -> PostgresSink:
    return PostgresSink(postgres.url(role), "public.totals", TOTALS, primary_key=key)


def row(name: str, total: int, kind: RowKind = RowKind.INSERT) -> Row:
    made = Row.of_kind(kind, name, total)
    made.set_field_names(["name", "total"])
    return made


def a_sinks_role_without_rights_is_told_what_to_grant_and_needs_no_more(
    postgres: PostgresServer, role: str, runs: Any
) -> None:
    postgres.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC", f"GRANT SELECT ON totals TO {role}")
    with pytest.raises(ConfigurationError, match=rf"GRANT INSERT, UPDATE, DELETE ON public\.totals TO {role}"):
        sink(postgres, role).validate()
    postgres.execute(f"GRANT INSERT, UPDATE, DELETE ON totals TO {role}")
    with pytest.raises(ConfigurationError, match=f'GRANT CREATE ON SCHEMA "public" TO {role}'):
        sink(postgres, role).validate()
    postgres.execute(f"GRANT CREATE ON SCHEMA public TO {role}")
    sink(postgres, role).validate()
    run = runs(sink(postgres, role))
    run.epoch([[row("a", 1)], [row("b", 2)]])
    run.start()
    run.epoch([[row("a", 1, RowKind.DELETE)], [row("b", 3)]])
    assert postgres.execute("SELECT * FROM totals") == [("b", 3)]
    postgres.execute(f"REVOKE USAGE ON SCHEMA public FROM PUBLIC, {role}")
    with pytest.raises(ConfigurationError, match=r"cannot write to .*permission denied for schema public"):
        run.epoch([[row("a", 3)], []])


@pytest.mark.parametrize(
    ("change", "kind", "told"),
    [
        ("NOLOGIN", ConfigurationError, "is not permitted to log in; check the URL, the user"),
        ("CONNECTION LIMIT 0", ServiceUnavailable, "too many connections for role"),
    ],
)
def a_role_that_may_not_connect_is_told_so(
    postgres: PostgresServer, role: str, change: str, kind: type[Exception], told: str
) -> None:
    postgres.execute(f"ALTER ROLE {role} {change}")
    with pytest.raises(kind, match=told):
        sink(postgres, role).validate()


def a_statement_that_the_server_gives_up_is_not_taken_for_its_silence(
    postgres: PostgresServer, role: str, runs: Any
) -> None:
    postgres.execute(f"GRANT ALL ON totals TO {role}", f"GRANT CREATE ON SCHEMA public TO {role}")
    run = runs(sink(postgres, role))
    postgres.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    with pytest.raises(ServiceUnavailable, match=r"in a read-only transaction; it is tried again"):
        run.epoch([[row("a", 1)], []])


def the_rows_that_row_security_may_hide_are_warned_of(
    postgres: PostgresServer, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    postgres.execute(f"GRANT ALL ON totals TO {role}", f"GRANT CREATE ON SCHEMA public TO {role}")
    sink(postgres, role).validate()
    postgres.execute("ALTER TABLE totals ENABLE ROW LEVEL SECURITY", "CREATE POLICY few ON totals USING (total < 10)")
    sink(postgres, "postgres").validate()
    sink(postgres, role, ()).validate()  # it replaces nothing
    assert "row security" not in caplog.text
    sink(postgres, role).validate()
    assert f"row security may hide rows of public.totals from {role}" in caplog.text
    assert f'ALTER ROLE "{role}" BYPASSRLS' in caplog.text


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("ALTER ROLE limited PASSWORD 'another'", "password authentication failed"),
        ("ALTER ROLE limited NOLOGIN", "is not permitted to log in"),
        ("REVOKE INSERT ON totals FROM limited", "permission denied for table totals"),
        ("REVOKE CONNECT ON DATABASE postgres FROM PUBLIC", 'permission denied for database "postgres"'),
    ],
)
def a_role_that_a_jdbc_sinks_database_refuses_ends_the_job_and_blames_no_row(
    postgres: PostgresServer, role: str, change: str, told: str
) -> None:
    conf = postgres.directory / "data" / "pg_hba.conf"
    before = conf.read_text()
    conf.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{before}")
    try:
        postgres.execute(
            f"ALTER ROLE {role} PASSWORD 'right'", f"GRANT INSERT ON totals TO {role}", "SELECT pg_reload_conf()"
        )
        place = postgres.url(role).rpartition("@")[2]
        login = JdbcConnectionOptions(f"jdbc:postgresql://{place}", user_name=role, password="right")
        made = JdbcSink("INSERT INTO totals VALUES (?, ?)", ROWS, login, JdbcExecutionOptions(max_retries=0))
        made.validate()
        writer = made.create_writer(WriterContext(job_info(), "rows", 0, 1))
        postgres.execute(change)
        writer.begin_epoch(1, "a", 0)
        with pytest.raises(ConfigurationError, match=rf"{told}[^$]*statement: INSERT INTO totals"):  # noqa: PT012
            writer.write([("a", 1)], None)
            writer.prepare_commit()
        writer.close()
    finally:
        conf.write_text(before)
        postgres.execute("GRANT CONNECT ON DATABASE postgres TO PUBLIC", "SELECT pg_reload_conf()")


def a_name_server_that_does_not_answer_is_waited_for() -> None:
    said = 'could not translate host name "db" to address: '
    assert refuses_connection(said + "Name or service not known")
    assert not refuses_connection(said + "Temporary failure in name resolution")


DOCUMENTED = [
    "ALTER ROLE limited REPLICATION",
    "GRANT SELECT ON orders TO limited",
    "CREATE PUBLICATION slot_0 FOR TABLE orders WITH (publish_via_partition_root = true)",
    "INSERT INTO orders SELECT i, 'n' || i, i FROM generate_series(1, 30) i",
]


def read(run: Any, count: int) -> list[Any]:
    found: list[Any] = []

    def go_on() -> None:
        found.extend(row for rows in run.epoch(1000).values() for row in rows)

    eventually(lambda: len(found) >= count, go_on)
    return found


def a_sources_role_needs_no_more_than_is_documented(postgres: PostgresServer, role: str, started: Any) -> None:
    postgres.execute(*DOCUMENTED)
    run = started(url=postgres.url(role))
    assert sorted(row.id for row in read(run, 30)) == list(range(1, 31))
    postgres.execute("INSERT INTO orders VALUES (31)")
    assert [row.id for row in read(run.crash(), 1)] == [31]
    postgres.execute("REVOKE SELECT ON orders FROM limited")
    with pytest.raises(ConfigurationError, match=r"does not let limited read public\.orders: GRANT SELECT"):
        run.crash()


def the_changes_made_without_the_publication_are_missed_by_name(postgres: PostgresServer, role: str, started: Any) -> None:
    postgres.execute(*DOCUMENTED)
    run = started(url=postgres.url(role))
    read(run, 30)
    postgres.execute("DROP PUBLICATION slot_0", "INSERT INTO orders VALUES (31)")
    with pytest.raises(
        InputLost, match=r"may be missing.*has no publication 'slot_0' any more: CREATE PUBLICATION.*start afresh"
    ):
        run.crash()
    postgres.execute(DOCUMENTED[2])
    for _ in range(2):  # no start mends it
        with pytest.raises(InputLost, match=r"was altered, or dropped and made again.*drop_replication_slot\('slot_0'"):
            run.crash()


@pytest.fixture
def watching(postgres: PostgresServer, role: str, started: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A source that has read its table, and looks at the publication each time that it plans."""
    monkeypatch.setattr(enumerator, "_CHECK_S", 0.0)
    postgres.execute(*DOCUMENTED)
    run = started(url=postgres.url(role))
    read(run, 30)
    return run


def a_publication_that_was_missing_between_two_looks_at_it_is_noticed(
    postgres: PostgresServer, role: str, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enumerator, "_CHECK_S", 1000.0)
    postgres.execute(*DOCUMENTED)
    run = started(url=postgres.url(role))
    read(run, 30)
    postgres.execute("DROP PUBLICATION slot_0", "INSERT INTO orders VALUES (31)", DOCUMENTED[2])
    with pytest.raises(InputLost, match=r"'slot_0' did not exist when changes after .*drop_replication_slot\('slot_0'"):
        read(run, 1)


_ALL = "SET (publish = 'insert, update, delete, truncate')"


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize(
    ("change", "back"),
    [
        ("DROP TABLE orders", "ADD TABLE orders"),
        ("SET (publish = 'update')", _ALL),
        ("SET TABLE orders WHERE (id > 100)", "SET TABLE orders"),
    ],
)
def a_publication_that_was_narrowed_for_a_moment_is_noticed(
    postgres: PostgresServer, watching: Any, change: str, back: str, running: bool
) -> None:
    postgres.execute(
        f"ALTER PUBLICATION slot_0 {change}", "INSERT INTO orders VALUES (31)", f"ALTER PUBLICATION slot_0 {back}",
        "INSERT INTO orders VALUES (32)",
    )  # fmt: skip
    for go_on in ((lambda: read(watching, 1)) if running else watching.crash, watching.crash):
        with pytest.raises(InputLost, match=r"was altered, or dropped and made again.*start afresh"):
            go_on()


def the_other_tables_of_a_publication_may_come_and_go(postgres: PostgresServer, watching: Any) -> None:
    postgres.execute(
        "ALTER PUBLICATION slot_0 ADD TABLE notes", "ALTER PUBLICATION slot_0 DROP TABLE notes",
        "ALTER TABLE orders ADD COLUMN late int", "ANALYZE orders", "INSERT INTO orders VALUES (31)",
    )  # fmt: skip
    postgres.execute("VACUUM FREEZE pg_publication")
    postgres.execute("VACUUM FULL pg_publication_rel")
    assert [row.id for row in read(watching, 1)] == [31]
    postgres.execute("INSERT INTO orders VALUES (32)")
    assert [row.id for row in read(watching.crash(), 1)] == [32]


def a_publication_of_a_schema_or_of_all_tables_that_was_made_again_is_noticed(
    postgres: PostgresServer, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enumerator, "_CHECK_S", 0.0)
    for number, whole in enumerate(("FOR ALL TABLES", "FOR TABLES IN SCHEMA public")):
        postgres.execute(f"CREATE PUBLICATION whole_{number} {whole}")
        run = started(publication=f"whole_{number}", snapshot=False)
        postgres.execute(f"INSERT INTO orders VALUES ({100 + number})")
        assert [row.id for row in read(run, 1)] == [100 + number]
        if number:
            postgres.execute(
                "ALTER PUBLICATION whole_1 DROP TABLES IN SCHEMA public",
                "ALTER PUBLICATION whole_1 ADD TABLES IN SCHEMA public",
            )
        else:
            postgres.execute("DROP PUBLICATION whole_0", "CREATE PUBLICATION whole_0 FOR ALL TABLES")
        with pytest.raises(InputLost, match="was altered, or dropped and made again"):
            run.crash()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("DROP TABLE orders", "a publication 'slot_0' without public.orders: ALTER PUBLICATION \"slot_0\" ADD TABLE"),
        ("SET (publish = 'insert')", "does not publish update, delete, truncate"),
        ("SET TABLE orders WHERE (id > 5), notes", "publishes only some rows of public.orders"),
    ],
)
def a_publication_that_is_narrowed_under_the_running_job_is_noticed(
    postgres: PostgresServer, watching: Any, change: str, told: str
) -> None:
    postgres.execute("ALTER PUBLICATION slot_0 ADD TABLE notes", f"ALTER PUBLICATION slot_0 {change}")
    postgres.execute("DELETE FROM orders WHERE id = 1")
    for go_on in (lambda: read(watching, 1), watching.crash):
        with pytest.raises(InputLost, match=rf"may be missing, also when it is mended: .*{re.escape(told)}.*start afresh"):
            go_on()


@pytest.mark.parametrize(
    ("said", "lasts"),
    [
        (psycopg.errors.UndefinedTable("Relation »orders« existiert nicht"), True),
        (psycopg.errors.InsufficientPrivilege("keine Berechtigung für Tabelle orders"), True),
        (psycopg.errors.InvalidAuthorizationSpecification("Rolle »limited« hat keine Erlaubnis zum Einloggen"), True),
        (psycopg.errors.AdminShutdown("Verbindung wird abgebrochen aufgrund von Anweisung des Administrators"), False),
        (psycopg.errors.DiskFull('the file "does not exist" any more'), False),
    ],
)
def a_server_may_speak_another_language(postgres: PostgresServer, said: psycopg.Error, lasts: bool) -> None:
    with pytest.raises(ConfigurationError if lasts else ServiceUnavailable, match=re.escape(str(said))):
        Server(postgres.url(), None, "a test", "test").failed("cannot read", said)
