"""Connections to PostgreSQL, and what the source needs of the server: told before any input is read."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from holdfast.common.secrets import masked
from holdfast.connectors.base import JobInfo
from holdfast.connectors.postgres import libraries
from holdfast.connectors.postgres.pgoutput import format_lsn, parse_lsn
from holdfast.connectors.postgres.sql import qualified, quoted
from holdfast.connectors.postgres.values import SESSION
from holdfast.errors import ConfigurationError, InputLost, ServiceUnavailable, StaleRange

__all__ = ["Server", "Slot", "application_name", "generation_of"]

_OLDEST = 130_000
_FAILOVER = 170_000
"""The version from which on standbys keep slots."""
_log = logging.getLogger(__name__)
_NO_SNAPSHOT = ("22023", "42704", "55000")
"""The SQL states of a snapshot that does not exist (before PostgreSQL 17, and since), or whose transaction ends."""
_LOCK_MS = 10_000
"""How long a reader of a snapshot waits for a statement that changes its table, or waits to."""


@dataclass(frozen=True)
class Slot:
    """A replication slot, as the server shows it."""

    plugin: str
    database: str
    confirmed: int
    lost: bool
    """Whether the server has removed log that it needs."""
    pid: int | None
    """The process that reads it."""
    reader: str
    """The name of that process's application."""
    failover: bool
    """Whether standbys keep it."""


class Server:
    """A database by its URL.

    Args:
        url: ``postgresql://user@host:5432/database``, with any of libpq's parameters (``?sslmode=verify-full``).
        password: The password, if it is not in the URL.
        user: Who connects, for messages: ``PostgreSQL source, uid 'orders'``.
        application: The name by which the server knows the connections.
    """

    def __init__(self, url: str, password: str | None, user: str, application: str) -> None:
        self.url = masked(url)
        self.user = user
        self._url = url
        self._password = password
        self._application = application

    def settings(self, **more: str) -> dict[str, str]:
        """The parameters of a connection."""
        options = {**SESSION, **more}
        found = {
            "dsn": self._url,
            "application_name": self._application,
            "connect_timeout": "10",
            "keepalives_idle": "30",
            "keepalives_interval": "10",
            "keepalives_count": "3",
            "client_encoding": "UTF8",
            "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
        }
        if self._password is not None:
            found["password"] = self._password
        return found

    def connect(self, **more: str) -> Any:
        """Open a connection in autocommit, with more parameters.

        Raises:
            ConfigurationError: the server refuses it for good.
            ServiceUnavailable: the server does not answer.
        """
        return self._connected("cannot connect", self.settings(), more)

    def _connected(self, what: str, settings: dict[str, str], more: dict[str, str]) -> Any:
        psycopg = libraries.psycopg()
        try:
            return psycopg.connect(settings.pop("dsn"), autocommit=True, **settings, **more)
        except psycopg.Error as error:
            self.failed(what, error)

    def in_snapshot(self, snapshot: str | None, sees: str | None = None) -> Any:
        """Open a connection in a transaction that has a snapshot.

        Args:
            snapshot: The name under which it was exported; None: a new one.
            sees: What it sees, as ``pg_current_snapshot()`` says. After a restart of the server, names come again.

        Raises:
            StaleRange: there is no such snapshot any more.
        """
        connection = self.connect()
        connection.execute(f"SET lock_timeout = {_LOCK_MS}")
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if snapshot is None:
            return connection
        try:
            connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            (found,) = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
        except libraries.psycopg().Error as error:
            if sees is None or error.sqlstate not in _NO_SNAPSHOT:
                raise
            found = str(error).strip()
        if sees is not None and found != sees:
            connection.close()
            raise StaleRange(
                f"{self.url}: the snapshot {snapshot} ({sees}) has ended with its transaction ({found}): the server or its "
                f"connection was restarted. The rest of the tables is read under a new one [{self.user}]"
            )
        return connection

    def locked(self, tables: Sequence[str], error: Exception) -> NoReturn:
        """Raise the error of a reader that waits for statements that change its tables, or wait to.

        Raises:
            ServiceUnavailable: always; the next attempt reads under a new snapshot, behind those statements.
        """
        with self.connect() as connection:
            found = connection.execute(
                "SELECT DISTINCT pid, left(query, 200) FROM pg_locks JOIN pg_stat_activity USING (pid) "
                "WHERE relation = ANY (%s::regclass[]::oid[]) AND mode = 'AccessExclusiveLock'",
                ([qualified(table) for table in tables],),
            ).fetchall()
        by = "; ".join(f"process {pid}: {query}" for pid, query in found) or "they are gone by now"
        raise ServiceUnavailable(
            f"{', '.join(tables)} cannot be read: a statement changes the table, or waits to ({by}). The next attempt takes "
            f"a new snapshot behind it [{self.user}]"
        ) from error

    def replication(self) -> Any:
        """Open a connection for the replication protocol.

        Raises:
            ConfigurationError: the server refuses it for good.
            ServiceUnavailable: the server does not answer, or has no free process.
        """
        # A reader between two epochs does not read: the server must not take that for its death.
        settings = self.settings(wal_sender_timeout="0", tcp_keepalives_idle="30", tcp_user_timeout="120s")
        return self._connected("cannot connect for replication", settings, {"replication": "database"})

    def failed(self, what: str, error: Exception) -> NoReturn:
        """Raise the error of a connection.

        Raises:
            ConfigurationError: it lasts.
            ServiceUnavailable: another try may succeed.
        """
        said = masked(str(error).strip())
        if "max_wal_senders" in said:
            raise ConfigurationError(
                f"{self.url} has no free process for replication: raise max_wal_senders, and restart the server "
                f"[{self.user}]"
            ) from error
        if stated := getattr(error, "sqlstate", None) is not None:  # texts may be in any language
            lasts = libraries.refuses(error) or isinstance(error, libraries.psycopg().ProgrammingError)
        else:
            lasts = libraries.refuses_connection(said)
        remedy = "check the URL, the user and the password, and pg_hba.conf" if lasts else "does the server run?"
        if not lasts and stated:
            remedy = "it is tried again"  # the server runs, and says why it fails
        raise (ConfigurationError if lasts else ServiceUnavailable)(
            f"{what} to {self.url}: {said}; {remedy} [{self.user}]"
        ) from error

    def check_settings(self, connection: Any) -> None:
        """Check the server's version and settings, and the user's right to replicate.

        Raises:
            ConfigurationError: one does not do.
        """
        if connection.info.server_version < _OLDEST:
            self.refuse(f"is PostgreSQL {connection.info.server_version // 10000}; the source needs version 13 or later")
        level = connection.execute("SHOW wal_level").fetchone()[0]
        if level != "logical":
            self.refuse(f"has wal_level = {level}: set wal_level = logical in postgresql.conf, and restart the server")
        (standby,) = connection.execute("SELECT pg_is_in_recovery()").fetchone()
        if standby:
            self.refuse("is a standby: give the URL of the primary")
        name, may = connection.execute(
            "SELECT rolname, rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
        if not may:
            self.refuse(f"does not let {name} replicate: ALTER ROLE {quoted(name)} REPLICATION")

    def check_failover(self, connection: Any) -> None:
        """Check that standbys can keep a slot; warn if they may be behind its reader.

        Raises:
            ConfigurationError: the server is too old.
        """
        version = connection.info.server_version
        if version < _FAILOVER:
            self.refuse(
                f"is PostgreSQL {version // 10000}, whose standbys keep no slots: failover=True needs version 17 or later"
            )
        if not connection.execute("SHOW synchronized_standby_slots").fetchone()[0]:
            _log.warning(
                "%s has no synchronized_standby_slots: the job may read changes that a standby does not have yet, and ends "
                "with InputLost after a switch to it [%s]", self.url, self.user,
            )  # fmt: skip

    def timeline(self, connection: Any) -> int:
        """The server's timeline: a standby that takes over begins another one."""
        name: str = connection.execute("SELECT pg_walfile_name(pg_current_wal_lsn())").fetchone()[0]
        return int(name[:8], 16)

    def check_timeline(self, connection: Any, timeline: int, position: int) -> None:
        """Check that the server's log has what was read up to a position of a timeline.

        Raises:
            InputLost: the server has branched off before.
        """
        now = self.timeline(connection)
        if now == timeline:
            return
        with self.connect(replication="database") as replication:
            _, history = replication.execute(f"TIMELINE_HISTORY {now:d}").fetchone()
        text = history.decode() if isinstance(history, bytes) else history
        ends = {
            int(tli): parse_lsn(end) for tli, end in re.findall(r"^\s*(\d+)\s+([0-9A-F]+/[0-9A-F]+)", text, re.MULTILINE)
        }
        if position > ends.get(timeline, 0):
            raise InputLost(
                f"{self.url} is a standby that took over (timeline {now}) without all that the job has read of its "
                f"predecessor: up to {format_lsn(position)} of timeline {timeline}, which it left at "
                f"{format_lsn(ends.get(timeline, 0))}. Start the job afresh, without its checkpoints and under another job "
                f"name or directory; synchronized_standby_slots lets no job read ahead of a standby [{self.user}]"
            )

    def check_room(self, connection: Any) -> None:
        """Check that there is a slot to be had.

        Raises:
            ConfigurationError: there is none.
        """
        most, used = connection.execute(
            "SELECT current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots)"
        ).fetchone()
        if used >= most:
            self.refuse(
                f"has no free replication slot (max_replication_slots = {most}): drop one that nobody reads (SELECT "
                "slot_name FROM pg_replication_slots WHERE NOT active), or raise the setting and restart the server"
            )

    def slot(self, connection: Any, name: str) -> Slot | None:
        """The slot of this name."""
        found = connection.execute(
            "SELECT plugin, database, confirmed_flush_lsn::text, wal_status, active_pid, application_name, "
            "coalesce((to_jsonb(s) ->> 'failover')::bool, false) "
            "FROM pg_replication_slots s LEFT JOIN pg_stat_activity ON pid = active_pid WHERE slot_name = %s",
            (name,),
        ).fetchone()
        if found is None:
            return None
        plugin, database, confirmed, status, pid, reader, failover = found
        return Slot(plugin, database, parse_lsn(confirmed or "0/0"), status == "lost", pid, reader or "", failover)

    def slot_to_read(self, connection: Any, name: str, position: int) -> Slot:
        """The slot, which must still have the log from a position on.

        Raises:
            InputLost: it does not.
        """
        found = self.slot(connection, name)
        again = (
            "Changes since then are lost to this job. Start it afresh, without its checkpoints and under another job name "
            f"or directory; it then reads the tables again. SELECT pg_drop_replication_slot('{name}') frees the slot first"
        )
        if found is None:
            raise InputLost(f"{self.url}: the replication slot {name!r} was dropped. {again} [{self.user}]")
        if found.lost:
            raise InputLost(
                f"{self.url}: the server has removed log that the slot {name!r} needs (max_slot_wal_keep_size). {again} "
                f"[{self.user}]"
            )
        if found.confirmed > position:
            raise InputLost(
                f"{self.url}: the slot {name!r} has moved on to {format_lsn(found.confirmed)}, beyond the checkpoint's "
                f"position {format_lsn(position)}: a later checkpoint than the one restored, or another reader, "
                f"had confirmed it. Restore the latest one. {again} "
                f"[{self.user}]"
            )
        return found

    def refuse(self, why: str) -> NoReturn:
        """Raise a ConfigurationError about the server."""
        raise ConfigurationError(f"{self.url} {why} [{self.user}]")


def application_name(job: JobInfo, uid: str) -> str:
    """The name of a job's connections: who reads a slot, and which driver's reader it is."""
    digest = hashlib.sha256(f"{job.identity or job.job_id}\0{uid}".encode()).hexdigest()[:16]
    return f"holdfast-{digest}-g{job.generation}"


def generation_of(reader: str, own: str) -> int | None:
    """The generation of a reader of the same source of the same job; None: another one.

    >>> generation_of("holdfast-ab-g3", "holdfast-ab-g4"), generation_of("pg_recvlogical", "holdfast-ab-g4")
    (3, None)
    """
    name, _, generation = reader.rpartition("-g")
    return int(generation) if name and name == own.rpartition("-g")[0] and generation.isdigit() else None
