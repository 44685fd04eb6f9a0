"""SparkStreamSource, the rows of a streaming DataFrame as an unbounded source; batch ids are its positions.

Spark runs the query in the driver. For each batch it calls `SparkStreamEnumerator.take` in a thread of its own, which has
Spark's tasks store the rows, hands them over to the driver's thread, and returns when a complete checkpoint has read them.
So Spark completes a batch after the job has, and is at most one batch ahead of any checkpoint that is restored:

    the rows are stored    -> Spark replays the batch; they are stored anew, under other names
    some are read          -> the checkpoint names the stored rows; they are read on, whatever Spark replays
    all are read           -> what Spark replays is not looked at
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from urllib.parse import unquote

from holdfast.checkpoint.ids import CheckpointId
from holdfast.checkpoint.paths import JobPaths, canonical_uri, new_attempt, safe_name
from holdfast.checkpoint.stores.storage import Storage, open_store
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.types import Row
from holdfast.connectors.base import EpochInput, JobInfo, ReaderContext, SplitRange, check_form
from holdfast.connectors.collection import CountedEnumerator
from holdfast.errors import ConfigurationError, IncompatibleState, InputLost
from holdfast.spark.dataframe_source import DataFrameReader, columns_form, shown_columns
from holdfast.spark.query_log import QueryLog
from holdfast.spark.stored_rows import Part, Partitions, PartsWriter, parts_between, read_manifest, write_manifest

__all__ = ["Query", "SparkStreamEnumerator", "SparkStreamSource", "StartQuery"]

_VERSION = 1


class Query(Protocol):
    """A query that runs."""

    def stop(self) -> None:
        """Stop it, and wait for its end; nothing if it has ended."""


Take = Callable[[Partitions, int], None]
"""Takes a batch: how to have its partitions written, and its id. Returns when it may be completed."""
Ended = Callable[[BaseException | None], None]
"""Called at the end of the query, with its error."""
StartQuery = Callable[[str, Take, Ended], Query]
"""Starts the query at a checkpoint location.

Raises:
    ConfigurationError: Spark refuses it.
"""


class SparkStreamSource:
    """A source of the rows of a streaming DataFrame.

    Args:
        columns: The ``pyarrow.Schema``.
        start_query: Starts the query.
        event_time: The column with the event time.
        declared: The declared type of the Rows.
    """

    def __init__(
        self,
        columns: Any,
        start_query: StartQuery,
        event_time: str | None = None,
        declared: TypeInformation[Row] | None = None,
    ) -> None:
        self.columns = columns
        self.event_time = event_time
        self._start_query: StartQuery | None = start_query
        self._declared = declared

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_start_query": None}  # the DataFrame stays in the driver

    @property
    def timestamped(self) -> bool:
        """Whether the rows have timestamps."""
        return self.event_time is not None

    @property
    def bounded(self) -> bool:
        """Always False, although the query may end: it needs checkpoints on the way, which BATCH mode does not have."""
        return False

    def get_produced_type(self) -> TypeInformation[Row] | None:
        """The type of the Rows; None if one of the columns has values that no declared type holds exactly."""
        return self._declared

    @property
    def form(self) -> list[list[str]]:
        """The columns' names and types, and the event time's, as plain data."""
        return columns_form(self.columns, self.event_time)

    def create_enumerator(self, job: JobInfo, uid: str) -> SparkStreamEnumerator:
        """Create the enumerator.

        Raises:
            ConfigurationError: the job keeps no checkpoints.
        """
        assert self._start_query is not None
        if job.storage_uri is None:
            raise ConfigurationError(
                f"source {uid!r}, a streaming DataFrame, needs checkpoints: set execution.checkpointing.dir"
            )
        return SparkStreamEnumerator(self, self._start_query, job, job.storage_uri, uid)

    def check_position(self, state: Any) -> None:
        """Check that a stored position is one in rows of these columns."""
        check_form(state, ("version", "columns", "spark", "batch"), "source of a streaming DataFrame", (_VERSION,))
        if state["columns"] != self.form:
            raise IncompatibleState(
                f"it is one in a streaming DataFrame with the columns {shown_columns(state['columns'])}, and the program's "
                f"has {shown_columns(self.form)}; run it with the same columns"
            )

    def create_reader(self, context: ReaderContext) -> DataFrameReader:
        """Create a reader."""
        return DataFrameReader(self.columns, self.timestamped, context.job.storage_config)


def _for_hadoop(uri: str) -> str:
    return f"s3a://{uri[5:]}" if uri.startswith("s3://") else unquote(uri)


class _Stopped(Exception):
    """The job has ended, or has gone back, before a checkpoint that has read the batch; Spark replays it."""


@dataclass
class _Batch:
    """A batch whose rows are stored."""

    number: int
    rows: tuple[str, str]
    """The URI of the storage, and the directory of the rows."""
    parts: dict[str, list[Part]]
    times: tuple[int, int]
    """The highest event time of the batches before it, and of them and itself."""
    counted: CountedEnumerator = field(init=False)
    announced: bool = True
    """Whether an epoch has had it."""

    def __post_init__(self) -> None:
        self.counted = CountedEnumerator({name: sum(rows for _, rows in parts) for name, parts in self.parts.items()})

    def plan(self, max_records: int) -> EpochInput:
        """Plan the next rows of every partition. A batch without rows has an epoch, too, so that a checkpoint follows."""
        planned = self.counted.plan(max_records)
        ranges = tuple(map(self._with_parts, planned.ranges))
        if not ranges and not self.announced:
            ranges = (SplitRange(f"batch {self.number}", 0, 0, 0, last=True),)
        self.announced = True
        return EpochInput(ranges, planned.backlog)

    def _with_parts(self, part: SplitRange) -> SplitRange:
        payload = (self.rows[0], parts_between(self.parts[part.split], part.start, part.end))
        return replace(part, split=f"batch {self.number}, {part.split}", payload=payload, since=self.times[0])

    def snapshot(self) -> dict[str, Any]:
        """The position in the batch, as plain data."""
        return {
            "number": self.number, "rows": list(self.rows), "times": list(self.times), "counted": self.counted.snapshot()
        }  # fmt: skip


def _is_read(batch: Any) -> bool:
    """Whether a checkpoint with this state has read the whole batch."""
    return bool(batch["counted"]["next"] == batch["counted"]["sizes"])


def _done(state: Any) -> int:
    """The last batch that a checkpoint with this state has read as a whole; -1: none."""
    batch = state["batch"]
    if batch is None:
        return -1
    return int(batch["number"]) if _is_read(batch) else int(batch["number"]) - 1


class SparkStreamEnumerator:
    """Runs the query, and cuts its batches into ranges."""

    def __init__(self, source: SparkStreamSource, start_query: StartQuery, job: JobInfo, uri: str, uid: str) -> None:
        self._source = source
        self._start_query = start_query
        self._uid = uid
        self._uri = uri
        self._config = job.storage_config
        self._directory = f"{JobPaths.of(job.job_name).directory}/sources/{safe_name(uid)}/"
        self._spark = ("", "")
        """The storage and the directory of Spark's checkpoint location."""
        self._query: Query | None = None
        self._changed = threading.Condition()
        self._batch: _Batch | None = None
        """The batch that is read, or was read last. Only the driver's thread changes it."""
        self._offered: _Batch | None = None
        """The next one."""
        self._done = -1
        self._failure: BaseException | None = None
        self._ended = False
        self._closed = False

    def start(self, state: Any | None) -> None:
        """Start the query afresh, or where the checkpoint is.

        Raises:
            ConfigurationError: Spark refuses the query.
            InputLost: Spark cannot go back to the checkpoint, or rows that it has not read are gone.
        """
        storage = Storage.open(self._uri, self._config)
        if state is None:
            storage.delete(storage.list(self._directory))  # no checkpoint refers to it: this one would restore it
            self._spark = (self._uri, self._new_location())
        else:
            self._restore(state)
            kept = self._batch.rows[1] if self._batch is not None and self._batch.parts else None
            rows = storage.list(f"{self._directory}rows/")
            storage.delete([path for path in rows if kept is None or not path.startswith(kept)])
        location = self._log(*self._spark).storage.locate(self._spark[1]).rstrip("/")
        self._query = self._start_query(_for_hadoop(location), self.take, self._query_ended)

    def _new_location(self) -> str:
        return f"{self._directory}spark-{new_attempt()}/"

    def _log(self, uri: str, prefix: str) -> QueryLog:
        return QueryLog(Storage(open_store(uri, self._config)), prefix)

    def _restore(self, state: Any) -> None:
        self._done = _done(state)
        stored = state["batch"]
        if stored is not None:
            uri, prefix = stored["rows"]
            parts = {} if _is_read(stored) else read_manifest(Storage.open(uri, self._config), prefix)
            self._batch = batch = _Batch(stored["number"], (uri, prefix), parts, tuple(stored["times"]))
            batch.counted = CountedEnumerator(stored["counted"]["sizes"])
            batch.counted.start(stored["counted"])
        uri, prefix = self._spark = tuple(state["spark"])
        log = self._log(uri, prefix)
        is_own = canonical_uri(uri) == canonical_uri(self._uri) and prefix.startswith(self._directory)
        if not log.is_at(self._done) or not is_own:  # an older checkpoint, or a savepoint of another job
            self._spark = (self._uri, self._new_location())
            log.copy_until(self._done, self._log(*self._spark))

    def take(self, partitions: Partitions, number: int) -> None:
        """Store the rows of a batch, and wait for a checkpoint that has read them all. In a thread of the query.

        Raises:
            Exception: the rows cannot be stored, or the job has ended: Spark must not complete the batch.
        """
        with self._changed:
            known = self._done if self._batch is None else max(self._done, self._batch.number)
        try:
            if number > known:
                self._store(partitions, number)
        except BaseException as error:
            self._query_ended(error)
            raise
        with self._changed:
            self._changed.wait_for(lambda: self._done >= number or self._closed or self._failure is not None)
            if self._done < number:
                raise _Stopped(f"the job has ended before its checkpoint of batch {number}")

    def _store(self, partitions: Partitions, number: int) -> None:
        if number != self._done + 1:
            raise InputLost(
                f"source {self._uid!r}: Spark goes on with batch {number}, and the job has read up to batch {self._done}; "
                "restore a later checkpoint, or start afresh"
            )
        source, prefix = self._source, f"{self._directory}rows/{number}-{new_attempt()}/"
        writer = PartsWriter(self._uri, self._config, prefix, source.columns, source.event_time)
        written = list(partitions(writer))
        for each in written:
            if each.number < 0:
                raise ConfigurationError(f"source {self._uid!r}, batch {number}: {each.name}; filter such rows out")
        parts = write_manifest(Storage.open(self._uri, self._config), prefix, written)
        before = MIN_TIMESTAMP if self._batch is None else self._batch.times[1]
        latest = max((each.latest for each in written if each.latest is not None), default=before)
        with self._changed:
            self._offered = _Batch(number, (self._uri, prefix), parts, (before, max(before, latest)), announced=False)
            self._changed.notify_all()

    def _query_ended(self, error: BaseException | None) -> None:
        with self._changed:
            self._ended = True
            if self._failure is None and not self._closed:  # the first one is the cause
                self._failure = error
            self._changed.notify_all()

    def plan(self, max_records: int) -> EpochInput:
        """Plan the next rows of every partition of the batch; if it is read, those of the next one.

        Raises:
            Exception: the query has failed.
        """
        with self._changed:
            if self._failure is not None:
                raise self._failure
            planned = EpochInput() if self._batch is None else self._batch.plan(max_records)
            if not planned.ranges and self._offered is not None:
                self._batch, self._offered = self._offered, None
                planned = self._batch.plan(max_records)
            return replace(planned, finished=self._ended and not planned.ranges)

    def snapshot(self) -> Any:
        """Return the batch and the position in it, and where Spark's checkpoints are."""
        return {
            "version": _VERSION,
            "columns": self._source.form,
            "spark": list(self._spark),
            "batch": None if self._batch is None else self._batch.snapshot(),
        }

    def checkpoint_completed(self, checkpoint_id: CheckpointId, state: Any) -> None:
        """Let Spark complete the batch once all is read, and delete its rows."""
        done = _done(state)
        if done <= self._done:
            return
        with self._changed:
            self._done = done
            self._changed.notify_all()
        uri, prefix = state["batch"]["rows"]
        storage = Storage.open(uri, self._config)
        storage.delete(storage.list(prefix))

    def wait(self, timeout: float) -> None:
        """Wait for the next batch; return at once while there is input."""
        with self._changed:
            self._changed.wait_for(self._is_due, timeout)

    def _is_due(self) -> bool:
        reading = self._batch is not None and not _is_read(self._batch.snapshot())
        return reading or self._offered is not None or self._ended or self._closed

    def close(self) -> None:
        """Stop the query; Spark replays a batch that no complete checkpoint has read."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        query, self._query = self._query, None
        if query is not None:
            query.stop()
