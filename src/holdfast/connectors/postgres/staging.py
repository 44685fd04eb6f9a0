"""The staging table of a PostgresSink, and the statement that moves its rows to the target."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.postgres.server import Server
from holdfast.connectors.postgres.sql import qualified, quoted

__all__ = ["Target", "describe_target"]

_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
       a.atthasdef OR a.attidentity <> '', a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_CHECKS = """
SELECT pg_get_expr(c.conbin, c.conrelid),
       ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.conrelid AND attnum = ANY(c.conkey))
FROM pg_constraint c WHERE c.conrelid = %s AND c.contype = 'c' ORDER BY c.conname
"""
_UNIQUE = """
SELECT ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = i.indrelid AND attnum = ANY(i.indkey))
FROM pg_index i
WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
"""


@dataclass(frozen=True)
class Target:
    """A table and what is written to it."""

    schema: str
    table: str
    columns: tuple[tuple[str, str], ...]
    """The columns that are written, with their types."""
    checks: tuple[str, ...]
    """What must hold for each row that is written."""
    key: tuple[str, ...]

    def staging(self, owner: str) -> str:
        """The staging table's name: another one if columns or constraints change, so that prepared rows keep their table."""
        form = hashlib.sha256(repr((self.columns, self.checks, self.key)).encode()).hexdigest()[:8]
        return f"{self._prefix(owner)}{form}"

    def _prefix(self, owner: str) -> str:
        return f"{self.schema}.{self.table[:30]}_holdfast_{owner}_"

    def create_staging(self, owner: str) -> tuple[str, str]:
        """The statements that make the staging table."""
        columns = "".join(f", {quoted(name)} {its}" for name, its in self.columns)
        checks = "".join(f", CHECK (holdfast_deletes OR ({check}))" for check in self.checks)
        keys = "".join(f", CHECK ({quoted(name)} IS NOT NULL)" for name in self.key)
        staging = self.staging(owner)
        index = quoted(f"{staging.partition('.')[2]}_i")
        return (
            f"CREATE TABLE {qualified(staging)} (holdfast_attempt text, holdfast_generation int8, "
            f"holdfast_number int8, holdfast_deletes bool{columns}{checks}{keys}) "
            "WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000)",
            f"CREATE INDEX {index} ON {qualified(staging)} (holdfast_attempt)",
        )

    def stagings(self, connection: Any, owner: str) -> list[str]:
        """The names of all staging tables of the sink."""
        _, _, prefix = self._prefix(owner).partition(".")
        found = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s AND starts_with(tablename, %s)", (self.schema, prefix)
        ).fetchall()
        return [f"{self.schema}.{name}" for (name,) in found]

    def move(self, staging: str) -> str:
        """The statement that moves the rows of attempts, its parameter, from a staging table; their last ones by key."""
        names = [quoted(name) for name, _ in self.columns]
        columns, target = ", ".join(names), qualified(f"{self.schema}.{self.table}")
        moved = f"WITH moved AS (DELETE FROM {qualified(staging)} WHERE holdfast_attempt = ANY(@) RETURNING *)"
        if not self.key:
            move = f"{moved} INSERT INTO {target} ({columns}) SELECT {columns} FROM moved ORDER BY holdfast_number"
        else:
            keys = [quoted(name) for name in self.key]
            key = ", ".join(keys)
            equal = " AND ".join(f"t.{name} = l.{name}" for name in keys)
            rest = [f"{name} = excluded.{name}" for name in names if name not in keys]
            move = (
                f"{moved}, latest AS (SELECT DISTINCT ON ({key}) * FROM moved ORDER BY {key}, holdfast_number DESC), "
                f"gone AS (DELETE FROM {target} t USING latest l WHERE l.holdfast_deletes AND {equal}) "
                f"INSERT INTO {target} ({columns}) SELECT {columns} FROM latest WHERE NOT holdfast_deletes "
                f"ON CONFLICT ({key}) DO {'UPDATE SET ' + ', '.join(rest) if rest else 'NOTHING'}"
            )
        return move.replace("%", "%%").replace("ANY(@)", "ANY(%s)", 1)


def describe_target(server: Server, connection: Any, table: str, fields: Sequence[str], key: Sequence[str]) -> Target:
    """Describe the target, and check that the sink can write to it.

    Raises:
        ConfigurationError: table, columns, key or rights do not do; the text names the remedy.
    """
    schema, _, name = table.partition(".")
    found = connection.execute(
        "SELECT c.oid, c.relkind, has_schema_privilege(n.oid, 'CREATE'), current_user, "
        "has_table_privilege(c.oid, 'INSERT'), has_table_privilege(c.oid, 'SELECT'), "
        "has_table_privilege(c.oid, 'UPDATE'), has_table_privilege(c.oid, 'DELETE') "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %s AND relname = %s",
        (schema, name),
    ).fetchone()
    if found is None:
        server.refuse(f"has no table {table}: create it before the job starts")
    oid, kind, creates, me, *rights = found
    if kind not in ("r", "p"):
        server.refuse(f"has {table}, which is no table")
    needed = ["INSERT", "SELECT", "UPDATE", "DELETE"] if key else ["INSERT"]
    if lacking := [right for right, has in zip(needed, rights) if not has]:
        server.refuse(f"does not let {me} write {table}: GRANT {', '.join(lacking)} ON {table} TO {me}")
    if not creates:
        server.refuse(f"does not let {me} make the staging table: GRANT CREATE ON SCHEMA {quoted(schema)} TO {me}")
    columns = {column: rest for column, *rest in connection.execute(_COLUMNS, (oid,)).fetchall()}
    for field in fields:
        if field not in columns:
            server.refuse(f"has no column {field!r} in {table}; it has {', '.join(columns)}")
        if columns[field][3]:
            server.refuse(f"computes the column {field!r} of {table} itself: leave it out")
    for column, (_, not_null, has_default, computed) in columns.items():
        if not_null and not has_default and not computed and column not in fields:
            server.refuse(f"needs a value for the column {column!r} of {table}: write it, or give it a default")
    unique = [set(names) for (names,) in connection.execute(_UNIQUE, (oid,)).fetchall()]
    if key and set(key) not in unique:
        server.refuse(f"has no primary key or unique index of {table} on {', '.join(key)}, the primary_key of the sink")
    checks = [f"{quoted(field)} IS NOT NULL" for field in fields if columns[field][1]]
    checks += [its for its, on in connection.execute(_CHECKS, (oid,)).fetchall() if set(on) <= set(fields)]
    return Target(schema, name, tuple((field, columns[field][0]) for field in fields), tuple(checks), tuple(key))
