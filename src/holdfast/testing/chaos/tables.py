"""Both ends of the job on change data: a random writer of its tables, and a reader of its output."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.testing.chaos.programs.changes import SLOT
from holdfast.testing.postgres import PostgresServer

__all__ = ["TableWatcher", "TableWriter"]

_KEYS = 400
_FIRST_ROWS = 2_000
_LONG_KEYS = 1_000_000
"""From here on keys are those of the long transaction, so that it blocks no others."""
_PATIENCE_S = 120.0
_LARGE = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 150))"
"""A text that is stored out of line (TOAST)."""
_SCHEMA = (
    "ALTER TABLE accounts ADD COLUMN IF NOT EXISTS extra text DEFAULT 'x'",
    "ALTER TABLE accounts DROP COLUMN IF EXISTS extra",
    "ALTER TABLE accounts ALTER amount TYPE int8 USING amount::int8",
    "ALTER TABLE accounts ALTER amount TYPE numeric",
    "ALTER TABLE notes ADD COLUMN IF NOT EXISTS extra int",
    "ALTER TABLE notes DROP COLUMN IF EXISTS extra",
)
_NOTED = {
    "WITH new AS (INSERT INTO notes VALUES (%(id)s, %(now)s) RETURNING id) INSERT INTO ledger SELECT 'INSERT', id FROM new",
    "WITH new AS (UPDATE notes SET sent = %(now)s WHERE id = %(id)s RETURNING id) "
    "INSERT INTO ledger SELECT op, id FROM new, (VALUES ('UPDATE_BEFORE'), ('UPDATE_AFTER')) ops (op)",
    "WITH gone AS (DELETE FROM notes WHERE id = %(id)s RETURNING id) INSERT INTO ledger SELECT 'DELETE', id FROM gone",
}
_ACCOUNTS = (
    "INSERT INTO accounts (id, amount, note, sent) VALUES (%(id)s, %(n)s, 'new', %(now)s) ON CONFLICT (id) DO NOTHING",
    f"INSERT INTO accounts (id, amount, note, sent) VALUES (%(id)s, NULL, {_LARGE}, %(now)s) ON CONFLICT (id) DO NOTHING",
    "UPDATE accounts SET amount = amount + %(n)s, sent = %(now)s WHERE id = %(id)s",
    f"UPDATE accounts SET note = {_LARGE}, sent = %(now)s WHERE id = %(id)s",
    "UPDATE accounts SET sent = %(now)s WHERE id BETWEEN %(id)s AND %(id)s + 5",
    "UPDATE accounts SET id = %(other)s, sent = %(now)s WHERE id = %(id)s "
    "AND NOT EXISTS (SELECT FROM accounts WHERE id = %(other)s)",
    "DELETE FROM accounts WHERE id = %(id)s",
)


class TableWriter:
    """Changes the tables at random: short and long transactions, savepoints, rollbacks, keys, truncates, schemas.

    Args:
        server: The server, which may be killed meanwhile.
        seed: Seed of all choices.
        rate: Statements per second.
    """

    def __init__(self, server: PostgresServer, seed: int, rate: float) -> None:
        self._server = server
        self._random = random.Random(seed)
        self._rate = rate
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._long: Any = None
        self._long_until = 0.0
        self._slot_began: Any = None
        self._passes_notes = False
        """Whether the job reads the log: the ledger must not have changes from before."""
        self._failed: Exception | None = None
        self.statements = 0

    def start(self) -> None:
        """Fill the accounts, and start."""
        self._server.execute(
            f"INSERT INTO accounts SELECT i, i, CASE WHEN i % 50 = 0 THEN {_LARGE} END, 0 "
            f"FROM generate_series(1, {_FIRST_ROWS}) i"
        )
        self._thread.start()

    def stop(self) -> None:
        """End the input.

        Raises:
            HoldfastError: the writer has failed.
        """
        self.abandon()
        if self._failed is not None:
            raise HoldfastError(f"the writer failed: {self._failed!r}")

    def abandon(self) -> None:
        """Stop, whatever has happened."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        import psycopg

        connection: Any = None
        lost = time.monotonic()
        while not self._stopping.is_set():
            try:
                if connection is None or connection.closed:
                    connection = self._server.connect(connect_timeout=5)
                    connection.execute("SET lock_timeout = '300ms'")
                self._write(connection)
                lost = time.monotonic()
            except psycopg.OperationalError as error:  # killed, a lock that others have, a deadlock
                if time.monotonic() - lost > _PATIENCE_S:
                    self._failed = error
                    return
                self._stopping.wait(0.1)
            except Exception as error:  # told by stop()
                self._failed = error
                return
        for each in (connection, self._long):
            if each is not None:
                each.close()  # an open transaction is rolled back

    def _write(self, connection: Any) -> None:
        """Write for a moment, then look at the long transaction."""
        draw = self._random
        self._passes_notes = self._passes_notes or self._log_is_read(connection)
        began, written = time.monotonic(), self.statements
        with connection.transaction(force_rollback=draw.random() < 0.1):
            for _ in range(draw.choice((1, 1, 3, 10, 60))):
                with connection.transaction(force_rollback=draw.random() < 0.15):  # a savepoint
                    self._statement(connection)
        if draw.random() < 0.02:
            self._change_schema(connection)
        self._continue_long()
        due = (self.statements - written) / self._rate - (time.monotonic() - began)
        self._stopping.wait(max(due, 0.0))

    def _statement(self, connection: Any) -> None:
        draw = self._random
        self.statements += 1
        told = {"id": draw.randrange(_KEYS), "other": draw.randrange(_KEYS), "n": draw.randint(-9, 9), "now": _now()}
        if not self._passes_notes or draw.random() < 0.6:
            connection.execute(draw.choice(_ACCOUNTS), told)
        else:
            connection.execute(draw.choice(sorted(_NOTED)), told)

    def _change_schema(self, connection: Any) -> None:
        draw = self._random
        if draw.random() < 0.6:
            connection.execute(draw.choice(_SCHEMA))
        elif self._passes_notes:
            with connection.transaction():
                connection.execute("TRUNCATE notes")
                connection.execute("INSERT INTO ledger VALUES ('TRUNCATE', 0)")

    def _continue_long(self) -> None:
        """Write a row in a transaction that lasts for seconds; sometimes end it."""
        draw = self._random
        if self._long is None or self._long.closed:
            self._long = self._server.connect(connect_timeout=5)
            self._long.autocommit = False
            self._long.execute("SET lock_timeout = '300ms'")
            self._long_until = time.monotonic() + draw.uniform(0.5, 4.0)
        self._long.execute(
            "INSERT INTO accounts (id, amount, note, sent) VALUES (%(id)s, 0, NULL, %(now)s) "
            "ON CONFLICT (id) DO UPDATE SET amount = accounts.amount + 1, sent = excluded.sent",
            {"id": _LONG_KEYS + draw.randrange(50), "now": _now()},
        )
        if time.monotonic() > self._long_until:
            self._long.rollback() if draw.random() < 0.3 else self._long.commit()
            self._long.close()

    def _log_is_read(self, connection: Any) -> bool:
        """Whether a completed checkpoint has moved the slot, so that no table is read anew."""
        found = connection.execute(
            "SELECT confirmed_flush_lsn, confirmed_flush_lsn > %s FROM pg_replication_slots WHERE slot_name = %s AND active",
            (self._slot_began, SLOT),
        ).fetchone()
        if found is None:
            return False
        if self._slot_began is None:
            self._slot_began = found[0]
        return bool(found[1])


class TableWatcher:
    """Follows the job's tables, and tracks how current they are.

    Args:
        server: The server, which may be killed meanwhile.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._stopping = threading.Event()
        self._news = threading.Condition()
        self.newest = 0
        """Send time (wall clock, ms) of the newest input in the output, for the table that is furthest behind."""
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait for new visible output, at most for this time."""
        with self._news:
            self._news.wait(seconds)

    def close(self) -> None:
        """Stop following."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        import psycopg

        connection: Any = None
        while not self._stopping.wait(0.1):
            try:
                if connection is None or connection.closed:
                    connection = self._server.connect(connect_timeout=5)
                found = connection.execute(
                    "SELECT coalesce((SELECT max(sent) FROM copy), 0), coalesce((SELECT max(sent) FROM journal), 0)"
                ).fetchone()
            except psycopg.OperationalError:
                continue  # the server was killed; it comes back
            with self._news:
                self.newest = min(found)
                self._news.notify_all()
        if connection is not None:
            connection.close()


def _now() -> int:
    return time.time_ns() // 1_000_000
