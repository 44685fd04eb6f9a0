"""Streaming DataFrames of a session as sources of jobs on the same session."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast.common import Configuration, Row
from holdfast.common.time import Time
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.errors import ConfigurationError
from holdfast.spark.stream_query import declared_watermark
from spark_sessions import spark_session

pytestmark = pytest.mark.spark
NOW = {"availableNow": True}


@pytest.fixture(scope="module")
def spark():
    with spark_session([sys.modules[__name__]], {"spark.sql.shuffle.partitions": "2"}) as made:
        yield made


def environment(directory: Any) -> StreamExecutionEnvironment:
    config = Configuration()
    config.set_string("rest.port", "0")
    config.set_string("execution.checkpointing.dir", str(directory / "checkpoints"))
    return StreamExecutionEnvironment.get_execution_environment(config).set_parallelism(2)


def write(directory: Path, name: str, rows: list[dict[str, Any]]) -> None:
    directory.mkdir(exist_ok=True)
    (directory / f".{name}").write_text("".join(json.dumps(row) + "\n" for row in rows))
    at = 1_750_000_000 + len(list(directory.glob("*.json")))  # Spark reads files by their times of modification
    os.utime(directory / f".{name}", (at, at))
    (directory / f".{name}").rename(directory / name)


def payments(spark: SparkSession, directory: Path) -> Any:
    reader = spark.readStream.schema("shop string, amount long, at timestamp").option("maxFilesPerTrigger", 1)
    return reader.json(str(directory))


def payment(shop: str, amount: int, minute: int = 0, second: int = 0) -> dict[str, Any]:
    return {"shop": shop, "amount": amount, "at": f"2026-03-01T10:{minute:02d}:{second:02d}Z"}


def the_windows_of_a_stream_with_watermark_are_those_of_spark(spark, tmp_path):
    """The example of docs/spark.md: payments arrive as files, late ones are left out."""
    files = tmp_path / "payments"
    write(files, "1.json", [payment("north", n, n % 4, n) for n in range(8)])
    write(files, "2.json", [payment("south", 5, 9), payment("north", 1, 2)])
    write(files, "3.json", [payment("south", 7, 8), payment("north", 99, 1)])

    env = environment(tmp_path)
    rows = env.from_spark_stream(payments(spark, files).withWatermark("at", "2 minutes"), trigger=NOW)
    windows = rows.key_by(lambda row: row.shop).window(TumblingEventTimeWindows.of(Time.minutes(1)))
    with windows.reduce(lambda a, b: Row(shop=a.shop, amount=a.amount + b.amount, at=a.at)).execute_and_collect(
        "sums"
    ) as found:
        sums = sorted((row.shop, row.at.minute, row.amount) for row in found)
    north = [("north", 0, 4), ("north", 1, 6), ("north", 2, 9), ("north", 3, 10)]
    assert sums == [*north, ("south", 8, 7), ("south", 9, 5)]


def an_aggregation_in_update_mode_is_a_stream_of_its_batches_rows(spark, tmp_path):
    files = tmp_path / "payments"
    write(files, "1.json", [payment("a", 1), payment("b", 2)])
    write(files, "2.json", [payment("a", 3)])
    sums = payments(spark, files).groupBy("shop").agg(F.sum("amount").alias("amount"))

    env = environment(tmp_path)
    env.from_spark_stream(sums).print()
    with pytest.raises(ConfigurationError, match=r"Spark refuses the query .* append. This output mode is not supported"):
        env.execute("append")

    env = environment(tmp_path)
    with env.from_spark_stream(sums, trigger=NOW, output_mode="update").execute_and_collect("update") as rows:
        assert sorted((row.shop, row.amount) for row in rows) == [("a", 1), ("a", 4), ("b", 2)]


def an_error_of_the_query_is_the_jobs(spark, tmp_path):
    files = tmp_path / "payments"
    write(files, "1.json", [payment("a", 1)])

    @F.udf("long")
    def broken(amount):
        raise ValueError(f"no such amount: {amount}")

    env = environment(tmp_path)
    env._configuration.set_string("restart-strategy.type", "none")
    env.from_spark_stream(payments(spark, files).select(broken("amount").alias("n"))).print()
    with pytest.raises(Exception, match="ValueError: no such amount: 1"):
        env.execute("broken")


def a_store_whose_file_system_spark_has_not_is_refused_with_the_remedy(spark, tmp_path, s3_config):
    write(tmp_path / "in", "1.json", [payment("north", 1)])
    config = Configuration.from_dict({"rest.port": "0", "execution.checkpointing.dir": "s3://checkpoints/none", **s3_config})
    env = StreamExecutionEnvironment.get_execution_environment(config)
    env.from_spark_stream(payments(spark, tmp_path / "in"), trigger=NOW).print()
    with pytest.raises(ConfigurationError, match=r"this Spark has no file system for s3a://.*org.apache.hadoop:hadoop-aws"):
        env.execute("nowhere")


def a_row_without_event_time_ends_the_job(spark, tmp_path):
    files = tmp_path / "payments"
    write(files, "1.json", [{"shop": "a", "amount": 1}])
    env = environment(tmp_path)
    env.from_spark_stream(payments(spark, files), event_time="at").uid("payments").print()
    with pytest.raises(ConfigurationError, match="'payments', batch 0: the event time, column at, is null"):
        env.execute("null")


def a_stream_that_cannot_be_read_is_refused_when_the_program_is_built(spark, tmp_path):
    env = environment(tmp_path)
    with pytest.raises(ConfigurationError, match=r"this one is a batch DataFrame; give it to from_spark\(\)"):
        env.from_spark_stream(spark.range(3))
    with pytest.raises(TypeError, match=r"from_spark_stream\(\) takes a pyspark.sql.DataFrame, not a builtins.list"):
        env.from_spark_stream([1])
    socket = spark.readStream.format("socket").option("host", "localhost").option("port", 9).load()
    with pytest.raises(ConfigurationError, match="socket source, which cannot replay a batch"):
        env.from_spark_stream(socket)
    rate = spark.readStream.format("rate").load()
    with pytest.raises(ConfigurationError, match=r"the trigger of from_spark_stream\(\) is \{'continuous': '1 second'\}"):
        env.from_spark_stream(rate, trigger={"continuous": "1 second"})
    with pytest.raises(ConfigurationError, match="has no column at for the event time"):
        env.from_spark_stream(rate, event_time="at")


def test_the_watermark_is_found_wherever_its_column_has_gone(spark):
    rate = spark.readStream.format("rate").load()
    assert declared_watermark(rate.schema) is None
    marked = rate.withWatermark("timestamp", "3 seconds")
    assert declared_watermark(marked.select("value", F.col("timestamp").alias("t")).schema) == ("t", 3000)
    twice = marked.withColumn("again", F.col("timestamp"))
    assert declared_watermark(twice.schema, "again") == ("again", 3000)
    with pytest.raises(ConfigurationError, match="columns timestamp and again of the streaming DataFrame have watermarks"):
        declared_watermark(twice.schema)


def a_job_of_a_live_stream_ends_when_it_is_cancelled_and_its_query_with_it(spark, tmp_path):
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load()
    env = environment(tmp_path)
    seen = []
    with env.from_spark_stream(rate).execute_and_collect("live") as rows:
        for row in rows:
            seen.append(row.value)
            if len(seen) == 120:
                break
    assert len(set(seen)) == 120
    assert spark.streams.active == []


@pytest.mark.parametrize("store", ["HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"])
def an_older_checkpoint_takes_the_state_of_the_querys_aggregation_back(spark, tmp_path, store):
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", f"org.apache.spark.sql.execution.streaming.state.{store}")
    files = tmp_path / "payments"
    for number, amount in enumerate([1, 3, 10]):
        write(files, f"{number}.json", [payment("a", amount)])

    def run(limit: int, checkpoint: str = "") -> list[int]:
        def below_limit(row: Row) -> int:
            assert row.amount < limit, "too much"
            return row.amount

        env = environment(tmp_path)
        env._configuration.set_string("execution.checkpointing.num-retained", "50")
        env._configuration.set_string("execution.state-recovery.path", checkpoint)
        env._configuration.set_string("restart-strategy.type", "none")
        sums = payments(spark, files).groupBy("shop").agg(F.sum("amount").alias("amount"))
        rows = env.from_spark_stream(sums, trigger=NOW, output_mode="update", source_name="sums").uid("sums")
        with rows.map(below_limit).uid("amounts").execute_and_collect("sums") as found:
            return list(found)

    with pytest.raises(Exception, match="too much"):
        run(10)
    first = sorted((tmp_path / "checkpoints" / "sums" / "log").iterdir())[1]
    assert run(100, first.as_uri())[-2:] == [4, 14]


def a_streaming_dataframe_of_a_stopped_session_is_refused(spark, tmp_path):
    rate = spark.readStream.format("rate").load()
    rate.schema
    env = environment(tmp_path)
    spark.stop()
    with pytest.raises(ConfigurationError, match="whose SparkSession is stopped; make both anew"):
        env.from_spark_stream(rate)
