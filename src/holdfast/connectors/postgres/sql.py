"""Names and values in SQL. Pure."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["literals", "qualified", "quoted"]


def quoted(name: str) -> str:
    """A name, quoted.

    >>> quoted('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def qualified(table: str) -> str:
    """The quoted name of a table.

    >>> qualified("public.orders")
    '"public"."orders"'
    """
    schema, _, name = table.partition(".")
    return f"{quoted(schema)}.{quoted(name)}"


def literals(key: Sequence[str], types: Sequence[str]) -> str:
    """The values of a key as SQL.

    >>> literals(["7", "o'hara"], ["integer", "text"])
    "'7'::integer, E'o''hara'::text"
    """
    return ", ".join(f"{_literal(value)}::{its}" for value, its in zip(key, types))


def _literal(text: str) -> str:
    quotes = text.replace("'", "''")
    return f"'{quotes}'" if text.isascii() and text.isdigit() else "E'" + quotes.replace("\\", "\\\\") + "'"
