"""PySpark's Python data sources as sources of jobs: offsets in the checkpoint, reads in the subtasks. Without Spark."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row as SparkRow
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)

from holdfast.common import Row, WatermarkStrategy
from holdfast.common.time import Time
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.errors import ConfigurationError, ServiceUnavailable, UserCodeError

from .inprocess import CRASH_POINTS, LEDGERS, Lab, LedgerSink

SHARDS, ORDERS = 3, 40


class Server:
    """Orders in shards, as a service keeps them; what is acknowledged it forgets."""

    def __init__(self) -> None:
        self.acknowledged: list[dict[str, int]] = []
        self.stopped = 0
        self.done: Callable[[], object] = lambda: None

    def fetch(self, shard: int, start: int, end: int) -> list[tuple[str, int, datetime.datetime]]:
        assert start >= max((each[str(shard)] for each in self.acknowledged), default=0), "it was acknowledged before"
        zero = datetime.datetime(2026, 3, 1, tzinfo=datetime.timezone.utc)
        return [(f"shop {n % 4}", shard * 1000 + n, zero + datetime.timedelta(seconds=n)) for n in range(start, end)]


SERVER = Server()
ALL = {str(shard): ORDERS for shard in range(SHARDS)}


class Shard(InputPartition):
    def __init__(self, shard: int, start: int, end: int) -> None:
        self.shard, self.start, self.end = shard, start, end


class OrdersStream(DataSourceStreamReader):
    """Five orders of each shard at once: its own limit."""

    def initialOffset(self):
        return {str(shard): 0 for shard in range(SHARDS)}

    def latestOffset(self, start, limit):
        if start == ALL and len(LEDGERS["out"].values) >= SHARDS * ORDERS:
            SERVER.done()
        return {shard: min(at + 5, ORDERS) for shard, at in start.items()}

    def partitions(self, start, end):
        return [Shard(int(shard), at, end[shard]) for shard, at in start.items()]

    def read(self, partition):
        yield from SERVER.fetch(partition.shard, partition.start, partition.end)

    def commit(self, end):
        assert {row.id for row in LEDGERS["out"].values} >= {int(s) * 1000 + n for s, to in end.items() for n in range(to)}
        SERVER.acknowledged.append(end)

    def stop(self):
        SERVER.stopped += 1


class OrdersOf40(OrdersStream):
    """As PySpark 4.0 and 4.1 have it: the latest offset alone."""

    def latestOffset(self):
        if len(LEDGERS["out"].values) >= SHARDS * ORDERS:
            SERVER.done()
        return ALL


class SimpleOrders(SimpleDataSourceStreamReader):
    def initialOffset(self):
        return {"0": 0}

    def read(self, start):
        end = {"0": min(start["0"] + 7, ORDERS)}
        if start == end and len(LEDGERS["out"].values) >= ORDERS:
            SERVER.done()
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start, end):
        return iter(SERVER.fetch(0, start["0"], end["0"]))

    def commit(self, end):
        SERVER.acknowledged.append(end)


class OrdersOnce(DataSourceReader):
    def partitions(self):
        return [Shard(shard, 0, ORDERS) for shard in range(SHARDS)]

    def read(self, partition):
        yield from SERVER.fetch(partition.shard, partition.start, partition.end)


class Orders(DataSource):
    @classmethod
    def name(cls):
        return "orders"

    def schema(self):
        return "shop string, id long, at timestamp"

    def streamReader(self, schema):
        return OrdersStream()

    def reader(self, schema):
        return OrdersOnce()


class OldOrders(Orders):
    def streamReader(self, schema):
        return OrdersOf40()


class Simple(DataSource):
    def schema(self):
        return "shop string, id long, at timestamp"

    def simpleStreamReader(self, schema):
        return SimpleOrders()


class UntilAllIsRead(Lab):
    def coordinator(self, *arguments, **named):
        made = super().coordinator(*arguments, **named)
        SERVER.done = made.cancel
        return made


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    global SERVER
    SERVER = Server()
    LEDGERS.clear()
    monkeypatch.setenv("TZ", "UTC")


def job(source: Any, directory: Any, **options: Any) -> Lab:
    def build(env: Any) -> None:
        orders = env.from_data_source(source, **options).uid("orders")
        orders.key_by(lambda row: row.shop).map(lambda row: row).uid("keyed").sink_to(LedgerSink("out")).uid("out")

    return UntilAllIsRead(build, directory, budget=20)


def ids() -> Counter[int]:
    return Counter(row.id for row in LEDGERS["out"].values)


EVERY = Counter(shard * 1000 + n for shard in range(SHARDS) for n in range(ORDERS))


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_every_row_between_offsets_counts_once_and_is_committed_after_the_checkpoint(point, tmp_path):
    job(Orders({}), tmp_path).run([(point, 2), (point, 3)])
    assert ids() == EVERY
    assert SERVER.acknowledged[-1] == ALL
    totals = [sum(each.values()) for each in SERVER.acknowledged]
    assert totals == sorted(set(totals))
    assert SERVER.stopped


@pytest.mark.parametrize(("source", "rows"), [(OldOrders, EVERY), (Simple, Counter(range(ORDERS)))])
def test_readers_of_every_form_go_on_at_the_checkpoints_offset(source, rows, tmp_path):
    job(source({}), tmp_path).run([("before complete", 1), ("after complete", 1)])
    assert ids() == rows


@pytest.mark.parametrize("point", CRASH_POINTS)
def a_bounded_source_ends_after_its_partitions_and_each_counts_once(point, tmp_path):
    job(Orders({}), tmp_path, bounded=True).run([(point, 1)])
    assert ids() == EVERY


def the_rows_have_the_event_time_of_a_column_and_windows_of_it(tmp_path):
    def build(env: Any) -> None:
        strategy = WatermarkStrategy.for_monotonous_timestamps()
        orders = env.from_data_source(Orders({}), strategy, event_time="at", bounded=True)
        windows = orders.key_by(lambda row: row.id // 1000).window(TumblingEventTimeWindows.of(Time.seconds(10)))
        windows.reduce(lambda a, b: a).sink_to(LedgerSink("out"))

    Lab(build, tmp_path, budget=20).run()
    firsts = sorted((row.id, row.at) for row in LEDGERS["out"].values)
    assert firsts[:2] == [(0, datetime.datetime(2026, 3, 1)), (10, datetime.datetime(2026, 3, 1, 0, 0, 10))]
    assert len(firsts) == SHARDS * ORDERS // 10


# ---- rows ---------------------------------------------------------------------------------------------------------------


class Yields(DataSource):
    """A bounded source of given rows."""

    def __init__(self, options, rows=(), schema="name string, n int"):
        self.rows, self.columns = rows, schema

    def schema(self):
        return self.columns

    def reader(self, schema):
        return YieldsReader(self.rows)


class YieldsReader(DataSourceReader):
    def __init__(self, rows):
        self.rows = rows

    def read(self, partition):
        for row in self.rows:
            if isinstance(row, Exception):
                raise row
            yield row


def rows_of(tmp_path: Any, rows: Any, schema: str = "name string, n int") -> list[Row]:
    def build(env: Any) -> None:
        env.from_data_source(Yields({}, rows, schema)).uid("given").sink_to(LedgerSink("out"))

    Lab(build, tmp_path).run()
    return LEDGERS["out"].values


def test_tuples_rows_in_any_order_lists_and_arrow_batches_are_rows(tmp_path):
    batch = pa.RecordBatch.from_pydict({"n": pa.array([4, 5], pa.int32()), "name": ["d", None]})
    given = [("a", 1), SparkRow(n=2, name="b"), ["c", 3], ("z", None)]
    assert rows_of(tmp_path / "rows", given) == [Row(name=a, n=n) for a, n in [("a", 1), ("b", 2), ("c", 3), ("z", None)]]
    LEDGERS.clear()
    assert rows_of(tmp_path / "arrow", [batch]) == [Row(name="d", n=4), Row(name=None, n=5)]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (("b", 2, 3), "it has 3 values, and the schema has 2: name, n"),
        ({"name": "b"}, "it is a dict, and a reader yields tuples, Rows, or Arrow batches"),
        (SparkRow(name="b", m=2), "it has the fields name, m, and the schema has name, n"),
        (("b", "many"), r"\('b', 'many'\) does not fit struct<name:string,n:int>"),
    ],
)
def a_row_that_does_not_fit_is_named(row, told, tmp_path):
    with pytest.raises(UserCodeError, match=told) as raised:
        rows_of(tmp_path, [("a", 1), row, ("c", 3)])
    assert raised.value.record == "Yields, partition 0, row 1"


def an_error_of_the_reader_is_told_with_its_place_in_the_program(tmp_path):
    with pytest.raises(ServiceUnavailable) as raised:
        rows_of(tmp_path, [("a", 1), OSError("the service is away")])
    assert "raise row" in str(raised.value)
    assert str(raised.value).endswith("OSError: the service is away\n  in Yields.reader.read() [data source, uid 'given']")


# ---- refusals -----------------------------------------------------------------------------------------------------------


class WithoutReader(DataSource):
    def schema(self):
        return "n int"


class WithoutSchema(Orders):
    def schema(self):
        raise NotImplementedError


def a_data_source_that_cannot_be_read_is_refused_when_the_program_is_built():
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"not <class .*Orders'>: give an object of it, Orders\(options\)"):
        env.from_data_source(Orders)  # type: ignore[arg-type]
    refused = {
        "WithoutReader cannot be read: it has neither": (WithoutReader({}), {}),
        r"Yields has reader\(\) and no streamReader\(\)": (Yields({}), {"bounded": False}),
        "orders tells no schema; give it by schema=": (WithoutSchema({}), {}),
        "no column when for the event time": (Orders({}), {"event_time": "when"}),
        "is not a schema; give names and types": (Orders({}), {"schema": "n"}),
    }
    for told, (source, named) in refused.items():
        with pytest.raises(ConfigurationError, match=told):
            env.from_data_source(source, **named)


def a_source_of_other_columns_or_of_the_other_kind_is_refused_before_the_job_starts(tmp_path):
    assert not job(Orders({}), tmp_path)._run_until("after commit", 2)
    other = job(Orders({}), tmp_path, schema="shop string, id int, at timestamp").check()
    assert "id (int64), at (timestamp[us]), and the program's has shop (string), id (int32)" in str(other)
    bounded = job(Orders({}), tmp_path, bounded=True).check()
    assert "in a data source that was a stream, and in the program it is bounded" in str(bounded)
