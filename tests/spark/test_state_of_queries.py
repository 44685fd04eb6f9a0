"""State of a Structured Streaming query, moved: a job goes on with it as the query would have."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Row as SparkRow
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StreamingQuery

from awaiting import until
from engine.inprocess import LEDGERS, Lab, LedgerSink, SplitSource
from holdfast.common import Row, WatermarkStrategy
from holdfast.datastream.operations.batches import col
from holdfast.errors import ConfigurationError
from holdfast.runtime.spark.spark_context import spark_context
from holdfast.state_api import SavepointWriter, state_of_query
from spark_sessions import spark_session

pytestmark = pytest.mark.spark

PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SCHEMA = "user string, region int, page string, at long"
OUTPUT = "user string, region int, what string"
LAST = 100_000
STARTS = 8
"""Spark gives the worker that looks at a processor ten seconds to start, too few on a busy machine."""


@pytest.fixture(scope="module")
def spark():
    settings = {
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": PROVIDER,
    }
    # Spark gives a query's first worker ten seconds: in a Spark that a job would start, it imports compiled modules.
    spark_context("tests", {"spark.master": "local[2]", **settings})
    with spark_session([sys.modules[__name__]], settings, "local[2]") as made:
        yield made


def visits() -> list[Row]:
    return [Row(user=f"u{n % 3}", region=n % 2, page="abcd"[n * n % 4], at=10 * n) for n in range(60)]


class Journeys(StatefulProcessor):
    """A value, a list, a map and timers, which stay when a visitor goes."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n long, last string")
        self.seen = handle.getListState("seen", "page string")
        self.by_page = handle.getMapState("by_page", "page string", "n long, first long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for row in sorted(rows, key=lambda row: row.at):
            n = self.count.get()[0] if self.count.exists() else 0
            self.count.update((n + 1, row.page))
            self.seen.appendValue((row.page,))
            page = (row.page,)
            before, first = self.by_page.getValue(page) if self.by_page.containsKey(page) else (0, row.at)
            self.by_page.updateValue(page, (before + 1, first))
            self.handle.registerTimer(row.at + 330)
            yield self._told(key, "row")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield self._told(key, f"timer {expiredTimerInfo.getExpiryTimeInMs()}")

    def _told(self, key: Any, what: str) -> SparkRow:
        pages = sorted((tuple(page), tuple(value)) for page, value in self.by_page.iterator())
        state = (tuple(self.count.get()), [page for (page,) in self.seen.get()], pages, sorted(self.handle.listTimers()))
        return SparkRow(user=key[0], region=key[1], what=f"{what} {state}")

    def close(self) -> None:
        pass


class Query:
    """A query over files, a batch each."""

    def __init__(self, spark: SparkSession, directory: Path, schema: str = SCHEMA) -> None:
        self.given, self.location = directory / "in", directory / "checkpoints"
        self.given.mkdir(parents=True)
        self.rows = spark.readStream.schema(schema).json(str(self.given))

    def run(self, results: DataFrame, batch: list[Row], *, once: bool = False) -> list[Any]:
        """The results of another file, and of the timers that are due then unless it is to be one batch only."""
        found: list[Any] = []
        number = len(list(self.given.iterdir()))
        content = "".join(json.dumps(row.as_dict()) + "\n" for row in batch)
        (self.given.parent / "hidden").write_text(content)
        (self.given.parent / "hidden").rename(self.given / f"{number}.json")
        writer = results.writeStream.foreachBatch(lambda frame, _: found.extend(frame.collect()))
        if once:  # in processing time, Spark makes batches without end
            writer = writer.trigger(processingTime="1 hour")
        writer = writer.option("checkpointLocation", str(self.location))
        for _ in range(STARTS):
            query = writer.start()
            try:
                if once:
                    until(partial(_has_run, query))
                else:
                    query.processAllAvailable()
                if (failure := query.exception()) is not None:
                    raise failure
                query.stop()
                return found
            except StreamingQueryException as error:
                if "failed to connect back" not in str(error):
                    raise
        pytest.fail("the machine is too busy for Spark's workers")


def _has_run(query: StreamingQuery) -> bool:
    return bool(query.recentProgress) or not query.isActive


def results_of_job(processor: StatefulProcessor, mode: str, rows: list[Row], directory: Path, savepoint: str) -> list[Row]:
    """The results of a job that goes on from a savepoint; all rows are one epoch."""
    in_order = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)

    def build(env: Any) -> None:
        stream = env.from_source(SplitSource({"only": rows}), in_order, "rows").uid("rows")
        keyed = stream.key_by(col("user", "region"))
        found = keyed.transform_with_state(processor, OUTPUT, mode, call_mode="epoch").uid("journeys")
        found.sink_to(LedgerSink("out")).uid("out")

    LEDGERS.clear()
    Lab(build, directory, savepoint=savepoint).run()
    return LEDGERS["out"].values


def told(rows: Any) -> Counter[Any]:
    return Counter((row.user, row.region, row.what) for row in rows if row.user != "last")


def a_job_goes_on_with_the_state_and_timers_of_a_query(spark, tmp_path):
    query = Query(spark, tmp_path / "query")
    rows = query.rows.withColumn("time", F.timestamp_millis("at")).withWatermark("time", "0 seconds")
    results = rows.groupBy("user", "region").transformWithState(Journeys(), OUTPUT, "append", "EventTime")
    first, second = visits()[:35], visits()[35:]
    query.run(results, first)
    stopped = tmp_path / "stopped"
    shutil.copytree(query.location, stopped)

    state = state_of_query(spark, str(stopped), Journeys())
    savepoint = SavepointWriter.new_savepoint(spark).with_operator("journeys", state).write(str(tmp_path / "savepoint"))
    second.append(Row(user="last", region=0, page="a", at=LAST))  # all timers fire
    found = told(results_of_job(Journeys(), "EventTime", second, tmp_path / "job", savepoint))
    assert found == told(query.run(results, second))
    assert sum(what.startswith("timer") for _, _, what in found) > 30, "some of the first half, all of the second"

    class Other(Journeys):
        def init(self, handle: Any) -> None:
            super().init(handle)
            self.last = handle.getValueState("last", "at long")

    state_of_query(spark, str(stopped), Other())  # a state that the query had not is empty

    class WithoutList(Journeys):
        def init(self, handle: Any) -> None:
            self.count = handle.getListState("count", "n long, last string")

    with pytest.raises(
        ConfigurationError, match=r"state 'count' is a ValueState of the query and a ListState of WithoutList"
    ):
        state_of_query(spark, str(stopped), WithoutList())

    class OnlyCount(Journeys):
        def init(self, handle: Any) -> None:
            self.count = handle.getValueState("count", "n long, last long")

    with pytest.raises(
        ConfigurationError, match=r"has a state '(seen|by_page)', which OnlyCount does not declare; call del"
    ):
        state_of_query(spark, str(stopped), OnlyCount())

    class OtherFields(OnlyCount):
        def init(self, handle: Any) -> None:
            super().init(handle)
            for name in ("seen", "by_page"):
                handle.deleteIfExists(name)

    with pytest.raises(ConfigurationError, match=r"state 'count' has the fields struct<n:bigint,last:string> in the query"):
        state_of_query(spark, str(stopped), OtherFields())
    with pytest.raises(ConfigurationError, match=r"name the operator .* by operator_id; .* are 0: transformWithState"):
        state_of_query(spark, str(stopped), Journeys(), operator_id=3)
    with pytest.raises(ConfigurationError, match=r"is not the checkpoint location of a query with state"):
        state_of_query(spark, str(tmp_path / "none"), Journeys())


class Expiring(StatefulProcessor):
    """States that expire, and one that has expired when they are moved."""

    def __init__(self, ttl: int) -> None:
        self.ttl = ttl

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", "n long", 3_600_000)
        self.list = handle.getListState("list", "n long", 3_600_000)
        self.map = handle.getMapState("map", "k string", "n long", 3_600_000)
        self.gone = handle.getValueState("gone", "n long", self.ttl)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        before = self.value.get() if self.value.exists() else None
        pairs = sorted((tuple(k), tuple(v)) for k, v in self.map.iterator())
        state = [before and tuple(before), [tuple(each) for each in self.list.get()], pairs, self.gone.exists()]
        state.append(list(self.handle.listTimers()))
        for row in rows:
            for n in range(2):
                self.list.appendValue((row.at + n,))
                self.map.updateValue((row.page + str(n),), (row.at,))
            self.value.update((row.at,))
            self.gone.update((1,))
            self.handle.registerTimer(10**13 + row.at)
        yield SparkRow(user=key[0], region=key[1], what=str(state))

    def close(self) -> None:
        pass


def the_content_that_expires_moves_with_its_timers_and_what_has_expired_does_not(spark, tmp_path):
    query = Query(spark, tmp_path / "query")
    grouped = query.rows.groupBy("user", "region")
    rows = [Row(user=f"u{n}", region=n, page="p", at=n) for n in range(4)]
    query.run(grouped.transformWithState(Expiring(1), OUTPUT, "append", "ProcessingTime"), rows, once=True)
    state = state_of_query(spark, str(query.location), Expiring(3_600_000))
    savepoint = SavepointWriter.new_savepoint(spark).with_operator("journeys", state).write(str(tmp_path / "savepoint"))
    found = results_of_job(Expiring(3_600_000), "ProcessingTime", rows, tmp_path / "job", savepoint)
    expected = [[(n,), [(n,), (n + 1,)], [(("p0",), (n,)), (("p1",), (n,))], False, [10**13 + n]] for n in range(4)]
    assert sorted((row.user, row.what) for row in found) == [(f"u{n}", str(each)) for n, each in enumerate(expected)]
