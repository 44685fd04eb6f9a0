"""JdbcSink: rows in a database, which is SQLite here."""

from __future__ import annotations

import datetime
import decimal
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from connector_harness import job_info

from holdfast.common import Row, Types
from holdfast.connectors.base import WriterContext
from holdfast.connectors.jdbc_database import Database, parameters, with_placeholders
from holdfast.datastream.connectors.jdbc import JdbcConnectionOptions, JdbcExecutionOptions, JdbcSink
from holdfast.errors import ConfigurationError, JobFailed, ServiceUnavailable, UserCodeError
from holdfast.testing import InProcessEnvironment

ROWS = Types.ROW([Types.STRING(), Types.LONG()])
UPSERT = "INSERT INTO totals VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET total = excluded.total"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with an empty table."""
    path = tmp_path / "totals.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE totals (name TEXT PRIMARY KEY, total INTEGER CHECK (total >= 0))")
        connection.commit()
    return path


def options(url: str) -> JdbcConnectionOptions:
    return JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url(url).build()


def sink(path: Path, sql: str = UPSERT, **execution: int) -> JdbcSink:
    return JdbcSink.sink(sql, ROWS, options(f"jdbc:sqlite:{path}"), JdbcExecutionOptions(**execution))


def table(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM totals ORDER BY name").fetchall()


def writer(made: JdbcSink) -> Any:
    made = pickle.loads(pickle.dumps(made))
    assert made.create_committer(job_info(), "uid") is None
    found = made.create_writer(WriterContext(job_info(), "uid", 0, 1))
    found.begin_epoch(1, "attempt", 0)
    return found


def the_newest_totals_of_a_job_are_in_the_table(path: Path) -> None:
    env = InProcessEnvironment().set_parallelism(2)
    payments = env.from_collection([("ann", 5), ("bob", 7), ("ann", 6)], Types.TUPLE([Types.STRING(), Types.LONG()]))
    totals = payments.key_by(lambda payment: payment[0]).sum(1)
    totals.add_sink(sink(path, batch_size=1))
    env.execute("totals")
    assert table(path) == [("ann", 11), ("bob", 7)]


def a_batch_is_written_when_it_is_full_and_the_rest_with_the_epoch(path: Path) -> None:
    made = writer(sink(path, batch_size=2))
    made.write([Row("a", 1), ("b", 2), Row("c", 3)], None)
    assert table(path) == [("a", 1), ("b", 2)]
    assert made.prepare_commit() == []
    assert len(table(path)) == 3
    made.begin_epoch(2, "attempt", 1)
    made.write([Row("d", 4)], None)
    made.abort_epoch()
    made.begin_epoch(2, "again", 1)
    made.write([Row("a", 9)], None)
    made.prepare_commit()
    made.close()
    assert table(path) == [("a", 9), ("b", 2), ("c", 3)]


def a_row_waits_no_longer_than_the_interval(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("holdfast.connectors.jdbc_sink.monotonic", lambda: now[0])
    made = writer(sink(path, batch_interval_ms=500))
    made.write([Row("a", 1)], None)
    now[0] += 0.4
    made.write([Row("b", 2)], None)
    assert table(path) == []
    now[0] += 0.1
    made.write([Row("c", 3)], None)
    assert len(table(path)) == 3
    made.close()


def a_row_that_the_database_refuses_is_named_and_nothing_of_its_batch_is_written(path: Path) -> None:
    made = writer(sink(path))
    made.write([Row("a", 1), Row("b", -2), Row("c", 3)], None)
    with pytest.raises(UserCodeError, match=r"IntegrityError: CHECK .*\n  in operator 'JdbcSink' \(uid 'uid'\)") as failure:
        made.prepare_commit()
    assert "row: ('b', -2)" in str(failure.value)
    assert "statement: INSERT INTO totals" in str(failure.value)
    assert table(path) == []


def a_value_that_the_library_refuses_ends_the_job_with_its_row(tmp_path: Path) -> None:
    database = tmp_path / "numbers.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE numbers (n)")
    rows = Types.ROW([Types.BIG_INT()])
    env = InProcessEnvironment()
    numbers = env.from_collection([Row(1), Row(2**70), Row(3)], rows)
    numbers.add_sink(JdbcSink.sink("INSERT INTO numbers VALUES (?)", rows, options(f"jdbc:sqlite:{database}"))).uid("sink")
    with pytest.raises(UserCodeError, match=rf"OverflowError(.|\n)*uid 'sink'(.|\n)*row: \({2**70},\)"):
        env.execute("numbers")


def a_record_that_is_no_row_of_the_type_is_named(path: Path) -> None:
    env = InProcessEnvironment()
    env.from_collection([("a", 1), ("b", "much")]).add_sink(sink(path)).uid("totals")
    with pytest.raises((UserCodeError, JobFailed)) as failure:
        env.execute("totals")
    assert "record: collection, value 1" in str(failure.value)
    assert "(uid 'totals')" in str(failure.value)


def a_database_that_is_locked_for_a_moment_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    other = sqlite3.connect(path)

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            other.rollback()

    monkeypatch.setattr("holdfast.connectors.jdbc_sink.sleep", wait)
    monkeypatch.setattr(Database, "connect", lambda self: sqlite3.connect(path, timeout=0))
    other.execute("INSERT INTO totals VALUES ('z', 1)")
    made = writer(sink(path))
    made.write([Row("a", 1)], None)
    made.prepare_commit()
    assert (waits, table(path)) == ([1.0, 2.0], [("a", 1)])

    other.execute("INSERT INTO totals VALUES ('z', 1)")
    made.begin_epoch(2, "attempt", 1)
    made.write([Row("b", 1)], None)
    with pytest.raises(ServiceUnavailable, match=r"\(uid 'uid'\) cannot write to jdbc:sqlite:.*after 3 retries: .*locked"):
        made.prepare_commit()
    other.close()
    made.close()


def test_what_cannot_work_is_refused_before_the_job_starts(path: Path, tmp_path: Path) -> None:
    sink(path).validate()
    for text, call in {
        "has 1 parameters (?), and the rows have 2 fields": lambda: sink(path, "INSERT INTO totals VALUES (?, 1)"),
        "names no database that Holdfast can write to": lambda: JdbcSink.sink(UPSERT, ROWS, options("jdbc:oracle:thin:@x")),
        "refuses the statement of the JdbcSink: no such table: nowhere": lambda: sink(
            path, "INSERT INTO nowhere VALUES (?, ?)"
        ).validate(),
        "need a URL": lambda: JdbcConnectionOptions.JdbcConnectionOptionsBuilder().build(),
        "with_batch_size() takes a whole number from 1, not 0": lambda: JdbcExecutionOptions.builder().with_batch_size(0),
    }.items():
        with pytest.raises(ConfigurationError) as failure:
            call()
        assert text in str(failure.value)
    with pytest.raises(TypeError, match=r"takes a RowTypeInfo, not Types.STRING"):
        JdbcSink.sink(UPSERT, Types.STRING(), options("jdbc:sqlite:x"))  # type: ignore[arg-type]
    assert table(path) == []


@pytest.mark.parametrize(
    ("sql", "count", "formatted"),
    [
        ("INSERT INTO t VALUES (?, ?)", 2, "INSERT INTO t VALUES (%s, %s)"),
        ("UPDATE t SET a = ? WHERE b = 'why?' AND c % 2 = ?", 2, "UPDATE t SET a = %s WHERE b = 'why?' AND c %% 2 = %s"),
        (
            "INSERT INTO \"a?\" VALUES ('it''s ?', ?) -- ?\n/* ? */",
            1,
            "INSERT INTO \"a?\" VALUES ('it''s ?', %s) -- ?\n/* ? */",
        ),
    ],
)
def the_parameters_of_a_statement_are_those_outside_of_texts(sql: str, count: int, formatted: str) -> None:
    assert (parameters(sql), with_placeholders(sql, "%s"), with_placeholders(sql, "?")) == (count, formatted, sql)


def the_options_are_those_given_and_keep_the_password_to_themselves() -> None:
    builder = JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url("jdbc:postgresql://db/x")
    made = builder.with_driver_name("org.postgresql.Driver").with_user_name("ann").with_password("secret").build()
    assert (made.get_db_url(), made.get_driver_name()) == ("jdbc:postgresql://db/x", "org.postgresql.Driver")
    assert (made.get_user_name(), made.get_password()) == ("ann", "secret")
    assert "secret" not in repr(made)
    execution = JdbcExecutionOptions.builder().with_batch_size(10).with_batch_interval_ms(20).with_max_retries(0).build()
    assert (execution.get_batch_size(), execution.get_batch_interval_ms(), execution.get_max_retries()) == (10, 20, 0)
    defaults = JdbcExecutionOptions.defaults()
    assert (defaults.get_batch_size(), defaults.get_batch_interval_ms(), defaults.get_max_retries()) == (5000, 0, 3)


def test_values_that_sqlite_does_not_know_are_written_as_texts(tmp_path: Path) -> None:
    path = tmp_path / "days.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE totals (name TEXT, at TEXT, amount NUMERIC, data BLOB)")
        connection.commit()
    types = Types.ROW([Types.SQL_DATE(), Types.SQL_TIMESTAMP(), Types.BIG_DEC(), Types.PRIMITIVE_ARRAY(Types.BYTE())])
    made = writer(JdbcSink.sink("INSERT INTO totals VALUES (?, ?, ?, ?)", types, options(f"jdbc:sqlite:{path}")))
    day, moment = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 12, 30)
    made.write([Row(day, moment, decimal.Decimal("1.50"), b"\x00\xff"), Row(None, None, None, None)], None)
    made.prepare_commit()
    made.close()
    assert table(path) == [(None, None, None, None), ("2024-02-29", "2024-02-29 12:30:00", 1.5, b"\x00\xff")]


@pytest.mark.parametrize(
    "url", ["me:hush-hush@nowhere/shop", "nowhere/shop?user=me&password=hush-hush", "nowhere/hush-hush"]
)
def the_password_is_in_no_text_about_the_database(url: str) -> None:
    builder = JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url(f"jdbc:mysql://{url}").with_user_name("me")
    made = builder.with_password("hush-hush").build()
    assert "hush" not in repr(made)
    assert "hush" not in repr(builder)
    with pytest.raises(ConfigurationError, match=r"names no database") as refused:
        Database(made)
    assert "hush" not in str(refused.value)


def the_password_is_in_no_error_of_the_database(path: Path) -> None:
    builder = JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url(f"jdbc:sqlite:{path}.hush-hush/none")
    with pytest.raises(ServiceUnavailable, match="cannot connect to jdbc:sqlite:") as refused:
        JdbcSink.sink(UPSERT, ROWS, builder.with_password("hush-hush").build()).validate()
    assert "hush" not in str(refused.value)
    with pytest.raises(TypeError) as given:
        JdbcSink.sink(UPSERT, builder.build(), ROWS)
    assert "hush" not in str(given.value)
