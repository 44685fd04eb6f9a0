"""PythonDataSource, one of PySpark's Python data sources as a source of a job.

A bounded one is read by the partitions of its ``reader``, which are planned once for a job. A stream is read between
offsets: those of the checkpoint, and what ``latestOffset`` tells. Each partition is read whole, in one epoch.
So an epoch that runs again reads it from its beginning, and the job depends on no order of its rows.
"""

from __future__ import annotations

import inspect
import json
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from holdfast.checkpoint.ids import CheckpointId
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.types import Row
from holdfast.common.values import pickling
from holdfast.connectors.base import Batch, EpochInput, JobInfo, ReaderContext, SplitRange, check_form
from holdfast.errors import ConfigurationError, IncompatibleState, ServiceUnavailable, UserCodeError
from holdfast.spark.column_types import declared_type
from holdfast.spark.dataframe_source import columns_form, shown_columns
from holdfast.spark.python_rows import Misfit, RowColumns, struct_type

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

__all__ = ["PythonDataSource"]

_VERSION = 1
_AT_ONCE = 16
"""Partitions of a bounded source that an epoch reads: its checkpoint comes when they are read whole."""
_POLL_S = 0.05
"""How often a stream reader is asked for its latest offset while there is nothing new."""

Kind = Literal["reader", "streamReader", "simpleStreamReader"]
"""The method of the data source that makes its reader."""


class PythonDataSource:
    """A source of the rows of a Python data source.

    Args:
        name: The data source's name.
        kind: Which reader it is read by.
        make_reader: Makes another reader, for the driver.
        rows: Makes columns of its rows.
    """

    def __init__(self, name: str, kind: Kind, make_reader: Callable[[], Any], rows: RowColumns) -> None:
        self.name = name
        self.kind = kind
        self.rows = rows
        self.reader = make_reader()
        """Goes to the subtasks. The driver plans with another one, which may open what cannot be pickled."""
        self.make_reader: Callable[[], Any] | None = make_reader

    @staticmethod
    def of(source: DataSource, schema: Any, event_time: str | None, bounded: bool | None) -> PythonDataSource:
        """The source of a data source; see ``from_data_source``.

        Raises:
            TypeError: it is no data source.
            ConfigurationError: it cannot be read so.
        """
        from pyspark.sql.datasource import DataSource

        if not isinstance(source, DataSource):
            hint = ": give an object of it, Orders(options)" if isinstance(source, type) else ""
            raise TypeError(f"from_data_source() takes a pyspark.sql.datasource.DataSource, not {source!r}{hint}.")
        name = type(source).name()
        kind = _kind(source, name, bounded)
        try:
            given = source.schema() if schema is None else schema
        except NotImplementedError as error:
            raise ConfigurationError(f"the data source {name} tells no schema; give it by schema=") from error
        columns = struct_type(given, f"the schema of the data source {name}")

        def make_reader() -> Any:
            return getattr(source, kind)(columns)

        return PythonDataSource(name, kind, make_reader, RowColumns(columns, event_time))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "make_reader": None}  # the data source stays in the driver

    @property
    def timestamped(self) -> bool:
        """Whether the rows have timestamps."""
        return self.rows.event_time is not None

    @property
    def bounded(self) -> bool:
        """Whether it is read once, by its ``reader``."""
        return self.kind == "reader"

    def get_produced_type(self) -> TypeInformation[Row] | None:
        """The type of the Rows; None if one of the columns has values that no declared type holds exactly."""
        return declared_type(self.rows.schema)

    @property
    def form(self) -> list[list[str]]:
        """The columns' names and types, and the event time's, as plain data."""
        return columns_form(self.rows.columns, self.rows.event_time)

    def create_enumerator(self, job: JobInfo, uid: str) -> PartitionsEnumerator | OffsetsEnumerator:
        """Create the enumerator."""
        return PartitionsEnumerator(self, uid) if self.bounded else OffsetsEnumerator(self, uid)

    def check_position(self, state: Any) -> None:
        """Check that a stored position is one in rows of these columns, by a reader of this kind."""
        check_form(state, ("version", "columns", "kind"), "data source of PySpark", (_VERSION,))
        if (state["kind"] == "reader") != self.bounded:
            have, want = ("bounded", "a stream") if self.kind != "reader" else ("a stream", "bounded")
            raise IncompatibleState(f"it is one in a data source that was {have}, and in the program it is {want}")
        if state["columns"] != self.form:
            raise IncompatibleState(
                f"it is one in a data source with the columns {shown_columns(state['columns'])}, and the program's has "
                f"{shown_columns(self.form)}; run it with the same columns"
            )

    def create_reader(self, context: ReaderContext) -> PartitionReader:
        """Create a reader."""
        return PartitionReader(self, context.uid)

    @contextmanager
    def calling(self, uid: str, method: str) -> Iterator[None]:
        """Name the data source in errors of its methods.

        Raises:
            ServiceUnavailable: the method has raised; a restart may help.
        """
        try:
            yield
        except Exception as error:
            stack = error.__traceback__.tb_next if error.__traceback__ is not None else None
            told = "".join(traceback.format_exception(type(error), error, stack)).rstrip()
            raise ServiceUnavailable(f"{told}\n  in {self.name}.{method}() [data source, uid {uid!r}]") from error

    def described(self) -> dict[str, Any]:
        """What every position tells of its source."""
        return {"version": _VERSION, "columns": self.form, "kind": self.kind}


def _kind(source: DataSource, name: str, bounded: bool | None) -> Kind:
    from pyspark.sql.datasource import DataSource

    kinds: tuple[Kind, ...] = ("streamReader", "simpleStreamReader", "reader")
    has = [kind for kind in kinds if getattr(type(source), kind) is not getattr(DataSource, kind)]
    fit = [kind for kind in has if bounded is None or bounded == (kind == "reader")]
    if fit:
        return fit[0]
    if not has:
        raise ConfigurationError(f"the data source {name} cannot be read: it has neither reader() nor streamReader()")
    needed = "reader()" if bounded else "streamReader() or simpleStreamReader()"
    raise ConfigurationError(f"the data source {name} has {has[0]}() and no {needed}; leave bounded= out")


class PartitionsEnumerator:
    """Plans the partitions of a bounded data source, some in each epoch."""

    def __init__(self, source: PythonDataSource, uid: str) -> None:
        self._source = source
        self._uid = uid
        self._left: list[bytes] = []
        """The partitions that are not planned, pickled."""
        self._next = 0
        """The number of the first of them."""
        self._closed = threading.Event()

    def start(self, state: Any | None) -> None:
        """Plan the partitions, or go on with those that the checkpoint has not read.

        Raises:
            ServiceUnavailable: the reader has raised.
        """
        if state is not None:
            self._left, self._next = list(state["partitions"]), state["next"]
            return
        assert self._source.make_reader is not None
        with self._source.calling(self._uid, "reader.partitions"):
            self._left = [pickling.dumps(each) for each in _partitions(self._source.make_reader())]

    def plan(self, max_records: int) -> EpochInput:
        """Plan the next partitions."""
        planned, self._left = self._left[:_AT_ONCE], self._left[_AT_ONCE:]
        ranges = tuple(
            SplitRange(f"partition {number}", 0, 1, payload=pickled, last=True)
            for number, pickled in enumerate(planned, self._next)
        )
        self._next += len(planned)
        return EpochInput(ranges, len(self._left), finished=not self._left)

    def snapshot(self) -> Any:
        """Return the partitions that are not planned."""
        return {**self._source.described(), "partitions": list(self._left), "next": self._next}

    def checkpoint_completed(self, checkpoint_id: CheckpointId, state: Any) -> None:
        """Do nothing: a batch reader has no commit."""

    def wait(self, timeout: float) -> None:
        """Return at once while there is input; after the end, wait for the timeout."""
        if not self._left:
            self._closed.wait(timeout)

    def close(self) -> None:
        """End a wait."""
        self._closed.set()


def _partitions(reader: Any) -> list[Any]:
    """The partitions of a batch reader; as in Spark, one without a value if it has no own."""
    from pyspark.sql.datasource import InputPartition

    try:
        found = list(reader.partitions())
    except NotImplementedError:
        found = []
    return found or [InputPartition(None)]


class OffsetsEnumerator:
    """Plans what a stream reader has between its last offset and its latest one."""

    def __init__(self, source: PythonDataSource, uid: str) -> None:
        self._source = source
        self._uid = uid
        self._reader: Any = None
        self._offset: Any = None
        self._committed: Any = None
        """The last offset that the reader was told of, or began with."""
        self._closed = threading.Event()

    def start(self, state: Any | None) -> None:
        """Make the reader, and begin at its initial offset or at the checkpoint's.

        Raises:
            ServiceUnavailable: the reader has raised.
        """
        assert self._source.make_reader is not None
        with self._source.calling(self._uid, self._source.kind):
            self._reader = self._source.make_reader()
        if state is not None:
            self._offset = self._committed = json.loads(state["offset"])
            return
        with self._source.calling(self._uid, f"{self._source.kind}.initialOffset"):
            self._offset = self._committed = _plain(self._reader.initialOffset())

    def plan(self, max_records: int) -> EpochInput:
        """Plan the partitions up to the latest offset, within the reader's own limits.

        Raises:
            ServiceUnavailable: the reader has raised.
        """
        start = self._offset
        end = self._latest(start)
        if end == start:
            return EpochInput()
        if self._source.kind == "simpleStreamReader":
            partitions: list[Any] = [(start, end)]
        else:
            with self._source.calling(self._uid, "streamReader.partitions"):
                partitions = list(self._reader.partitions(start, end))
        self._offset = end
        ranges = (
            SplitRange(f"partition {number}", 0, 1, payload=pickling.dumps(each)) for number, each in enumerate(partitions)
        )
        return EpochInput(tuple(ranges))

    def _latest(self, start: Any) -> Any:
        reader = self._reader
        if self._source.kind == "simpleStreamReader":
            with self._source.calling(self._uid, "simpleStreamReader.read"):
                rows, end = reader.read(start)
                end = _plain(end)
                if end == start and next(iter(rows), None) is not None:
                    raise ValueError(f"it has returned rows, and an end that is its start, {start}: they would come again")
                return end
        with self._source.calling(self._uid, "streamReader.latestOffset"):
            if not inspect.signature(reader.latestOffset).parameters:  # its form in PySpark 4.0 and 4.1
                return _plain(reader.latestOffset())
            return _plain(reader.latestOffset(start, reader.getDefaultReadLimit()))

    def snapshot(self) -> Any:
        """Return the offset up to which all is planned."""
        return {**self._source.described(), "offset": json.dumps(self._offset)}

    def checkpoint_completed(self, checkpoint_id: CheckpointId, state: Any) -> None:
        """Tell the reader that all up to the checkpoint's offset is processed.

        Raises:
            ServiceUnavailable: its ``commit`` has raised.
        """
        offset = json.loads(state["offset"])
        if offset != self._committed:
            with self._source.calling(self._uid, f"{self._source.kind}.commit"):
                self._reader.commit(offset)
            self._committed = offset

    def wait(self, timeout: float) -> None:
        """Wait until the reader may be asked again."""
        self._closed.wait(min(timeout, _POLL_S))

    def close(self) -> None:
        """Stop the reader."""
        self._closed.set()
        reader, self._reader = self._reader, None
        stop = getattr(reader, "stop", None)  # a simple reader has none
        if stop is not None:
            with self._source.calling(self._uid, f"{self._source.kind}.stop"):
                stop()


def _plain(offset: Any) -> Any:
    """An offset as the checkpoint gives it back."""
    return json.loads(json.dumps(offset))


class PartitionReader:
    """Reads partitions by the data source's reader, as columns."""

    def __init__(self, source: PythonDataSource, uid: str) -> None:
        self._source = source
        self._uid = uid

    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch[Any]]:
        """Read a partition.

        Raises:
            ServiceUnavailable: the reader has raised.
            UserCodeError: a row does not fit the schema.
        """
        source, name = self._source, self._source.name
        place = f"{name}, {part.split}"
        try:
            yield from source.rows.batches(self._rows(pickling.loads(part.payload)), max_batch, place)
        except Misfit as error:
            record = f"{place}, row {error.at}"
            raise UserCodeError(
                f"{error}\n  in operator {name!r} (uid {self._uid!r})\n  record: {record}",
                operator=name, uid=self._uid, record=record,
            ) from error  # fmt: skip

    def _rows(self, partition: Any) -> Iterator[Any]:
        source = self._source
        simple = source.kind == "simpleStreamReader"
        method = f"{source.kind}.{'readBetweenOffsets' if simple else 'read'}"
        with source.calling(self._uid, method):
            yield from source.reader.readBetweenOffsets(*partition) if simple else source.reader.read(partition)

    def close(self) -> None:
        """Do nothing: a reader opens what it reads for each partition."""
