"""Databases by JDBC URLs, and statements with parameters, on Python's DB-API."""

from __future__ import annotations

import datetime
import decimal
import re
import sqlite3
from collections.abc import Iterable
from typing import Any

from holdfast.common.system.optional_library import optional_library
from holdfast.connectors.jdbc_options import JdbcConnectionOptions
from holdfast.connectors.postgres import libraries
from holdfast.errors import ConfigurationError

__all__ = ["Database", "parameters", "with_placeholders"]

_ERROR_OF_SQLITE = 1
_LASTING_OF_SQLITE = {3, 8, 11, 23, 26}
"""Permissions, a file that may only be read, a damaged one, a refused login, no database."""
_SPARED = r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/"""
"""Texts, quoted names and comments of SQL."""
_PARTS = re.compile(rf"({_SPARED})|(\?)|(%)", re.DOTALL)


def parameters(sql: str) -> int:
    """The number of parameters of a statement.

    >>> parameters("INSERT INTO t VALUES (?, '?', ?) -- who?")
    2
    """
    return sum(found.group(2) is not None for found in _PARTS.finditer(sql))


def with_placeholders(sql: str, placeholder: str) -> str:
    """A statement with a driver's own placeholders.

    >>> with_placeholders("INSERT INTO t VALUES (?, '100%?')", "%s")
    "INSERT INTO t VALUES (%s, '100%%?')"
    """
    percent = "%%" if placeholder == "%s" else "%"

    def replaced(found: re.Match[str]) -> str:
        spared, parameter, _ = found.groups()
        return spared.replace("%", percent) if spared else placeholder if parameter else percent

    return _PARTS.sub(replaced, sql)


def _text_of_sqlite(value: Any) -> Any:
    return str(value) if isinstance(value, (datetime.date, datetime.time, decimal.Decimal)) else value


class Database:
    """A database and the Python library for it.

    Raises:
        ConfigurationError: there is no library for the URL, or it is not installed.
    """

    def __init__(self, options: JdbcConnectionOptions) -> None:
        found = re.match(r"jdbc:(postgresql|sqlite):(.+)", options.db_url)
        if found is None:
            raise ConfigurationError(
                f"the URL {options.without_secrets(options.db_url)!r} names no database that Holdfast can write to: use "
                "jdbc:postgresql://host:port/database or jdbc:sqlite:path."
            )
        self.url = options.without_secrets(options.db_url)
        """The URL without a password."""
        self._options = options
        self._login = {"user": options.user_name, "password": options.password}
        self._is_sqlite = found.group(1) == "sqlite"
        self._place = found.group(2)

    @property
    def library(self) -> Any:
        """The DB-API module."""
        if self._is_sqlite:
            return sqlite3
        return optional_library("psycopg", "a JdbcSink for PostgreSQL needs psycopg", "'holdfast[postgres]'")

    @property
    def placeholder(self) -> str:
        """The placeholder of a parameter."""
        return "?" if self._is_sqlite else "%s"

    def bound(self, row: Iterable[Any]) -> tuple[Any, ...]:
        """The values of a row as the library takes them: SQLite has no decimals, dates and times, and gets texts."""
        return tuple(map(_text_of_sqlite, row)) if self._is_sqlite else tuple(row)

    def said(self, error: BaseException) -> str:
        """What an error of the library says, without a password."""
        return self._options.without_secrets(str(error).strip())

    def refuses(self, error: Exception) -> bool:
        """Whether an error lasts until somebody changes the database, its file, the login or the user's rights."""
        if self._is_sqlite:
            return getattr(error, "sqlite_errorcode", 0) & 0xFF in _LASTING_OF_SQLITE
        return libraries.refuses(error)

    def passes(self, error: Exception) -> bool:
        """Whether another attempt may succeed: the database or the connection fails, not a statement with its rows."""
        if not self._is_sqlite:
            return libraries.passes(error)
        failed = isinstance(error, (sqlite3.OperationalError, sqlite3.InterfaceError))
        return failed and getattr(error, "sqlite_errorcode", 0) & 0xFF != _ERROR_OF_SQLITE

    def connect(self) -> Any:
        """Open a connection without autocommit."""
        if self._is_sqlite:
            return sqlite3.connect(self._place, timeout=60, check_same_thread=False)
        return self.library.connect(f"postgresql:{self._place}", **{k: v for k, v in self._login.items() if v is not None})
