"""Rows in a table of PostgreSQL, exactly once.

Writers copy the rows of an epoch to a *staging table* beside the target, in a transaction that ends when the epoch is
prepared: durable, and in nobody's way. When the checkpoint is complete, the committer moves them to the target in one
transaction. Moved rows are gone from the staging table, so a repeated commit moves nothing. A table of one row tells up to
where rows were moved: others that are gone were lost with their server. Epochs take turns between two
staging tables, so that the one whose rows are moved can be emptied at once. They have the target's types and its
constraints of single rows, so a row that does not fit fails its epoch, and not the commit.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.common.time import Instant
from holdfast.common.typeinfo import RowTypeInfo
from holdfast.common.types import Row, RowKind
from holdfast.connectors.base import Committable, JobInfo, WriterContext, check_form
from holdfast.connectors.postgres import libraries
from holdfast.connectors.postgres.copy_text import CopyText, SentLines, moment
from holdfast.connectors.postgres.server import Server
from holdfast.connectors.postgres.sql import qualified, quoted
from holdfast.connectors.postgres.staging import Position, Target, describe_target, position_table
from holdfast.errors import ConfigurationError, InputLost, UserCodeError

__all__ = ["PostgresSink"]

_log = logging.getLogger(__name__)
_VERSION = 2
_TRIES = 5
_MERGES = 150_000
"""The server's version from which on it has MERGE."""
_LARGE = 1 << 20
"""The bytes of a staging table from which on it is emptied as a whole, rather than row by row."""
_HANGS_MS = 10_000
"""How long a driver may hold its locks without a word: one that is paused, or cut off, would stop its successor."""
_NOWHERE: Position = (-1, -1)
"""Without a table that tells it."""
_SENT = 4 << 20
"""The characters that are on their way to the server at most, or a few more: among them is a row that it refuses."""
_OTHERS = """
SELECT EXISTS (SELECT FROM {} WHERE holdfast_attempt <> ALL(%s) AND (holdfast_generation > %s
               OR holdfast_generation = %s AND split_part(holdfast_attempt, '-', 3)::int8 > %s))
"""
"""Whether rows wait for the checkpoint of a later epoch or driver."""


class PostgresSink:
    """A sink that writes rows to a table of PostgreSQL (version 13 or later), exactly once.

    Rows become visible when their checkpoint is complete, all of an epoch in one transaction. The role needs ``CREATE`` on
    the table's schema: the sink makes staging tables there, named as the table with ``_holdfast_`` and more.

    With a primary key, rows are written by their kind: ``INSERT`` and ``UPDATE_AFTER`` replace the row with this key,
    ``DELETE`` deletes it, ``UPDATE_BEFORE`` does nothing. Let ``key_by`` bring the rows of a key to one subtask: only there
    they have an order. Without one, each row is inserted, and other kinds than ``INSERT`` are refused.

    Args:
        url: The database, ``postgresql://user@host:5432/database``, with libpq's parameters.
        table: The table, with its schema: ``public.totals``.
        type_info: The rows: fields are named as the columns, ``Types.ROW_NAMED([...], [...])``.
        primary_key: The columns of a primary key or unique index, to update and delete rows by.
        password: The password; None: that in the URL, or libpq's.

    Raises:
        ConfigurationError: an argument is invalid.

    >>> from holdfast.common import Types
    >>> totals = Types.ROW_NAMED(["name", "total"], [Types.STRING(), Types.LONG()])
    >>> sink = PostgresSink("postgresql://me@localhost/shop", "public.totals", totals, primary_key=["name"])
    """

    def __init__(
        self,
        url: str,
        table: str,
        type_info: RowTypeInfo,
        *,
        primary_key: Sequence[str] = (),
        password: str | None = None,
    ) -> None:
        if not isinstance(url, str) or not url.startswith(("postgresql://", "postgres://")):
            raise ConfigurationError("the url of a PostgresSink is postgresql://user@host:port/database")
        if not isinstance(table, str) or table.count(".") != 1 or not all(table.split(".")):
            raise ConfigurationError(f"name the table {table!r} with its schema: 'public.totals'")
        if not isinstance(type_info, RowTypeInfo):
            raise ConfigurationError(
                f"the rows of a PostgresSink are a Types.ROW_NAMED([columns], [types]), not {type_info!r:.80}"
            )
        keys = [primary_key] if isinstance(primary_key, str) else list(primary_key)
        if unknown := [each for each in keys if each not in type_info.get_field_names()]:
            raise ConfigurationError(f"the primary_key is a list of fields of the rows, and {unknown[0]!r} is none")
        self._url = url
        self._password = password
        self._table = table
        self._type = type_info
        self._key = keys

    def validate(self) -> None:
        """Check the table, its columns, the key, and the rights.

        Raises:
            ConfigurationError: something does not fit; names the remedy.
            ServiceUnavailable: the server does not answer.
        """
        server = self._server("")
        with server.connect() as connection:
            target = self._target(server, connection)
        if target.hidden_from:
            _log.warning(
                "%s: row security may hide rows of %s from %s; those are neither replaced nor deleted. If all rows are the "
                "job's to write: ALTER ROLE %s BYPASSRLS [%s]",
                server.url, self._table, target.hidden_from, quoted(target.hidden_from), server.user,
            )  # fmt: skip

    def create_writer(self, context: WriterContext) -> _PostgresWriter:
        """Create a writer, in a task slot."""
        return _PostgresWriter(self._server(context.uid), self._target, self._type, self._key, context)

    def check_prepared(self, data: Any) -> None:
        """Check that output is in a staging table.

        Raises:
            IncompatibleState: it is not.
        """
        check_form(data, ("version", "staging", "attempt"), "PostgresSink", [1, _VERSION])

    def create_committer(self, job: JobInfo, uid: str) -> _PostgresCommitter:
        """Create the committer, which moves prepared rows to the table."""
        return _PostgresCommitter(self._server(uid), self._target, _owner(job, uid), job.generation)

    def _server(self, uid: str) -> Server:
        where = f"PostgreSQL sink to {self._table}" + (f", uid {uid!r}" if uid else "")
        return Server(self._url, self._password, where, "holdfast-sink")

    def _target(self, server: Server, connection: Any) -> Target:
        return describe_target(server, connection, self._table, self._type.get_field_names(), self._key)


def _owner(job: JobInfo, uid: str) -> str:
    """The name of a job's sink, the same in every driver of the job."""
    names = f"{job.identity or job.storage_uri or job.job_id}\0{job.job_name}\0{uid}"
    return hashlib.sha256(names.encode()).hexdigest()[:8]


def _exists(connection: Any, table: str) -> bool:
    return connection.execute("SELECT to_regclass(%s)", (qualified(table),)).fetchone()[0] is not None


def _position_of(attempt: str) -> Position:
    generation, _, epoch, _ = attempt.split("-", 3)
    return int(generation), int(epoch)


def _plain(value: Any) -> Any:
    """A value as psycopg takes it."""
    return moment(value) if isinstance(value, Instant) else value


class _PostgresWriter:
    """Copies rows to the staging table, in one transaction an epoch."""

    def __init__(
        self,
        server: Server,
        describe: Callable[[Server, Any], Target],
        type_info: RowTypeInfo,
        key: Sequence[str],
        context: WriterContext,
    ) -> None:
        self._server = server
        self._describe = describe
        self._type = type_info
        self._key = key
        self._text = CopyText(type_info)
        self._sent = SentLines(_SENT)
        self._owner = _owner(context.job, context.uid)
        self._generation = context.job.generation
        self._subtask = context.subtask
        self._uid = context.uid
        self._connection: Any = None
        self._target: Target | None = None
        self._staging = ""
        self._epoch = 0
        self._open: Any = None
        """The context of the open COPY."""
        self._copy: Any = None
        self._attempt = ""
        self._count = 0

    def begin_epoch(self, epoch: Epoch, attempt: str, committed: CheckpointId) -> None:
        self._attempt = f"{self._generation}-{self._subtask}-{epoch}-{attempt}"
        self._count, self._epoch = 0, epoch

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        with self._told():
            if not all(type(value) is Row for value in values):
                self._write_each(values)
                return
            rows = values
            kinds = [row.get_row_kind() for row in rows]
            if self._key and RowKind.UPDATE_BEFORE in kinds:
                rows = [row for row, kind in zip(rows, kinds) if kind is not RowKind.UPDATE_BEFORE]
                kinds = [row.get_row_kind() for row in rows]
            lines = self._text.lines(rows) if self._key or set(kinds) <= {RowKind.INSERT} else None
            if lines is None:
                self._write_each(values)
            elif lines:
                self._write_lines(lines, kinds)

    def _write_lines(self, lines: list[str], kinds: list[RowKind]) -> None:
        """Write rows in the text form of COPY."""
        if self._copy is None:
            self._begin()
        head, first = f"{self._attempt}\t{self._generation}\t", self._count + 1
        self._count += len(lines)
        self._sent.add(first, lines)
        text = "\n".join(
            [
                f"{head}{number}\t{'t' if kind is RowKind.DELETE else 'f'}\t{line}"
                for number, (kind, line) in enumerate(zip(kinds, lines), first)
            ]
        )
        self._copy.write(f"{text}\n".encode())

    def _write_each(self, values: Sequence[Any]) -> None:
        """Write rows of any kinds and types; a row that does not fit is refused."""
        conform = self._type.conform
        for value in values:
            row: Row = conform(value)
            kind = row.get_row_kind()
            if kind is RowKind.UPDATE_BEFORE and self._key:
                continue
            if kind is not RowKind.INSERT and not self._key:
                raise self._refused(f"a row of the kind {kind.name} needs a primary_key to be written by", repr(row))
            if self._copy is None:
                self._begin()
            self._count += 1
            self._sent.add(self._count, ["\t".join(map(str, row))])
            self._copy.write_row((self._attempt, self._generation, self._count, kind is RowKind.DELETE, *map(_plain, row)))

    def prepare_commit(self) -> list[Any]:
        if self._copy is None:
            return []
        with self._told():
            done, self._open, self._copy = self._open, None, None
            done.__exit__(None, None, None)
            self._connection.commit()
        return [{"version": _VERSION, "staging": self._staging, "attempt": self._attempt, "rows": self._count}]

    def abort_epoch(self) -> None:
        self.close()

    def close(self) -> None:
        self._open = self._copy = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _begin(self) -> None:
        """Begin to copy, in a transaction."""
        if self._connection is None:
            self._connection = self._server.connect()
            self._target = self._describe(self._server, self._connection)
            self._connection.autocommit = False
        assert self._target is not None
        self._staging = self._target.staging(self._owner, self._epoch)
        own = "holdfast_attempt, holdfast_generation, holdfast_number, holdfast_deletes"
        names = ", ".join(map(quoted, self._type.get_field_names()))
        self._open = self._connection.cursor().copy(f"COPY {qualified(self._staging)} ({own}, {names}) FROM STDIN")
        self._copy = self._open.__enter__()
        self._sent.clear()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn errors of the library into those of a sink; all of them end the epoch's transaction."""
        psycopg = libraries.psycopg()
        try:
            yield
        except psycopg.Error as error:
            self.close()
            if libraries.forbids(error) or not libraries.blames_a_statement(error):
                self._server.failed("cannot write", error)
            context = error.diag.context or ""
            raise self._refused(str(error).strip(), context, self._key_of(self._sent.named(context))) from error
        except BaseException:
            self.close()
            raise

    def _key_of(self, line: str | None) -> str:
        """The key of a row that was sent, or all of one without a key; empty if it is not known."""
        if line is None:
            return ""
        values = dict(zip(self._type.get_field_names(), line.split("\t")))
        return ", ".join(f"{name}={values.get(name)}" for name in self._key or values)

    def _refused(self, why: str, record: str, key: str = "") -> UserCodeError:
        sink, _, _ = self._server.user.partition(",")
        of = f" with {key:.1000}" if key else ""
        return UserCodeError(
            f"{sink}: {why}\n  in operator 'PostgresSink' (uid {self._uid!r})\n  row{of}: {record:.1000}",
            operator="PostgresSink",
            uid=self._uid,
            key=f"{key:.1000}",
            record=f"{record:.1000}",
        )


class _PostgresCommitter:
    """Moves prepared rows to the table."""

    def __init__(self, server: Server, describe: Callable[[Server, Any], Target], owner: str, generation: int) -> None:
        self._server = server
        self._describe = describe
        self._owner = owner
        self._generation = generation
        self._connection: Any = None
        self._moved = _NOWHERE
        """What the server has confirmed to this driver."""

    def recover(self, committables: Sequence[Committable]) -> None:
        self.commit(committables)
        self._moved = self._with_retries("cannot make the staging tables", self._clean)

    def commit(self, committables: Sequence[Committable]) -> None:
        attempts: dict[str, dict[str, int]] = {}
        for each in committables:
            # Version 1 did not tell how many rows there are.
            attempts.setdefault(each.data["staging"], {})[each.data["attempt"]] = each.data.get("rows", 0)

        def move(connection: Any, target: Target) -> Position:
            self._lock(connection)
            own = target.position_table(self._owner)
            if (now := self._position(connection, own)) < self._moved:
                raise self._lost(target, f"those that it had confirmed up to epoch {self._moved[1]}")
            for staging, rows in attempts.items():
                self._move(connection, target, staging, rows)
            last = max(_position_of(name) for rows in attempts.values() for name in rows)
            return self._note(connection, own, now, last)

        if attempts:
            self._moved = self._with_retries("cannot move the rows of a checkpoint", move)

    def _position(self, connection: Any, table: str) -> Position:
        if not _exists(connection, table):
            return _NOWHERE
        generation, epoch = connection.execute(f"SELECT generation, epoch FROM {qualified(table)}").fetchone()
        return generation, epoch

    def _note(self, connection: Any, table: str, now: Position, position: Position) -> Position:
        """Move the position on, where its table is there; returns where it is."""
        if now >= position or now == _NOWHERE:
            return now
        connection.execute(f"UPDATE {qualified(table)} SET generation = {position[0]:d}, epoch = {position[1]:d}")
        return position

    def _lost(self, target: Target, what: str) -> InputLost:
        return InputLost(
            f"{self._server.url}: rows of complete checkpoints are gone before they were written to {target.table}: {what}. "
            "It is not the server of the job's last run, or a standby that took over without all that its predecessor had "
            "confirmed. Give that server's URL, or start from an earlier checkpoint (execution.state-recovery.path). If no "
            "row is missing (another server is wanted, the staging tables were dropped by hand), give the sink another uid, "
            f"and start with --allow-non-restored-state [{self._server.user}]"
        )

    def _lock(self, connection: Any) -> None:
        """Let one driver after the other see the staging tables, until its transaction ends. Writers go on."""
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"holdfast {self._owner}",))

    def _move(self, connection: Any, target: Target, staging: str, rows: dict[str, int]) -> None:
        names, found = list(rows), {}
        if _exists(connection, staging):  # it is gone if a driver has moved its rows and dropped it
            found = dict(connection.execute(target.count(staging), (names,)).fetchall())
        if gone := [name for name, count in rows.items() if found.get(name, 0) < count]:
            table = position_table(staging)
            moved = self._position(connection, table)
            # That of another job, whose savepoint this one began with, may have been dropped with it.
            known = moved != _NOWHERE or table == target.position_table(self._owner)
            if known and max(map(_position_of, gone)) > moved:
                raise self._lost(target, f"{sum(rows[name] for name in gone)} that were in {staging}")
        if not found:
            return
        if not target.key:
            connection.execute(target.insert(staging), (names,))
        elif connection.info.server_version < _MERGES:
            connection.execute(target.upsert(staging), (names,))
        else:
            try:
                with connection.transaction():
                    connection.execute(target.merge(staging), (names,))
            except libraries.psycopg().errors.UniqueViolation:  # another transaction has inserted a row meanwhile
                connection.execute(target.upsert(staging), (names,))
        if not self._emptied(connection, staging, names):
            connection.execute(target.delete(staging), (names,))

    def _emptied(self, connection: Any, staging: str, names: list[str]) -> bool:
        """Empty a large staging table of moved rows and abandoned attempts; False: others are there, or write to it."""
        if connection.execute("SELECT pg_relation_size(%s)", (qualified(staging),)).fetchone()[0] < _LARGE:
            return False
        try:
            with connection.transaction():
                connection.execute(f"LOCK TABLE {qualified(staging)} IN ACCESS EXCLUSIVE MODE NOWAIT")
        except libraries.psycopg().errors.LockNotAvailable:
            return False
        last = max(int(name.split("-")[2]) for name in names)
        others = _OTHERS.format(qualified(staging).replace("%", "%%"))
        if connection.execute(others, (names, self._generation, self._generation, last)).fetchone()[0]:
            return False
        connection.execute(f"TRUNCATE {qualified(staging)}")
        return True

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _clean(self, connection: Any, target: Target) -> Position:
        """Make the staging tables, and drop what earlier drivers prepared and nobody commits."""
        own = [target.staging(self._owner, turn) for turn in (0, 1)]
        self._lock(connection)
        for staging in own:
            if not _exists(connection, staging):
                connection.execute(target.create_staging(staging))
        position = target.position_table(self._owner)
        if not _exists(connection, position):
            connection.execute(f"CREATE TABLE {qualified(position)} AS SELECT 0::int8 AS generation, 0::int8 AS epoch")
        moved = self._note(connection, position, self._position(connection, position), (self._generation, -1))
        for staging in target.stagings(connection, self._owner):
            connection.execute(f"DELETE FROM {qualified(staging)} WHERE holdfast_generation < {self._generation:d}")
            (empty,) = connection.execute(f"SELECT NOT EXISTS (SELECT FROM {qualified(staging)})").fetchone()
            if staging not in own and empty:  # the target had other columns or constraints then
                self._drop(connection, staging)
        return moved

    def _drop(self, connection: Any, staging: str) -> None:
        """Drop a staging table; the next driver does, if a writer of an earlier one still has it open."""
        psycopg = libraries.psycopg()
        with suppress(psycopg.errors.LockNotAvailable), connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '1s'")
            connection.execute(f"DROP TABLE {qualified(staging)}")

    def _with_retries(self, what: str, work: Callable[[Any, Target], Position]) -> Position:
        """Work in a transaction; again after deadlocks and lost connections, and if this driver was silent for too long."""
        psycopg = libraries.psycopg()
        for attempt in range(_TRIES):
            try:
                if self._connection is None:
                    self._connection = self._server.connect()
                    self._connection.execute(f"SET idle_in_transaction_session_timeout = {_HANGS_MS}")
                    # What another driver has moved must be seen once it has let go of the lock.
                    self._connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
                with self._connection.transaction():
                    moved = work(self._connection, self._describe(self._server, self._connection))
                return moved
            except psycopg.Error as error:
                if not libraries.passes(error):
                    raise ConfigurationError(
                        f"{what} to {self._server.url}: {str(error).strip()}; the rows wait in the staging table: mend the "
                        f"table, and start the job again [{self._server.user}]"
                    ) from error
                self.close()
                if attempt == _TRIES - 1:
                    self._server.failed(what, error)
                time.sleep(0.1 * 2**attempt)  # let the other side of a deadlock, or a server that starts, go on
        raise AssertionError("unreachable")
