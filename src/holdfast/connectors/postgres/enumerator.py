"""The source's enumerator in the driver: the slot, the snapshot in chunks, and then ranges of the log.

The slot comes first, so the log keeps every change from then on. Then the tables are read in chunks by primary key, all
under one snapshot that a transaction of the driver keeps. A driver that goes on in the middle of that has lost its
predecessor's snapshot; it takes a new one for the rows that were not read. Changes that the new snapshot has seen are in the
log, too: the reader leaves them out, by key and transaction (`visibility`).

A range of the log is ``[start, end)``: the transactions whose commit records lie in it, whole.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from holdfast.checkpoint.ids import CheckpointId
from holdfast.checkpoint.stores.storage import NotFound
from holdfast.connectors.base import EpochInput, JobInfo, SplitRange
from holdfast.connectors.job_files import JobFiles
from holdfast.connectors.postgres import libraries
from holdfast.connectors.postgres.catalog import Table, check_publication, check_tables, publication_version
from holdfast.connectors.postgres.cdc_options import PostgresCdcOptions
from holdfast.connectors.postgres.pgoutput import parse_lsn
from holdfast.connectors.postgres.server import Server, Slot, application_name, generation_of
from holdfast.connectors.postgres.sql import literals, qualified, quoted
from holdfast.connectors.postgres.visibility import Snapshot, succeeds
from holdfast.errors import ConfigurationError, InputLost, ServiceUnavailable

__all__ = ["LOG", "VERSION", "PostgresCdcEnumerator"]

VERSION = 1
LOG = "log"
"""The split of the log."""

_INTENT = "slot"
"""The file that says, before the job has a checkpoint, that the slot is its own."""
_BYTES_PER_RECORD = 200
_LEAST_BYTES = 4 << 20
_POLL_S = 0.03
_PATIENCE_S = 60.0
_CHECK_S = 1.0
"""Seconds between two checks of the publication."""
_REWRITTEN = """
SELECT string_agg(c.oid::regclass::text, ', ') FROM pg_class c
WHERE c.relfilenode NOT IN (0, pg_relation_filenode(c.oid)) AND c.oid IN (
    SELECT unnest(%(tables)s::regclass[])
    UNION SELECT relid FROM unnest(%(tables)s::regclass[]) named, pg_partition_tree(named))
"""
"""The tables that have other files now than in the transaction's snapshot."""
_log = logging.getLogger(__name__)


class PostgresCdcEnumerator:
    """Plans the snapshot and the log."""

    def __init__(self, options: PostgresCdcOptions, job: JobInfo, uid: str) -> None:
        self._options = options
        self._job = job
        self._application = application_name(job, uid)
        self._server = Server(options.url, options.password, f"PostgreSQL source, uid {uid!r}", self._application)
        self._files = JobFiles(job, "sources", uid) if job.storage_uri is not None else None
        self._tables: dict[str, Table] = {}
        self._connection: Any = None
        self._holder: Any = None
        """The connection whose transaction keeps the snapshot."""
        self._exported = ""
        self._snapshot_ms = 0
        self._system = ""
        self._timeline = 0
        """The server's timeline."""
        self._lsn = 0
        """Where the next range of the log begins."""
        self._confirmed = 0
        """Up to where completed checkpoints cover the log."""
        self._settled = 0
        """The position from which on no snapshot has seen a transaction."""
        self._snapshots: list[str] = []
        self._progress: dict[str, dict[str, Any]] = {}
        """For each table: regions ``[last key, number of the snapshot]``, the number of the present one, the last key
        that is planned (``at``), and whether that was all (``done``)."""
        self._chunks = 0
        self._checked = 0.0
        """When the publication was checked last."""
        self._published: str | None = None
        """The version of the publication when the slot was made; None: it is not known yet."""

    def start(self, state: Any | None) -> None:
        """Check everything; make the slot, or find it where the checkpoint left it.

        Raises:
            ConfigurationError: the server, a table, the publication or the slot does not do.
            InputLost: the slot no longer has what the checkpoint has not covered.
            ServiceUnavailable: the server does not answer.
        """
        try:
            self._connection = self._server.connect()
            with self._told("cannot prepare the slot"):
                self._start(state)
        except BaseException:
            self._disconnect()
            raise

    def _start(self, state: Any | None) -> None:
        server, connection, options = self._server, self._connection, self._options
        server.check_settings(connection)
        if options.failover:
            server.check_failover(connection)
        self._timeline = server.timeline(connection)
        self._tables = check_tables(server, connection, options.tables, options.changelog_mode, options.missing_columns)
        if state is None:
            self._check_publication()
            self._begin()
            return
        self._published = state.get("published")
        self._check_still_published()
        self._restore(state)
        server.check_timeline(connection, state.get("timeline", self._timeline), self._lsn)
        slot = server.slot_to_read(connection, options.slot_name, self._lsn)
        self._check_slot(slot)
        if self._reading_tables():
            self._take_snapshot()

    def _check_publication(self, *, create: bool = True) -> None:
        options, truncates = self._options, self._options.on_truncate != "skip"
        check_publication(self._server, self._connection, options.publication, options.tables, truncates, create=create)
        version = publication_version(self._connection, options.publication, options.tables)
        if self._published not in (None, version):
            self._server.refuse(
                f"has a complete publication {options.publication!r} now, but it was altered, or dropped and made again"
            )
        self._published = version
        self._checked = time.monotonic()

    def _check_still_published(self) -> None:
        """Check the publication of a job that reads the log: what it lacked for a while is missing without a word.

        Raises:
            InputLost: it has changed.
        """
        try:
            self._check_publication(create=False)
        except ConfigurationError as error:
            raise InputLost(
                f"changes since the publication {self._options.publication!r} was changed may be missing, also when it is "
                f"mended: {error}. Mend it, drop the slot (SELECT pg_drop_replication_slot('{self._options.slot_name}')), "
                "and start afresh under another job name or directory: the source reads the tables again"
            ) from error

    def _begin(self) -> None:
        server, connection, name = self._server, self._connection, self._options.slot_name
        slot = server.slot(connection, name)
        if slot is not None and not self._options.snapshot:
            self._check_slot(slot)
            self._lsn = self._confirmed = slot.confirmed
            self._system = self._identify()
            self._note_tables(done=True)
            return
        if slot is not None:
            if not self._is_own():
                server.refuse(
                    f"has a replication slot {name!r} already: another job reads it, or an earlier start of this one. "
                    f"Choose another slot_name, or, if nobody needs it: SELECT pg_drop_replication_slot('{name}'). With "
                    "snapshot=False the source goes on from a slot that is there"
                )
            self._drop(slot.pid)
        server.check_room(connection)
        if self._files is not None:
            self._files.put(_INTENT, name.encode())
        self._create_slot()

    def _create_slot(self) -> None:
        """Make the slot, and keep the snapshot that fits its first position."""
        server, options = self._server, self._options
        self._warn_of_open_transactions()
        creator = server.connect(replication="database")
        try:
            export = "EXPORT_SNAPSHOT" if options.snapshot else "NOEXPORT_SNAPSHOT"
            if options.failover:
                export = f"(SNAPSHOT '{'export' if options.snapshot else 'nothing'}', FAILOVER)"
            command = f"CREATE_REPLICATION_SLOT {quoted(options.slot_name)} LOGICAL pgoutput {export}"
            _, position, exported, _ = creator.execute(command).fetchone()
            self._lsn = self._confirmed = parse_lsn(position)
            self._system = self._identify()
            self._note_tables(done=not options.snapshot)
            if options.snapshot:
                self._hold(exported)
        finally:
            creator.close()

    def _note_tables(self, *, done: bool) -> None:
        self._progress = {name: {"regions": [], "snapshot": 0, "at": None, "done": done} for name in self._tables}

    def _warn_of_open_transactions(self) -> None:
        found = self._connection.execute(
            "SELECT string_agg(pid::text, ', ') FROM pg_stat_activity "
            "WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()"
        ).fetchone()[0]
        if found:
            _log.warning(
                "%s: the slot %r waits for the end of open transactions, of the processes %s",
                self._server.url, self._options.slot_name, found,
            )  # fmt: skip

    def _hold(self, exported: str | None) -> None:
        """Keep a snapshot for the readers: one that was exported, or a new one.

        Its transaction locks all tables against statements that rewrite or empty them: the snapshot would see no row then.
        """
        self._holder = holder = self._server.in_snapshot(exported)
        try:
            holder.execute(f"LOCK TABLE {', '.join(map(qualified, self._tables))} IN ACCESS SHARE MODE")
        except libraries.psycopg().errors.LockNotAvailable as error:
            self._server.locked(list(self._tables), error)
        (rewritten,) = holder.execute(_REWRITTEN, {"tables": list(map(qualified, self._tables))}).fetchone()
        if rewritten:
            raise ServiceUnavailable(
                f"{self._server.url}: {rewritten} was rewritten while the snapshot was taken; start again "
                f"[{self._server.user}]"
            )
        text, self._exported, now, position = holder.execute(
            "SELECT pg_current_snapshot()::text, pg_export_snapshot(), (extract(epoch FROM clock_timestamp()) * 1000)::int8"
            ", pg_current_wal_insert_lsn()::text"
        ).fetchone()
        self._snapshot_ms, self._settled = now, parse_lsn(position)
        self._snapshots.append(text)

    def _take_snapshot(self) -> None:
        """Take a new snapshot for the rows that no snapshot has been read for."""
        deadline = time.monotonic() + _PATIENCE_S
        former = [Snapshot.parse(text) for text in self._snapshots]
        while True:
            self._hold(None)
            taken = Snapshot.parse(self._snapshots[-1])
            if all(succeeds(taken, each) for each in former):
                break
            self._snapshots.pop()
            self._release()
            if time.monotonic() > deadline:
                raise ServiceUnavailable(
                    f"{self._server.url}: transactions wait for a synchronous standby since before the slot was made; a "
                    f"snapshot that goes on needs their end [{self._server.user}]"
                )
            time.sleep(_POLL_S)  # the server tells nobody when they end
        number = len(self._snapshots) - 1
        for progress in self._progress.values():
            if not progress["done"]:
                if progress["at"] is not None:
                    progress["regions"].append([progress["at"], progress["snapshot"]])
                progress["snapshot"] = number

    def _restore(self, state: Any) -> None:
        if state["slot"] != self._options.slot_name:
            self._server.refuse(
                f"is to be read through the slot {self._options.slot_name!r}, but the job's position is in {state['slot']!r}"
                ": keep the slot_name"
            )
        self._lsn = self._confirmed = state["lsn"]
        self._system, self._settled, self._snapshots = state["system"], state["settled"], list(state["snapshots"])
        self._chunks = state["chunks"]
        self._progress = {
            name: {**each, "regions": list(each["regions"])}
            for name, each in state["tables"].items()
            if name in self._tables
        }
        if (system := self._identify()) != self._system:
            raise InputLost(
                f"{self._server.url} is another server (system {system}) than that of the job's position ({self._system}): "
                f"give its URL, or start the job afresh [{self._server.user}]"
            )

    def _identify(self) -> str:
        return str(self._connection.execute("SELECT system_identifier FROM pg_control_system()").fetchone()[0])

    def _is_own(self) -> bool:
        """Whether an earlier driver of this job has made the slot, and died before its first checkpoint."""
        if self._files is None:
            return False
        try:
            return self._files.get(_INTENT) == self._options.slot_name.encode()
        except NotFound:
            return False

    def _drop(self, pid: int | None) -> None:
        """Drop the slot, and end its reader first."""
        psycopg = libraries.psycopg()
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            if pid is not None:
                self._connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
            try:
                self._connection.execute("SELECT pg_drop_replication_slot(%s)", (self._options.slot_name,))
                return
            except psycopg.errors.ObjectInUse:  # the reader's process is about to end
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)

    def _check_slot(self, slot: Slot) -> None:
        server, name = self._server, self._options.slot_name
        own = self._connection.info.dbname
        if slot.plugin != "pgoutput" or slot.database != own:
            server.refuse(
                f"has {name!r} as a slot of {slot.plugin} in the database {slot.database}, not of pgoutput in {own}"
            )
        if self._options.failover and not slot.failover:
            server.refuse(
                f"has {name!r} as a slot that standbys do not keep: ALTER_REPLICATION_SLOT {quoted(name)} (FAILOVER true), "
                "by a psql with replication=database, or leave out failover=True"
            )
        if slot.pid is not None and generation_of(slot.reader, self._application) is None:
            server.refuse(
                f"has a reader of the slot {name!r} already: {slot.reader or 'unnamed'}, process {slot.pid}. A slot has one "
                "reader: end the other one, or choose another slot_name"
            )

    def plan(self, max_records: int) -> EpochInput:
        """Plan the next chunks of the tables; after the last one, the log up to its present end.

        Raises:
            ServiceUnavailable: the server does not answer.
        """
        with self._told("cannot plan"):
            if self._reading_tables():
                return EpochInput(tuple(self._plan_chunks(max(1, max_records))), backlog=1)
            flushed = self._flushed()
            if flushed <= self._lsn:
                return EpochInput()
            if time.monotonic() - self._checked > _CHECK_S:
                self._check_still_published()
            end = min(flushed, self._lsn + max(_LEAST_BYTES, max_records * _BYTES_PER_RECORD))
            start, self._lsn = self._lsn, end
            part = SplitRange(LOG, start, end, 1 + (end - start) // _BYTES_PER_RECORD, self._log_payload(start))
            return EpochInput((part,), (flushed - end) // _BYTES_PER_RECORD)

    def _plan_chunks(self, most: int) -> Iterator[SplitRange]:
        for name, progress in self._progress.items():
            while not progress["done"] and most > 0:
                size = min(most, self._options.chunk_size)
                low, high = progress["at"], self._chunk_end(self._tables[name], progress["at"], size)
                progress["at"] = high
                progress["done"] = high is None
                most -= size
                self._chunks += 1
                where = {"table": name, "low": low, "high": high, "ms": self._snapshot_ms}
                where |= {"snapshot": self._exported, "sees": self._snapshots[-1]}
                payload = {"chunk": where, "tables": self._described(), "lsn": self._lsn}
                yield SplitRange(f"{name}, chunk {self._chunks}", 0, 1, size, payload, last=True)

    def _chunk_end(self, table: Table, low: list[str] | None, size: int) -> list[str] | None:
        """The last key of the next chunk; None: it is the last chunk."""
        if not table.key:
            return None
        key = ", ".join(map(quoted, table.key))
        after = "" if low is None else f"WHERE ({key}) > ({literals(low, table.key_types)})"
        cursor = self._holder.execute(
            f"SELECT {key} FROM {qualified(table.name)} {after} ORDER BY {key} OFFSET {size - 1} LIMIT 1"
        )
        result = cursor.pgresult
        if not result.ntuples:
            return None
        return [result.get_value(0, column).decode() for column in range(result.nfields)]

    def _log_payload(self, start: int) -> dict[str, Any]:
        payload: dict[str, Any] = {"tables": self._described(), "confirmed": self._confirmed}
        if start < self._settled and len(self._snapshots) > 1:
            payload["regions"] = {
                name: [*progress["regions"], [None, progress["snapshot"]]] for name, progress in self._progress.items()
            }
            payload["snapshots"] = self._snapshots
            payload["settled"] = self._settled
        return payload

    def _described(self) -> dict[str, Any]:
        return {table.name: [table.types, table.key, table.key_types] for table in self._tables.values()}

    def _reading_tables(self) -> bool:
        return not all(progress["done"] for progress in self._progress.values())

    def _flushed(self) -> int:
        (text,) = self._connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        return parse_lsn(text)

    def snapshot(self) -> Any:
        """Return the position: plain data."""
        return {
            "version": VERSION,
            "slot": self._options.slot_name,
            "system": self._system,
            "timeline": self._timeline,
            "lsn": self._lsn,
            "settled": self._settled,
            "snapshots": list(self._snapshots),
            "chunks": self._chunks,
            "published": self._published,
            "tables": {name: {**each, "regions": list(each["regions"])} for name, each in self._progress.items()},
        }

    def checkpoint_completed(self, checkpoint_id: CheckpointId, state: Any) -> None:
        """Let the readers confirm the position, and end the snapshot's transaction when all tables are read."""
        self._confirmed = max(self._confirmed, state["lsn"])
        if self._files is not None:
            self._forget_intent()
        if all(each["done"] for each in state["tables"].values()):
            self._release()

    def _forget_intent(self) -> None:
        """From the first checkpoint on, the checkpoint says whose slot it is."""
        files, self._files = self._files, None
        assert files is not None
        files.delete([_INTENT])

    def wait(self, timeout: float) -> None:
        """Wait until the log has grown."""
        if self._reading_tables():
            return
        deadline = time.monotonic() + timeout
        with self._told("cannot ask for the end of the log"):
            while self._flushed() <= self._lsn and (left := deadline - time.monotonic()) > 0:
                time.sleep(min(_POLL_S, left))  # the server tells a reader of the log only

    def close(self) -> None:
        """Close the connections; the slot stays for the next driver, unless there are no checkpoints to go on from."""
        if self._job.storage_uri is None and self._system and self._connection is not None:
            with suppress(Exception):  # the server may be gone; the next start says that the slot is there
                slot = self._server.slot(self._connection, self._options.slot_name)
                if slot is not None:
                    self._drop(slot.pid)
        self._disconnect()

    def _disconnect(self) -> None:
        self._release()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _release(self) -> None:
        holder, self._holder = self._holder, None
        if holder is not None:
            holder.close()

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Turn errors of the libraries into those of a connector."""
        psycopg = libraries.psycopg()
        try:
            yield
        except psycopg.Error as error:
            self._server.failed(what, error)
