"""A PostgreSQL server of its own for tests."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Types
from holdfast.testing.ports import ReservedPort

ORDERS = Types.ROW_NAMED(["id", "name", "amount"], [Types.LONG(), Types.STRING(), Types.BIG_DEC()])
CREATE = "CREATE TABLE orders (id int8 PRIMARY KEY, name text, amount numeric, more int)"
FULL = "ALTER TABLE orders REPLICA IDENTITY FULL"
"""The table that sources read, by default: its type, and the statements that make it."""

SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "12",
    "max_wal_senders": "12",
    "max_prepared_transactions": "40",
    "max_connections": "80",
    "fsync": "off",  # a killed server loses nothing that it has written; only a machine would
    "wal_writer_delay": "10ms",
    "listen_addresses": "127.0.0.1",
    "max_wal_size": "256MB",
    "shared_buffers": "32MB",
}


def binaries() -> Path:
    """The directory with the server's programs; without one, the test is skipped."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    which = shutil.which("postgres")
    if not found and which is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    return found[-1].parent if found else Path(str(which)).resolve().parent


class PostgresServer:
    """A server with an empty database ``postgres``, and the superuser ``postgres`` without a password."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self._reserved = ReservedPort()
        self.port = self._reserved.number
        self._bin = binaries()
        self._settings = {**SETTINGS, "port": str(self.port), "unix_socket_directories": str(directory), **settings}
        self._as = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
        if self._as:
            owner = pwd.getpwnam("postgres")
            os.chown(directory, owner.pw_uid, owner.pw_gid)
        data = str(directory / "data")
        self._run("initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8")
        with (directory / "data" / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in self._settings.items())

    def url(self, user: str = "postgres", database: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        self._run("pg_ctl", "-D", str(self.directory / "data"), "-w", "-l", str(self.directory / "log"), "start")

    def stop(self, mode: str = "immediate") -> None:
        """End the server; ``immediate`` is a crash: it recovers from its log when it starts again."""
        self._run("pg_ctl", "-D", str(self.directory / "data"), "-m", mode, "-w", "stop")

    def release(self) -> None:
        """Let others have the port."""
        self._reserved.release()

    def connect(self, **more: Any) -> Any:
        import psycopg

        return psycopg.connect(self.url(), autocommit=True, **more)

    def execute(self, *statements: str) -> list[Any]:
        """Execute statements, each in a transaction; the rows of the last one."""
        with self.connect() as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._bin / program, *arguments], cwd=self.directory, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL, text=True, check=False, timeout=120, **self._as,
        )  # fmt: skip
        log = self.directory / "log"
        assert done.returncode == 0, f"{program}: {done.stderr}\n{log.read_text()[-2000:] if log.exists() else ''}"


@contextmanager
def postgres_server(**settings: str) -> Iterator[PostgresServer]:
    """A running server, whose directory is removed in the end."""
    pytest.importorskip("psycopg", reason="pip install 'holdfast[postgres]'")
    pytest.importorskip("psycopg2", reason="pip install 'holdfast[postgres]'")
    memory = Path("/dev/shm")  # not the tests' own directory, which another user cannot enter
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 4 << 30
    directory = Path(tempfile.mkdtemp(prefix="holdfast-postgres-", dir=memory if roomy else "/tmp"))
    try:
        server = PostgresServer(directory, **settings)
        server.start()
        try:
            yield server
        finally:
            server.stop()
            server.release()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
