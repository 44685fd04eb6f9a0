"""A streaming DataFrame as a source: batches are handed over, and completed after the job's checkpoint. Without Spark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import WatermarkStrategy
from holdfast.common.time import Duration, Time
from holdfast.connectors.base import EpochInput, JobInfo
from holdfast.datastream import KeyedProcessFunction
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.errors import InputLost
from holdfast.spark.query_log import QueryLog
from holdfast.spark.stream_source import SparkStreamEnumerator, SparkStreamSource

from .inprocess import CRASH_POINTS, LEDGERS, Lab, LedgerSink
from .model_of_spark import COLUMNS, ModelOfSpark
from .test_savepoints import run as run_with_savepoint


class Numbers(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value.n


def numbered(batches: int, size: int) -> list[list[tuple[str, int]]]:
    return [[(f"shop {n % 5}", n) for n in range(first * size, (first + 1) * size)] for first in range(batches)]


def job(spark: ModelOfSpark, directory: Any, columns: Any = COLUMNS, **options: Any) -> Lab:
    def build(env: Any) -> None:
        rows = env.from_source(SparkStreamSource(columns, spark), WatermarkStrategy.no_watermarks(), "rows").uid("rows")
        rows.key_by(lambda row: row.shop).process(Numbers()).uid("keyed").sink_to(LedgerSink("out")).uid("out")

    LEDGERS.clear()
    return Lab(build, directory, budget=20, **options)


def stored(directory: Any) -> list[str]:
    return [path for path in Storage.open(str(directory / "checkpoints")).list("") if "/sources/rows/rows/" in path]


@pytest.mark.parametrize("size", [7, 50], ids=["a batch an epoch", "several epochs a batch"])
@pytest.mark.parametrize("point", CRASH_POINTS)
def a_batch_that_spark_replays_counts_once_although_drivers_die(point, size, tmp_path):
    lab = job(ModelOfSpark(numbered(4, size)), tmp_path)
    lab.run([(point, 2), (point, 2)])
    assert Counter(LEDGERS["out"].values) == Counter(range(4 * size))
    assert stored(tmp_path) == []


def test_spark_completes_a_batch_after_its_rows_are_visible(tmp_path):
    spark = ModelOfSpark(numbered(3, 50))
    visible = []
    spark.completing = lambda number: visible.append((number, len(LEDGERS["out"].values)))
    job(spark, tmp_path).run()
    assert visible == [(0, 50), (1, 100), (2, 150)]


def a_batch_without_rows_is_completed(tmp_path):
    spark = ModelOfSpark([[], [("a", 1)], [], []])
    job(spark, tmp_path).run([("before complete", 1)])
    assert LEDGERS["out"].values == [1]
    assert spark.queries[-1].numbers("commits") == {0, 1, 2, 3}


def an_error_of_the_query_ends_the_job(tmp_path):
    spark = ModelOfSpark(numbered(3, 5))

    def fail(number):
        if number == 1:
            raise RuntimeError("no such column")

    spark.computing = fail
    with pytest.raises(Exception, match="no such column"):
        job(spark, tmp_path).run()
    assert sorted(LEDGERS["out"].values) == list(range(5))


def an_error_that_passes_restarts_the_query(tmp_path):
    spark = ModelOfSpark(numbered(3, 5))
    failures = iter([RuntimeError("the store is away")])

    def fail_once(number):
        if number == 1 and (error := next(failures, None)):
            raise error

    spark.computing = fail_once
    job(spark, tmp_path).run()
    assert Counter(LEDGERS["out"].values) == Counter(range(15))
    assert len(set(spark.locations())) == 1


def a_savepoint_in_the_midst_of_a_batch_goes_on_in_another_job(tmp_path):
    spark = ModelOfSpark(numbered(4, 50))
    savepoint = run_with_savepoint(job(spark, tmp_path / "a"), 4)
    before = LEDGERS["out"].values
    other = job(spark, tmp_path / "b", savepoint=savepoint, parallelism=3)
    other.run([("after complete", 1)])
    assert Counter(before + LEDGERS["out"].values) == Counter(range(200))
    assert spark.locations()[0].is_relative_to(tmp_path / "a")
    assert spark.locations()[-1].is_relative_to(tmp_path / "b")


def a_dataframe_of_other_columns_is_refused_before_the_job_starts(tmp_path):
    assert not job(ModelOfSpark(numbered(4, 50)), tmp_path)._run_until("after commit", 2)
    other = pa.schema([("shop", pa.string()), ("n", pa.float64())])
    check = job(ModelOfSpark(numbered(4, 50)), tmp_path, other).check()
    assert "columns shop (string), n (int64), and the program's has shop (string), n (double)" in str(check)


@pytest.mark.parametrize("crashes", [[], [("after complete", 2)], [("before complete", 3)]], ids=str)
def a_row_is_late_by_the_batches_before_its_own_and_not_by_its_own_batch(crashes, tmp_path):
    batches = [
        [("a", 1), ("a", 105), ("b", 31), ("b", 102)],
        [("a", 82), ("a", 99), ("b", 91), ("b", 300)],  # 102 - 10: the windows up to 89 are gone
        [("a", 291), ("b", 289)],
    ]

    def build(env: Any) -> None:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(10))
        spark = ModelOfSpark(batches, partitions=1, stamps=True)
        spark.batches = [sorted(batch, key=lambda row: row[1]) for batch in batches]
        rows = env.from_source(SparkStreamSource(COLUMNS, spark, "n"), strategy, "rows").uid("rows")
        windows = rows.key_by(lambda row: row.shop).window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
        windows.reduce(lambda a, b: a).uid("windows").sink_to(LedgerSink("out")).uid("out")

    LEDGERS.clear()
    Lab(build, tmp_path, budget=20).run(crashes)
    assert sorted(row.n for row in LEDGERS["out"].values) == [1, 31, 91, 99, 102, 105, 291, 300]


# ---- the enumerator, step by step ---------------------------------------------------------------------------------------


def start(spark: ModelOfSpark, directory: Path, state: Any = None, name: str = "job") -> SparkStreamEnumerator:
    info = JobInfo("j", name, 1, str(directory / "checkpoints"))
    made = SparkStreamSource(COLUMNS, spark).create_enumerator(info, "rows")
    made.start(state)
    return made


def planned(enumerator: SparkStreamEnumerator, most: int = 1000) -> EpochInput:
    """The next epoch's input, as soon as there is some."""
    while True:
        found = enumerator.plan(most)
        if found.ranges or found.finished:
            return found
        enumerator.wait(60)


def read_batches(enumerator: SparkStreamEnumerator, count: int) -> list[Any]:
    """Read batches, each in one epoch; the states of their checkpoints."""
    states = []
    for number in range(count):
        assert planned(enumerator).ranges
        states.append(enumerator.snapshot())
        enumerator.checkpoint_completed(number + 1, states[-1])
    return states


def an_older_checkpoint_takes_spark_back_to_its_batch(tmp_path):
    spark = ModelOfSpark(numbered(6, 5))
    first = start(spark, tmp_path)
    states = read_batches(first, 4)
    first.close()

    again = start(spark, tmp_path, states[1])
    part = planned(again).ranges[0]
    assert part.split.startswith("batch 2, ")
    assert len(set(spark.locations())) == 2, "the later checkpoints' location stays as it is"
    newer = again.snapshot()
    again.close()
    assert not start(spark, tmp_path, states[3]).close()
    assert spark.locations()[-1] == spark.locations()[0]
    assert planned(start(spark, tmp_path, newer)).ranges[0].split.startswith("batch 3, ")


def a_checkpoint_before_the_first_batch_takes_spark_back_to_the_beginning(tmp_path):
    spark = ModelOfSpark(numbered(4, 5))
    first = start(spark, tmp_path)
    state = first.snapshot()
    read_batches(first, 2)
    first.close()
    assert planned(start(spark, tmp_path, state)).ranges[0].split.startswith("batch 0, ")


def a_checkpoint_that_is_older_than_sparks_batches_is_refused(tmp_path):
    spark = ModelOfSpark(numbered(6, 5))
    first = start(spark, tmp_path)
    states = read_batches(first, 4)
    first.close()
    for directory in ("offsets", "commits"):
        (spark.locations()[0] / directory / "1").unlink()
    with pytest.raises(InputLost, match=r"Spark's checkpoint .*/spark-\w+/ does not have batch 1"):
        start(spark, tmp_path, states[1])


def a_checkpoint_whose_rows_are_read_and_deleted_is_refused(tmp_path):
    spark = ModelOfSpark(numbered(3, 5))
    first = start(spark, tmp_path)
    planned(first, 2)
    amid = first.snapshot()
    planned(first)
    first.checkpoint_completed(1, first.snapshot())
    first.close()
    with pytest.raises(InputLost, match=r"rows of the DataFrame, .* are gone"):
        start(spark, tmp_path, amid)


def a_query_that_is_stopped_before_a_checkpoint_replays_its_batch(tmp_path):
    spark = ModelOfSpark(numbered(3, 5))
    first = start(spark, tmp_path)
    states = read_batches(first, 1)
    planned(first)
    first.close()
    assert spark.queries[0].numbers("commits") == {0}
    assert spark.queries[0].numbers("offsets") == {0, 1}
    assert planned(start(spark, tmp_path, states[0])).ranges[0].split.startswith("batch 1, ")


# ---- Spark's checkpoint location ----------------------------------------------------------------------------------------


def a_copy_of_a_query_has_what_was_there_when_the_batch_was_completed(tmp_path):
    storage = Storage.open(str(tmp_path))
    kept = [
        "offsets/0", "offsets/1", "commits/0", "commits/1", "sources/0/0", "sources/0/5", "sources/0/9.compact",
        "state/0/0/1.delta", "state/0/0/2.delta", "state/0/0/2.snapshot", "state/0/1/left/2.zip",
        "state/0/1/left/2_f00-1.changelog", "state/0/_metadata/metadata", "state/0/0/SSTs/12-34.sst",
        "state/0/_stateSchema/default/7_ab",
    ]  # fmt: skip
    left = [
        "metadata", "offsets/2", "offsets/3", "commits/2", "offsets/.1.crc", "offsets/.2.ab.tmp", "state/0/0/3.delta",
        "state/0/0/.2.delta.crc", "state/0/1/left/10.zip", "state/0/1/left/3_f00-1.changelog",
    ]  # fmt: skip
    for name in kept + left:
        storage.put(f"a/{name}", b'{"id":"first"}')
    QueryLog(storage, "a/").copy_until(1, QueryLog(storage, "b/"))
    assert sorted(storage.list("b/")) == sorted(f"b/{name}" for name in [*kept, "metadata"])
    assert storage.get("b/metadata") != b'{"id":"first"}'
