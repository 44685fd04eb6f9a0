"""DataFrames of staged output: Spark's tasks read the parts, and the driver handles no row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.common.formats.arrow import pyarrow
from holdfast.errors import ConfigurationError
from holdfast.spark.staged_output import PartsReader, StagedOutput, StagedPart, StagingArea

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["NUMBER_COLUMN", "session_of", "spark_columns", "spark_frame"]

NUMBER_COLUMN = "holdfast_number"
"""The column with the place of a row among those of its subtask."""
_WIDTH = 4
"""Partitions of a DataFrame for each core, at most."""
_Numbered = tuple[int, StagedPart]
"""A part and its place among all."""


def session_of(given: SparkSession | None) -> SparkSession:
    """The session of a job, or the active one, or a new one of the SparkContext that the job has started."""
    from pyspark.sql import SparkSession

    return given or SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def spark_frame(session: SparkSession, output: StagedOutput, *, numbered: bool = False) -> DataFrame:
    """The DataFrame of staged output. It is read where and when it is computed.

    Args:
        session: The session.
        output: The output.
        numbered: Whether there is a column with the order of the rows.

    Raises:
        ConfigurationError: Spark has no type for a column.
    """
    from holdfast.runtime.host.shipping import portable, ship_package

    struct, schema = spark_columns(output.schema)
    if numbered:
        struct = struct.add(NUMBER_COLUMN, "long")
    if not output.parts:
        return session.createDataFrame([], struct)
    context = session.sparkContext
    ship_package(context)
    width = min(len(output.parts), _WIDTH * context.defaultParallelism)
    groups = [_slice(list(enumerate(output.parts)), at, width) for at in range(width)]
    task = portable(_ReadTask(output.area, schema, groups, numbered))

    def read(batches: Iterator[Any]) -> Iterator[Any]:  # pickled by value: refers to nothing outside
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from task(number, ())

    return session.range(0, width, 1, width).mapInArrow(read, struct)


def _slice(parts: Sequence[_Numbered], at: int, width: int) -> Sequence[_Numbered]:
    return parts[len(parts) * at // width : len(parts) * (at + 1) // width]


class _ReadTask:
    """Reads the parts of a partition."""

    def __init__(self, area: StagingArea, schema: Any, groups: Sequence[Sequence[_Numbered]], numbered: bool) -> None:
        self._area = area
        self._schema = schema
        self._groups = groups
        self._numbered = numbered

    def __call__(self, partition: int, _: Iterable[Any]) -> Iterator[Any]:
        reader = PartsReader(self._area, self._schema)
        for place, part in self._groups[partition]:
            first = place << 40
            for batch in reader.read(part):
                yield self._with_numbers(batch, first) if self._numbered else batch
                first += batch.num_rows

    @staticmethod
    def _with_numbers(batch: Any, first: int) -> Any:
        numbers = pyarrow().array(range(first, first + batch.num_rows), pyarrow().int64())
        return batch.append_column(NUMBER_COLUMN, numbers)


def spark_columns(schema: Any) -> tuple[StructType, Any]:
    """Spark's form of a ``pyarrow.Schema``, and the schema in which Spark takes the columns.

    Raises:
        ConfigurationError: Spark has no type for a column.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    library = pyarrow()
    schema = library.schema([library.field(field.name, _taken(field.type)) for field in schema])
    fields = []
    for field in schema:
        try:
            fields.append(StructField(field.name, from_arrow_type(field.type, prefer_timestamp_ntz=True)))
        except (PySparkException, TypeError) as error:
            raise ConfigurationError(
                f"column {field.name} is of the type {field.type}, which this Spark has none for; convert it in a map()"
            ) from error
    return StructType(fields), schema


def _taken(kind: Any) -> Any:
    """The type in which Spark takes the values of a type, at any depth: its times have microseconds."""
    library = pyarrow()
    types = library.types
    if types.is_timestamp(kind):
        return library.timestamp("us", kind.tz)
    if types.is_duration(kind):
        return library.duration("us")
    if types.is_time(kind):
        return library.time64("us")
    if types.is_struct(kind):
        return library.struct([library.field(each.name, _taken(each.type)) for each in kind])
    if types.is_map(kind):
        return library.map_(_taken(kind.key_type), _taken(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind):
        return library.list_(_taken(kind.value_type))
    return kind
