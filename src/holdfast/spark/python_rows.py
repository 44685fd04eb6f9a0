"""The rows of PySpark's Python data sources as columns: tuples, Rows and Arrow batches, as PySpark takes them."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.common.formats.arrow import pyarrow
from holdfast.common.formats.columns import Columns, packed_stamps
from holdfast.common.formats.python_times import times_fit
from holdfast.connectors.base import Batch
from holdfast.errors import ConfigurationError
from holdfast.spark.column_types import arrow_columns, make_rows, without_zones
from holdfast.spark.spark_partitions import check_event_time
from holdfast.spark.state_schemas import parse_fields

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["Misfit", "RowColumns", "struct_type"]

_NAMED = {
    "boolean": "BooleanType", "byte": "ByteType", "tinyint": "ByteType", "short": "ShortType", "smallint": "ShortType",
    "int": "IntegerType", "integer": "IntegerType", "long": "LongType", "bigint": "LongType", "float": "FloatType",
    "real": "FloatType", "double": "DoubleType", "string": "StringType", "binary": "BinaryType", "date": "DateType",
    "timestamp": "TimestampType", "timestamp_ltz": "TimestampType", "timestamp_ntz": "TimestampNTZType",
}  # fmt: skip
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)\s*\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_CHUNK = 4096
"""Rows that become columns together, at most."""


class Misfit(ValueError):
    """A row that does not fit the source's schema; ``at`` is its number."""

    def __init__(self, text: str, at: int) -> None:
        super().__init__(text)
        self.at = at


def struct_type(given: Any, where: str) -> StructType:
    """The ``StructType`` of a data source's schema.

    Raises:
        ConfigurationError: it is neither one nor a text that Spark would take.
    """
    from pyspark.sql import types

    if isinstance(given, types.StructType):
        return given
    if not isinstance(given, str):
        raise ConfigurationError(f"{where} is a StructType or a text such as 'id long, name string', not {given!r}")
    fields = []
    for name, text in parse_fields(given, where):
        kind = text.strip().lower()
        if found := _DECIMAL.fullmatch(kind):
            fields.append(types.StructField(name, types.DecimalType(int(found[1]), int(found[2]))))
        elif kind in _NAMED:
            fields.append(types.StructField(name, getattr(types, _NAMED[kind])()))
        else:
            return _parsed_by_spark(given, where)
    return types.StructType(fields)


def _parsed_by_spark(text: str, where: str) -> StructType:
    from pyspark.sql.types import StructType

    try:
        return StructType.fromDDL(text)
    except Exception as error:  # without a session, Spark has no parser
        raise ConfigurationError(f"{where}: {text!r} cannot be parsed; give a StructType") from error


def session_zone() -> str:
    """The time zone of the active session, or of this host."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        return str(session.conf.get("spark.sql.session.timeZone"))
    zone = os.environ.get("TZ") or os.path.realpath("/etc/localtime").partition("zoneinfo/")[2]
    return zone or "UTC"


class RowColumns:
    """Makes batches of columns of what a reader yields.

    Args:
        schema: The ``StructType`` of the rows.
        event_time: The column with the event time.

    Raises:
        ConfigurationError: a column has a type that cannot be carried, or cannot be the event time.
    """

    def __init__(self, schema: StructType, event_time: str | None) -> None:
        for field in schema.fields:
            if type(field.dataType).__name__ != "TimestampType" and without_zones(field.dataType) is not field.dataType:
                raise ConfigurationError(
                    f"column {field.name} of the data source has timestamps within {field.dataType.simpleString()}, which "
                    "cannot be carried; declare them as timestamp_ntz"
                )
        self.schema = schema
        self.columns = arrow_columns(schema)
        self.event_time = event_time
        check_event_time(schema, event_time)
        self._zone = session_zone()

    def batches(self, rows: Iterable[Any], max_batch: int, place: str) -> Iterator[Batch[Any]]:
        """Batches of at most ``max_batch`` rows; ``place`` names where they come from.

        Raises:
            Misfit: a row or a batch does not fit the schema.
        """
        as_rows = make_rows(self.columns)
        at = 0
        for table in self._tables(rows, min(max_batch, _CHUNK)):
            found, stamps = self._normal(table, at)
            for start in range(0, found.num_rows, max_batch):
                some = found.slice(start, max_batch)
                times = None if stamps is None else packed_stamps(stamps[start : start + max_batch])
                locate = functools.partial(_located, place, at + start)
                yield Batch(Columns(some, as_rows).as_list(), times, locate)
            at += found.num_rows

    def _tables(self, rows: Iterable[Any], size: int) -> Iterator[Any]:
        """Arrow tables in Spark's types; what is yielded first says whether it is rows or batches."""
        library = pyarrow()
        left = iter(rows)
        at = 0
        for first in left:
            if isinstance(first, library.RecordBatch):
                yield library.Table.from_batches([first])
                at += first.num_rows
                continue
            chunk = itertools.chain([first], itertools.islice(left, size - 1))
            some = [self._tuple(row, at + i) for i, row in enumerate(chunk)]
            yield self._converted(some, at)
            at += len(some)

    def _tuple(self, row: Any, at: int) -> tuple[Any, ...]:
        names = self.columns.names
        if not isinstance(row, (tuple, list)):
            raise Misfit(f"it is a {type(row).__name__}, and a reader yields tuples, Rows, or Arrow batches", at)
        if len(row) != len(names):
            raise Misfit(f"it has {len(row)} values, and the schema has {len(names)}: {', '.join(names)}", at)
        fields = getattr(row, "__fields__", None)
        if fields is None:
            return tuple(row)
        if set(fields) != set(names):
            raise Misfit(f"it has the fields {', '.join(fields)}, and the schema has {', '.join(names)}", at)
        return tuple(row[name] for name in names)

    def _converted(self, rows: list[tuple[Any, ...]], at: int) -> Any:
        from pyspark.sql.conversion import LocalDataToArrowConversion

        try:
            return LocalDataToArrowConversion.convert(rows, self.schema, False)
        except Exception as error:
            if len(rows) == 1:
                raise Misfit(f"{rows[0]!r:.500} does not fit {self.schema.simpleString()}: {error}", at) from error
        middle = len(rows) // 2  # the first half fits, or has the row to blame
        first = self._converted(rows[:middle], at)
        return pyarrow().concat_tables([first, self._converted(rows[middle:], at + middle)])

    def _normal(self, table: Any, at: int) -> tuple[Any, Any]:
        """The columns in our types, as one record batch, and the event times in ms."""
        library = pyarrow()
        if set(table.schema.names) != set(self.columns.names):
            have, want = ", ".join(table.schema.names), ", ".join(self.columns.names)
            raise Misfit(f"an Arrow batch with the columns {have} does not fit the schema, {want}", at)
        arrays, stamps = [], None
        for field, kind in zip(self.schema.fields, self.columns, strict=True):
            column, name = _whole(table.column(field.name)), type(field.dataType).__name__
            try:
                moments = column.cast(library.timestamp("us", "UTC")) if name == "TimestampType" else column.cast(kind.type)
                column = self._wall_clock(moments) if name == "TimestampType" else moments
            except (library.ArrowInvalid, library.ArrowNotImplementedError) as error:
                raise Misfit(f"column {field.name} does not fit {field.dataType.simpleString()}: {error}", at) from error
            if (library.types.is_date(kind.type) or library.types.is_timestamp(kind.type)) and not times_fit(column):
                raise Misfit(f"column {field.name} has a date or time outside of the years 1 to 9999", at)
            if field.name == self.event_time:
                if column.null_count:
                    raise Misfit(f"the event time, column {field.name}, is null", at + column.is_null().index(True).as_py())
                stamps = self._milliseconds(moments)
            arrays.append(column)
        return library.RecordBatch.from_arrays(arrays, names=self.columns.names), stamps

    def _wall_clock(self, moments: Any) -> Any:
        from pyarrow import compute

        return compute.local_timestamp(moments.cast(pyarrow().timestamp("us", self._zone)))

    def _milliseconds(self, times: Any) -> Any:
        """Times as numbers; wall clocks and dates are those of the session's time zone."""
        from pyarrow import compute

        library = pyarrow()
        if library.types.is_date(times.type):
            times = times.cast(library.timestamp("us"))
        if library.types.is_timestamp(times.type):
            if times.type.tz is None:
                times = compute.assume_timezone(times, self._zone, ambiguous="earliest", nonexistent="earliest")
            times = times.cast(library.timestamp("ms", "UTC"), safe=False)
        return times.cast(library.int64()).to_numpy()


def _whole(column: Any) -> Any:
    """A chunked array as one."""
    library = pyarrow()
    array = column.combine_chunks()
    return array if isinstance(array, library.Array) else library.concat_arrays(array.chunks)


def _located(place: str, first: int, i: int) -> str:
    return f"{place}, row {first + i}"
