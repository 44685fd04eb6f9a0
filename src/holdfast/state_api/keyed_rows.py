"""KeyedRows: brings the rows of a DataFrame to the tasks of their key groups, sorted by key and timestamp.

Spark's JVM shuffles and sorts, and spills to disk what does not fit into memory. Python computes the key groups and the
stored forms of the keys, by which the rows are sorted: a file then has few key groups, and who reads a key group reads few
files. Where only columns are needed, they travel as Arrow batches; elements of user functions, and columns that Arrow shows
otherwise than Spark's rows, travel as one pickle for each row.
"""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from holdfast.common.formats.in_portions import in_portions
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.typeinfo.batches import fitted
from holdfast.common.values import pickling
from holdfast.runtime.host.shipping import portable
from holdfast.runtime.records.records import select_keys, whole_timestamps
from holdfast.runtime.records.user_code import OperatorName, user_error
from holdfast.state.keys.key_codec import encode_each
from holdfast.state.keys.key_groups import key_grouper
from holdfast.state_api.bootstrap_task import Records, Written, in_lists
from holdfast.state_api.listed import quoted
from holdfast.state_api.spark_types import from_arrow, from_spark, has_arrow, is_plain_in_arrow, is_unchanged

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["KeyedRows", "partition_numbers"]

_AT_ONCE = 1_000
"""Rows whose keys are computed, and that a task takes, at once."""
_ROWS = 200
"""Rows of a DataFrame that are turned into records at once; their size is not known."""
_BYTES = 8 << 20
"""Bytes of records that a task takes at once, and of an Arrow batch: rows may be large."""
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_MASK = 0xFFFFFFFF

Run = Callable[[int, Iterable[Records]], Iterator[Written]]
"""A task: the subtask and its records, in batches; yields what it wrote."""


def partition_numbers(partitions: int) -> list[int]:
    """An integer for each partition, which Spark's hash partitioning puts there. It only spreads the work evenly.

    >>> partition_numbers(4)
    [12, 6, 2, 0]
    """
    found: dict[int, int] = {}
    number = 0
    while len(found) < partitions:
        found.setdefault(_murmur3(number) % partitions, number)
        number += 1
    return [found[each] for each in range(partitions)]


def _murmur3(number: int, seed: int = 42) -> int:
    """Spark's hash of an integer column: Murmur3 of its four bytes, signed."""
    mixed = _rotated(number * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    mixed = (_rotated(seed ^ mixed, 13) * 5 + 0xE6546B64 & _MASK) ^ 4
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & _MASK
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & _MASK
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


def _rotated(number: int, bits: int) -> int:
    return (number << bits | number >> 32 - bits) & _MASK


@dataclass(frozen=True)
class KeyedRows:
    """How rows become keyed records, and where each belongs. Pickled: it runs in any process."""

    key: str | Callable[[Any], Any]
    key_type: TypeInformation[Any]
    stamp: str | Callable[[Any], int] | None
    to_element: Callable[[Any], Any] | None
    element_type: TypeInformation[Any] | None
    columns: Sequence[str]
    """The columns whose values a record has, as a tuple; empty: it has the element."""
    where: OperatorName
    max_parallelism: int
    width: int
    """The number of subtasks."""

    def run(self, data: DataFrame, task: Run) -> list[Written]:
        """Run a task on Spark over the records of each subtask."""
        columns = self._used(data)
        if columns is not None:
            return self._run_columns(data, columns, task)
        schema = "place int, key binary, stamp bigint, record binary"
        pairs = data.rdd.mapPartitionsWithIndex(portable(self._pickled))
        frame = data.sparkSession.createDataFrame(pairs, schema, verifySchema=False)

        def run(_: int, rows: Iterable[Any]) -> Iterator[Written]:
            for number, own in groupby(rows, itemgetter(0)):
                yield from task(self._subtask(number), _in_batches(own))

        ordered = self._ordered(frame).select("place", "record").rdd
        return list(ordered.mapPartitionsWithIndex(portable(run)).collect())

    def _run_columns(self, data: DataFrame, columns: list[str], task: Run) -> list[Written]:
        from pyspark.sql import types as sql

        named = data.select(*map(quoted, columns)).toDF(*[f"c{n}" for n in range(len(columns))])
        first = [("place", sql.IntegerType()), ("key", sql.BinaryType()), ("stamp", sql.LongType())]
        schema = sql.StructType([*(sql.StructField(name, kind) for name, kind in first), *named.schema.fields])
        placed, taken = portable(self._placed), portable(partial(self._taken, task))
        ordered = self._ordered(named.mapInArrow(lambda batches: placed(0, batches), schema)).drop("key")
        with _small_batches(data.sparkSession):
            rows = ordered.mapInArrow(lambda batches: taken(0, batches), "written binary").collect()
        return [pickle.loads(row.written) for row in rows]

    def _ordered(self, frame: DataFrame) -> DataFrame:
        return frame.repartition(self.width, "place").sortWithinPartitions("place", "key", "stamp")

    def _subtask(self, number: int) -> int:
        return _murmur3(number) % self.width

    @property
    def _places(self) -> list[int]:
        """The number of the partition of each key group."""
        numbers = partition_numbers(self.width)
        return [numbers[group * self.width // self.max_parallelism] for group in range(self.max_parallelism)]

    def _used(self, data: DataFrame) -> list[str] | None:
        """The columns that travel: key, timestamp and states; None: they have to travel as pickled records."""
        if not self.columns or callable(self.key) or callable(self.stamp) or not has_arrow():
            return None
        used = [self.key, *self.columns]
        if not all(is_plain_in_arrow(data.schema[name].dataType) for name in used):
            return None
        return used if self.stamp is None else [*used, self.stamp]

    def _order(self, groups_of: Callable[[list[Any]], list[int]], keys: list[Any]) -> tuple[list[int], list[bytes]]:
        """The key groups of keys, and what the rows of a partition are sorted by: the groups, then the stored keys."""
        try:
            groups = groups_of(keys)
            return groups, [group.to_bytes(2, "big") + key for group, key in zip(groups, encode_each(keys), strict=True)]
        except TypeError as error:  # such as NaN
            raise user_error(error, *self.where) from error

    # rows

    def _pickled(self, _: int, rows: Iterable[Any]) -> Iterator[tuple[int, bytes, int, bytes]]:
        """The records of rows, each with its partition's number, the stored form of its key and its timestamp."""
        key, declared, places = self.key, self.key_type, self._places
        groups_of = key_grouper(self.max_parallelism)
        if isinstance(key, str):
            column, read = key, self._key_of
            select: Callable[[Any], Any] = lambda row: read(row[column])  # noqa: E731
        else:
            select = key
        waiting = iter(rows)
        while batch := list(islice(waiting, _ROWS)):
            values = batch if self.to_element is None else list(map(self.to_element, batch))
            if self.element_type is not None:
                values = fitted(self.element_type, values)
            keys = select_keys(select, declared, batch if isinstance(key, str) else values, self.where)
            stamps = self._stamps(batch, values)
            if self.columns:
                values = [tuple([row[name] for name in self.columns]) for row in batch]
            groups, ordered = self._order(groups_of, keys)
            for key_of, group, stored, value, stamp in zip(keys, groups, ordered, values, stamps, strict=True):
                yield places[group], stored, stamp or 0, pickling.dumps((key_of, value, stamp))

    def _stamps(self, rows: list[Any], values: list[Any]) -> list[Any]:
        stamp = self.stamp
        if stamp is None:
            return [None] * len(rows)
        given = [row[stamp] for row in rows] if isinstance(stamp, str) else list(map(stamp, values))
        return self._whole([round(each.timestamp() * 1000) if type(each) is datetime.datetime else each for each in given])

    def _whole(self, stamps: list[Any]) -> list[int]:
        if isinstance(self.stamp, str) and None in stamps:
            error = ValueError(f"the timestamps' column {self.stamp!r} has a null: filter such rows out")
            raise user_error(error, *self.where)
        try:
            return whole_timestamps(stamps)
        except TypeError as error:
            raise user_error(error, *self.where) from error

    # columns

    @property
    def _key_of(self) -> Callable[[Any], Any]:
        """A function from the values of the key's column to keys."""
        read, name, declared = from_spark(self.key_type), self.key, self.key_type

        def key_of(value: Any) -> Any:
            if value is None:
                raise ValueError(f"the key's column {name!r} has a null: filter such rows out")
            try:
                return read(value)
            except Exception as error:
                raise ValueError(
                    f"the key's column {name!r} has {value!r:.200}, which does not fit {declared!r}: {error}"
                ) from error

        return key_of

    def _keys(self, column: pyarrow.Array) -> list[Any]:
        select = _same if is_unchanged(self.key_type) and not column.null_count else self._key_of
        return select_keys(select, self.key_type, _listed(column), self.where)

    def _placed(self, _: int, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """The columns with the number of the partition, the stored form of the key and the timestamp before them."""
        import pyarrow

        groups_of, places = key_grouper(self.max_parallelism), self._places
        for batch in batches:
            keys = self._keys(batch.column(0))
            groups, ordered = self._order(groups_of, keys)
            first = [
                pyarrow.array([places[group] for group in groups], pyarrow.int32()),
                pyarrow.array(ordered, pyarrow.binary()),
                pyarrow.array(self._column_stamps(batch), pyarrow.int64()),
            ]
            names = ["place", "key", "stamp", *batch.schema.names]
            yield pyarrow.RecordBatch.from_arrays([*first, *batch.columns], names)

    def _column_stamps(self, batch: pyarrow.RecordBatch) -> list[int]:
        import pyarrow

        if self.stamp is None:
            return [0] * batch.num_rows
        column = batch.columns[-1]
        if not pyarrow.types.is_timestamp(column.type):
            return self._whole(column.to_pylist())
        micros = column.cast(pyarrow.timestamp("us", column.type.tz)).cast(pyarrow.int64()).to_pylist()
        return self._whole([None if each is None else round(each / 1000) for each in micros])

    def _taken(self, task: Run, _: int, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Run the task over sorted batches."""
        import pyarrow

        runs = groupby(self._runs(batches), itemgetter(0))
        for number, own in runs:
            for written in task(self._subtask(number), map(self._records, map(itemgetter(1), own))):
                yield pyarrow.RecordBatch.from_pydict({"written": [pickle.dumps(written)]})

    def _runs(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[tuple[int, pyarrow.RecordBatch]]:
        """Parts of the batches, each of one partition's number."""
        for batch in batches:
            at = 0
            for number, equal in groupby(batch.column(0).to_pylist()):
                end = at + sum(1 for _ in equal)
                for start in range(at, end, _AT_ONCE):
                    yield number, batch.slice(start, min(_AT_ONCE, end - start))
                at = end

    def _records(self, batch: pyarrow.RecordBatch) -> Records:
        _, stamps, key, *columns = batch.columns
        keys = self._keys(key)
        values = list(zip(*map(_listed, columns[: len(self.columns)])))
        return keys, values, None if self.stamp is None else stamps.to_pylist()


def _same(value: Any) -> Any:
    return value


def _listed(column: pyarrow.Array) -> list[Any]:
    """The values of a column. Records are tuples, maps are lists of pairs."""
    convert = from_arrow(column.type)
    return column.to_pylist() if convert is None else list(map(convert, column.to_pylist()))


def _in_batches(rows: Iterable[Any]) -> Iterator[Records]:
    """The pickled records of rows."""
    for batch in in_portions(rows, lambda row: len(row[1]), _BYTES, _AT_ONCE):
        yield in_lists([pickle.loads(record) for _, record in batch])


@contextmanager
def _small_batches(session: SparkSession) -> Iterator[None]:
    """Limit the bytes of Arrow batches."""
    known = session.conf.get(_BATCH_BYTES, None)
    session.conf.set(_BATCH_BYTES, str(_BYTES))
    try:
        yield
    finally:
        if known is None:
            session.conf.unset(_BATCH_BYTES)
        else:
            session.conf.set(_BATCH_BYTES, known)
