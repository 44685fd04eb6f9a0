"""JdbcSink: writes rows to a database by a statement."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from time import monotonic, sleep
from typing import Any

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.common.typeinfo import RowTypeInfo
from holdfast.connectors.base import JobInfo, WriterContext
from holdfast.connectors.jdbc_database import Database, parameters, with_placeholders
from holdfast.connectors.jdbc_options import JdbcConnectionOptions, JdbcExecutionOptions
from holdfast.errors import ConfigurationError, IncompatibleState, ServiceUnavailable, UserCodeError

__all__ = ["JdbcSink"]

_LONGEST_WAIT = 10.0


class JdbcSink:
    """A sink that executes a statement for each row.

    It writes at least once: after a failure, the rows of an epoch can be written again. Make the statement an upsert
    (``INSERT ... ON CONFLICT ... DO UPDATE``), and a row that is written twice changes nothing.

    Args:
        sql: The statement, with ``?`` in place of each field of a row: ``INSERT INTO t (a, b) VALUES (?, ?)``.
        type_info: The type of the rows, ``Types.ROW([...])``.
        jdbc_connection_options: The database.
        jdbc_execution_options: Batches and retries.

    Raises:
        TypeError: an argument is of another class.
        ConfigurationError: the statement does not have a parameter for each field, or there is no library for the database.
    """

    def __init__(
        self,
        sql: str,
        type_info: RowTypeInfo,
        jdbc_connection_options: JdbcConnectionOptions,
        jdbc_execution_options: JdbcExecutionOptions | None = None,
    ) -> None:
        execution = JdbcExecutionOptions() if jdbc_execution_options is None else jdbc_execution_options
        for given, wanted in (
            (type_info, RowTypeInfo),
            (jdbc_connection_options, JdbcConnectionOptions),
            (execution, JdbcExecutionOptions),
        ):
            if not isinstance(given, wanted):
                raise TypeError(f"JdbcSink.sink() takes a {wanted.__name__}, not {given!r:.200}.")
        fields, count = len(type_info.get_field_names()), parameters(sql)
        if fields != count:
            raise ConfigurationError(
                f"the statement of the JdbcSink has {count} parameters (?), and the rows have {fields} fields: {sql}"
            )
        self._sql = sql
        self._type = type_info
        self._database = Database(jdbc_connection_options)
        self._database.library  # noqa: B018 (it is missed here, not in a task)
        self._execution = execution

    @staticmethod
    def sink(
        sql: str,
        type_info: RowTypeInfo,
        jdbc_connection_options: JdbcConnectionOptions,
        jdbc_execution_options: JdbcExecutionOptions | None = None,
    ) -> JdbcSink:
        """Write rows by a statement: PyFlink's form of the constructor, with the same arguments."""
        return JdbcSink(sql, type_info, jdbc_connection_options, jdbc_execution_options)

    def validate(self) -> None:
        """Connect to the database, and let it plan the statement.

        Raises:
            ConfigurationError: it refuses the user or the statement.
            ServiceUnavailable: it does not answer.
        """
        database = self._database
        try:
            connection = database.connect()
        except database.library.Error as error:
            raise (ConfigurationError if database.refuses(error) else ServiceUnavailable)(
                f"the JdbcSink cannot connect to {database.url}: {database.said(error)}. Check the URL, the user and the "
                "password, and whether the database runs."
            ) from error
        with closing(connection):
            try:
                explain = f"EXPLAIN {with_placeholders(self._sql, database.placeholder)}"
                connection.cursor().execute(explain, (None,) * parameters(self._sql))
            except database.library.Error as error:
                raise ConfigurationError(
                    f"{database.url} refuses the statement of the JdbcSink: {database.said(error)}\n"
                    f"  statement: {self._sql}\n"
                    "  Create the table before the job starts, and check the names and the number of columns."
                ) from error

    def create_writer(self, context: WriterContext) -> _JdbcWriter:
        """Create a writer, in a task slot."""
        return _JdbcWriter(self._sql, self._type, self._database, self._execution, context.uid)

    def check_prepared(self, data: Any) -> None:
        """Refuse: this sink prepares no output."""
        raise IncompatibleState("another kind of connector than this JdbcSink has stored it")

    def create_committer(self, job: JobInfo, uid: str) -> None:
        """There is nothing to commit: rows are visible when the epoch ends."""


_MISFITS = (TypeError, ValueError, OverflowError)
"""What libraries raise for a value that the database does not take."""


class _JdbcWriter:
    """Writes rows in batches, each in a transaction."""

    def __init__(
        self, sql: str, type_info: RowTypeInfo, database: Database, execution: JdbcExecutionOptions, uid: str
    ) -> None:
        self._sql = with_placeholders(sql, database.placeholder)
        self._type = type_info
        self._database = database
        self._execution = execution
        self._uid = uid
        self._connection: Any = None
        self._rows: list[tuple[Any, ...]] = []
        self._waiting_since = 0.0

    def begin_epoch(self, epoch: Epoch, attempt: str, committed: CheckpointId) -> None:
        self._rows = []

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        if not self._rows:
            self._waiting_since = monotonic()
        conform, bound = self._type.conform, self._database.bound
        self._rows += [bound(conform(value)) for value in values]
        size, interval = self._execution.batch_size, self._execution.batch_interval_ms
        while len(self._rows) >= size:
            self._flush(self._rows[:size])
            self._rows = self._rows[size:]
        if self._rows and interval and monotonic() - self._waiting_since >= interval / 1000:
            self._flush_all()

    def prepare_commit(self) -> list[Any]:
        self._flush_all()
        return []

    def abort_epoch(self) -> None:
        self._rows = []

    def close(self) -> None:
        self._disconnect()

    def _flush_all(self) -> None:
        if self._rows:
            self._flush(self._rows)
            self._rows = []

    def _flush(self, rows: list[tuple[Any, ...]]) -> None:
        """Write a batch in a transaction; again, if the database or the connection fails."""
        library, retries = self._database.library, self._execution.max_retries
        for attempt in range(retries + 1):
            try:
                if self._connection is None:
                    self._connection = self._database.connect()
                self._connection.cursor().executemany(self._sql, rows)
                self._connection.commit()
                return
            except (library.Error, *_MISFITS) as error:
                if self._connection is not None and not self._database.passes(error):
                    self._check_lasting(error)
                    self._connection.rollback()
                    raise self._refusal(rows, error) from error
                self._disconnect()
                self._check_lasting(error)
                if attempt == retries:
                    raise ServiceUnavailable(
                        f"the JdbcSink (uid {self._uid!r}) cannot write to {self._database.url}, after {retries} retries: "
                        f"{self._database.said(error)}"
                    ) from error
                sleep(min(attempt + 1.0, _LONGEST_WAIT))

    def _check_lasting(self, error: Exception) -> None:
        if self._database.refuses(error):
            raise ConfigurationError(
                f"{self._database.url} refuses the rows of the JdbcSink (uid {self._uid!r}): {self._database.said(error)}\n"
                f"  statement: {self._sql}"
            ) from error

    def _refusal(self, rows: list[tuple[Any, ...]], error: Exception) -> UserCodeError:
        """The error with the first row that the database refuses; nothing of the batch is written."""
        row: tuple[Any, ...] = rows[0]
        try:
            for row in rows:
                self._connection.cursor().execute(self._sql, row)
        except (self._database.library.Error, *_MISFITS) as own:
            error = own
        self._disconnect()
        return UserCodeError(
            f"{type(error).__name__}: {str(error).strip()}\n  in operator 'JdbcSink' (uid {self._uid!r})\n"
            f"  row: {row!r:.1000}\n  statement: {self._sql}",
            operator="JdbcSink",
            uid=self._uid,
            record=f"{row!r:.1000}",
        )

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(self._database.library.Error):  # it may be gone already
                connection.close()
