"""Streams as DataFrames of the session on which the job runs."""

from __future__ import annotations

import datetime
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage

from holdfast.common import Configuration, Row, RowKind, Types
from holdfast.common.time import Instant
from holdfast.connectors.base import Committable, JobInfo, WriterContext
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.errors import ConfigurationError, UserCodeError
from holdfast.spark.element_columns import ElementColumns
from holdfast.spark.frames import spark_frame
from holdfast.spark.staged_output import StagedOutput, StagedWriter, StagingArea, outputs
from holdfast.spark.table_sink import SparkTableSink, latest, merge_statement
from spark_sessions import spark_session

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark():
    with spark_session([sys.modules[__name__]], {"spark.sql.session.timeZone": "Asia/Kolkata"}) as made:
        yield made


@pytest.fixture(params=["a directory", "S3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The settings of a job that keeps its rows there."""
    if request.param == "a directory":
        return {"execution.checkpointing.dir": str(tmp_path)}
    config: dict[str, str] = request.getfixturevalue("s3_config")
    return {**config, "execution.checkpointing.dir": f"s3://checkpoints/{tmp_path.name}"}


def environment(spark: SparkSession, directory: Any = None, **settings: str) -> StreamExecutionEnvironment:
    config = Configuration()
    config.set_string("rest.port", "0")
    if directory is not None:
        config.set_string("execution.checkpointing.dir", str(directory))
    for key, value in settings.items():
        config.set_string(key, value)
    return StreamExecutionEnvironment.get_execution_environment(config, spark).set_parallelism(2)


def the_results_of_a_job_are_a_dataframe_that_outlives_it(spark):
    env = environment(spark)
    orders = env.from_collection([("a", n) for n in range(500)], Types.TUPLE([Types.STRING(), Types.LONG()]))
    frame = orders.key_by(lambda order: order[0]).sum(1).execute_to_dataframe("sums")
    assert frame.schema == T.StructType([T.StructField("f0", T.StringType()), T.StructField("f1", T.LongType())])
    totals = frame.where("f1 > 100000")
    assert totals.count() == sum(n * (n + 1) // 2 > 100_000 for n in range(500))
    assert frame.agg(F.max("f1")).first()[0] == 499 * 250
    assert frame.sparkSession is spark


def a_dataframe_goes_through_a_job_and_comes_out_with_its_columns(spark, storage):
    moment = F.timestamp_millis(F.col("id") * 1000 + 1)
    frame = spark.range(0, 2000, 1, 3).select(
        F.concat(F.lit("user"), F.col("id") % 3).alias("user"),
        F.col("id").alias("n"),
        moment.cast("timestamp_ntz").alias("at"),
        (F.col("id") * 0.01).cast("decimal(10,2)").alias("a price"),
        F.array(F.struct(F.col("id").alias("x"))).alias("nested"),
        F.create_map(F.lit("t"), F.col("id")).alias("numbers"),
        F.expr("CASE WHEN id > 5 THEN date'2026-01-02' END").alias("day"),
        F.expr("INTERVAL '1 02:03:04' DAY TO SECOND").alias("length"),
    )
    out = environment(spark, **storage).from_spark(frame).execute_to_dataframe("copy")
    assert out.dtypes == frame.dtypes
    assert sorted(out.collect()) == sorted(frame.collect())


def test_declared_types_become_those_of_spark(spark):
    noon = datetime.datetime(2026, 1, 2, 12, 0, 0, 1000)
    kinds = {
        "n": (Types.INT(), 1, T.IntegerType()),
        "share": (Types.DOUBLE(), 0.5, T.DoubleType()),
        "price": (Types.BIG_DEC(), Decimal("1.5"), T.DecimalType(38, 18)),
        "raw": (Types.PRIMITIVE_ARRAY(Types.BYTE()), b"x", T.BinaryType()),
        "at": (Types.SQL_TIMESTAMP(), noon, T.TimestampNTZType()),
        "moment": (Types.INSTANT(), Instant.of_epoch_milli(1), T.TimestampType()),
        "names": (Types.LIST(Types.STRING()), ["a"], T.ArrayType(T.StringType())),
        "counts": (Types.MAP(Types.STRING(), Types.LONG()), {"a": 1}, T.MapType(T.StringType(), T.LongType())),
    }
    declared = Types.ROW_NAMED(list(kinds), [kind for kind, _, _ in kinds.values()])
    rows = environment(spark).from_collection([tuple(value for _, value, _ in kinds.values())], declared)
    frame = rows.execute_to_dataframe("types")
    assert [field.dataType for field in frame.schema] == [kind for _, _, kind in kinds.values()]
    row = frame.first()
    assert (row.n, row.price, row.at, row.names, row.counts) == (1, Decimal("1.5"), noon, ["a"], {"a": 1})
    assert frame.select(F.unix_millis("moment")).first()[0] == 1


def test_results_without_rows_have_no_columns_unless_their_type_is_declared(spark):
    empty = environment(spark).from_collection([1]).filter(lambda n: False).execute_to_dataframe("empty")
    assert (empty.count(), empty.columns) == (0, [])


def a_program_that_does_not_end_is_refused(spark, tmp_path):
    env = environment(spark)
    with pytest.raises(ConfigurationError, match=r"source .* is unbounded: bound it"):
        env.socket_text_stream("localhost", 1).execute_to_dataframe("endless")
    with env.from_collection([1]).execute_and_collect("later") as results:  # the refused sink is gone
        assert list(results) == [1]


def a_function_gets_the_dataframe_of_each_checkpoint(spark, storage):
    found: dict[int, Counter] = {}

    def take(df, checkpoint_id):
        assert df.sparkSession is spark
        df.createOrReplaceTempView("output")
        counts = {row.user: row.n for row in spark.sql("SELECT user, count(*) AS n FROM output GROUP BY user").collect()}
        found[checkpoint_id] = Counter(counts)

    env = environment(spark, **storage)
    env.from_spark(spark.range(3000).selectExpr("concat('user', id % 7) AS user", "id")).foreach_checkpoint(take)
    env.execute("foreach")
    assert sum(found.values(), Counter()) == {f"user{n}": 3000 // 7 + (n < 3000 % 7) for n in range(7)}


def an_error_of_the_function_ends_the_job_with_its_traceback(spark, tmp_path):
    def broken(df, checkpoint_id):
        df.select("no such column").count()

    env = environment(spark, tmp_path)
    env.from_collection([(1,)]).foreach_checkpoint(broken)
    with pytest.raises(UserCodeError, match=r"(?s)^Traceback.*in broken.*UNRESOLVED_COLUMN.*checkpoint 2$"):
        env.execute("broken")


def test_what_is_no_function_is_refused(spark):
    with pytest.raises(TypeError, match=r"takes a function of a DataFrame and a checkpoint's id, not 3\."):
        environment(spark).from_collection([1]).foreach_checkpoint(3)


def staged(directory: Any, checkpoint_id: int, rows: list[Any], job: str = "a") -> StagedOutput:
    """The output of a checkpoint."""
    info = JobInfo("1", "totals", 1, str(directory), identity=job)
    area = StagingArea.of(info, "out")
    writer = StagedWriter(area, ElementColumns(None), WriterContext(info, "out", 0, 1), "sink")
    writer.begin_epoch(checkpoint_id, "attempt", checkpoint_id - 1)
    writer.write(rows, None)
    (output,) = outputs(area, [Committable("out", 0, data) for data in writer.prepare_commit()])
    return output


def test_files_of_spark_have_each_checkpoint_once(spark, tmp_path):
    target = str(tmp_path / "table")
    deliver = SparkTableSink(target, "parquet", partition_by=["shop"]).in_session(spark).deliver
    deliver(staged(tmp_path, 2, [{"shop": "books", "n": 1}, {"shop": "coffee", "n": 2}]))
    for _ in range(2):
        deliver(staged(tmp_path, 3, [{"shop": "books", "n": 3}]))
    deliver(staged(tmp_path, 2, [{"shop": "tea", "n": 4}], job="another"))
    found = spark.read.parquet(target)
    assert sorted((row.shop, row.n) for row in found.collect()) == [("books", 1), ("books", 3), ("coffee", 2), ("tea", 4)]
    assert found.select("checkpoint").distinct().count() == 3
    assert list((tmp_path / "table" / "_holdfast").glob("[!.]*")) == []
    with pytest.raises(ValueError, match="rows of a changelog cannot be appended"):
        deliver(staged(tmp_path, 4, [Row.of_kind(RowKind.DELETE, 1)]))


def the_checkpoint_is_the_version_of_a_transaction_of_delta(spark, tmp_path):
    """A data source of this name stands in for Delta, and writes the options that it gets."""

    class Writer(DataSourceWriter):
        def __init__(self, options):
            self.options = options

        def write(self, iterator):
            rows = sum(1 for _ in iterator)
            with open(self.options["path"], "a") as file:
                file.write(f"{rows} {self.options['txnappid']} {self.options['txnversion']} {self.options['mergeschema']}\n")
            return WriterCommitMessage()

    class Delta(DataSource):
        @classmethod
        def name(cls):
            return "delta"

        def writer(self, schema, overwrite):
            assert not overwrite
            return Writer(dict(self.options))

    spark.dataSource.register(Delta)
    target = tmp_path / "table"
    deliver = SparkTableSink(str(target), "delta", options={"mergeSchema": "true"}).in_session(spark).deliver
    deliver(staged(tmp_path, 7, [{"n": 1}, {"n": 2}]))
    assert target.read_text() == "2 totals/sinks/out/a 7 true\n"


def the_last_row_of_each_key_is_merged_by_a_statement_that_spark_reads(spark, tmp_path):
    rows = [Row(shop="books", n=1), Row(shop="tea", n=5), Row(shop="books", n=2)]
    gone = Row(shop="tea", n=5)
    gone.set_row_kind(RowKind.DELETE)
    frame = latest(spark_frame(spark, staged(tmp_path, 2, [*rows, gone]), numbered=True), ["shop"])
    found = sorted((row.shop, row.n, row.row_kind) for row in frame.collect())
    assert found == [("books", 2, None), ("tea", 5, "DELETE")]
    parser = spark._jsparkSession.sessionState().sqlParser()
    for target in ("lake.totals", "delta.`/tmp/totals`"):
        plan = parser.parsePlan(merge_statement(target, "latest", frame.columns, ["shop"]))
        assert plan.nodeName() == "MergeIntoTable"
    with pytest.raises(ValueError, match="the rows have no column city, a merge key; they have"):
        latest(spark_frame(spark, staged(tmp_path, 2, rows), numbered=True), ["city"])


def the_stages_of_a_job_have_the_names_of_its_operators(spark):
    env = environment(spark)
    pairs = env.from_collection([("a", n) for n in range(10)]).name("numbers").map(lambda pair: pair).name("doubled")
    pairs.key_by(lambda pair: pair[0]).sum(1).name("totals").print("out").name("shown")
    client = env.execute_async("named")
    client.get_job_execution_result().result()
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(f"holdfast-{client.get_job_id()}")]
    stages = [tracker.getStageInfo(stage) for job in jobs for stage in sorted(job.stageIds)]
    names = {stage.name for stage in stages if stage.numTasks}
    assert {"named: Source: numbers", "named: doubled", "named: totals -> Sink: shown"} <= names, names
