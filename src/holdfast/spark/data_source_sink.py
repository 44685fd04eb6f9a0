"""DataSourceSink: PySpark's Python data sources as sinks, their stream writers in the job's subtasks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from holdfast.checkpoint.ids import NO_CHECKPOINT, CheckpointId, Epoch
from holdfast.common.formats.arrow import pyarrow
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.values import pickling
from holdfast.connectors.base import Committable, JobInfo, WriterContext, check_form
from holdfast.errors import ConfigurationError
from holdfast.runtime.records.user_code import user_error
from holdfast.spark.delivery import calling_at
from holdfast.spark.element_columns import ElementColumns, fitted
from holdfast.spark.frames import spark_columns

__all__ = ["DataSourceSink"]

_VERSION = 1


class DataSourceSink:
    """A sink that writes by the stream writer of a PySpark data source, which need not be registered.

    ``write`` is called in the subtasks, once for each epoch with rows, and ``commit`` in the driver, when the checkpoint is
    complete: with the messages of all subtasks that had rows, and the checkpoint's id. It is called again after a crash,
    until it is known to have returned. A `DataSourceStreamArrowWriter` gets record batches, any other writer Rows.

    Args:
        source: The data source, with its options: ``MyDataSource({"url": "..."})``.

    Raises:
        TypeError: this is no data source.
    """

    takes_columns = True

    def __init__(self, source: Any) -> None:
        from pyspark.sql.datasource import DataSource

        if not isinstance(source, DataSource):
            raise TypeError(f"DataSourceSink() takes a data source with its options, MyDataSource({{...}}), not {source!r}.")
        self._source = source
        self._name = source.name()
        self._columns = ElementColumns(None)
        self._schema: Any = None
        self._writer: Any = None

    def of_type(self, declared: TypeInformation) -> DataSourceSink:
        """The sink for a stream of this type.

        Raises:
            ConfigurationError: Spark has no type for a column, or the data source has no stream writer.
        """
        sink = copy.copy(self)
        sink._columns = ElementColumns(declared)
        if sink._columns.schema is not None:
            struct, sink._schema = spark_columns(sink._columns.schema)
            sink._writer = _stream_writer(self._source, struct)
        return sink

    def validate(self) -> None:
        """Check that the columns are known.

        Raises:
            ConfigurationError: they are not.
        """
        if self._writer is None:
            raise ConfigurationError(
                f"the data source {self._name} needs a schema, and the stream has no declared type, or "
                "one without columns: declare it where the elements are made (output_type=Types.ROW_NAMED(...))"
            )

    def create_writer(self, context: WriterContext) -> _DataSourceWriter:
        """Create a writer, in a task slot."""
        return _DataSourceWriter(self._name, self._columns, self._schema, self._writer, context)

    def check_prepared(self, data: Any) -> None:
        """Check that output is a data source's message."""
        check_form(data, ("version", "checkpoint", "message"), f"sink of the data source {self._name}", (_VERSION,))

    def create_committer(self, job: JobInfo, uid: str) -> _DataSourceCommitter:
        """Create the committer, which calls the writer's ``commit``."""
        return _DataSourceCommitter(self._name, uid, self._writer)


def _stream_writer(source: Any, struct: Any) -> Any:
    from pyspark.errors import PySparkNotImplementedError

    try:
        return source.streamWriter(struct, False)
    except PySparkNotImplementedError as error:
        raise ConfigurationError(
            f"the data source {source.name()} has no streamWriter(), by which a job writes epoch after epoch; implement it"
        ) from error


class _DataSourceWriter:
    """Gathers the rows of an epoch, and writes them when it ends."""

    def __init__(self, name: str, columns: ElementColumns, schema: Any, writer: Any, context: WriterContext) -> None:
        self._name = name
        self._columns = columns
        self._schema = schema
        self._writer = writer
        self._uid = context.uid
        self._by_columns = any(
            kind.__name__ == "DataSourceStreamArrowWriter" for kind in type(writer).__mro__
        )  # from 4.1 on
        self._batches: list[Any] = []
        self._epoch = Epoch(0)

    def begin_epoch(self, epoch: Epoch, attempt: str, committed: CheckpointId) -> None:
        self._batches = []
        self._epoch = epoch

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        batch = self._columns.batch(values)
        if len(batch.schema) > len(self._schema):
            raise ValueError("rows of a changelog have no form in a data source; filter the stream, or map its kinds")
        self._batches.append(fitted(batch, self._schema))

    def prepare_commit(self) -> list[Any]:
        batches, self._batches = self._batches, []
        if not batches:
            return []
        try:
            message = self._writer.write(iter(batches) if self._by_columns else _rows(batches))
        except Exception as error:
            self._writer.abort([None], int(self._epoch))
            raise user_error(error, self._name, self._uid) from error
        return [{"version": _VERSION, "checkpoint": int(self._epoch), "message": pickling.dumps(message)}]

    def abort_epoch(self) -> None:
        self._batches = []

    def close(self) -> None:
        self._batches = []


class _DataSourceCommitter:
    def __init__(self, name: str, uid: str, writer: Any) -> None:
        self._name = name
        self._uid = uid
        self._writer = writer
        self._done = NO_CHECKPOINT

    def recover(self, committables: Sequence[Committable]) -> None:
        self.commit(committables)

    def commit(self, committables: Sequence[Committable]) -> None:
        messages: dict[CheckpointId, list[Any]] = {}
        for each in sorted(committables, key=lambda each: (each.data["checkpoint"], each.subtask)):
            messages.setdefault(each.data["checkpoint"], []).append(pickling.loads(each.data["message"]))
        for checkpoint_id, own in messages.items():
            if checkpoint_id > self._done:
                with calling_at(checkpoint_id, self._name, self._uid):
                    self._writer.commit(own, int(checkpoint_id))
                self._done = checkpoint_id

    def close(self) -> None:
        """Do nothing: no resources are open."""


def _rows(batches: Sequence[Any]) -> Iterator[Any]:
    """The rows of record batches as Spark makes them: structs are Rows, maps are dicts."""
    from pyspark.sql import Row

    for batch in batches:
        names = Row(*batch.schema.names)
        columns = []
        for column in batch.columns:
            convert = _converter(column.type)
            columns.append([None if value is None else convert(value) for value in column.to_pylist()])
        for values in zip(*columns, strict=True):
            yield names(*values)


@lru_cache(256)
def _converter(kind: Any) -> Callable[[Any], Any]:
    """What makes of Arrow's Python value, not None, that of Spark."""
    from pyspark.sql import Row

    types = pyarrow().types
    if types.is_struct(kind):
        names = Row(*(field.name for field in kind))
        inner = [(field.name, _nullable(_converter(field.type))) for field in kind]
        return lambda value: names(*(convert(value[name]) for name, convert in inner))
    if types.is_map(kind):
        key, item = _converter(kind.key_type), _nullable(_converter(kind.item_type))
        return lambda value: {key(k): item(v) for k, v in value}
    if types.is_list(kind):
        each = _nullable(_converter(kind.value_type))
        return lambda value: [each(one) for one in value]
    return lambda value: value


def _nullable(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)
