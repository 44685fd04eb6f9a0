"""DataFrames of a session as sources of jobs on the same session."""

from __future__ import annotations

import datetime
import sys
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import functions as F

from engine import test_initial_state_of_processors as processors
from holdfast.common import Configuration, Row, Types, WatermarkStrategy
from holdfast.datastream import ProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.operations.batches import col
from holdfast.errors import ConfigurationError
from spark_sessions import spark_session

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark():
    with spark_session([sys.modules[__name__], processors], {"spark.sql.session.timeZone": "Asia/Kolkata"}) as made:
        yield made


def environment(directory: Any) -> StreamExecutionEnvironment:
    config = Configuration()
    config.set_string("rest.port", "0")
    config.set_string("execution.checkpointing.dir", str(directory))
    return StreamExecutionEnvironment.get_execution_environment(config).set_parallelism(2)


class WithTime(ProcessFunction):
    def process_element(self, value, ctx):
        yield value, ctx.timestamp()


def a_job_reads_every_row_of_a_dataframe_once_with_its_columns_and_event_time(spark, tmp_path):
    moment = F.timestamp_millis(F.col("id") * 1000 + 1)
    frame = spark.range(0, 2000, 1, 3).select(
        F.concat(F.lit("user"), F.col("id") % 3).alias("user"),
        F.col("id").alias("n"),
        moment.alias("at"),
        (F.col("id") * 0.01).cast("decimal(10,2)").alias("a price"),
        F.struct(F.col("id").alias("x"), F.create_map(F.lit("t"), moment).alias("times")).alias("nested"),
    )
    env = environment(tmp_path)
    rows = env.from_spark(frame, WatermarkStrategy.for_monotonous_timestamps(), event_time="at")

    with rows.process(WithTime()).execute_and_collect("frame") as results:
        found = {row.n: (row, time) for row, time in results}
    assert sorted(found) == list(range(2000))
    row, time = found[7]
    at = datetime.datetime(1970, 1, 1, 5, 30, 7, 1000)  # as the session's clocks show it
    assert row == Row(**{"user": "user1", "n": 7, "at": at, "a price": Decimal("0.07"), "nested": Row(x=7, times={"t": at})})
    assert time == 7001


def a_processor_begins_with_the_rows_of_a_dataframe(spark, tmp_path):
    before, rows = processors.initial_rows(), processors.payments()
    accounts = spark.createDataFrame(list(map(tuple, before)), "user string, amount long").repartition(2)
    payments = spark.createDataFrame(list(map(tuple, rows)), "user string, amount long, at long").coalesce(1)
    env = environment(tmp_path)
    keyed = env.from_spark(payments).key_by(col("user"))
    state = env.from_spark(accounts).key_by(col("user"))
    made = keyed.transform_with_state(processors.Balances(), processors.OUTPUT, initial_state=state)
    with made.execute_and_collect("balances") as results:
        found = Counter(map(tuple, results))

    had = {row.user: sorted(each.amount for each in before if each.user == row.user) for row in rows}
    totals = {user: sum(amounts) for user, amounts in had.items()}
    expected: Counter[Any] = Counter()
    for row in rows:
        totals[row.user] += row.amount
        expected[row.user, str(had[row.user]), totals[row.user]] += 1
    assert found == expected


def a_dataframe_of_plain_columns_declares_the_type_of_its_rows(spark, tmp_path):
    frame = spark.sql(
        "SELECT 'a' AS name, 1 AS number, CAST(2 AS BIGINT) AS long, 1.5D AS share, DATE'2026-01-02' AS day, true AS ok"
    )
    env = environment(tmp_path)
    names = ["name", "number", "long", "share", "day", "ok"]
    kinds = [Types.STRING(), Types.INT(), Types.LONG(), Types.DOUBLE(), Types.SQL_DATE(), Types.BOOLEAN()]
    rows = env.from_spark(frame)
    assert rows.get_type() == Types.ROW_NAMED(names, kinds)
    with rows.key_by(lambda row: row.name).sum("number").execute_and_collect("plain") as results:
        assert list(results) == [Row(name="a", number=1, long=2, share=1.5, day=datetime.date(2026, 1, 2), ok=True)]


def a_dataframe_that_cannot_be_computed_fails_the_start_in_one_sentence(spark, tmp_path):
    @F.udf("long")
    def broken(number):
        raise ValueError(f"no such number: {number}")

    env = environment(tmp_path)
    env.from_spark(spark.range(5).select(broken("id").alias("n"))).print()
    with pytest.raises(ConfigurationError, match=r"the DataFrame cannot be computed: ValueError: no such number: \d$"):
        env.execute("broken")


def a_row_without_event_time_fails_the_start(spark, tmp_path):
    env = environment(tmp_path)
    env.from_spark(spark.sql("SELECT CAST(NULL AS TIMESTAMP) AS at"), event_time="at").print()
    with pytest.raises(ConfigurationError, match="the event time, column at, is null"):
        env.execute("null")


def a_dataframe_that_cannot_be_read_is_refused_when_the_program_is_built(spark, tmp_path):
    env = environment(tmp_path)
    streaming = spark.readStream.format("rate").load()
    with pytest.raises(ConfigurationError, match="takes batch DataFrames, and this one is a streaming DataFrame"):
        env.from_spark(streaming)
    with pytest.raises(TypeError, match=r"takes a pyspark.sql.DataFrame, not a builtins.list"):
        env.from_spark([1])
    refused = {
        "SELECT INTERVAL 1 MONTH AS m": "column m of the DataFrame has the type interval month, which cannot be carried",
        "SELECT NULL AS nothing": "column nothing of the DataFrame has the type void",
        "SELECT named_struct('a', array(parse_json('1'))) AS s": "column s.a.element of the DataFrame has the type variant",
        "SELECT 1 AS a, 2 AS a": "has two columns named a",
    }
    for query, sentence in refused.items():
        with pytest.raises(ConfigurationError, match=sentence):
            env.from_spark(spark.sql(query))
    numbers = spark.range(3)
    with pytest.raises(ConfigurationError, match="has no column at for the event time; it has id"):
        env.from_spark(numbers, event_time="at")
    with pytest.raises(ConfigurationError, match="column s cannot be the event time, as it is of type string"):
        env.from_spark(spark.sql("SELECT 'a' AS s"), event_time="s")


def the_parts_of_failed_attempts_are_not_read(spark, tmp_path):
    failed = tmp_path / "failed"

    @F.udf("long")
    def fails_once(number):
        if number == 900 and not failed.exists():
            failed.touch()
            raise ValueError("the first attempt fails")
        return number

    env = environment(tmp_path)
    with env.from_spark(spark.range(0, 1000, 1, 2).select(fails_once("id").alias("n"))).execute_and_collect("again") as rows:
        counted = Counter(row.n for row in rows)
    assert counted == Counter(range(1000))


def a_dataframe_of_a_stopped_session_is_refused(spark, tmp_path):
    frame = spark.range(3)
    frame.schema
    env = environment(tmp_path)
    spark.stop()
    with pytest.raises(ConfigurationError, match="whose SparkSession is stopped; make both anew"):
        env.from_spark(frame)
