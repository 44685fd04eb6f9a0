"""The library that speaks to PostgreSQL, imported when the first connection is needed."""

from __future__ import annotations

from typing import Any

from holdfast.common.system.optional_library import optional_library

__all__ = ["psycopg"]

_EXTRA = "'holdfast[postgres]'"


def psycopg() -> Any:
    """Psycopg.

    Raises:
        ConfigurationError: it is not installed.
    """
    return optional_library("psycopg", "PostgreSQL needs psycopg", _EXTRA)
