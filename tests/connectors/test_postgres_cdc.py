"""PostgresCdcSource on a real server: every change once, in the order of commits, whatever dies in between."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from connector_harness import SourceRun, eventually, job_info
from postgres_replica import Replica, catch_up, done, table
from postgres_server import ORDERS, PostgresServer
from postgres_writer import TEXT_KEYS, TEXT_TABLE, Writer

from effort import examples
from holdfast.common import Row, Types
from holdfast.connectors.base import ReaderContext
from holdfast.connectors.postgres.log_stream import LogStream
from holdfast.connectors.postgres.pgoutput import parse_lsn
from holdfast.datastream.connectors.postgres import PostgresCdcSource, Truncated
from holdfast.errors import ConfigurationError, Fenced, IncompatibleState, InputLost, ServiceUnavailable, UserCodeError


def kinds(elements: list[Row]) -> list[tuple[str, Any]]:
    return [(element.get_row_kind().name, element[0]) for element in elements]


def log_of(run: SourceRun) -> list[Any]:
    """The elements of the log until one comes."""
    found: list[Any] = []
    eventually(lambda: found, lambda: found.extend(run.epoch(1000).get("log", [])))
    return found


def the_rows_of_a_table_are_followed_by_its_changes(started: Any, postgres: PostgresServer) -> None:
    postgres.execute("INSERT INTO orders SELECT i, 'n' || i, i / 4.0 FROM generate_series(1, 25) i")
    run, replica = started(chunk_size=10), Replica()
    postgres.execute("UPDATE orders SET name = 'seen' WHERE id = 3", "INSERT INTO orders VALUES (26)")
    replica.read(run)
    assert len(replica.rows) == 10
    assert replica.rows[3][1] == "n3"
    catch_up(run, replica, postgres)
    assert replica.table == table(postgres)
    postgres.execute("UPDATE orders SET amount = 0.10 WHERE id = 4", "UPDATE orders SET id = 40 WHERE id = 4")
    postgres.execute("DELETE FROM orders WHERE id = 40")
    changes: list[Row] = []
    eventually(lambda: len(changes) == 5, lambda: changes.extend(log_of(run)))
    assert kinds(changes) == [("UPDATE_BEFORE", 4), ("UPDATE_AFTER", 4), ("DELETE", 4), ("INSERT", 40), ("DELETE", 40)]
    assert str(changes[1]["amount"]) == "0.10"


def the_slot_is_where_the_server_was_told_although_the_log_goes_on_without_changes(postgres: PostgresServer) -> None:
    postgres.execute("CREATE PUBLICATION told FOR TABLE orders", "CREATE TABLE other (id int8)")
    postgres.execute("SELECT pg_create_logical_replication_slot('told', 'pgoutput')")

    def lsn(what: str) -> int:
        return parse_lsn(postgres.execute(f"SELECT {what}::text")[0][0])

    slot = "(SELECT confirmed_flush_lsn FROM pg_replication_slots)"
    with closing(postgres.connect(replication="database")) as connection:
        log = LogStream(connection, "told", told := lsn(slot), "told")

        def read_to_the_end() -> int:
            postgres.execute("INSERT INTO other SELECT generate_series(1, 100)")
            end = lsn("pg_current_wal_flush_lsn()")
            log.confirm(told, answer=True)
            eventually(lambda: log.wal_end >= end, log.read)
            return end

        for _ in range(3):
            end = read_to_the_end()
            assert lsn(slot) == told
        log.confirm(end, answer=True)
        eventually(lambda: lsn(slot) >= end, log.read)
        assert lsn(slot) == end


def a_transaction_is_whole_in_one_epoch_and_has_the_time_of_its_commit(started: Any, postgres: PostgresServer) -> None:
    run = started()
    with postgres.connect() as one, postgres.connect() as other:
        one.execute("BEGIN")
        one.execute("INSERT INTO orders SELECT i FROM generate_series(1, 500) i")
        other.execute("INSERT INTO orders VALUES (1000)")
        assert kinds(log_of(run)) == [("INSERT", 1000)]
        one.execute("SAVEPOINT undone")
        one.execute("INSERT INTO orders VALUES (600)")
        one.execute("ROLLBACK TO undone")
        one.execute("SAVEPOINT kept")
        one.execute("INSERT INTO orders VALUES (700)")
        one.execute("COMMIT")
        other.execute("BEGIN")
        other.execute("INSERT INTO orders VALUES (800)")
        other.execute("ROLLBACK")
    part = run.last_input.ranges[0]
    assert [row[0] for row in log_of(run)] == [*range(1, 501), 700]
    part = run.last_input.ranges[0]
    batches = run.read(part)
    assert len({stamp for batch in batches for stamp in batch.timestamps or ()}) == 1
    assert batches[0].locate(0).startswith("public.orders, LSN 0/")


def the_server_is_told_only_of_completed_checkpoints(started: Any, postgres: PostgresServer) -> None:
    run = started()

    def confirmed() -> int:
        return parse_lsn(
            postgres.execute("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'slot_0'")[0][0]
        )

    first = run.enumerator.snapshot()["lsn"]
    postgres.execute("INSERT INTO orders VALUES (1)")
    assert kinds(log_of(run)) == [("INSERT", 1)]
    completed = run.state["lsn"]
    assert confirmed() == first
    postgres.execute("INSERT INTO orders VALUES (2)")
    eventually(lambda: run.plan(10).get("log"))
    assert confirmed() == completed < run.enumerator.snapshot()["lsn"]
    run.crash()  # the checkpoint of the second was not completed
    assert kinds(log_of(run)) == [("INSERT", 2)]


def the_slot_moves_on_while_only_other_tables_change(started: Any, postgres: PostgresServer) -> None:
    run, replica = started(), Replica()
    postgres.execute("CREATE TABLE busy AS SELECT 1 AS a", "INSERT INTO busy SELECT i FROM generate_series(1, 20000) i")
    catch_up(run, replica, postgres)
    postgres.execute("INSERT INTO busy VALUES (1)")
    catch_up(run, replica, postgres)
    behind = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn) FROM pg_replication_slots"
    assert postgres.execute(behind)[0][0] < 100_000
    assert replica.rows == {}


@pytest.mark.parametrize("seed", range(examples(4)))
def a_table_made_of_a_random_writers_changes_is_the_servers_although_drivers_die(
    started: Any, postgres: PostgresServer, seed: int
) -> None:
    draw = random.Random(seed)
    postgres.execute(*TEXT_TABLE)
    locks = seed % 2 == 0
    writer = Writer(postgres, seed, locks)
    writer.write(60)
    writer.end_transaction()  # the slot would wait for it
    run = started({"public.orders": TEXT_KEYS}, chunk_size=draw.randint(1, 9), on_truncate="emit" if locks else "fail")
    replica = Replica()
    replica.read(run, most=3)
    for _ in range(14):
        # TRUNCATE and ALTER TABLE wait for the snapshot's transaction.
        writer.write(draw.randrange(12) if not locks or done(run) else 0)
        what = draw.random()
        if what < 0.3:
            run.plan(draw.randint(1, 10))  # its checkpoint is never completed
            run.crash()
        elif what < 0.4:
            run.crash()
        replica.read(run, most=draw.randint(1, 20))
    writer.close()
    catch_up(run, replica, postgres)
    assert replica.table == table(postgres)


def a_driver_that_goes_on_amid_the_snapshot_reads_the_rest_as_it_is_then(started: Any, postgres: PostgresServer) -> None:
    postgres.execute("INSERT INTO orders SELECT i, 'old', 0 FROM generate_series(1, 30) i")
    run, replica = started(chunk_size=10), Replica()
    replica.read(run)
    postgres.execute(
        "UPDATE orders SET name = 'new'",
        "DELETE FROM orders WHERE id IN (5, 15, 25)",
        "INSERT INTO orders VALUES (0, 'new', 0), (31, 'new', 0)",
        "UPDATE orders SET id = 100 WHERE id = 6",
        "UPDATE orders SET id = -1 WHERE id = 26",
    )
    run.crash()
    replica.read(run)
    assert replica.rows[10][1] == "old"
    assert replica.rows[11][1] == "new"
    run.crash()
    postgres.execute("UPDATE orders SET name = 'newer'", "DELETE FROM orders WHERE id IN (2, 12, 22)")
    catch_up(run, replica, postgres)
    assert replica.table == table(postgres)


def a_server_that_crashes_has_the_job_go_on_where_it_was(started: Any, postgres: PostgresServer) -> None:
    postgres.execute("INSERT INTO orders SELECT i, 'old', 0 FROM generate_series(1, 30) i")
    run, replica = started(chunk_size=10), Replica()
    replica.read(run)
    for _ in range(2):  # amid the snapshot, and amid the log
        postgres.execute("UPDATE orders SET amount = amount + 1", "DELETE FROM orders WHERE id % 7 = 0")
        postgres.stop()
        with pytest.raises(ServiceUnavailable, match="does the server run"):
            eventually(lambda: False, lambda: run.plan(10))
        with pytest.raises(ServiceUnavailable, match="cannot connect"):
            run.crash()
        postgres.start()
        run.crash()
        catch_up(run, replica, postgres)
        assert replica.table == table(postgres)


def the_changes_of_several_tables_and_partitions_come_in_the_order_of_commits(
    started: Any, postgres: PostgresServer
) -> None:
    postgres.execute(
        "CREATE TABLE parted (id int8, name text, amount numeric, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF parted FOR VALUES FROM (10) TO (20)",
        "ALTER TABLE parted REPLICA IDENTITY FULL",
        "ALTER TABLE low REPLICA IDENTITY FULL",
        "ALTER TABLE high REPLICA IDENTITY FULL",
        "INSERT INTO parted VALUES (1, 'low', 0), (11, 'high', 0)",
        "INSERT INTO notes VALUES (1, 'a'), (1, 'a')",
    )
    notes = Types.ROW_NAMED(["name", "id"], [Types.STRING(), Types.INT()])
    with pytest.raises(ConfigurationError, match=r"bigint, which .* does not take"):
        started({"public.parted": ORDERS, "public.notes": notes})
    notes = Types.ROW_NAMED(["name"], [Types.STRING()])
    run = started({"public.parted": ORDERS, "public.notes": notes}, chunk_size=1)
    first: list[Any] = []
    eventually(lambda: run.state is not None and done(run), lambda: [first.extend(v) for v in run.epoch(5).values()])
    assert sorted((table, row[0]) for table, row in first) == [
        ("public.notes", "a"), ("public.notes", "a"), ("public.parted", 1), ("public.parted", 11),
    ]  # fmt: skip
    postgres.execute("BEGIN; INSERT INTO notes VALUES (2, 'b'); UPDATE parted SET id = 12 WHERE id = 1; COMMIT")
    assert [(table, row.get_row_kind().name, row[0]) for table, row in log_of(run)] == [
        ("public.notes", "INSERT", "b"),
        ("public.parted", "DELETE", 1),
        ("public.parted", "INSERT", 12),
    ]


def a_deserializer_gets_changes_with_their_origin(started: Any, postgres: PostgresServer) -> None:
    postgres.execute("INSERT INTO orders VALUES (1)")
    run = started(deserializer=only_odd)
    assert run.epoch() == {"public.orders, chunk 1": [("public.orders", 1, True)]}
    postgres.execute("INSERT INTO orders VALUES (2), (3)")
    assert log_of(run) == [("public.orders", 3, False)]


def only_odd(change: Any) -> Any:
    assert change.timestamp > 0
    assert change.lsn > 0
    return (change.table, change.row.id, change.snapshot) if change.row.id % 2 else None


def a_source_without_snapshot_begins_with_the_next_change(started: Any, postgres: PostgresServer) -> None:
    postgres.execute("INSERT INTO orders VALUES (1)")
    run = started(snapshot=False)
    postgres.execute("INSERT INTO orders VALUES (2)")
    assert kinds(log_of(run)) == [("INSERT", 2)]
    run.close()
    postgres.execute("INSERT INTO orders VALUES (3)")
    again = started(snapshot=False, slot_name="slot_0", publication="slot_0")
    assert kinds(log_of(again))[-1] == ("INSERT", 3)


def the_key_is_enough_for_upserts(started: Any, postgres: PostgresServer) -> None:
    postgres.execute("ALTER TABLE orders REPLICA IDENTITY DEFAULT", "INSERT INTO orders VALUES (1, 'a', 1)")
    run = started(changelog_mode="upsert")
    run.epoch()
    postgres.execute("UPDATE orders SET amount = 2", "UPDATE orders SET id = 2", "DELETE FROM orders")
    changes: list[Row] = []
    eventually(lambda: len(changes) == 4, lambda: changes.extend(log_of(run)))
    assert kinds(changes) == [("UPDATE_AFTER", 1), ("DELETE", 1), ("INSERT", 2), ("DELETE", 2)]
    assert list(changes[1]) == [1, None, None]


def a_truncate_ends_the_job_or_is_an_element_or_is_left_out(started: Any, postgres: PostgresServer) -> None:
    fails, emits, skips = (started(on_truncate=how) for how in ("fail", "emit", "skip"))
    for run in (fails, emits, skips):
        run.epoch()  # statements on whole tables wait for the end of the snapshot
    postgres.execute("TRUNCATE orders, notes", "INSERT INTO orders VALUES (1)")
    with pytest.raises(UserCodeError, match="truncated, and a stream of rows cannot say so") as failure:
        log_of(fails)
    assert failure.value.record.startswith("public.orders, LSN 0/")
    truncated, inserted = log_of(emits)[:2]
    assert isinstance(truncated, Truncated)
    assert truncated.table == "public.orders"
    assert kinds([inserted]) == [("INSERT", 1)]
    assert kinds(log_of(skips)) == [("INSERT", 1)]


def a_column_that_is_added_is_left_out_and_one_that_goes_is_named(started: Any, postgres: PostgresServer) -> None:
    run = started()
    run.epoch()
    postgres.execute("ALTER TABLE orders ADD extra text DEFAULT 'e'", "INSERT INTO orders VALUES (1)")
    assert [list(row) for row in log_of(run)] == [[1, None, None]]
    postgres.execute("ALTER TABLE orders ALTER amount TYPE numeric(9, 2)", "INSERT INTO orders VALUES (2, 'b', 2)")
    assert [str(row.amount) for row in log_of(run)] == ["2.00"]
    postgres.execute("ALTER TABLE orders RENAME name TO title", "INSERT INTO orders VALUES (3, 'c')")
    with pytest.raises(
        UserCodeError, match=r"(?s)no column 'name' at this place of the log.*missing_columns='null'.*uid 'source'"
    ):
        log_of(run)
    with pytest.raises(ConfigurationError, match=r"no column 'name' in public.orders; it has id, title"):
        run.crash()
    both = Types.ROW_NAMED(["id", "name", "title"], [Types.LONG(), Types.STRING(), Types.STRING()])
    source: Any = PostgresCdcSource(postgres.url(), {"public.orders": both}, "slot_0", missing_columns="null")
    run.source = source
    run.crash()
    assert [list(row) for row in log_of(run)] == [[3, None, "c"]]


def a_value_that_the_type_does_not_take_is_named_with_its_place(started: Any, postgres: PostgresServer) -> None:
    days = Types.ROW_NAMED(["id", "day"], [Types.LONG(), Types.SQL_DATE()])
    postgres.execute("CREATE TABLE days (id int8 PRIMARY KEY, day date)", "ALTER TABLE days REPLICA IDENTITY FULL")
    run = started({"public.days": days})
    run.epoch()
    postgres.execute("INSERT INTO days VALUES (7, 'infinity')")
    with pytest.raises(UserCodeError, match="column 'day' has the value b'infinity'") as failure:
        log_of(run)
    assert "key 7" in failure.value.record
    other = started({"public.days": days}, start=False)
    other.start()
    with pytest.raises(UserCodeError, match="column 'day' has the value b'infinity'") as failure:
        other.epoch()
    assert "row 1 of its public.days, chunk 1" in failure.value.record


def a_slot_that_is_gone_or_has_moved_on_is_lost_input(started: Any, postgres: PostgresServer) -> None:
    run, replica = started(), Replica()
    catch_up(run, replica, postgres)
    early = run.state
    for number in range(2):  # the second epoch confirms the first
        postgres.execute(f"INSERT INTO orders VALUES ({number})")
        log_of(run)
    run.state, latest = early, run.state
    with pytest.raises(InputLost, match=r"has moved on.*Restore the latest one"):
        run.crash()
    run.state = latest
    run.crash()
    postgres.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active",
    )
    eventually(lambda: postgres.execute("SELECT active FROM pg_replication_slots") == [(False,)])
    postgres.execute("SELECT pg_drop_replication_slot('slot_0')", "INSERT INTO orders VALUES (7)")
    with pytest.raises(InputLost, match=r"'slot_0' was dropped.*Start it afresh"):
        log_of(run)
    with pytest.raises(InputLost, match="'slot_0' was dropped"):
        run.crash()


def a_slot_that_lost_its_log_is_lost_input(started: Any, postgres: PostgresServer) -> None:
    run, replica = started(), Replica()
    catch_up(run, replica, postgres)
    postgres.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    try:
        run.enumerator.close()
        eventually(
            lambda: postgres.execute("SELECT wal_status FROM pg_replication_slots") == [("lost",)],
            lambda: postgres.execute(
                "INSERT INTO notes SELECT 1, 'x' FROM generate_series(1, 1000)", "SELECT pg_switch_wal()", "CHECKPOINT"
            ),
            most=50,
        )
        with pytest.raises(InputLost, match="max_slot_wal_keep_size"):
            run.crash()
    finally:
        postgres.execute("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def a_driver_that_died_before_its_first_checkpoint_left_a_slot_that_the_next_one_takes(
    started: Any, postgres: PostgresServer
) -> None:
    run, replica = started(), Replica()
    postgres.execute("INSERT INTO orders VALUES (1)")
    run.plan(10)
    run.crash()
    catch_up(run, replica, postgres)
    assert replica.table == table(postgres)
    assert postgres.execute("SELECT slot_name FROM pg_replication_slots") == [("slot_0",)]


def the_slot_of_another_job_is_left_alone(started: Any, postgres: PostgresServer, tmp_path: Path) -> None:
    first = started()
    other = SourceRun(first.source, f"file://{tmp_path}/other")
    with pytest.raises(ConfigurationError, match="has a replication slot 'slot_0' already: another job reads it"):
        other.start()
    assert postgres.execute("SELECT slot_name FROM pg_replication_slots") == [("slot_0",)]


def a_later_driver_takes_the_slot_and_the_earlier_one_is_fenced(started: Any, postgres: PostgresServer) -> None:
    run, replica = started(), Replica()
    catch_up(run, replica, postgres)
    postgres.execute("INSERT INTO orders VALUES (1)")
    part = run.enumerator.plan(10).ranges[0]

    def reader(generation: int) -> Any:
        job = job_info(run.job.storage_uri, generation)
        return run.source.create_reader(ReaderContext(job, run.uid, 0, 1))

    first, second = reader(1), reader(2)
    assert sum(len(batch.values) for batch in first.read(part, 10)) == 1
    assert sum(len(batch.values) for batch in second.read(part, 10)) == 1
    with pytest.raises(Fenced, match="a later driver"):
        list(first.read(part, 10))
    other = run.source.create_reader(ReaderContext(run.job, "another", 0, 1))
    with pytest.raises(ConfigurationError, match=r"is read by another: holdfast-\w+-g2"):
        list(other.read(part, 10))
    for each in (first, second, other):
        each.close()


def a_table_that_is_declared_later_is_refused(started: Any, postgres: PostgresServer) -> None:
    run = started()
    run.epoch()
    source = PostgresCdcSource(postgres.url(), {"public.orders": ORDERS, "public.notes": ORDERS}, "slot_0")
    with pytest.raises(IncompatibleState, match=r"has not read public.notes so far"):
        source.check_position(run.state)
    run.source.check_position(run.state)  # type: ignore[attr-defined]
    with pytest.raises(IncompatibleState, match="another kind of connector"):
        source.check_position({"lsn": 1})
