"""A writer by chance to a table of PostgreSQL."""

from __future__ import annotations

import random
from typing import Any

from postgres_server import FULL, PostgresServer

from holdfast.common import Types

__all__ = ["TEXT_KEYS", "TEXT_TABLE", "Writer"]

_OTHER_SCHEMAS = (
    "ALTER TABLE orders ADD COLUMN IF NOT EXISTS extra text DEFAULT 'x'",
    "ALTER TABLE orders ADD COLUMN IF NOT EXISTS more int8",
    "ALTER TABLE orders DROP COLUMN IF EXISTS extra",
    "ALTER TABLE orders DROP COLUMN IF EXISTS more, ADD COLUMN more text",
    "ALTER TABLE orders ALTER amount TYPE int4",
    "ALTER TABLE orders ALTER amount TYPE int8",
    "ALTER TABLE orders ALTER name TYPE varchar(6000)",
)
"""Statements after which the rows are still those of `TEXT_KEYS`."""

TEXT_KEYS = Types.ROW_NAMED(["id", "name", "amount"], [Types.STRING(), Types.STRING(), Types.LONG()])
TEXT_TABLE = (
    "DROP TABLE orders",
    'CREATE TABLE orders (id text COLLATE "en-x-icu" PRIMARY KEY, name text, amount int8)',
    FULL,
    "ALTER TABLE orders ALTER name SET STORAGE EXTERNAL",
)
"""The type of the orders with keys of text, and the statements that make them."""


class Writer:
    """Writes to the orders by chance: statements, transactions, savepoints.

    Args:
        server: The server.
        seed: Another one, other statements.
        locks: Whether it truncates and alters the table, too: both wait for a snapshot.
    """

    def __init__(self, server: PostgresServer, seed: int, locks: bool) -> None:
        self._draw = random.Random(seed)
        self._connection = server.connect()
        self._open = server.connect()
        """A connection with a long transaction."""
        self._keys = [str(n) for n in range(40)] + ["ä b", "'", "\\", "Z", "a", "_", "%s"]
        self._locks = locks

    def write(self, times: int) -> None:
        for _ in range(times):
            self._step(self._connection)
            if self._draw.random() < 0.1:
                if self._open.info.transaction_status.name == "IDLE":
                    self._open.execute("BEGIN")
                    self._open.execute("INSERT INTO notes VALUES (1, 'x')")
                else:
                    self._open.execute(self._draw.choice(["COMMIT", "ROLLBACK"]))

    def end_transaction(self) -> None:
        self._open.commit()

    def close(self) -> None:
        self._open.close()
        self._connection.close()

    def _step(self, connection: Any) -> None:
        draw = self._draw
        if draw.random() < 0.2:
            with connection.transaction():
                for _ in range(draw.randrange(5)):
                    self._statement(connection)
                if draw.random() < 0.3:
                    with connection.transaction(force_rollback=draw.random() < 0.5):
                        self._statement(connection)
        else:
            self._statement(connection)

    def _statement(self, connection: Any) -> None:
        draw, key = self._draw, self._draw.choice(self._keys)
        chance = draw.random()
        name = draw.choice(["x" * 5000, "tab\tand\nline", "", None, "né"])
        if self._locks and chance < 0.02:
            connection.execute("TRUNCATE orders")
        elif self._locks and chance < 0.06:
            connection.execute(draw.choice(_OTHER_SCHEMAS))
        elif chance < 0.4:
            sql = "INSERT INTO orders VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE SET amount = orders.amount + 1"
            connection.execute(sql, (key, name, draw.randrange(100)))
        elif chance < 0.6:
            connection.execute("UPDATE orders SET amount = amount + 1 WHERE id = %s", (key,))
        elif chance < 0.75:
            other = draw.choice(self._keys)
            sql = "UPDATE orders SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM orders WHERE id = %s)"
            connection.execute(sql, (other, key, other))
        elif chance < 0.95:
            connection.execute("DELETE FROM orders WHERE id = %s", (key,))
        else:
            connection.execute("DELETE FROM orders WHERE amount > 20")
