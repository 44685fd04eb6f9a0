"""The libraries that speak to PostgreSQL, imported when the first connection is needed."""

from __future__ import annotations

from typing import Any

from holdfast.common.system.optional_library import optional_library

__all__ = ["psycopg", "psycopg2"]

_EXTRA = "'holdfast[postgres]'"


def psycopg() -> Any:
    """The library for everything but the replication protocol.

    Raises:
        ConfigurationError: it is not installed.
    """
    return optional_library("psycopg", "PostgreSQL needs psycopg", _EXTRA)


def psycopg2(part: str = "") -> Any:
    """The library for the replication protocol, or a part of it: ``extras``, ``errors``.

    Raises:
        ConfigurationError: it is not installed.
    """
    return optional_library(f"psycopg2{part and '.'}{part}", "a PostgresCdcSource needs psycopg2", _EXTRA)
