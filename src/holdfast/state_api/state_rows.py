"""StateRows: the rows of a stored state, read part by part in any process, and made into DataFrames or Arrow batches."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as sql

from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.typeinfo import TypeInformation
from holdfast.runtime.host.shipping import portable, ship_package
from holdfast.state_api.snapshots.catalog import explained
from holdfast.state_api.spark_types import has_arrow, is_unchanged, spark_type, to_spark

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Field", "StateRows", "batches_of", "frame_of"]

_MOST = 10_000
_FIRST = 100
"""Rows in the first batch, from which the size of rows is estimated."""
_BYTES = 8 << 20
"""Approximate size of a batch."""

Field = tuple[str, "TypeInformation[Any] | None"]
"""Name and type of a column; None: pickles."""


@dataclass(frozen=True)
class StateRows:
    """The rows of a state. Pickled: any process reads its parts."""

    uri: str
    options: Mapping[str, str]
    path: str
    """The checkpoint or savepoint."""
    fields: Sequence[Field]
    parts: Sequence[Any]
    extract: Callable[[Storage, Any], Iterator[Sequence[Any]]]
    """The rows of a part."""

    @property
    def schema(self) -> sql.StructType:
        """The schema of the rows."""
        return sql.StructType([sql.StructField(name, spark_type(each)) for name, each in self.fields])

    def _read(self, parts: Iterable[Any]) -> Iterator[Sequence[Any]]:
        storage = Storage.open(self.uri, self.options)
        for part in parts:
            with explained(self.path, storage):
                yield from self.extract(storage, part)

    def read_all(self, _: int, parts: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        """The rows of several parts, with Spark's values."""
        converts = [to_spark(each) for _, each in self.fields]
        for row in self._read(parts):
            yield tuple([convert(each) for convert, each in zip(converts, row, strict=True)])

    def read_batches(self, parts: Iterable[Any]) -> Iterator[pyarrow.RecordBatch]:
        """The rows of several parts as record batches."""
        import pyarrow
        from pyspark.sql.pandas.types import to_arrow_type

        schema = pyarrow.schema([(each.name, to_arrow_type(each.dataType)) for each in self.schema])
        converts = [_to_arrow(each) for _, each in self.fields]
        waiting, count = self._read(parts), _FIRST
        while read := list(islice(waiting, count)):
            columns = [
                pyarrow.array(column if convert is None else list(map(convert, column)), type=kind.type)
                for convert, column, kind in zip(converts, zip(*read, strict=True), schema, strict=True)
            ]
            batch = pyarrow.RecordBatch.from_arrays(columns, schema=schema)
            count = max(1, min(_MOST, _BYTES * len(read) // max(1, batch.nbytes)))
            yield batch

    def read_pickled(self, _: int, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """The rows of parts whose pickles are in a column."""
        return self.read_batches(pickle.loads(each) for batch in batches for each in batch.column(0).to_pylist())


def frame_of(rows: StateRows, spark: SparkSession) -> DataFrame:
    """The rows as a DataFrame, with a Spark partition for each part."""
    if not rows.parts:
        return spark.createDataFrame([], rows.schema)
    context = spark.sparkContext
    ship_package(context)
    if not has_arrow():
        spread = context.parallelize(rows.parts, len(rows.parts)).mapPartitionsWithIndex(portable(rows.read_all))
        return spark.createDataFrame(spread, rows.schema, verifySchema=False)
    pickles = context.parallelize([(pickle.dumps(part),) for part in rows.parts], len(rows.parts))
    read = portable(rows.read_pickled)
    frame = spark.createDataFrame(pickles, "part binary", verifySchema=False)
    return frame.mapInArrow(lambda batches: read(0, batches), rows.schema)


def batches_of(rows: StateRows) -> Iterator[pyarrow.RecordBatch]:
    """The rows as record batches, read in this process."""
    return rows.read_batches(rows.parts)


def _to_arrow(declared: TypeInformation[Any] | None) -> Callable[[Any], Any] | None:
    """A function from values of a type to Arrow's; None: they are the same."""
    if is_unchanged(declared):
        return None
    first, then = to_spark(declared), _for_arrow(spark_type(declared))
    return lambda value: then(first(value))


def _for_arrow(kind: sql.DataType) -> Callable[[Any], Any]:
    """Records as dicts, maps as lists of pairs."""
    if isinstance(kind, sql.StructType):
        inner = [(each.name, _for_arrow(each.dataType)) for each in kind.fields]
        return lambda value: None if value is None else {n: f(v) for (n, f), v in zip(inner, value, strict=True)}
    if isinstance(kind, sql.ArrayType):
        element = _for_arrow(kind.elementType)
        return lambda value: None if value is None else list(map(element, value))
    if isinstance(kind, sql.MapType):
        key, inner_value = _for_arrow(kind.keyType), _for_arrow(kind.valueType)
        return lambda value: None if value is None else [(key(k), inner_value(v)) for k, v in value.items()]
    return lambda value: value
