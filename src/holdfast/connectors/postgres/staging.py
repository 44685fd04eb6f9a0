"""The staging tables of a PostgresSink, and the statements that move their rows to the target."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.postgres.server import Server
from holdfast.connectors.postgres.sql import qualified, quoted

__all__ = ["Position", "Target", "describe_target", "position_table"]

Position = tuple[int, int]
"""The generation of a driver, and an epoch: the rows up to there are in the target, or no checkpoint has them."""

_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod) || coalesce(' COLLATE ' || nullif(a.attcollation, t.typcollation)
       ::regcollation, ''), a.attnotnull, a.atthasdef OR a.attidentity <> '', a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
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
    hidden_from: str = ""
    """The role from which row security may hide rows of the table, so that they are neither replaced nor deleted."""

    def staging(self, owner: str, epoch: int) -> str:
        """The name of an epoch's staging table: another one if columns or constraints change, so that rows keep theirs.

        Two tables take turns: while the rows of an epoch are moved, those of the next one are written.
        """
        form = hashlib.sha256(repr((self.columns, self.checks, self.key)).encode()).hexdigest()[:8]
        return f"{self._prefix(owner)}{form}_{epoch % 2}"

    def position_table(self, owner: str) -> str:
        """The name of the table that has the position up to which a sink's rows were moved."""
        return position_table(self.staging(owner, 0))

    def _prefix(self, owner: str) -> str:
        return f"{self.schema}.{self.table[:30]}_holdfast_{owner}_"

    def create_staging(self, staging: str) -> str:
        """The statement that makes a staging table."""
        columns = "".join(f", {quoted(name)} {its}" for name, its in self.columns)
        checks = "".join(f", CHECK (holdfast_deletes OR ({check}))" for check in self.checks)
        keys = "".join(f", CHECK ({quoted(name)} IS NOT NULL)" for name in self.key)
        return (
            f"CREATE TABLE {qualified(staging)} (holdfast_attempt text, holdfast_generation int8, "
            f"holdfast_number int8, holdfast_deletes bool{columns}{checks}{keys}) "
            "WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000)"
        )

    def stagings(self, connection: Any, owner: str) -> list[str]:
        """The names of all staging tables of the sink."""
        _, _, prefix = self._prefix(owner).partition(".")
        found = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s AND starts_with(tablename, %s)", (self.schema, prefix)
        ).fetchall()
        return [f"{self.schema}.{name}" for (name,) in found]

    def merge(self, staging: str) -> str:
        """The statement that writes the last row by key of attempts, its parameter.

        It finds each row of the target once, which costs half of `upsert`. It fails if another transaction inserts a row
        with one of the keys meanwhile.
        """
        names, equal, rest = self._clauses()
        update = f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{name} = l.{name}' for name in rest)} " if rest else ""
        return _with_attempts(
            f"MERGE INTO {self._name} t USING ({self._latest(staging)}) l ON {equal} "
            f"WHEN MATCHED AND l.holdfast_deletes THEN DELETE {update}"
            f"WHEN NOT MATCHED AND NOT l.holdfast_deletes THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join(f'l.{name}' for name in names)})"
        )

    def upsert(self, staging: str) -> str:
        """The statement that does the same, whatever other transactions do; version 13 and 14 have no MERGE."""
        names, equal, rest = self._clauses()
        columns, key = ", ".join(names), ", ".join(map(quoted, self.key))
        update = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in rest)}" if rest else "NOTHING"
        return _with_attempts(
            f"WITH latest AS ({self._latest(staging)}), "
            f"gone AS (DELETE FROM {self._name} t USING latest l WHERE l.holdfast_deletes AND {equal}) "
            f"INSERT INTO {self._name} ({columns}) SELECT {columns} FROM latest WHERE NOT holdfast_deletes "
            f"ON CONFLICT ({key}) DO {update}"
        )

    def insert(self, staging: str) -> str:
        """The statement that inserts the rows of attempts, its parameter."""
        columns = ", ".join(self._clauses()[0])
        return _with_attempts(
            f"INSERT INTO {self._name} ({columns}) SELECT {columns} FROM {qualified(staging)} "
            "WHERE holdfast_attempt = ANY(@) ORDER BY holdfast_number"
        )

    def count(self, staging: str) -> str:
        """The statement that counts the rows of each of some attempts, its parameter."""
        return _with_attempts(
            f"SELECT holdfast_attempt, count(*) FROM {qualified(staging)} WHERE holdfast_attempt = ANY(@) GROUP BY 1"
        )

    def delete(self, staging: str) -> str:
        """The statement that removes the rows of attempts, its parameter, from a staging table."""
        return _with_attempts(f"DELETE FROM {qualified(staging)} WHERE holdfast_attempt = ANY(@)")

    @property
    def _name(self) -> str:
        return qualified(f"{self.schema}.{self.table}")

    def _clauses(self) -> tuple[list[str], str, list[str]]:
        """The columns, the condition that two rows have one key, and the columns beside the key."""
        names, keys = [quoted(name) for name, _ in self.columns], [quoted(name) for name in self.key]
        return names, " AND ".join(f"t.{name} = l.{name}" for name in keys), [name for name in names if name not in keys]

    def _latest(self, staging: str) -> str:
        key = ", ".join(map(quoted, self.key))
        rows = f"SELECT DISTINCT ON ({key}) * FROM {qualified(staging)} WHERE holdfast_attempt = ANY(@)"
        return f"{rows} ORDER BY {key}, holdfast_number DESC"


def _with_attempts(statement: str) -> str:
    """A statement with its parameter, the attempts."""
    return statement.replace("%", "%%").replace("ANY(@)", "ANY(%s)", 1)


def position_table(staging: str) -> str:
    """The name of the table with the position, by that of a staging table of the same sink.

    >>> position_table("public.totals_holdfast_0a1b2c3d_11223344_1")
    'public.totals_holdfast_moved_0a1b2c3d'
    """
    return re.sub(r"_holdfast_([0-9a-f]{8})_[0-9a-f]{8}_[01]$", r"_holdfast_moved_\1", staging)


def describe_target(server: Server, connection: Any, table: str, fields: Sequence[str], key: Sequence[str]) -> Target:
    """Describe the target, and check that the sink can write to it.

    Raises:
        ConfigurationError: table, columns, key or rights do not do; the text names the remedy.
    """
    schema, _, name = table.partition(".")
    found = connection.execute(
        "SELECT c.oid, c.relkind, has_schema_privilege(n.oid, 'CREATE'), current_user, "
        "has_table_privilege(c.oid, 'INSERT'), has_table_privilege(c.oid, 'SELECT'), "
        "has_table_privilege(c.oid, 'UPDATE'), has_table_privilege(c.oid, 'DELETE'), "
        "row_security_active(c.oid), "
        "ARRAY(SELECT rulename::text FROM pg_rewrite WHERE ev_class = c.oid AND ev_enabled <> 'D') "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %s AND relname = %s",
        (schema, name),
    ).fetchone()
    if found is None:
        server.refuse(f"has no table {table}: create it before the job starts")
    oid, kind, creates, me, *rights, secured, rules = found
    if kind not in ("r", "p"):
        server.refuse(f"has {table}, which is no table")
    if rules and key:
        server.refuse(
            f"has the rule {rules[0]!r} on {table}, and rows are not replaced by key where there are rules: DROP RULE "
            f"{quoted(rules[0])} ON {table}, and use a trigger"
        )
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
        server.refuse(
            f"has no primary key or unique index of {table} on {', '.join(key)}, the primary_key of the sink (a deferrable "
            "one does not do)"
        )
    checks = [f"{quoted(field)} IS NOT NULL" for field in fields if columns[field][1]]
    checks += [its for its, on in connection.execute(_CHECKS, (oid,)).fetchall() if set(on) <= set(fields)]
    written = tuple((field, columns[field][0]) for field in fields)
    return Target(schema, name, written, tuple(checks), tuple(key), me if secured and key else "")
