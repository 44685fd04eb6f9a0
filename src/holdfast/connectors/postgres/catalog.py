"""The tables and the publication of a source, checked against the server's catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.common.changelog_mode import ChangelogMode, MissingColumns
from holdfast.common.typeinfo import RowTypeInfo
from holdfast.connectors.postgres import libraries
from holdfast.connectors.postgres.server import Server
from holdfast.connectors.postgres.sql import qualified, quoted
from holdfast.connectors.postgres.values import accepted_types

__all__ = ["Table", "check_publication", "check_tables", "publication_version"]


@dataclass(frozen=True)
class Table:
    """A table as the server has it now."""

    name: str
    types: dict[str, int]
    """The types of the declared columns, by OID."""
    key: list[str]
    """The columns of the primary key."""
    key_types: list[str]
    """Their types, by name."""


_COLUMNS = """
SELECT a.attname, t.oid::int8, CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END::int8, a.attgenerated,
       format_type(a.atttypid, a.atttypmod)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_KEY = """
SELECT a.attname, format_type(a.atttypid, NULL) FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k(attnum, n)
JOIN pg_attribute a ON a.attnum = k.attnum
WHERE i.indrelid = %s AND i.indisprimary AND a.attrelid = i.indrelid ORDER BY k.n
"""
_PUBLICATION = """
WITH publication AS (SELECT oid, xmin FROM pg_publication WHERE pubname = %(publication)s),
     named AS (SELECT unnest(%(tables)s::regclass[]) AS relation),
     published AS (SELECT relation FROM named
                   UNION SELECT relid FROM named, pg_partition_ancestors(relation)
                   UNION SELECT relid FROM named, pg_partition_tree(relation))
SELECT string_agg(entry, ' ' ORDER BY entry) FROM (
    SELECT oid || '.' || xmin::text AS entry FROM publication
    UNION ALL SELECT r.oid || '.' || r.xmin::text FROM pg_publication_rel r JOIN publication p ON p.oid = r.prpubid
              WHERE r.prrelid IN (SELECT relation FROM published)
    {schemas}) entries
"""
_SCHEMAS = """
    UNION ALL SELECT n.oid || '.' || n.xmin::text FROM pg_publication_namespace n JOIN publication p ON p.oid = n.pnpubid
              WHERE n.pnnspid IN (SELECT relnamespace FROM pg_class WHERE oid IN (SELECT relation FROM published))
"""
"""Since PostgreSQL 15, whole schemas can be published."""
_LEAVES = """
SELECT c.oid::regclass::text, c.relreplident FROM pg_partition_tree(%s) p JOIN pg_class c ON c.oid = p.relid
WHERE p.isleaf ORDER BY 1
"""


def check_tables(
    server: Server,
    connection: Any,
    declared: Mapping[str, RowTypeInfo],
    mode: ChangelogMode,
    missing: MissingColumns,
) -> dict[str, Table]:
    """Check that the tables are as declared, and that the log will have what the rows need.

    Raises:
        ConfigurationError: something does not fit; the text names table, column and remedy.
    """
    return {name: _checked(server, connection, name, row, mode, missing) for name, row in declared.items()}


def _checked(
    server: Server, connection: Any, name: str, declared: RowTypeInfo, mode: ChangelogMode, missing: MissingColumns
) -> Table:
    schema, _, table = name.partition(".")
    found = connection.execute(
        "SELECT c.oid, c.relkind, c.relpersistence, c.relreplident, has_table_privilege(c.oid, 'SELECT'), "
        "row_security_active(c.oid), c.relispartition, current_user FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %s AND relname = %s",
        (schema, table),
    ).fetchone()
    if found is None:
        server.refuse(f"has no table {name}")
    oid, kind, persistence, identity, readable, secured, is_partition, me = found
    if kind not in ("r", "p"):
        server.refuse(f"has {name}, which is no table: views and foreign tables have no changes")
    if is_partition:
        server.refuse(f"has {name} as a partition: name the partitioned table")
    if persistence != "p":
        server.refuse(f"does not log changes of {name}: it is unlogged or temporary. ALTER TABLE {name} SET LOGGED")
    if not readable:
        server.refuse(f"does not let {me} read {name}: GRANT SELECT ON {name} TO {me}")
    if secured:
        server.refuse(f"shows {me} only some rows of {name} (row security): ALTER ROLE {me} BYPASSRLS")
    columns = {column: rest for column, *rest in connection.execute(_COLUMNS, (oid,)).fetchall()}
    types = _check_columns(server, name, declared, columns, missing)
    key = connection.execute(_KEY, (oid,)).fetchall()
    leaves = connection.execute(_LEAVES, (oid,)).fetchall() if kind == "p" else []
    for leaf, its in [(name, identity), *leaves]:  # the log goes by that of the partition, and names it by the table's
        _check_identity(server, leaf, its, [column for column, _ in key], declared, mode)
    return Table(name, types, [column for column, _ in key], [its_type for _, its_type in key])


def _check_columns(
    server: Server, table: str, declared: RowTypeInfo, columns: Mapping[str, list[Any]], missing: MissingColumns
) -> dict[str, int]:
    types = {}
    for name, declared_type in zip(declared.get_field_names(), declared.get_field_types()):
        if name not in columns:
            if missing == "null":
                continue
            server.refuse(f"has no column {name!r} in {table}; it has {', '.join(columns)}")
        oid, base, generated, described = columns[name]
        accepted = accepted_types(declared_type)
        if accepted is not None and base not in accepted:
            server.refuse(
                f"has the column {name!r} of {table} as {described}, which {declared_type} does not take; declare another "
                "type (Types.STRING() takes the text of any)"
            )
        if generated:
            server.refuse(f"does not log the column {name!r} of {table}, which is generated: leave it out, and compute it")
        types[name] = oid
    return types


def _check_identity(
    server: Server, table: str, identity: str, key: list[str], declared: RowTypeInfo, mode: ChangelogMode
) -> None:
    full = f"ALTER TABLE {table} REPLICA IDENTITY FULL"
    if identity == "f":
        return
    if mode == "all":
        server.refuse(
            f"does not log old rows of {table}: {full}, or set changelog_mode='upsert', which needs none: an update is then "
            "its new row, and a deletion a row with the primary key alone"
        )
    if identity != "d" or not key:
        server.refuse(f"does not log the primary key of deleted rows of {table}: {full}, or give it a primary key")
    if lacking := set(key) - set(declared.get_field_names()):
        server.refuse(f"has {', '.join(sorted(lacking))} in the primary key of {table}: declare it, as upserts need it")


def check_publication(
    server: Server,
    connection: Any,
    name: str,
    declared: Mapping[str, RowTypeInfo],
    truncates: bool,
    *,
    create: bool = True,
) -> None:
    """Make the publication of the tables, or check the one that is there.

    Args:
        server: The server.
        connection: A connection to it.
        name: The name of the publication.
        declared: The tables.
        truncates: Whether it must publish truncates.
        create: Whether to make it if it is missing.

    Raises:
        ConfigurationError: it lacks a table, columns or operations, or the user may not make it.
    """
    tables = ", ".join(map(qualified, declared))
    statement = f"CREATE PUBLICATION {quoted(name)} FOR TABLE {tables} WITH (publish_via_partition_root = true)"
    found = connection.execute(
        "SELECT pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot FROM pg_publication WHERE pubname = %s", (name,)
    ).fetchone()
    if found is None:
        psycopg = libraries.psycopg()
        if not create:
            server.refuse(f"has no publication {name!r} any more: {statement}")
        try:
            connection.execute(statement)
        except psycopg.Error as refused:
            server.refuse(f"has no publication {name!r} and does not let the user make it ({refused}): {statement}")
        return
    lacking = [verb for verb, has in zip(("insert", "update", "delete", "truncate"), found) if not has]
    if not truncates:
        lacking = [verb for verb in lacking if verb != "truncate"]
    if lacking:
        server.refuse(
            f"does not publish {', '.join(lacking)} in the publication {name!r}: ALTER PUBLICATION {quoted(name)} "
            "SET (publish = 'insert, update, delete, truncate')"
        )
    _check_published(server, connection, name, declared, via_root=found[4])


def publication_version(connection: Any, name: str, declared: Mapping[str, RowTypeInfo]) -> str:
    """The catalog's entries about the publication of the tables: others after each statement that changes one of them.

    An entry that was removed and made again is another one, and one that was changed has another ``xmin``.
    """
    schemas = _SCHEMAS if connection.info.server_version >= 150_000 else ""
    tables = list(map(qualified, declared))
    found = connection.execute(_PUBLICATION.format(schemas=schemas), {"publication": name, "tables": tables}).fetchone()[0]
    return str(found)


def _check_published(
    server: Server, connection: Any, name: str, declared: Mapping[str, RowTypeInfo], via_root: bool
) -> None:
    details = connection.info.server_version >= 150_000
    columns = "attnames::text[], rowfilter" if details else "NULL, NULL"
    published = {
        f"{schema}.{table}": (attributes, row_filter)
        for schema, table, attributes, row_filter in connection.execute(
            f"SELECT schemaname, tablename, {columns} FROM pg_publication_tables WHERE pubname = %s", (name,)
        ).fetchall()
    }
    for table, row in declared.items():
        if table not in published:
            partitioned = connection.execute(
                "SELECT relkind = 'p' FROM pg_class WHERE oid = %s::regclass", (qualified(table),)
            ).fetchone()[0]
            if partitioned and not via_root:
                server.refuse(
                    f"publishes partitions of {table} one by one in {name!r}: ALTER PUBLICATION {quoted(name)} "
                    "SET (publish_via_partition_root = true)"
                )
            server.refuse(
                f"has a publication {name!r} without {table}: ALTER PUBLICATION {quoted(name)} ADD TABLE {qualified(table)}"
            )
        attributes, row_filter = published[table]
        if row_filter is not None:
            server.refuse(f"publishes only some rows of {table} in {name!r} (WHERE {row_filter}); filter the stream instead")
        if attributes is not None and (hidden := set(row.get_field_names()) - set(attributes)):
            existing = {
                c
                for c, *_ in connection.execute(
                    "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0", (qualified(table),)
                ).fetchall()
            }
            if hidden & existing:
                server.refuse(f"does not publish {', '.join(sorted(hidden & existing))} of {table} in {name!r}: publish it")
