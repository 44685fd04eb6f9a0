"""DataFrameSource, the rows of a batch DataFrame as a bounded source."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.ids import CheckpointId
from holdfast.checkpoint.paths import JobPaths, new_attempt, safe_name
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.formats.columns import Columns, packed_stamps
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.types import Row
from holdfast.connectors.base import Batch, EpochInput, JobInfo, ReaderContext, SplitRange, check_form
from holdfast.connectors.collection import CountedEnumerator
from holdfast.errors import ConfigurationError, IncompatibleState
from holdfast.spark.column_types import arrow_columns, declared_type, make_rows
from holdfast.spark.spark_partitions import check_event_time, check_frame, spark_partitions
from holdfast.spark.stored_rows import (
    OpenParts,
    Part,
    Partitions,
    PartsWriter,
    parts_between,
    read_manifest,
    write_manifest,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DataFrameReader", "DataFrameSource", "columns_form", "shown_columns"]

_VERSION = 1


class DataFrameSource:
    """A bounded source of the rows of a DataFrame, in its partitions.

    Spark computes the DataFrame once for a job, and its tasks store the rows with the job's checkpoints; all restarts read
    these, so that a DataFrame that gives other rows when it is computed again counts once.

    Args:
        columns: The ``pyarrow.Schema``.
        partitions: Has the partitions written.
        event_time: The column with the event time.
        declared: The declared type of the Rows.
    """

    def __init__(
        self,
        columns: Any,
        partitions: Partitions,
        event_time: str | None = None,
        declared: TypeInformation[Row] | None = None,
    ) -> None:
        self.columns = columns
        self.event_time = event_time
        self._partitions: Partitions | None = partitions
        self._declared = declared

    @staticmethod
    def of(frame: DataFrame, event_time: str | None = None) -> DataFrameSource:
        """The source of a DataFrame.

        Args:
            frame: A batch DataFrame.
            event_time: A column of timestamps, dates, or whole numbers in ms: the rows' timestamps.

        Raises:
            TypeError: it is no DataFrame.
            ConfigurationError: it is a streaming one, or a column cannot be carried or be the event time.
        """
        check_frame(frame)
        columns = arrow_columns(frame.schema)
        check_event_time(frame.schema, event_time)
        partitions = functools.partial(spark_partitions, frame, event_time)
        return DataFrameSource(columns, partitions, event_time, declared_type(frame.schema))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_partitions": None}  # the DataFrame stays in the driver

    @property
    def timestamped(self) -> bool:
        """Whether the rows have timestamps."""
        return self.event_time is not None

    @property
    def bounded(self) -> bool:
        """Always True."""
        return True

    def get_produced_type(self) -> TypeInformation[Row] | None:
        """The type of the Rows; None if one of the columns has values that no declared type holds exactly."""
        return self._declared

    @property
    def form(self) -> list[list[str]]:
        """The columns' names and types, and the event time's, as plain data."""
        return columns_form(self.columns, self.event_time)

    def create_enumerator(self, job: JobInfo, uid: str) -> DataFrameEnumerator:
        """Create the enumerator."""
        assert self._partitions is not None
        return DataFrameEnumerator(self, self._partitions, job, uid)

    def check_position(self, state: Any) -> None:
        """Check that a stored position is one in rows of these columns."""
        check_form(state, ("version", "columns", "rows", "counted"), "source of a DataFrame", (_VERSION,))
        if state["columns"] != self.form:
            raise IncompatibleState(
                f"it is one in a DataFrame with the columns {shown_columns(state['columns'])}, and the program's "
                f"has {shown_columns(self.form)}; run it with the same columns"
            )

    def create_reader(self, context: ReaderContext) -> DataFrameReader:
        """Create a reader."""
        return DataFrameReader(self.columns, self.timestamped, context.job.storage_config)


def columns_form(columns: Any, event_time: str | None) -> list[list[str]]:
    """The names and types of columns, and the event time's name, as plain data."""
    form = [[each.name, str(each.type)] for each in columns]
    return [*form, ["event time", event_time]] if event_time is not None else form


def shown_columns(form: list[list[str]]) -> str:
    """The form of columns, for messages."""
    return ", ".join(f"{name} ({kind})" for name, kind in form)


class DataFrameEnumerator:
    """Has the rows written if the job has none yet, and cuts the partitions into ranges, which advance in step."""

    def __init__(self, source: DataFrameSource, partitions: Partitions, job: JobInfo, uid: str) -> None:
        assert job.storage_uri is not None
        self._source = source
        self._partitions = partitions
        self._uid = uid
        self._config = job.storage_config
        self._uri = job.storage_uri
        """The storage of the rows: another job's if this one has started from its savepoint."""
        self._directory = f"{JobPaths.of(job.job_name).directory}/sources/{safe_name(uid)}/"
        self._prefix = ""
        self._parts: dict[str, list[Part]] = {}
        self._counted = CountedEnumerator({})
        self._kept = True

    def start(self, state: Any | None) -> None:
        """Have the rows written, or go on in those that the checkpoint names.

        Raises:
            ConfigurationError: the DataFrame cannot be computed, or a row of it cannot be read.
            InputLost: the rows are gone.
            SparkGone: the session is stopped.
        """
        if state is None:
            self._prefix = f"{self._directory}{new_attempt()}/"
            self._parts = self._write()
        else:
            self._uri, self._prefix = state["rows"]
            finished = state["counted"]["next"] == state["counted"]["sizes"]
            self._parts = {} if finished else read_manifest(self._storage(), self._prefix)
        sizes = {name: sum(rows for _, rows in parts) for name, parts in self._parts.items()}
        self._counted = CountedEnumerator(sizes if state is None else state["counted"]["sizes"])
        self._counted.start(None if state is None else state["counted"])

    def _storage(self) -> Storage:
        return Storage.open(self._uri, self._config)

    def _write(self) -> dict[str, list[Part]]:
        storage, source = self._storage(), self._source
        storage.delete(storage.list(self._directory))  # no checkpoint refers to them: this one would restore it
        writer = PartsWriter(self._uri, self._config, self._prefix, source.columns, source.event_time)
        written = list(self._partitions(writer))
        for each in written:
            if each.number < 0:
                raise ConfigurationError(f"source {self._uid!r}, a DataFrame: {each.name}; filter such rows out")
        return write_manifest(storage, self._prefix, written)

    def plan(self, max_records: int) -> EpochInput:
        """Plan the next rows of every partition, in proportion to the rest of each."""
        planned = self._counted.plan(max_records)
        return replace(planned, ranges=tuple(map(self._with_parts, planned.ranges)))

    def _with_parts(self, part: SplitRange) -> SplitRange:
        return replace(part, payload=(self._uri, parts_between(self._parts[part.split], part.start, part.end)))

    def snapshot(self) -> Any:
        """Return the number of the next row of each partition, and where the rows are."""
        return {
            "version": _VERSION,
            "columns": self._source.form,
            "rows": [self._uri, self._prefix],
            "counted": self._counted.snapshot(),
        }

    def checkpoint_completed(self, checkpoint_id: CheckpointId, state: Any) -> None:
        """Delete the rows once all are read."""
        if self._kept and state["counted"]["next"] == state["counted"]["sizes"]:
            self._kept = False
            storage = self._storage()
            storage.delete(storage.list(self._prefix))

    def wait(self, timeout: float) -> None:
        """Return at once while there is input; after the end, wait for the timeout."""
        self._counted.wait(timeout)

    def close(self) -> None:
        """End a wait."""
        self._counted.close()


class DataFrameReader:
    """Reads ranges of partitions, as columns.

    Args:
        columns: Their ``pyarrow.Schema``.
        timestamped: Whether the rows have timestamps.
        config: The settings of the storage.
    """

    def __init__(self, columns: Any, timestamped: bool, config: Mapping[str, str]) -> None:
        self._timestamped = timestamped
        self._make_rows = make_rows(columns)
        self._parts = OpenParts(config)

    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch]:
        """Read the rows of a partition from number ``part.start`` up to ``part.end``, exclusive.

        Raises:
            InputLost: the rows are gone.
        """
        uri, parts = part.payload
        at = part.start
        for path, first, rows in parts:
            for batch in self._parts.batches(uri, path, max(part.start - first, 0), min(part.end - first, rows)):
                for start in range(0, batch.num_rows, max_batch):
                    yield self._batch(part.split, at + start, batch.slice(start, max_batch))
                at += batch.num_rows

    def _batch(self, split: str, first: int, rows: Any) -> Batch:
        stamps = None
        if self._timestamped:
            last = rows.num_columns - 1
            stamps = packed_stamps(rows.column(last).to_numpy())
            rows = rows.select(range(last))
        return Batch(Columns(rows, self._make_rows).as_list(), stamps, functools.partial(_place, split, first))

    def close(self) -> None:
        """Close the files."""
        self._parts.close()


def _place(split: str, first: int, i: int) -> str:
    return f"DataFrame, {split}, row {first + i}"
