"""PySpark's Python data sources as sinks: their writers in the subtasks, their commits in the driver."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any, ClassVar

import pytest
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

from holdfast.common import Types, WatermarkStrategy
from holdfast.errors import ConfigurationError, UserCodeError
from holdfast.runtime.protocol.restart import NoRestart
from holdfast.spark.data_source_sink import DataSourceSink

from .inprocess import Crash, Lab, SplitSource

SPLITS = {f"split {n}": [(f"key {i % 5}", 1000 * n + i) for i in range(40)] for n in range(3)}
ALL = Counter(value for values in SPLITS.values() for value in values)
PAIR = Types.ROW_NAMED(["shop", "n"], [Types.STRING(), Types.LONG()])


class Rows(WriterCommitMessage):
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows


class System:
    """What the data source writes to: rows by the id of the batch, which a repeated commit replaces."""

    batches: ClassVar[dict[int, list[Any]]] = {}
    commits: ClassVar[list[int]] = []
    aborts: ClassVar[list[Any]] = []
    dies: ClassVar[list[int]] = []
    """Numbers of the commits after which the driver dies."""


@pytest.fixture(autouse=True)
def empty():
    for each in (System.batches, System.commits, System.aborts, System.dies):
        each.clear()


class Writer(DataSourceStreamWriter):
    def __init__(self, schema: Any, fails: bool) -> None:
        self.schema = schema
        self.fails = fails

    def write(self, iterator):
        rows = list(iterator)
        assert all(isinstance(row, Row) and list(row.__fields__) == self.schema.names for row in rows)
        if self.fails:
            raise RuntimeError("the disk is full")
        return Rows([tuple(row) for row in rows])

    def commit(self, messages, batchId):
        rows = [row for message in messages for row in message.rows]
        assert System.batches.setdefault(batchId, rows) == rows, "other rows under the same id"
        System.commits.append(batchId)
        if len(System.commits) in System.dies:
            raise Crash

    def abort(self, messages, batchId):
        System.aborts.append((messages, batchId))


class Store(DataSource):
    @classmethod
    def name(cls):
        return "store"

    def streamWriter(self, schema, overwrite):
        assert not overwrite
        return Writer(schema, self.options.get("fails") == "yes")


def job(directory: Any, sink: DataSourceSink | None = None, declared: Any = PAIR, **options: Any) -> Lab:
    def build(env: Any) -> None:
        pairs = env.from_source(SplitSource(SPLITS, 7), WatermarkStrategy.no_watermarks(), "pairs").uid("pairs")
        keyed = pairs.key_by(lambda pair: pair[0]).map(lambda pair: pair, output_type=declared).uid("keyed")
        keyed.sink_to(sink or DataSourceSink(Store({}))).uid("out")

    return Lab(build, directory, budget=20, ledgers=(), **options)


def committed() -> Counter:
    return Counter(row for rows in System.batches.values() for row in rows)


@pytest.mark.parametrize("point", ["run", "before complete", "after complete"])
def a_data_source_gets_each_row_under_one_batch_id_although_drivers_die(point, tmp_path):
    job(tmp_path, failures=0.05, repeats=0.3).run([(point, 2), (point, 3)])
    assert committed() == ALL
    assert System.commits == sorted(System.commits), "that of the restored checkpoint may be repeated"


def a_commit_is_repeated_with_the_same_messages_after_the_driver_has_died_in_it(tmp_path):
    System.dies.append(3)
    lab = job(tmp_path)
    assert not lab._run_until("", 0)
    lab.run()
    assert committed() == ALL
    assert System.commits[2] == System.commits[3]
    assert len(System.commits) == len(set(System.commits)) + 1


def an_error_of_write_is_told_with_its_traceback_and_the_writer_aborts(tmp_path):
    lab = job(tmp_path, DataSourceSink(Store({"fails": "yes"})))
    with pytest.raises(
        UserCodeError, match=r"(?s)^Traceback.*in write.*the disk is full\n  in operator 'store' \(uid 'out'\)$"
    ):
        lab.coordinator(strategy=NoRestart()).run()
    lab.close()
    assert ([None], 2) in System.aborts


def a_writer_of_arrow_gets_record_batches(tmp_path):
    datasource = pytest.importorskip("pyspark.sql.datasource")
    if not hasattr(datasource, "DataSourceStreamArrowWriter"):
        pytest.skip("PySpark 4.1 and later")

    class ArrowWriter(Writer, datasource.DataSourceStreamArrowWriter):
        def write(self, iterator):
            return Rows([tuple(row.values()) for batch in iterator for row in batch.to_pylist()])

    class ArrowStore(Store):
        def streamWriter(self, schema, overwrite):
            return ArrowWriter(schema, False)

    job(tmp_path, DataSourceSink(ArrowStore({}))).run()
    assert committed() == ALL


def test_nested_values_are_rows_lists_and_dicts(tmp_path):
    kinds = [Types.ROW_NAMED(["x"], [Types.INT()]), Types.LIST(Types.STRING()), Types.MAP(Types.STRING(), Types.INT())]
    declared = Types.ROW_NAMED(["inner", "names", "counts"], kinds)

    def build(env: Any) -> None:
        rows = env.from_collection([((1,), ["a"], {"b": 2}), (None, None, None)], declared)
        rows.sink_to(DataSourceSink(Store({}))).uid("out")

    Lab(build, tmp_path, parallelism=1, ledgers=()).run()
    assert committed_list() == [(Row(x=1), ["a"], {"b": 2}), (None, None, None)]


def committed_list() -> list[Any]:
    return [row for rows in System.batches.values() for row in rows]


def a_data_source_that_cannot_write_streams_is_refused_when_the_program_is_built(tmp_path):
    class Silent(DataSource):
        @classmethod
        def name(cls):
            return "silent"

    with pytest.raises(ConfigurationError, match=r"the data source silent has no streamWriter\(\)"):
        job(tmp_path, DataSourceSink(Silent({}))).plan()
    with pytest.raises(TypeError, match=r"takes a data source with its options"):
        DataSourceSink(Store)
    sink = DataSourceSink(Store({}))
    with pytest.raises(ConfigurationError, match=r"the data source store needs a schema"):
        sink.validate()


def the_writer_gets_the_schema_of_the_declared_type():
    sink = DataSourceSink(Store({})).of_type(PAIR)
    writer = pickle.loads(pickle.dumps(sink))._writer
    assert writer.schema == T.StructType([T.StructField("shop", T.StringType()), T.StructField("n", T.LongType())])
