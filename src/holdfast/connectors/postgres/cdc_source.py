"""Changes of PostgreSQL's tables as a source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic

from holdfast.common.changelog_mode import ChangelogMode, MissingColumns
from holdfast.common.typeinfo import RowTypeInfo, TypeInformation
from holdfast.common.values.type_variables import T
from holdfast.connectors.base import Enumerator, JobInfo, ReaderContext, SourceReader, check_form
from holdfast.connectors.postgres.cdc_options import OnTruncate, PostgresCdcOptions
from holdfast.connectors.postgres.enumerator import VERSION, PostgresCdcEnumerator
from holdfast.connectors.postgres.reader import PostgresCdcReader
from holdfast.connectors.postgres.row_changes import Change
from holdfast.errors import IncompatibleState

__all__ = ["PostgresCdcSource"]


class PostgresCdcSource(Generic[T]):
    """The rows of tables and then all their changes, exactly once, by logical replication (PostgreSQL 13 or later).

    Elements are Rows with a `RowKind`: the rows of the tables as ``INSERT``, then each committed change in the order of
    commits. Their timestamps are the times of the commits; rows of the snapshot have its time. With several tables, elements
    are pairs ``(table, row)``. A transaction is never divided between two checkpoints.

    Args:
        url: The database, ``postgresql://user@host:5432/database``, with libpq's parameters: ``?sslmode=verify-full``.
        tables: For each table, with its schema, the columns to read: ``{"public.orders": Types.ROW_NAMED([...], [...])}``.
        slot_name: The replication slot, which the source makes at its first start. One for each source.
        publication: The publication, which the source makes if there is none; None: it is called as the slot.
        password: The password; None: that in the URL, or libpq's (``PGPASSWORD``, ``~/.pgpass``).
        changelog_mode: ``all``: an update is two rows, ``UPDATE_BEFORE`` and ``UPDATE_AFTER``, and a ``DELETE`` has the
            whole old row; needs ``REPLICA IDENTITY FULL``. ``upsert``: an update is ``UPDATE_AFTER`` alone, and a ``DELETE``
            has the primary key alone, other fields None. In both, an update of the primary key is a ``DELETE`` and an
            ``INSERT``.
        snapshot: Whether to begin with the rows that the tables have. False: begin with the next change, or where an
            existing slot stands.
        on_truncate: ``fail``: a TRUNCATE of a table ends the job. ``skip``: it is left out. ``emit``: the element is a
            `Truncated`.
        missing_columns: ``fail``: a declared column that the table does not have, now or at a place of the log, ends the
            job. ``null``: it is None.
        chunk_size: The rows of the snapshot that are read at once.
        deserializer: A callable from a `Change` to the element; None leaves the change out.
        failover: Whether standbys keep the slot too, so that the job goes on after a switch to one (PostgreSQL 17 or later).

    Raises:
        ConfigurationError: an argument is invalid.

    >>> from holdfast.common import Types
    >>> orders = Types.ROW_NAMED(["id", "amount"], [Types.LONG(), Types.BIG_DEC()])
    >>> source = PostgresCdcSource("postgresql://me@localhost/shop", {"public.orders": orders}, "orders_job")
    >>> source.get_produced_type() == orders
    True
    """

    def __init__(
        self,
        url: str,
        tables: Mapping[str, RowTypeInfo],
        slot_name: str,
        *,
        publication: str | None = None,
        password: str | None = None,
        changelog_mode: ChangelogMode = "all",
        snapshot: bool = True,
        on_truncate: OnTruncate = "fail",
        missing_columns: MissingColumns = "fail",
        chunk_size: int = 10_000,
        deserializer: Callable[[Change], T | None] | None = None,
        failover: bool = False,
    ) -> None:
        self._options = PostgresCdcOptions(
            url,
            password,
            tables,
            slot_name,
            slot_name if publication is None else publication,
            changelog_mode,
            snapshot,
            on_truncate,
            missing_columns,
            chunk_size,
            deserializer,
            failover,
        )

    @property
    def bounded(self) -> bool:
        """Always False: tables go on changing."""
        return False

    def get_produced_type(self) -> TypeInformation | None:
        """The declared row of a single table; None for several, or with a deserializer or truncates as elements."""
        options = self._options
        if len(options.tables) > 1 or options.deserializer is not None or options.on_truncate == "emit":
            return None
        (row,) = options.tables.values()
        return row

    def create_enumerator(self, job: JobInfo, uid: str) -> Enumerator:
        """Create the enumerator, in the driver."""
        return PostgresCdcEnumerator(self._options, job, uid)

    def check_position(self, state: Any) -> None:
        """Check that a stored position is one in a log of PostgreSQL, of all tables that are declared now.

        Raises:
            IncompatibleState: it is not.
        """
        check_form(state, ("version", "slot", "lsn", "tables"), "PostgreSQL source", [VERSION])
        if more := sorted(self._options.tables.keys() - state["tables"].keys()):
            raise IncompatibleState(
                f"the job has not read {', '.join(more)} so far. Read new tables with another PostgresCdcSource, with a "
                "slot of its own, and union the streams"
            )

    def create_reader(self, context: ReaderContext) -> SourceReader[T]:
        """Create a reader, in a task slot."""
        return PostgresCdcReader(self._options, context)
