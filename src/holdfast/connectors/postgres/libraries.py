"""The library that speaks to PostgreSQL, imported when the first connection is needed."""

from __future__ import annotations

from typing import Any

from holdfast.common.system.optional_library import optional_library

__all__ = ["blames_a_statement", "forbids", "passes", "psycopg"]

_EXTRA = "'holdfast[postgres]'"
_LASTING = ("27", "2F", "38", "39", "54", "55000")
"""What SQL states begin with that psycopg calls failures of operations, although the statement fails again: triggers and
functions, limits of the server (an entry too large for its index), objects that are not in the state they need."""
_PASSING = ("25006", "25P03", "25P04")
"""SQL states that psycopg calls internal errors, and that pass: a server takes no writes for now (a standby before it takes
over, a hosted server whose disk is full), or a transaction took too long."""


def passes(error: BaseException) -> bool:
    """Whether another attempt may succeed: the server or the connection fails, not a statement."""
    library = psycopg()
    if isinstance(error, (library.OperationalError, library.InterfaceError)):
        return not blames_a_statement(error)
    return getattr(error, "sqlstate", None) in _PASSING


def blames_a_statement(error: BaseException) -> bool:
    """Whether a statement failed that will fail again: with one of its rows, or with any."""
    library = psycopg()
    if isinstance(error, (library.OperationalError, library.InterfaceError)):
        return (getattr(error, "sqlstate", None) or "").startswith(_LASTING)
    return isinstance(error, (library.DataError, library.IntegrityError, library.ProgrammingError))


def forbids(error: BaseException) -> bool:
    """Whether a right of the role is missing: no row is to blame."""
    return getattr(error, "sqlstate", None) == "42501"


def psycopg() -> Any:
    """Psycopg.

    Raises:
        ConfigurationError: it is not installed.
    """
    return optional_library("psycopg", "PostgreSQL needs psycopg", _EXTRA)
