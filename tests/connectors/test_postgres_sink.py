"""PostgresSink on a real server: each row once, whatever dies."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, time
from decimal import Decimal
from threading import Event
from typing import Any

import pytest
from connector_harness import Crash, SinkRun, eventually
from postgres_server import PostgresServer

from effort import examples
from holdfast.common import Instant, Row, RowKind, Types
from holdfast.connectors.base import Committable
from holdfast.connectors.postgres.sink import _PostgresCommitter
from holdfast.datastream.connectors.postgres import PostgresSink
from holdfast.errors import ConfigurationError, IncompatibleState, InputLost, ServiceUnavailable, UserCodeError
from holdfast.testing import InProcessEnvironment

TOTALS = Types.ROW_NAMED(["name", "total"], [Types.STRING(), Types.LONG()])
TABLE = "CREATE TABLE totals (name text PRIMARY KEY, total int8 NOT NULL CHECK (total >= 0), more text DEFAULT 'm')"


@pytest.fixture
def postgres(server: PostgresServer) -> PostgresServer:
    """The server, with an empty table ``totals``."""
    server.execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", TABLE)
    return server


def sink(postgres: PostgresServer, key: Any = ("name",), **more: Any) -> Any:
    return PostgresSink(more.pop("url", postgres.url()), "public.totals", TOTALS, primary_key=key, **more)


def table(postgres: PostgresServer) -> list[Any]:
    return postgres.execute("SELECT name, total FROM totals ORDER BY name, total")


def stagings(postgres: PostgresServer) -> dict[str, int]:
    names = postgres.execute("SELECT tablename FROM pg_tables WHERE tablename ~ 'totals_holdfast_.*_[01]$' ORDER BY 1")
    return {name: postgres.execute(f"SELECT count(*) FROM {name}")[0][0] for (name,) in names}


def row(name: str, total: Any, kind: RowKind = RowKind.INSERT) -> Row:
    made = Row.of_kind(kind, name, total)
    made.set_field_names(["name", "total"])
    return made


def the_newest_row_of_each_key_is_in_the_table_when_its_checkpoint_is_complete(postgres: PostgresServer, runs: Any) -> None:
    run = runs(sink(postgres))
    with pytest.raises(Crash):
        run.epoch([[row("a", 1), row("a", 2)], [row("b", 3)]], crash_at="prepared")
    assert table(postgres) == []
    assert sorted(stagings(postgres).values()) == [0, 3]
    run.start()
    assert list(stagings(postgres).values()) == [0, 0]
    run.epoch([[row("a", 1), row("a", 2)], [row("b", 3), row("c", 4)]])
    assert table(postgres) == [("a", 2), ("b", 3), ("c", 4)]
    changes = [
        row("a", 2, RowKind.UPDATE_BEFORE),
        row("a", 5, RowKind.UPDATE_AFTER),
        row("d", 1),
        row("d", None, RowKind.DELETE),
    ]
    run.epoch([changes, [row("b", 3, RowKind.DELETE), row("c", 4, RowKind.DELETE), row("c", 6)]])
    assert table(postgres) == [("a", 5), ("c", 6)]
    assert postgres.execute("SELECT DISTINCT more FROM totals") == [("m",)]


@pytest.mark.parametrize("keyed", [True, False], ids=["by key", "appended"])
@pytest.mark.parametrize("seed", range(examples(2)))
def a_row_is_written_once_wherever_the_process_dies(postgres: PostgresServer, runs: Any, keyed: bool, seed: int) -> None:
    draw = random.Random(seed)
    if not keyed:
        postgres.execute("ALTER TABLE totals DROP CONSTRAINT totals_pkey")
    run = runs(sink(postgres, ("name",) if keyed else ()))
    table_by_key: dict[str, int] = {}
    appended: list[tuple[str, int]] = []
    for _ in range(12):
        values: list[list[Row]] = [[], []]
        for _ in range(draw.randrange(8)):
            subtask = draw.randrange(2)
            deletes = keyed and draw.random() < 0.3
            kind = RowKind.DELETE if deletes else RowKind.INSERT
            values[subtask].append(row(f"{subtask}-{draw.randrange(4)}", draw.randrange(100), kind))
        if run.completes(values, draw.choice([None, *SinkRun.CRASH_POINTS])):
            for each in values[0] + values[1]:
                appended.append((each[0], each[1]))
                if each.get_row_kind() is RowKind.DELETE:
                    table_by_key.pop(each[0], None)
                else:
                    table_by_key[each[0]] = each[1]
        assert table(postgres) == sorted(table_by_key.items() if keyed else appended)
        assert list(stagings(postgres).values()) == [0, 0]


def a_driver_that_was_overtaken_leaves_its_successors_rows_alone(postgres: PostgresServer, runs: Any) -> None:
    run = runs(sink(postgres))
    run.epoch([[row("a", 1)], []])
    run.recover_overtaken([[row("b", 2)], [row("c", 3)]])
    assert table(postgres) == [("a", 1), ("b", 2), ("c", 3)]


def a_server_that_crashes_keeps_what_was_prepared(postgres: PostgresServer, runs: Any) -> None:
    run = runs(sink(postgres))
    with pytest.raises(Crash):
        run.epoch([[row("a", 1)], [row("b", 2)]], crash_at="complete")
    postgres.stop()
    with pytest.raises(ServiceUnavailable, match="cannot"):
        run.start()
    postgres.start()
    run.start()
    assert table(postgres) == [("a", 1), ("b", 2)]
    run.writers[0].begin_epoch(9, "again", 1)
    run.writers[0].write([row("c", 3)], None)
    postgres.stop()
    with pytest.raises(ServiceUnavailable, match="cannot"):
        run.writers[0].prepare_commit()
    postgres.start()
    run.start()
    assert table(postgres) == [("a", 1), ("b", 2)]


def a_server_that_takes_no_writes_for_now_is_tried_again(postgres: PostgresServer, runs: Any) -> None:
    """As a standby before it takes over, or a hosted server whose disk is full."""
    run = runs(sink(postgres))
    run.epoch([[row("a", 1)], []])
    with pytest.raises(Crash):
        run.epoch([[row("b", 2)], []], crash_at="complete")
    begin = "SET default_transaction_read_only = off"
    postgres.execute("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
    try:
        with pytest.raises(ServiceUnavailable, match="read-only transaction"):
            run.start()
    finally:
        postgres.execute(begin, "ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")
    run.start()
    assert table(postgres) == [("a", 1), ("b", 2)]


GONE = r"rows of complete checkpoints are gone before they were written to totals: .*PostgreSQL sink to public\.totals"


def the_rows_of_a_checkpoint_that_the_server_has_lost_end_the_job(postgres: PostgresServer, runs: Any) -> None:
    run = runs(sink(postgres))
    run.epoch([[row("a", 1)], []])
    with pytest.raises(Crash):
        run.epoch([[row("b", 2)], [row("c", 3)]], crash_at="complete")
    for staging in stagings(postgres):  # as on a standby that took over without the last transactions
        postgres.execute(f"DELETE FROM {staging}")
    for _ in range(2):
        with pytest.raises(InputLost, match=GONE):
            run.start()
    assert table(postgres) == [("a", 1)]


def a_driver_notices_that_the_server_has_lost_what_it_had_confirmed(postgres: PostgresServer, runs: Any) -> None:
    run = runs(sink(postgres))
    run.epoch([[row("a", 1)], []])
    ((moved,),) = postgres.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE '%_moved_%'")
    postgres.execute(f"UPDATE {moved} SET epoch = epoch - 1", "DELETE FROM totals")
    with pytest.raises(InputLost, match=rf"confirmed up to epoch 1\..*{GONE[-25:]}"):
        run.epoch([[row("b", 2)], []])


def the_rows_that_wait_on_another_server_are_not_forgotten(postgres: PostgresServer, runs: Any) -> None:
    run = runs(sink(postgres))
    with pytest.raises(Crash):
        run.epoch([[row("a", 1)], []], crash_at="complete")
    postgres.execute("CREATE DATABASE another")
    try:
        other = postgres.url(database="another")
        with postgres.connect(dbname="another") as connection:
            connection.execute(TABLE)
        with pytest.raises(InputLost, match="It is not the server of the job's last run"):
            run.start(sink(postgres, url=other))
        run.start(sink(postgres))
        assert table(postgres) == [("a", 1)]
    finally:
        run.close()
        postgres.execute("DROP DATABASE another WITH (FORCE)")


def a_driver_that_hangs_while_it_moves_rows_does_not_stop_its_successor(
    postgres: PostgresServer, runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.connectors.postgres.sink._HANGS_MS", 500)
    run = runs(sink(postgres))
    with pytest.raises(Crash):
        run.epoch([[row("a", 1)], [row("b", 2)]], crash_at="complete")
    hangs, goes_on = Event(), Event()
    emptied = _PostgresCommitter._emptied

    def hanging(self: Any, *arguments: Any) -> bool:
        hangs.set()
        goes_on.wait()
        return emptied(self, *arguments)

    first = run.sink.create_committer(run.job, run.uid)
    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as patched:
        patched.setattr(_PostgresCommitter, "_emptied", hanging)
        commit = pool.submit(first.commit, run.committables)
        assert hangs.wait(60)
        patched.undo()
        run.start()
        assert table(postgres) == [("a", 1), ("b", 2)]
        run.epoch([[row("a", 3)], []])
        goes_on.set()
        commit.result()  # it tries again, and finds nothing to move
    first.close()
    assert table(postgres) == [("a", 3), ("b", 2)]


def the_columns_may_change_between_two_runs_and_prepared_rows_are_kept(postgres: PostgresServer, runs: Any) -> None:
    run = runs(sink(postgres))
    with pytest.raises(Crash):
        run.epoch([[row("a", 1)], []], crash_at="complete")
    postgres.execute("ALTER TABLE totals ALTER total TYPE numeric(10, 2)")
    run.start()
    assert postgres.execute("SELECT name, total::text FROM totals") == [("a", "1.00")]
    assert len(stagings(postgres)) == 2


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (row("a", -1), r"check constraint.*COPY totals_holdfast_\w+, line 2"),
        (row("a", None), "check constraint"),
        (row("a\0", 1), "NUL|0x00"),
    ],
    ids=["check", "null", "text"],
)
def a_row_that_the_table_refuses_is_named_before_the_checkpoint(
    postgres: PostgresServer, runs: Any, bad: Row, told: str
) -> None:
    run = runs(sink(postgres))
    writer = run.writers[0]
    writer.begin_epoch(1, "attempt", 0)
    with pytest.raises(
        UserCodeError, match=rf"(?s)sink to public\.totals: .*({told}).*operator 'PostgresSink' \(uid 'sink'\)"
    ):
        writer.write([row("x", 1), bad], None) or writer.prepare_commit()
    writer.begin_epoch(1, "again", 0)
    writer.write([row("x", 1)], None)
    assert len(writer.prepare_commit()) == 1


@pytest.mark.parametrize("keyed", [True, False], ids=["by key", "appended"])
@pytest.mark.parametrize("behind", [0, 100_000])
def a_row_that_the_table_refuses_is_told_with_its_key(postgres: PostgresServer, runs: Any, keyed: bool, behind: int) -> None:
    postgres.execute("ALTER TABLE totals ALTER total TYPE int4")
    writer = runs(sink(postgres, ("name",) if keyed else ())).writers[0]
    writer.begin_epoch(1, "attempt", 0)
    writer.write([row("x", 1), row("y", 2)], None)
    told = r"row with name=wide" if keyed else "row with name=wide, total=1099511627776"

    def write() -> None:
        writer.write([row("z", 3), row("wide", 1 << 40)], None)
        for start in range(0, behind, 1000):
            writer.write([row(f"name {number}", number) for number in range(start, start + 1000)], None)
        writer.prepare_commit()

    with pytest.raises(UserCodeError, match=rf"(?s)out of range for type integer.*{told}: COPY \w+, line 4") as refused:
        write()
    assert refused.value.key.startswith("name=wide")


def a_change_of_a_row_needs_a_key(postgres: PostgresServer, runs: Any) -> None:
    writer = runs(sink(postgres, ())).writers[0]
    writer.begin_epoch(1, "attempt", 0)
    with pytest.raises(UserCodeError, match="DELETE needs a primary_key"):
        writer.write([row("a", 1, RowKind.DELETE)], None)


def an_epoch_that_is_abandoned_leaves_nothing(postgres: PostgresServer, runs: Any) -> None:
    run = runs(sink(postgres))
    writer = run.writers[0]
    writer.begin_epoch(1, "attempt", 0)
    writer.write([row("a", 1)], None)
    writer.abort_epoch()
    writer.begin_epoch(1, "again", 0)
    assert writer.prepare_commit() == []
    assert list(stagings(postgres).values()) == [0, 0]


def sizes(postgres: PostgresServer) -> list[int]:
    return sorted(postgres.execute(f"SELECT pg_relation_size('{name}')")[0][0] for name in stagings(postgres))


def a_large_staging_table_is_emptied_as_a_whole_but_for_the_rows_of_later_epochs(
    postgres: PostgresServer, runs: Any
) -> None:
    run = runs(sink(postgres))
    many = [row(f"{number:09}" + "x" * 90, number) for number in range(10_000)]
    run.epoch([many, []])
    assert sizes(postgres) == [0, 0]
    run.epoch([[row("a", 1)], []])
    with pytest.raises(Crash):
        run.epoch([many[:9_000], [row("b", 2)]], crash_at="prepared")  # never complete
    late, prepared = run.writers[1], run.writers[0]
    late.begin_epoch(run.completed + 3, "attempt", run.completed)
    late.write([row("late", 3)], None)
    waits = late.prepare_commit()
    prepared.begin_epoch(run.completed + 1, "again", run.completed)
    prepared.write(many, None)
    run.committer.commit([Committable("sink", 0, data) for data in prepared.prepare_commit()])
    assert sorted(stagings(postgres).values()) == [0, 9_002]
    run.committer.commit([Committable("sink", 0, data) for data in waits])
    assert sizes(postgres)[0] == 0
    assert len(table(postgres)) == 10_002


def a_row_that_another_transaction_inserts_meanwhile_is_replaced(postgres: PostgresServer, runs: Any) -> None:
    run = runs(sink(postgres))
    with postgres.connect() as other, ThreadPoolExecutor(1) as pool:
        other.execute("BEGIN")
        other.execute("INSERT INTO totals VALUES ('a', 1)")
        done = pool.submit(run.epoch, [[row("a", 2), row("b", 3)], []])
        eventually(lambda: postgres.execute("SELECT count(*) FROM pg_locks WHERE NOT granted") != [(0,)])
        other.execute("COMMIT")
        done.result(60)
    assert table(postgres) == [("a", 2), ("b", 3)]


def a_table_and_its_columns_may_have_any_name(postgres: PostgresServer, runs: Any) -> None:
    postgres.execute('CREATE TABLE "To%s ""tals" ("na%%me" text PRIMARY KEY, "to""tal" int8)')
    types = Types.ROW_NAMED(["na%%me", 'to"tal'], [Types.STRING(), Types.LONG()])
    run = runs(PostgresSink(postgres.url(), 'public.To%s "tals', types, primary_key=["na%%me"]))
    run.epoch([[Row("a", 1), Row("b", 2)], []])
    run.epoch([[Row.of_kind(RowKind.DELETE, "a", None), Row("b", 3)], []])
    assert postgres.execute('SELECT * FROM "To%s ""tals"') == [("b", 3)]


def a_key_is_compared_as_its_column_does(postgres: PostgresServer, runs: Any) -> None:
    postgres.execute(
        "CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        "ALTER TABLE totals ALTER name TYPE text COLLATE any_case",
    )
    run = runs(sink(postgres))
    run.epoch([[row("a", 1), row("A", 2), row("b", 3)], []])
    run.epoch([[row("B", None, RowKind.DELETE)], []])
    assert table(postgres) == [("A", 2)]


def a_constraint_of_several_rows_stops_the_job_and_loses_nothing(postgres: PostgresServer, runs: Any) -> None:
    postgres.execute("CREATE UNIQUE INDEX one ON totals (total)")
    run = runs(sink(postgres))
    with pytest.raises(ConfigurationError, match=r"(?s)cannot move the rows.*wait in the staging table: mend the table"):
        run.epoch([[row("a", 1)], [row("b", 1)]])
    postgres.execute("DROP INDEX one")
    run.start()
    assert table(postgres) == [("a", 1), ("b", 1)]


def a_row_that_no_index_takes_stops_the_job_at_once_and_loses_nothing(postgres: PostgresServer, runs: Any) -> None:
    run = runs(sink(postgres))
    wide = "".join(map(str, range(10_000)))  # PostgreSQL takes entries of indexes up to a third of a page
    with pytest.raises(ConfigurationError, match=r"(?s)index row.*wait in the staging table: mend the table"):
        run.epoch([[row("a", 1)], [row(wide, 1)]])
    staged = next(name for name, count in stagings(postgres).items() if count)
    postgres.execute(f"UPDATE {staged} SET name = 'b' WHERE length(name) > 1")
    run.start()
    assert table(postgres) == [("a", 1), ("b", 1)]


def a_row_that_exceeds_a_limit_of_the_server_is_named_before_the_checkpoint(postgres: PostgresServer, runs: Any) -> None:
    postgres.execute("ALTER TABLE totals ADD CHECK (to_tsvector('simple', name) IS NOT NULL)")
    writer = runs(sink(postgres)).writers[0]
    writer.begin_epoch(1, "attempt", 0)
    words = " ".join(map(str, range(200_000)))
    with pytest.raises(UserCodeError, match=r"(?s)too long for tsvector.*COPY totals_holdfast_\w+, line 2"):
        writer.write([row("a", 1), row(words, 2)], None) or writer.prepare_commit()


def a_moment_and_bytes_are_written_as_they_are(postgres: PostgresServer, runs: Any) -> None:
    postgres.execute("DROP TABLE totals", "CREATE TABLE totals (at timestamptz, data bytea, name text)")
    types = Types.ROW_NAMED(["at", "data", "name"], [Types.INSTANT(), Types.PRIMITIVE_ARRAY(Types.BYTE()), Types.STRING()])
    run = runs(PostgresSink(postgres.url(), "public.totals", types))
    run.epoch([[Row(Instant(1, 5000), b"\x00\xff", "tab\tline\n\\N")], []])
    found = postgres.execute("SELECT extract(epoch FROM at)::text, data, name FROM totals")
    assert found == [("1.000005", b"\x00\xff", "tab\tline\n\\N")]


def a_value_of_any_type_is_written_as_it_is_in_rows_tuples_and_changes(postgres: PostgresServer, runs: Any) -> None:
    """Rows are copied as text, by columns; a batch with anything else is written value by value."""
    types = {
        "i": ("int8", Types.LONG(), [0, -(2**63), 2**63 - 1, None]),
        "s": ("text", Types.STRING(), ["", "tab\tand\nline\\N \\", "\\N", "é\r"]),
        "n": ("numeric", Types.BIG_DEC(), [Decimal("1E+3"), Decimal("-0.10"), None, Decimal("12")]),
        "f": ("float8", Types.DOUBLE(), [1e300, float("inf"), 0.1, None]),
        "b": ("bool", Types.BOOLEAN(), [True, False, None, True]),
        "d": ("date", Types.SQL_DATE(), [date(1, 1, 1), date(9999, 12, 31), None, date(2026, 1, 2)]),
        "t": ("time", Types.SQL_TIME(), [time(0), time(23, 59, 59, 999_000), None, time(1, 2, 3)]),
        "m": ("timestamp", Types.SQL_TIMESTAMP(), [datetime(2026, 1, 2, 3, 4, 5, 678_000), None, datetime(1, 1, 1), None]),
        "z": ("timestamptz", Types.INSTANT(), [Instant(0, 1000), None, Instant(-1, 0), Instant(1_700_000_000, 0)]),
        "y": ("bytea", Types.PRIMITIVE_ARRAY(Types.BYTE()), [b"", b"\\x\0\n", None, b"\xff"]),
    }
    declared = Types.ROW_NAMED(list(types), [each for _, each, _ in types.values()])
    rows = list(zip(*(values for _, _, values in types.values())))
    found = []
    for name, make in (("whole", lambda row: Row.of_values(list(row), list(types))), ("each", lambda row: row)):
        columns = ", ".join(f"{column} {its}" for column, (its, _, _) in types.items())
        postgres.execute(f"CREATE TABLE {name} ({columns})")
        runs(PostgresSink(postgres.url(), f"public.{name}", declared)).epoch([[make(row) for row in rows], []])
        found.append(postgres.execute(f"SELECT *, ctid FROM {name}"))
    assert repr(found[0]) == repr(found[1])
    assert [row[1] for row in found[0]] == [row[1] for row in rows]
    assert [row[9] for row in found[0]] == [row[9] for row in rows]


def a_job_writes_the_totals(postgres: PostgresServer) -> None:
    env = InProcessEnvironment().set_parallelism(2)
    payments = env.from_collection([("ann", 5), ("bob", 7), ("ann", 6)], Types.TUPLE([Types.STRING(), Types.LONG()]))
    payments.key_by(lambda payment: payment[0]).sum(1).map(lambda total: Row(*total), TOTALS).sink_to(sink(postgres))
    env.execute("totals")
    assert table(postgres) == [("ann", 11), ("bob", 7)]


BAD = [
    (["DROP TABLE totals"], "has no table public.totals: create it"),
    (["ALTER TABLE totals RENAME total TO sum"], "has no column 'total' in public.totals; it has name, sum, more"),
    (["ALTER TABLE totals DROP CONSTRAINT totals_pkey"], "no primary key or unique index of public.totals on name"),
    (["ALTER TABLE totals ADD other int NOT NULL"], "needs a value for the column 'other'"),
    (
        ["ALTER TABLE totals DROP total", "ALTER TABLE totals ADD total int8 GENERATED ALWAYS AS (1) STORED"],
        "computes the column 'total'",
    ),
    (["CREATE RULE also AS ON DELETE TO totals DO ALSO SELECT 1"], "has the rule 'also' on public.totals.*use a trigger"),
    (["DROP TABLE totals", "CREATE VIEW totals AS SELECT 'a' AS name, 1 AS total"], "which is no table"),
]


@pytest.mark.parametrize(("statements", "told"), BAD, ids=[told[:30] for _, told in BAD])
def a_table_that_does_not_do_is_told_before_the_job_starts(
    postgres: PostgresServer, statements: list[str], told: str
) -> None:
    postgres.execute(*statements)
    with pytest.raises(ConfigurationError, match=rf"{told}.*PostgreSQL sink to public\.totals"):
        sink(postgres).validate()


@pytest.mark.parametrize(
    ("url", "name", "types", "key", "told"),
    [
        ("jdbc:postgresql://h/d", "public.t", TOTALS, (), "the url of a PostgresSink"),
        ("postgresql://h/d", "t", TOTALS, (), "with its schema"),
        ("postgresql://h/d", "public.t", Types.LONG(), (), "ROW_NAMED"),
        ("postgresql://h/d", "public.t", TOTALS, ("sum",), "'sum' is none"),
    ],
)
def a_wrong_argument_is_refused(url: str, name: str, types: Any, key: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        PostgresSink(url, name, types, primary_key=key)


def the_output_of_another_sink_is_refused() -> None:
    made = PostgresSink("postgresql://h/d", "public.t", TOTALS)
    made.check_prepared({"version": 1, "staging": "public.s", "attempt": "a"})
    with pytest.raises(IncompatibleState, match="another kind of connector"):
        made.check_prepared({"bucket": "b"})
