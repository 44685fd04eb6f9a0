"""The library that speaks to PostgreSQL, imported when the first connection is needed."""

from __future__ import annotations

from typing import Any

from holdfast.common.system.optional_library import optional_library

__all__ = ["blames_a_statement", "forbids", "passes", "psycopg", "refuses", "refuses_connection"]

_EXTRA = "'holdfast[postgres]'"
_LASTING = ("27", "2F", "38", "39", "54", "55000")
"""What SQL states begin with that psycopg calls failures of operations, although the statement fails again: triggers and
functions, limits of the server (an entry too large for its index), objects that are not in the state they need."""
_LASTING_STATES = {"28", "3D"}
"""The classes of SQL states of a refused login, and of a database that does not exist."""
_FORBIDS = "42501"
"""The SQL state of a missing right."""
_POLICY = "ExecWithCheckOptions"
"""The server's function that reports rows that a policy refuses; its messages may be in any language."""
_REFUSES = (
    "password authentication failed",
    "no password supplied",
    "does not exist",
    "no pg_hba.conf entry",
    "permission denied",
    "must be superuser or replication role",
    "is not permitted to log in",
    "invalid connection option",
    "could not translate host name",
    "failed to resolve host",
    "certificate verify failed",
    "does not match host name",
    "root certificate file",
    "server does not support SSL",
)
"""What the server or its library says of a connection that no restart mends: such an error has no SQL state."""
_LATER = "Temporary failure in name resolution"
"""What the resolver says of a name when the name server does not answer."""
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
    """Whether a right of the role is missing: no row is to blame, but for one that a policy of row security refuses."""
    return getattr(error, "sqlstate", None) == _FORBIDS and error.diag.source_function != _POLICY  # type: ignore[attr-defined]


def refuses_connection(said: str) -> bool:
    """Whether the server refuses a connection until somebody changes the login, the address or a setting, by its text."""
    return any(text in said for text in _REFUSES) and _LATER not in said


def refuses(error: BaseException) -> bool:
    """Whether the server refuses the login, the database or a right, whatever the rows are."""
    state = getattr(error, "sqlstate", None)
    if state is None:
        return isinstance(error, psycopg().OperationalError) and refuses_connection(str(error))
    return state[:2] in _LASTING_STATES or forbids(error)


def psycopg() -> Any:
    """Psycopg.

    Raises:
        ConfigurationError: it is not installed.
    """
    return optional_library("psycopg", "PostgreSQL needs psycopg", _EXTRA)
