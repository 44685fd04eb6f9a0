"""The processors of the other tests in a query of Structured Streaming and in a job, over equal batches: equal results."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from effort import EFFORT
from engine import test_grouped_rows as grouped_rows
from engine import test_initial_state_of_processors as with_initial_state
from engine import test_processors_by_epoch as by_epoch
from engine import test_processors_in_pandas as in_pandas
from engine import test_transform_with_state as states
from engine.inprocess import LEDGERS, Lab, LedgerSink, SplitSource
from holdfast.common import Duration, Row, WatermarkStrategy
from spark_sessions import spark_session

pytestmark = pytest.mark.spark

ROWS_OF_A_BATCH = 20
BATCHES = 2 + EFFORT
LAST = 100_000
_STARTS = 3
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
MODULES = (grouped_rows, with_initial_state, by_epoch, in_pandas, states)


@pytest.fixture(scope="module")
def spark():
    settings = {
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": PROVIDER,
    }
    with spark_session(list(MODULES), settings, "local[2]") as made:
        yield made


@dataclass(frozen=True)
class Case:
    processor: Callable[[], Any]
    rows: Callable[[], list[Row]]
    schema: str
    time_mode: str
    output: str = states.OUTPUT
    initial: Callable[[], list[Row]] | None = None
    initial_schema: str = ""
    pandas: bool = False
    timeout: str = ""
    """Of a function of ``applyInPandasWithState``, in place of a processor."""


def amounts(rows: list[Row]) -> list[Row]:
    """The rows with the types of their schema."""
    return [Row(**{**row.as_dict(), "amount": None if row.amount is None else float(row.amount)}) for row in rows]


CASES = {
    "value, list and map": Case(states.Visits, states.visits, "user string, page string, at long", "None"),
    "timers of event time and late rows": Case(
        by_epoch.Sessions, by_epoch.rows_out_of_order, "user string, at long", "EventTime"
    ),
    "pandas, with an initial state": Case(
        in_pandas.Means,
        lambda: amounts(in_pandas.payments()),
        "user string, amount double, at long",
        "EventTime",
        in_pandas.OUTPUT,
        lambda: amounts(in_pandas.BEFORE),
        "user string, amount double",
        pandas=True,
    ),
    "group state with timeouts": Case(
        lambda: grouped_rows.sessions,
        by_epoch.rows_out_of_order,
        "user string, at long",
        "EventTime",
        timeout="EventTimeTimeout",
    ),
    "a map and timers": Case(states.Buckets, states.visits, "user string, page string, at long", "EventTime"),
    "an initial state of several rows a key": Case(
        with_initial_state.Balances,
        with_initial_state.payments,
        "user string, amount long, at long",
        "EventTime",
        initial=with_initial_state.initial_rows,
        initial_schema="user string, amount long",
    ),
}
FEW = ["timers of event time and late rows"]
"""A query takes long; PySpark's `TwsTester` judges all of them at any effort."""


def batches_of(case: Case) -> list[list[Row]]:
    rows = case.rows()[: ROWS_OF_A_BATCH * BATCHES]
    found = [rows[first : first + ROWS_OF_A_BATCH] for first in range(0, len(rows), ROWS_OF_A_BATCH)]
    found[-1] = [*found[-1][:-1], Row(**{**found[-1][-1].as_dict(), "user": "last", "at": LAST})]  # all timers fire
    return found


def by_user(rows: Any, names: list[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        if row["user"] != "last":
            found.setdefault(row["user"], []).append(tuple(row[name] for name in names))
    return found


def of_spark(spark: SparkSession, case: Case, directory: Path) -> list[Any]:
    """The results of a query; Spark gives its first worker ten seconds to start, too few on a busy machine."""
    for attempt in range(_STARTS):
        try:
            return results_of_query(spark, case, directory / f"query-{attempt}")
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
    pytest.fail("the machine is too busy for Spark's workers")


def results_of_query(spark: SparkSession, case: Case, directory: Path) -> list[Any]:
    """Those of each batch, and of the batch without rows that Spark makes behind it."""
    given = directory / "in"
    given.mkdir(parents=True)
    rows = spark.readStream.schema(case.schema).json(str(given))
    if case.time_mode == "EventTime":
        rows = rows.withColumn("time", F.timestamp_millis("at")).withWatermark("time", "0 seconds")
    initial = None
    if case.initial is not None:
        initial = spark.createDataFrame(list(map(tuple, case.initial())), case.initial_schema).groupBy("user")
    grouped = rows.groupBy("user")
    if case.timeout:
        found = grouped.applyInPandasWithState(case.processor(), case.output, grouped_rows.STATE, "append", case.timeout)
    else:
        apply = grouped.transformWithStateInPandas if case.pandas else grouped.transformWithState
        found = apply(case.processor(), case.output, "append", case.time_mode, initial)
    return by_batch(found, case, directory)


def by_batch(found: DataFrame, case: Case, directory: Path) -> list[Any]:
    """Run the query with one file after the other."""
    given, results = directory / "in", []
    writer = found.writeStream.foreachBatch(lambda frame, _: results[-1].extend(frame.collect()))
    query = writer.option("checkpointLocation", str(directory / "checkpoints")).start()
    for number, batch in enumerate(batches_of(case)):
        results.append([])
        content = "".join(json.dumps(row.as_dict()) + "\n" for row in batch)
        (directory / "hidden").write_text(content)
        (directory / "hidden").rename(given / f"{number}.json")
        query.processAllAvailable()
    query.stop()
    return results


def of_job(case: Case, directory: Path) -> list[Any]:
    """The results of a job in which each batch is an epoch."""
    in_order = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)

    def build(env: Any) -> None:
        rows = [row for batch in batches_of(case) for row in batch]
        stream = env.from_source(SplitSource({"only": rows}), in_order, "rows").uid("rows")
        initial = None
        if case.initial is not None:
            before = env.from_source(SplitSource({"s": case.initial()}), WatermarkStrategy.no_watermarks(), "before")
            initial = before.uid("before").key_by(lambda row: row.user)
        keyed = stream.key_by(lambda row: row.user)
        if case.timeout:
            found = keyed.apply_in_pandas_with_state(
                case.processor(), case.output, grouped_rows.STATE, timeout_conf=case.timeout
            )
        else:
            apply = keyed.transform_with_state_in_pandas if case.pandas else keyed.transform_with_state
            found = apply(case.processor(), case.output, case.time_mode, initial_state=initial, call_mode="epoch")
        found.uid("keyed").sink_to(LedgerSink("out")).uid("out")

    LEDGERS.clear()
    Lab(build, directory, parallelism=1, budget=ROWS_OF_A_BATCH).run()
    return list(LEDGERS["out"].committed.values())


@pytest.mark.parametrize("name", CASES if EFFORT > 1 else FEW)
def a_processor_gives_in_each_epoch_what_a_query_gives_in_each_batch(name, spark, tmp_path):
    case = CASES[name]
    names = [field.split()[0] for field in case.output.split(",")]
    expected = [by_user(rows, names) for rows in of_spark(spark, case, tmp_path)]
    found = [by_user(rows, names) for rows in of_job(case, tmp_path / "job")]
    assert [rows for rows in found if rows] == [rows for rows in expected if rows]
    assert sum(map(len, expected)) > BATCHES


@pytest.mark.skipif(EFFORT == 1, reason="a query takes long; the rule has a test in tests/engine/test_grouped_rows.py")
def the_duplicates_are_dropped_as_in_a_query(spark, tmp_path):
    case = Case(lambda: None, by_epoch.rows_out_of_order, "user string, at long", "EventTime")
    given = tmp_path / "in"
    given.mkdir()
    rows = spark.readStream.schema(case.schema).json(str(given)).withColumn("time", F.timestamp_millis("at"))
    # With this delay no row is at the watermark, where Spark takes it as late.
    found = rows.withWatermark("time", "55 milliseconds").dropDuplicatesWithinWatermark(["user"])
    expected = [[(row.user, row.at) for row in batch] for batch in by_batch(found, case, tmp_path)]

    behind = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(55))

    def build(env: Any) -> None:
        source = SplitSource({"only": [row for batch in batches_of(case) for row in batch]})
        stream = env.from_source(source, behind.with_timestamp_assigner(lambda row, _: row.at), "rows").uid("rows")
        kept = stream.key_by(lambda row: row.user).drop_duplicates_within_watermark(Duration.of_millis(55)).uid("kept")
        kept.sink_to(LedgerSink("out")).uid("out")

    LEDGERS.clear()
    Lab(build, tmp_path / "job", parallelism=1, budget=ROWS_OF_A_BATCH).run()
    results = [[(row.user, row.at) for row in batch] for batch in LEDGERS["out"].committed.values()]
    assert [sorted(batch) for batch in results] == [sorted(batch) for batch in expected if batch]
    assert sum(map(len, expected)) > 10
