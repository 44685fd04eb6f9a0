"""The rows of a DataFrame: written once for a job, read by all its starts. Partitions are given in place of Spark's."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import Row, Types, WatermarkStrategy
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.datastream import KeyedProcessFunction
from holdfast.errors import ConfigurationError, InputLost
from holdfast.spark.column_types import make_rows
from holdfast.spark.dataframe_source import DataFrameSource
from holdfast.spark.stored_rows import PartsWriter, WrittenPart

from .inprocess import CRASH_POINTS, LEDGERS, Lab, LedgerSink

COLUMNS = pa.schema([("shop", pa.string()), ("amount", pa.int64())])
DECLARED = Types.ROW_NAMED(["shop", "amount"], [Types.STRING(), Types.LONG()])


class Frame:
    """A DataFrame that has other amounts each time it is computed."""

    def __init__(self, partitions: int, rows: int, stamps: bool = False) -> None:
        self.partitions = partitions
        self.rows = rows
        self.stamps = stamps
        self.computed = 0

    def __call__(self, writer: PartsWriter) -> Iterable[WrittenPart]:
        self.computed += 1
        for partition in reversed(range(self.partitions)):  # tasks end in any order
            yield from writer.write(partition, self.batches(partition))

    def batches(self, partition: int) -> Iterable[Any]:
        for first in range(0, self.rows, 7):
            numbers = range(first, min(first + 7, self.rows))
            shops = [f"shop {partition}" for _ in numbers]
            amounts = [n + 1000 * self.computed for n in numbers]
            columns = [pa.array(shops, pa.large_string()), pa.array(amounts)]
            if self.stamps:
                columns.append(pa.array([n * 10 for n in numbers]))
            yield pa.RecordBatch.from_arrays(columns, names=["shop", "amount", "time"][: len(columns)])


class Numbered(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield ctx.get_current_key(), value.amount % 1000, value.amount // 1000, ctx.timestamp()


def job(frame: Frame, directory: Any, columns: Any = COLUMNS, declared: Any = DECLARED, **options: Any) -> Lab:
    def build(env: Any) -> None:
        event_time = "amount" if frame.stamps else None
        strategy = WatermarkStrategy.for_monotonous_timestamps() if frame.stamps else WatermarkStrategy.no_watermarks()
        rows = env.from_source(DataFrameSource(columns, frame, event_time, declared), strategy, "rows").uid("rows")
        rows.key_by(lambda row: row.shop).process(Numbered()).uid("keyed").sink_to(LedgerSink("out")).uid("out")

    LEDGERS.clear()
    return Lab(build, directory, budget=20, **options)


def stored(directory: Any) -> list[str]:
    return [path for path in Storage.open(str(directory / "checkpoints")).list("") if "/sources/" in path]


def test_every_row_of_every_partition_is_read_once(tmp_path):
    job(Frame(3, 50), tmp_path).run()
    assert Counter(LEDGERS["out"].values) == Counter((f"shop {p}", n, 1, MIN_TIMESTAMP) for p in range(3) for n in range(50))


@pytest.mark.parametrize("point", CRASH_POINTS)
def a_dataframe_that_changes_when_it_is_computed_again_counts_once_although_drivers_die(point, tmp_path):
    frame = Frame(3, 50)
    job(frame, tmp_path).run([(point, 2), (point, 2)])
    values = LEDGERS["out"].values
    assert sorted(value[:2] for value in values) == sorted((f"shop {p}", n) for p in range(3) for n in range(50))
    assert {value[2] for value in values} == {frame.computed}, "all rows are of one computation"


def the_rows_have_the_event_time_of_a_column(tmp_path):
    job(Frame(2, 30, stamps=True), tmp_path).run()
    assert Counter(LEDGERS["out"].values) == Counter((f"shop {p}", n, 1, n * 10) for p in range(2) for n in range(30))


def a_partition_larger_than_a_part_is_read_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.spark.stored_rows._PART_BYTES", 300)
    job(Frame(2, 200), tmp_path, parallelism=1).run()
    for partition in range(2):
        assert [n for shop, n, _, _ in LEDGERS["out"].values if shop == f"shop {partition}"] == list(range(200))


def a_dataframe_without_rows_ends_at_once(tmp_path):
    job(Frame(2, 0), tmp_path).run()
    assert LEDGERS["out"].values == []


def the_rows_are_deleted_when_all_are_read(tmp_path):
    lab = job(Frame(3, 50), tmp_path)
    assert not lab._run_until("after commit", 2)
    assert stored(tmp_path)
    lab.run()
    assert stored(tmp_path) == []


def a_start_without_a_checkpoint_deletes_the_rows_of_the_one_that_died_before(tmp_path):
    frame = Frame(1, 5)
    lab = job(frame, tmp_path)
    assert not lab._run_until("run", 1)
    before = stored(tmp_path)
    assert not lab._run_until("run", 1)
    assert frame.computed == 2
    assert len(stored(tmp_path)) == len(before)
    assert not set(stored(tmp_path)) & set(before)


def the_rows_that_are_gone_are_named(tmp_path):
    lab = job(Frame(3, 50), tmp_path)
    assert not lab._run_until("after commit", 2)
    lab.storage.delete(stored(tmp_path))
    with pytest.raises(InputLost, match=r"rows of the DataFrame, .*sources/rows/.*, are gone"):
        lab.run()


def a_dataframe_of_other_columns_is_refused_before_the_job_starts(tmp_path):
    assert not job(Frame(3, 50), tmp_path)._run_until("after commit", 2)
    other = pa.schema([("shop", pa.string()), ("amount", pa.float64())])
    check = job(Frame(3, 50), tmp_path, other, None).check()
    assert r"columns shop (string), amount (int64), and the program's has shop (string), amount (double)" in str(check)


def a_row_without_event_time_is_refused_before_any_row_is_read(tmp_path):
    frame = Frame(1, 3, stamps=True)
    frame.batches = lambda _: [  # type: ignore[method-assign]
        pa.RecordBatch.from_arrays(
            [pa.array(["a"]), pa.array([1]), pa.array([None], pa.int64())], names=["shop", "amount", ""]
        )
    ]
    with pytest.raises(ConfigurationError, match=r"source 'rows', a DataFrame: the event time, column amount, is null"):
        job(frame, tmp_path).run()


def a_date_that_python_does_not_hold_is_refused_before_any_row_is_read(tmp_path):
    columns = pa.schema([("shop", pa.string()), ("day", pa.date32())])
    frame = Frame(1, 3)
    frame.batches = lambda _: [  # type: ignore[method-assign]
        pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array([10_000_000], pa.date32())], names=["shop", "day"])
    ]
    with pytest.raises(ConfigurationError, match="column day has a date or time outside of the years 1 to 9999"):
        job(frame, tmp_path, columns, None).run()


def test_structs_are_rows_and_maps_are_dicts_at_any_depth():
    point = pa.struct([("x", pa.int64()), ("tags", pa.map_(pa.string(), pa.list_(pa.struct([("n", pa.int32())]))))])
    schema = pa.schema([("at", point), ("price", pa.decimal128(10, 2)), ("when", pa.timestamp("us"))])
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901)
    values = [
        {"at": {"x": 1, "tags": {"a": [{"n": 1}, None]}}, "price": Decimal("1.50"), "when": when},
        dict.fromkeys(schema.names),
    ]
    batch = pa.RecordBatch.from_pylist(values, schema=schema)
    first, second = make_rows(schema)(batch)
    assert first == Row(at=Row(x=1, tags={"a": [Row(n=1), None]}), price=Decimal("1.50"), when=when)
    assert second == Row(at=None, price=None, when=None)
