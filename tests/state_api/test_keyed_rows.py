"""Rows on their way to the tasks of a bootstrap: the same records, whether they travel as columns or pickled."""

from __future__ import annotations

import datetime
import pickle
import sys
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import types as sql

from holdfast.common import Types
from holdfast.errors import UserCodeError
from holdfast.runtime.records.user_code import OperatorName
from holdfast.state.keys.key_groups import key_group
from holdfast.state_api.keyed_rows import KeyedRows, _in_batches, partition_numbers
from holdfast.state_api.spark_types import from_spark, has_arrow, is_plain_in_arrow

MOST, WIDTH = 32, 5
VALUE = Types.ROW_NAMED(["tags", "by"], [Types.LIST(Types.STRING()), Types.MAP(Types.STRING(), Types.LONG())])
_NAMED = pyarrow.schema(
    [
        ("c0", pyarrow.string()),
        ("c1", pyarrow.struct([("tags", pyarrow.list_(pyarrow.string())), ("by", pyarrow.map_(pyarrow.string(), "int64"))])),
        ("c2", pyarrow.timestamp("us", "UTC")),
    ]
)


def keyed_rows(**changed: Any) -> KeyedRows:
    given: dict[str, Any] = {
        "key": "user",
        "key_type": Types.STRING(),
        "stamp": "at",
        "to_element": None,
        "element_type": None,
        "columns": ["value"],
        "where": OperatorName("totals", "u1"),
        "max_parallelism": MOST,
        "width": WIDTH,
    }
    return KeyedRows(**{**given, **changed})


def taken(records: list[Any]) -> Any:
    """A task that keeps its records."""

    def task(subtask: int, batches: Any) -> Any:
        for keys, values, stamps in batches:
            records.extend((subtask, *each) for each in zip(keys, values, stamps, strict=True))
        return iter([("handle", subtask)])

    return task


values = st.none() | st.tuples(
    st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
    st.none() | st.dictionaries(st.text(max_size=3), st.none() | st.integers(-9, 9), max_size=3),
)


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(st.tuples(st.text(max_size=4), values, st.integers(-(2**40), 2**40)), max_size=20))
def test_columns_and_pickled_rows_are_the_same_records_in_the_same_tasks(rows):
    keyed = keyed_rows()
    micros = [at * 1000 for _, _, at in rows]
    shown = [None if each is None else {"tags": each[0], "by": each[1] and list(each[1].items())} for _, each, _ in rows]
    arrays = [
        pyarrow.array([key for key, _, _ in rows], pyarrow.string()),
        pyarrow.array(shown, _NAMED.field(1).type),
        pyarrow.array(micros, pyarrow.timestamp("us", "UTC")),
    ]
    placed = pyarrow.Table.from_batches(keyed._placed(0, [pyarrow.RecordBatch.from_arrays(arrays, schema=_NAMED)])).sort_by(
        [("place", "ascending"), ("key", "ascending"), ("stamp", "ascending")]
    )
    by_columns: list[Any] = []
    batches = placed.drop(["key"]).to_batches(max_chunksize=7)
    list(keyed._taken(taken(by_columns), 0, batches))

    zone = datetime.timezone.utc
    epoch = datetime.datetime(1970, 1, 1, tzinfo=zone)
    times = [epoch + datetime.timedelta(microseconds=each) for each in micros]
    as_rows = [Row(user=key, value=value, at=at) for (key, value, _), at in zip(rows, times, strict=True)]
    by_rows: list[Any] = []
    for number, _, _, record in sorted(keyed._pickled(0, as_rows), key=lambda each: each[:3]):
        list(taken(by_rows)(keyed._subtask(number), _in_batches([(number, record)])))

    convert = from_spark(VALUE)

    def ordered(records: list[Any]) -> list[Any]:
        return sorted([(subtask, key, at, repr(convert(value))) for subtask, key, (value,), at in records])

    assert ordered(by_columns) == ordered(by_rows)
    assert sorted((key, at) for _, key, _, at in by_columns) == sorted((key, at) for key, _, at in rows)
    assert all(subtask == key_group(key, MOST) * WIDTH // MOST for subtask, key, *_ in by_columns)


def test_the_rows_of_a_task_are_sorted_by_key_group_so_that_a_file_has_few():
    keyed = keyed_rows(stamp=None, max_parallelism=1_000)
    keys = [f"k{n}" for n in range(500)]
    (batch,) = keyed._placed(0, [pyarrow.RecordBatch.from_pydict({"c0": keys, "c1": keys})])
    placed = pyarrow.Table.from_batches([batch]).sort_by([("place", "ascending"), ("key", "ascending")]).to_pylist()
    groups = [(row["place"], key_group(row["c0"], 1_000)) for row in placed]
    assert groups == sorted(groups)
    pickled = sorted(keyed._pickled(0, [Row(user=key, value=key) for key in keys]))
    assert [each[:2] for each in pickled] == [(row["place"], row["key"]) for row in placed]


def test_each_partition_has_a_number_that_only_it_gets():
    numbers = partition_numbers(300)
    assert len(set(numbers)) == 300
    keyed = keyed_rows(width=300)
    assert [keyed._subtask(number) for number in numbers] == list(range(300))


def test_a_key_that_is_null_is_refused_and_names_the_operator():
    batch = pyarrow.RecordBatch.from_pydict({"c0": pyarrow.array(["a", None]), "c1": [1, 2]})
    rows = [Row(user="a", value=1), Row(user=None, value=2)]
    with pytest.raises(UserCodeError, match=r"(?s)column 'user' has a null.*operator 'totals' \(uid 'u1'\)"):
        list(keyed_rows(stamp=None)._placed(0, [batch]))
    with pytest.raises(UserCodeError, match=r"(?s)column 'user' has a null.*operator 'totals' \(uid 'u1'\)"):
        list(keyed_rows(stamp=None)._pickled(0, rows))
    with pytest.raises(UserCodeError, match=r"(?s)'user' has 'x', which does not fit Types.BIG_INT.*\(uid 'u1'\)"):
        list(keyed_rows(stamp=None, key_type=Types.BIG_INT())._pickled(0, [Row(user="x", value=1)]))
    nan = keyed_rows(stamp=None, key_type=Types.DOUBLE())
    with pytest.raises(UserCodeError, match=r"(?s)nan cannot be a key.*operator 'totals' \(uid 'u1'\)"):
        list(nan._pickled(0, [Row(user=float("nan"), value=1)]))
    with pytest.raises(UserCodeError, match=r"(?s)timestamps' column 'at' has a null.*operator 'totals' \(uid 'u1'\)"):
        list(keyed_rows()._pickled(0, [Row(user="a", value=1, at=None)]))


def test_columns_that_arrow_shows_otherwise_travel_as_rows():
    plain = sql.StructType([sql.StructField("a", sql.MapType(sql.StringType(), sql.ArrayType(sql.DoubleType())))])
    assert is_plain_in_arrow(plain)
    for other in (sql.TimestampType(), sql.DecimalType(), sql.NullType()):
        assert not is_plain_in_arrow(sql.StructType([sql.StructField("a", sql.ArrayType(other))]))


def test_a_task_takes_few_large_rows_at_once_and_many_small_ones():
    def batches(size: int, count: int) -> list[int]:
        return [len(keys) for keys, _, _ in _in_batches((0, pickle.dumps((n, "x" * size, None))) for n in range(count))]

    assert batches(1 << 20, 20) == [8, 8, 4]
    assert batches(10, 2500) == [1000, 1000, 500]


@pytest.mark.parametrize("library", ["pyarrow", "pandas"])
def test_rows_are_pickled_where_spark_has_not_what_it_wants_for_arrow(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_arrow()
    monkeypatch.setitem(sys.modules, library, None)
    assert not has_arrow()
