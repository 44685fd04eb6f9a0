"""StateRows: the rows of a stored state, read part by part in any process, and made into DataFrames or Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as sql

from holdfast.checkpoint.storage import Storage
from holdfast.common.typeinfo import TypeInformation
from holdfast.runtime.shipping import portable, ship_package
from holdfast.state_api.catalog import explained
from holdfast.state_api.spark_types import spark_type, to_spark

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Field", "StateRows", "batches_of", "frame_of"]

_BATCH = 10_000

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

    def read(self, part: Any) -> Iterator[tuple[Any, ...]]:
        """The rows of a part, with Spark's values."""
        converts = [to_spark(each) for _, each in self.fields]
        storage = Storage.open(self.uri, self.options)
        with explained(self.path, storage):
            for row in self.extract(storage, part):
                yield tuple([convert(each) for convert, each in zip(converts, row, strict=True)])

    def read_all(self, _: int, parts: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        """The rows of several parts."""
        for part in parts:
            yield from self.read(part)


def frame_of(rows: StateRows, spark: SparkSession) -> DataFrame:
    """The rows as a DataFrame, with a Spark partition for each part."""
    if not rows.parts:
        return spark.createDataFrame([], rows.schema)
    context = spark.sparkContext
    ship_package(context)
    spread = context.parallelize(rows.parts, len(rows.parts)).mapPartitionsWithIndex(portable(rows.read_all))
    return spark.createDataFrame(spread, rows.schema, verifySchema=False)


def batches_of(rows: StateRows) -> Iterator[pyarrow.RecordBatch]:
    """The rows as record batches, read in this process."""
    import pyarrow
    from pyspark.sql.pandas.types import to_arrow_type

    schema = pyarrow.schema([(each.name, to_arrow_type(each.dataType)) for each in rows.schema])
    converts = [_for_arrow(each.dataType) for each in rows.schema]
    for part in rows.parts:
        waiting = rows.read(part)
        while read := list(islice(waiting, _BATCH)):
            columns = [
                pyarrow.array(list(map(convert, column)), type=kind.type)
                for convert, column, kind in zip(converts, zip(*read, strict=True), schema, strict=True)
            ]
            yield pyarrow.RecordBatch.from_arrays(columns, schema=schema)


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
