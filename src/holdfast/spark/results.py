"""ResultsSink: keeps the output of a bounded job as Arrow, for a DataFrame of all rows.

Beside the parts (`holdfast.spark.staged_output`), a file ``rows-<checkpoint>`` lists those of a checkpoint. They stay: a
program that is started again, though its job has ended, has the same results.
"""

from __future__ import annotations

import atexit
import copy
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.checkpoint.ids import NO_CHECKPOINT
from holdfast.checkpoint.paths import JobPaths
from holdfast.common.formats.arrow import check_dataframes, pyarrow
from holdfast.common.typeinfo import TypeInformation
from holdfast.connectors.base import Committable, JobInfo, WriterContext
from holdfast.spark.element_columns import ElementColumns
from holdfast.spark.frames import session_of, spark_frame
from holdfast.spark.in_driver import InDriver
from holdfast.spark.staged_output import PartName, StagedOutput, StagedWriter, StagingArea, check_staged, outputs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Results", "ResultsSink", "temporary_directory"]

_LISTS = "rows-"


class Results:
    """Where the results of a job are, once it has a driver."""

    def __init__(self) -> None:
        self.area: StagingArea | None = None
        self.schema: Any = None
        """The ``pyarrow.Schema`` of the declared type."""

    def frame(self, session: SparkSession | None) -> DataFrame:
        """The DataFrame of all rows of the job, which has ended.

        Raises:
            ConfigurationError: Spark has no type for a column.
        """
        return spark_frame(session_of(session), self.output())

    def output(self) -> StagedOutput:
        """All rows of the job, which has ended. Without rows, their declared type gives the columns."""
        assert self.area is not None
        storage, prefix = self.area.open(), self.area.prefix
        stored = [msgspec.msgpack.decode(storage.get(path)) for path in _lists_among(storage.list(prefix), prefix)]
        merged = outputs(self.area, [Committable("", n, {**each, "checkpoint": 0}) for n, each in enumerate(stored)])
        if merged:
            return merged[0]
        return StagedOutput(NO_CHECKPOINT, self.area, self.schema or pyarrow().schema([]), ())


def _lists_among(paths: Iterable[str], prefix: str) -> list[str]:
    """The lists in an area, by checkpoint, without those that were not written to their end."""
    return sorted(path for path in paths if path.startswith(prefix + _LISTS) and not JobPaths.is_part(path))


def temporary_directory() -> str:
    """A new directory that lasts as long as this process."""
    directory = tempfile.mkdtemp(prefix="holdfast-results-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


class ResultsSink:
    """A sink that keeps its rows as Arrow.

    Args:
        results: Learns where.
        directory: A directory for the rows; None: beside the job's checkpoints.
        declared: The elements' type.
    """

    takes_columns = True
    _name = "execute_to_dataframe()"

    def __init__(self, results: Results, directory: str | None, declared: TypeInformation | None = None) -> None:
        self._directory = directory
        self.columns = ElementColumns(declared)
        self._results = InDriver(results)

    def of_type(self, declared: TypeInformation) -> ResultsSink:
        """The sink for a stream of this type."""
        sink = copy.copy(self)
        sink.columns = ElementColumns(declared)
        return sink

    def validate(self) -> None:
        """Check that Spark can read what is staged.

        Raises:
            ConfigurationError: a library is not installed.
        """
        check_dataframes()

    def create_writer(self, context: WriterContext) -> StagedWriter:
        """Create a writer."""
        area = StagingArea.of(context.job, context.uid, self._directory)
        return StagedWriter(area, self.columns, context, self._name)

    def check_prepared(self, data: Any) -> None:
        """Check that output is staged."""
        check_staged(data, self._name)

    def create_committer(self, job: JobInfo, uid: str) -> _ResultsCommitter:
        """Create the committer, which lists the parts that count."""
        results = self._results.value
        results.schema = self.columns.schema
        area = results.area = StagingArea.of(job, uid, self._directory)
        return _ResultsCommitter(area, job.generation)


class _ResultsCommitter:
    def __init__(self, area: StagingArea, generation: int) -> None:
        self._prefix = area.prefix
        self._storage = area.open()
        self._generation = generation

    def recover(self, committables: Sequence[Committable]) -> None:
        self.commit(committables)
        paths = self._storage.list(self._prefix)
        lists = _lists_among(paths, self._prefix)
        stored = (msgspec.msgpack.decode(self._storage.get(path)) for path in lists)
        kept = {*lists, *(self._prefix + name for each in stored for name, _ in each["parts"])}
        left = ((path, PartName.parse(path.removeprefix(self._prefix))) for path in paths if path not in kept)
        self._storage.delete([path for path, part in left if part is None or part.generation < self._generation])

    def commit(self, committables: Sequence[Committable]) -> None:
        for each in committables:
            name = f"{_LISTS}{each.data['checkpoint']:020d}-{each.subtask:05d}"
            self._storage.put(self._prefix + name, msgspec.msgpack.encode(each.data))

    def close(self) -> None:
        """Do nothing: no resources are open."""
