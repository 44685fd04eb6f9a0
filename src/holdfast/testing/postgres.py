"""A PostgreSQL server for tests and the demo: the system's own programs, on a directory of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.testing.ports import ReservedPort

__all__ = ["PostgresServer", "binaries"]

_SETTINGS = {
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
_PATIENCE_S = 60.0


def binaries() -> Path | None:
    """The directory with the server's programs; None if PostgreSQL is not installed.

    That in ``HOLDFAST_POSTGRES``, if it is set; otherwise that of the newest version.
    """
    if named := os.environ.get("HOLDFAST_POSTGRES"):
        return Path(named)
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    which = shutil.which("postgres")
    if found:
        return found[-1].parent
    return None if which is None else Path(which).resolve().parent


class PostgresServer:
    """A server with a database ``postgres``, and the superuser ``postgres`` without a password.

    It listens on a port of its own. Root cannot run PostgreSQL, so a server of root runs as the user ``postgres``.

    Args:
        directory: Its directory; a server that was there goes on with its data.
        programs: The directory with the server's programs; None: `binaries`.
        settings: Settings of ``postgresql.conf``, beyond those for logical replication.

    Raises:
        ConfigurationError: PostgreSQL is not installed, or its user cannot enter the directory.
    """

    def __init__(self, directory: Path, *, programs: Path | None = None, **settings: str) -> None:
        found = programs or binaries()
        if found is None:
            raise ConfigurationError("PostgreSQL is not installed: apt-get install postgresql")
        self.directory = directory = directory.resolve()  # its programs run there
        self._bin = found
        self._reserved = ReservedPort()
        self.port = self._reserved.number
        data = self._data
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._as = {"user": "postgres", "group": "postgres", "extra_groups": []}
            if closed := [str(path) for path in directory.parents if not path.stat().st_mode & 1]:
                raise ConfigurationError(
                    f"root cannot run PostgreSQL, and the user postgres cannot enter {closed[-1]}: choose another directory"
                )
            owner = pwd.getpwnam("postgres")
            os.chown(directory, owner.pw_uid, owner.pw_gid)
        if not data.exists():
            options = ["-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8"]
            self._run("initdb", "-D", str(data), *options)
        given = {**_SETTINGS, "port": str(self.port), "unix_socket_directories": str(directory), **settings}
        (data / "holdfast.conf").write_text("".join(f"{name} = '{value}'\n" for name, value in given.items()))
        with (data / "postgresql.conf").open("r+") as conf:
            if "holdfast.conf" not in conf.read():
                conf.write("include 'holdfast.conf'\n")

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def url(self, user: str = "postgres", database: str = "postgres") -> str:
        """The URL of a database."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> PostgresServer:
        """Start the server, after the end of one that runs in the directory; returns when it answers."""
        if self._processes():
            self.kill()
        self._run("pg_ctl", "-D", str(self._data), "-w", "-l", str(self.directory / "log"), "start")
        return self

    def stop(self, mode: str = "immediate") -> None:
        """End the server; ``immediate`` is a crash: it recovers from its log when it starts again."""
        if self._processes():
            self._run("pg_ctl", "-D", str(self._data), "-m", mode, "-w", "stop")

    def kill(self) -> int:
        """``kill -9`` for all processes of the server; returns their number when they are gone."""
        if pids := self._processes():
            os.kill(pids[0], signal.SIGSTOP)  # no more children
            pids = self._processes()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _PATIENCE_S
        while any(map(_lives, pids)):
            if time.monotonic() > deadline:
                raise ConfigurationError(f"PostgreSQL's processes {pids} cannot be killed")
            time.sleep(0.02)  # the kernel tells their parent only
        # A process that its new parent has not yet buried would pass for a server that runs.
        for lock in (self._data / "postmaster.pid", self.directory / f".s.PGSQL.{self.port}.lock"):
            lock.unlink(missing_ok=True)
        return len(pids)

    def release(self) -> None:
        """Let others have the port."""
        self._reserved.close()

    def connect(self, **more: Any) -> Any:
        """Open a connection in autocommit."""
        import psycopg

        return psycopg.connect(self.url(), autocommit=True, **more)

    def execute(self, *statements: str) -> list[Any]:
        """Execute statements, each in a transaction; returns the rows of the last one."""
        with self.connect() as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def _processes(self) -> list[int]:
        """The server's processes, the first one before its children."""
        file = self._data / "postmaster.pid"
        try:
            first = int(file.read_text().split()[0])
        except (OSError, IndexError):
            return []
        if not _lives(first) or "postgres" not in _read(f"/proc/{first}/cmdline"):
            return []
        children = [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _parent(int(entry)) == first]
        return [first, *children]

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._bin / program, *arguments], cwd=self.directory, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL, text=True, check=False, timeout=120, start_new_session=True, **self._as,
        )  # fmt: skip
        if done.returncode != 0:
            log = self.directory / "log"
            said = log.read_text()[-2000:] if log.exists() else ""
            raise ConfigurationError(f"PostgreSQL's {program} fails: {done.stderr.strip()}\n{said}")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _parent(pid: int) -> int:
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[1]) if fields else 0


def _lives(pid: int) -> bool:
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return bool(fields) and fields[0] != "Z"
