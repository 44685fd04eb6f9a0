"""A PostgreSQL server of its own for tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.common import Types
from holdfast.testing.postgres import PostgresServer, binaries

__all__ = ["CREATE", "FULL", "ORDERS", "PostgresServer", "postgres_server"]

ORDERS = Types.ROW_NAMED(["id", "name", "amount"], [Types.LONG(), Types.STRING(), Types.BIG_DEC()])
CREATE = "CREATE TABLE orders (id int8 PRIMARY KEY, name text, amount numeric, more int)"
FULL = "ALTER TABLE orders REPLICA IDENTITY FULL"
"""The table that sources read, by default: its type, and the statements that make it."""


@contextmanager
def postgres_server(*, programs: Path | None = None, **settings: str) -> Iterator[PostgresServer]:
    """A running server, whose directory is removed in the end; without PostgreSQL, the test is skipped."""
    pytest.importorskip("psycopg", reason="pip install 'holdfast[postgres]'")
    if programs is None and binaries() is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    memory = Path("/dev/shm")  # not the tests' own directory, which another user cannot enter
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 4 << 30
    directory = Path(tempfile.mkdtemp(prefix="holdfast-postgres-", dir=memory if roomy else "/tmp"))
    try:
        server = PostgresServer(directory, programs=programs, **settings).start()
        try:
            yield server
        finally:
            server.stop()
            server.release()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
