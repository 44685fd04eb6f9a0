"""The source's reader in a task: chunks of the snapshot by COPY, and ranges of the log from the slot.

The reader of the log keeps its connection from one range to the next, which begins where the last one ended; it connects
again only if a range is read again, or comes from elsewhere. At the begin of a range, it confirms to the server what the
completed checkpoints cover, as the plan says: the slot has one connection, and this is it.
"""

from __future__ import annotations

import functools
import logging
import select
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from holdfast.connectors.base import Batch, ReaderContext, SplitRange
from holdfast.connectors.postgres import libraries, pgoutput
from holdfast.connectors.postgres.cdc_options import PostgresCdcOptions
from holdfast.connectors.postgres.log_stream import LogStream
from holdfast.connectors.postgres.pgoutput import Begin, Commit, Delete, Insert, Relation, Truncate, Update, format_lsn
from holdfast.connectors.postgres.row_changes import Change, KeyedRow, Misfit, TableRows, Truncated
from holdfast.connectors.postgres.server import Server, application_name, generation_of
from holdfast.connectors.postgres.sql import literals, qualified, quoted
from holdfast.connectors.postgres.visibility import Region, Snapshot, first_unseen
from holdfast.errors import ConfigurationError, Fenced, InputLost, UserCodeError

__all__ = ["PostgresCdcReader"]

_log = logging.getLogger(__name__)
_IDLE_S = 0.02
_NUDGE_S = 1.0
"""Without progress for so long, the end of the range is looked at as one amid a record that nobody completes."""
_SLOT_S = 60.0
"""How long to wait for an earlier reader of the slot to end."""


class PostgresCdcReader:
    """Reads ranges. Not thread-safe."""

    def __init__(self, options: PostgresCdcOptions, context: ReaderContext) -> None:
        self._options = options
        self._uid = context.uid
        self._application = application_name(context.job, context.uid)
        self._server = Server(options.url, options.password, f"PostgreSQL source, uid {context.uid!r}", self._application)
        self._rows: dict[str, TableRows] = {}
        self._described: Any = None
        self._relations: dict[int, TableRows | None] = {}
        """The tables of the log's relations; None for those that are not declared."""
        self._sql: Any = None
        self._snapshot = ""
        """The snapshot that the transaction of `_sql` has."""
        self._log_connection: Any = None
        self._log: Any = None
        self._position = -1
        """Where the log's connection stands: all transactions before are read; -1: unknown."""
        self._ahead: Begin | None = None
        """The begin of the first transaction behind the position, if it was received."""

    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch[Any]]:
        """Read a chunk or a range of the log, in order.

        Raises:
            UserCodeError: a row does not fit the declared table.
            InputLost: the slot no longer has the range.
            ServiceUnavailable: the server does not answer.
        """
        self._describe(part.payload["tables"])
        psycopg = libraries.psycopg()
        complete = False
        try:
            yield from self._read_chunk(part, max_batch) if "chunk" in part.payload else self._read_log(part, max_batch)
            complete = True
        except psycopg.errors.LockNotAvailable as error:
            self._server.locked([part.payload["chunk"]["table"]], error)
        except (psycopg.Error, OSError) as error:
            self._disconnect()
            if "chunk" not in part.payload:
                self._check_slot(part.start)
                self._check_publication(part.start, error)
            self._server.failed(f"{part.split} cannot be read from {format_lsn(part.start)} on", error)
        finally:
            if not complete:
                self._disconnect()

    def close(self) -> None:
        """Close the connections."""
        self._disconnect()

    def _describe(self, described: Any) -> None:
        if described == self._described:
            return
        options = self._options
        self._described = described
        self._relations.clear()
        self._rows = {
            name: TableRows(name, options.tables[name], options.changelog_mode, options.missing_columns, types, key)
            for name, (types, key, _) in described.items()
        }
        self._leave_log()  # the relations' descriptions have to come again

    def _read_chunk(self, part: SplitRange, max_batch: int) -> Iterator[Batch[Any]]:
        chunk, lsn = part.payload["chunk"], part.payload["lsn"]
        table, stamp = chunk["table"], chunk["ms"]
        types, key, key_types = part.payload["tables"][table]
        rows = self._rows[table]
        connection = self._in_snapshot(chunk["snapshot"], chunk["sees"])
        columns = ", ".join(quoted(name) if name in types else "NULL" for name in rows.names)
        bounds = [
            f"({', '.join(map(quoted, key))}) {sign} ({literals(bound, key_types)})"
            for sign, bound in ((">", chunk["low"]), ("<=", chunk["high"]))
            if bound is not None
        ]
        where = f" WHERE {' AND '.join(bounds)}" if bounds else ""
        order = f" ORDER BY {', '.join(map(quoted, key))}" if key else ""
        values: list[Any] = []
        count = 0
        with connection.cursor().copy(f"COPY (SELECT {columns} FROM {qualified(table)}{where}{order}) TO STDOUT") as copy:
            for texts in copy.rows():
                count += 1
                try:
                    row = rows.selected([None if text is None else text.encode() for text in texts])
                except Misfit as error:
                    raise self._misfit(error, f"{table}, row {count} of its {part.split}: {texts!r:.200}") from error
                element = self._element(table, row, lsn, stamp, snapshot=True)
                if element is None:
                    continue
                values.append(element)
                if len(values) >= max_batch:
                    yield _batch(values, stamp, part.split)
                    values = []
        if values:
            yield _batch(values, stamp, part.split)

    def _in_snapshot(self, snapshot: str, sees: str) -> Any:
        """A connection in a transaction that has the snapshot."""
        if self._sql is None or self._snapshot != snapshot:
            self._close_sql()
            self._sql = self._server.in_snapshot(snapshot, sees)
            self._snapshot = snapshot
        return self._sql

    def _read_log(self, part: SplitRange, max_batch: int) -> Iterator[Batch[Any]]:
        if self._snapshot:
            self._close_sql()  # its transaction holds up the server's vacuum
        if self._position != part.start:
            self._open_log(part.start)
        confirmed = part.payload["confirmed"]
        self._log.confirm(confirmed)
        self._position = -1
        regions = _Regions(part.payload, self._ordered)
        begin = self._ahead
        values: list[Any] = []
        places: list[tuple[str, Begin]] = []
        stamps: list[int] = []

        def batch() -> Batch[Any]:
            nonlocal values, places, stamps
            made = Batch(values, stamps, functools.partial(_place, places))
            values, places, stamps = [], [], []
            return made

        while begin is None or begin.commit_lsn < part.end:
            message = self._next(None if begin is not None else part.end)
            if message is None:
                break
            if isinstance(message, Begin):
                begin = message
                continue
            if isinstance(message, Commit):
                begin = None
                continue
            if isinstance(message, Relation):
                self._take_relation(message, begin)
                continue
            assert begin is not None
            stamp = begin.committed_at // 1000
            for table, element in self._elements(message, begin, regions):
                values.append(element)
                stamps.append(stamp)
                places.append((table, begin))
                if len(values) >= max_batch:
                    yield batch()
        if values:
            yield batch()
        self._ahead = begin
        self._position = part.end

    def _next(self, end: int | None) -> Any:
        """The next message; None if the server has sent all that is before ``end``."""
        log, connection = self._log, self._log_connection
        since, asked = time.monotonic(), False
        while True:
            received = log.read()
            if received is not None:
                message = pgoutput.decode(received)
                if message is not None:
                    return message
                continue
            if end is not None:
                if log.wal_end >= end:
                    return None
                if not asked:  # the server tells how far it is
                    log.confirm(0, answer=True)
                    asked = True
                if time.monotonic() - since > _NUDGE_S:
                    self._nudge()
                    since, asked = time.monotonic(), False
            select.select([connection], [], [], _IDLE_S)

    def _nudge(self) -> None:
        """Write a record of ours: the server decodes whole records only, and the last one may be half on its disk."""
        with self._server.connect() as connection:
            connection.execute("SELECT pg_logical_emit_message(true, 'holdfast', '')")

    def _take_relation(self, relation: Relation, begin: Begin | None) -> None:
        rows = self._rows.get(relation.name)
        self._relations[relation.oid] = rows
        if rows is not None:
            try:
                rows.describe(relation)
            except Misfit as error:
                raise self._misfit(error, f"{relation.name}, LSN {format_lsn(begin.commit_lsn if begin else 0)}") from error

    def _elements(self, message: Any, begin: Begin, regions: _Regions) -> list[tuple[str, Any]]:
        """The elements of a change, with the name of the table."""
        if isinstance(message, Truncate):
            return self._truncated(message, begin, regions)
        rows = self._relations.get(message.relation)
        if rows is None:
            return []
        try:
            made = _made(rows, message)
        except Misfit as error:
            place = f"{rows.table}, LSN {format_lsn(begin.commit_lsn)}, transaction {begin.xid}, {_shown(rows, message)}"
            raise self._misfit(error, place) from error
        found = []
        for row, key in made:
            if regions.emits(rows.table, begin, key):
                element = self._element(rows.table, row, begin.commit_lsn, begin.committed_at // 1000, snapshot=False)
                if element is not None:
                    found.append((rows.table, element))
        return found

    def _truncated(self, message: Truncate, begin: Begin, regions: _Regions) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        for oid in message.relations:
            rows = self._relations.get(oid)
            if rows is None or self._options.on_truncate == "skip":
                continue
            emits = regions.emits(rows.table, begin, None)
            if emits is False:
                continue
            place = f"{rows.table}, LSN {format_lsn(begin.commit_lsn)}, transaction {begin.xid}"
            if self._options.on_truncate == "fail":
                raise self._misfit(
                    "the table was truncated, and a stream of rows cannot say so. Use DELETE, or set on_truncate='emit' "
                    "(the element is a Truncated) or on_truncate='skip' (the rows stay)",
                    place,
                )
            if emits is None:
                raise InputLost(
                    f"{place}: the table was truncated while its first reading was interrupted. Start the job afresh "
                    f"[{self._server.user}]"
                )
            found.append((rows.table, Truncated(rows.table, begin.commit_lsn, begin.committed_at // 1000)))
        return found

    def _element(self, table: str, row: Any, lsn: int, stamp: int, *, snapshot: bool) -> Any:
        if self._options.deserializer is not None:
            return self._options.deserializer(Change(table, row, lsn, stamp, snapshot))
        return row if len(self._options.tables) == 1 else (table, row)

    def _misfit(self, error: Misfit | str, place: str) -> UserCodeError:
        return UserCodeError(
            f"{error}\n  in operator 'PostgreSQL source' (uid {self._uid!r})\n  record: {place}",
            operator="PostgreSQL source",
            uid=self._uid,
            record=place,
        )

    def _ordered(self, table: str, key: tuple[str, ...], bounds: Sequence[tuple[str, ...]]) -> int:
        """How many bounds (in order) are less than a key, as the server orders them."""
        if self._sql is None:
            self._sql = self._server.connect()
        types = self._described[table][2]
        own = literals(list(key), types)
        each = " + ".join(f"(({own}) > ({literals(list(bound), types)}))::int" for bound in bounds)
        return int(self._sql.execute(f"SELECT {each}".replace("%", "%%")).fetchone()[0])

    def _open_log(self, start: int) -> None:
        """Read the slot from a position on, and end the reader of an earlier driver or attempt."""
        self._leave_log()
        name, publication = self._options.slot_name, self._options.publication
        errors = libraries.psycopg().errors
        deadline = time.monotonic() + _SLOT_S
        while True:
            self._log_connection = self._server.replication()
            try:
                self._log = LogStream(self._log_connection, name, start, publication)
                break
            except errors.ObjectInUse:
                self._leave_log()
                self._end_reader(start)
                if time.monotonic() > deadline:
                    raise
                time.sleep(_IDLE_S)  # the server tells nobody when that reader has ended
        # The slot is ours, so that its position stands; it must not have passed by the range: the server would skip it.
        self._check_slot(start)

    def _end_reader(self, start: int) -> None:
        """End the process that reads the slot, if it reads for this source and no later driver."""
        with self._server.connect() as connection:
            slot = self._server.slot_to_read(connection, self._options.slot_name, start)
            if slot.pid is None or not slot.reader:
                return
            generation = generation_of(slot.reader, self._application)
            if generation is None:
                raise ConfigurationError(
                    f"the replication slot {self._options.slot_name!r} is read by another: {slot.reader}, process {slot.pid}"
                    f". A slot has one reader: end the other one [{self._server.user}]"
                )
            if generation > (generation_of(self._application, self._application) or 0):
                raise Fenced(f"a later driver of the job reads the slot {self._options.slot_name!r} [{self._server.user}]")
            connection.execute("SELECT pg_terminate_backend(%s)", (slot.pid,))

    def _check_slot(self, start: int) -> None:
        with self._server.connect() as connection:
            self._server.slot_to_read(connection, self._options.slot_name, start)

    def _check_publication(self, start: int, error: Exception) -> None:
        """Raise if the server cannot decode changes because the publication did not exist when they were made."""
        name = self._options.publication
        if isinstance(error, libraries.psycopg().errors.UndefinedObject):  # the slot, which can be missing too, is there
            raise InputLost(
                f"the publication {name!r} did not exist when changes after {format_lsn(start)} were made, so the server "
                "cannot decode them, also if it was made again since. Drop the slot (SELECT "
                f"pg_drop_replication_slot('{self._options.slot_name}')), and start afresh under another job name or "
                f"directory: the source reads the tables again [{self._server.user}]"
            ) from error

    def _leave_log(self) -> None:
        connection, self._log_connection = self._log_connection, None
        self._log, self._position, self._ahead = None, -1, None
        if connection is not None:
            connection.close()

    def _close_sql(self) -> None:
        connection, self._sql = self._sql, None
        self._snapshot = ""
        if connection is not None:
            connection.close()

    def _disconnect(self) -> None:
        self._leave_log()
        self._close_sql()


class _Regions:
    """What the snapshots of the tables have seen, for a range of the log."""

    def __init__(self, payload: Any, ordered: Callable[[str, tuple[str, ...], Sequence[tuple[str, ...]]], int]) -> None:
        snapshots = [Snapshot.parse(text) for text in payload.get("snapshots", ())]
        self._tables = {
            table: [Region(None if upto is None else tuple(upto), snapshots[n]) for upto, n in regions]
            for table, regions in payload.get("regions", {}).items()
        }
        self._settled = payload.get("settled", 0)
        self._ordered = ordered

    def emits(self, table: str, begin: Begin, key: tuple[str, ...] | None) -> bool | None:
        """Whether a change is none that the snapshot of its row has seen; None: of a part of the rows only."""
        if begin.commit_lsn >= self._settled or table not in self._tables:
            return True
        return first_unseen(self._tables[table], begin.xid, key, lambda bounds: self._ordered(table, key or (), bounds))


def _made(rows: TableRows, message: Any) -> list[KeyedRow]:
    if isinstance(message, Insert):
        return rows.inserted(message)
    if isinstance(message, Update):
        return rows.updated(message)
    assert isinstance(message, Delete)
    return rows.deleted(message)


def _shown(rows: TableRows, message: Any) -> str:
    """The key of a changed row, or its first values."""
    values = getattr(message, "new", None) or message.old or message.key
    key = rows.key_of(values)
    return f"key {', '.join(key)}" if key is not None else f"row {values!r:.200}"


def _place(places: Sequence[tuple[str, Begin]], number: int) -> str:
    table, begin = places[number]
    return f"{table}, LSN {format_lsn(begin.commit_lsn)}, transaction {begin.xid}"


def _batch(values: list[Any], stamp: int, split: str) -> Batch[Any]:
    return Batch(values, [stamp] * len(values), lambda i: f"{split}: {values[i]!r:.200}")
