"""State as DataFrames: read from savepoints of jobs, changed, and written to savepoints that jobs go on from."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from pyspark.sql import functions as F

from engine import test_savepoints
from engine.inprocess import LEDGERS, Lab, LedgerSink
from engine.small_programs import program, timed
from engine.test_same_results import lab
from engine.test_state_queries import VALUES, Everything
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import Time, Types
from holdfast.datastream import (
    AggregateFunction,
    AggregatingStateDescriptor,
    CheckpointedFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessAllWindowFunction,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.datastream.window import SlidingEventTimeWindows
from holdfast.errors import CheckpointError, ConfigurationError
from holdfast.state_api import (
    BroadcastStateBootstrapFunction,
    KeyedStateBootstrapFunction,
    KeyedStateReaderFunction,
    OperatorTransformation,
    SavepointReader,
    SavepointWriter,
    StateBootstrapFunction,
    WindowReaderFunction,
    describe,
    list_snapshots,
    open_snapshot,
    verify,
)
from programs.running import Way, broker
from spark_sessions import spark_session

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark():
    with spark_session([sys.modules[__name__]], master="local[2]") as made:
        yield made


def saved(build: Any, after: int, **options: Any) -> tuple[str, Any]:
    """A savepoint of a job, in a directory that stays; and the positions of its source."""
    with lab(build, **options) as job:
        path = test_savepoints.run(job, after, directory=Path(tempfile.mkdtemp()))
        return path, open_snapshot(path).checkpoint.sources["source"].enumerator


def rows_of(path: str) -> dict[Any, dict[str, Any]]:
    """The keyed state of the operator ``keyed`` by key, read as Arrow without Spark."""
    batches = SavepointReader.read_arrow(path).read_keyed_state("keyed", key_type=Types.STRING())
    return {row.pop("key"): row for batch in batches for row in batch.to_pylist()}


def continued(build: Any, directory: Path, savepoint: str, parallelism: int = 3, **config: str) -> Lab:
    """A job that has run from a savepoint to its end."""
    LEDGERS["out"].committed.clear()
    job = Lab(build, directory, parallelism, 90, config, savepoint=savepoint)
    job.run()
    return job


class Whole(ProcessAllWindowFunction):
    def process(self, context, elements):
        yield list(elements)


class SeenNumbers(KeyedStateReaderFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.LONG()))

    def read_key(self, key, ctx):
        yield key, list(self.seen.get())


def test_a_value_is_repaired_and_the_job_goes_on_with_everything_else_as_it_was(spark, tmp_path):
    build = program(Everything(), VALUES, cut=90)
    path, at = saved(build, 3, parallelism=2, budget=90)
    read = VALUES[: at["only"]]
    frame = SavepointReader.read(spark, path).read_keyed_state("keyed", key_type=Types.STRING())
    assert frame.columns == ["key", "count", "seen", "by", "expiring", "pickled"]
    assert frame.schema["count"].dataType.simpleString() == "struct<last:bigint,count:bigint>"
    counts = Counter(key for key, _, _ in read)
    found = {row.key: row for row in frame.collect()}
    assert set(found) == set(counts)
    for key, row in found.items():
        numbers = [n for k, _, n in read if k == key]
        assert row["count"] == (numbers[-1], counts[key])
        assert row.seen == [4 * n + each for n in numbers for each in range(4)]  # more than a row holds
        assert row.by == {n % 3: key for n in numbers}
        assert row.expiring == numbers[-1]
        assert cloudpickle.loads(row.pickled) == {"n": numbers[-1]}
    timers = SavepointReader.read(spark, path).read_timers("keyed", Types.STRING())
    assert timers.filter("service = 'ttl'").select("key").distinct().count() == len(counts)
    named = Types.ROW_NAMED(["key", "numbers"], [Types.STRING(), Types.LIST(Types.LONG())])
    by_function = SavepointReader.read(spark, path).read_keyed_state("keyed", SeenNumbers(), Types.STRING(), named)
    assert {row.key: row.numbers for row in by_function.collect()} == {key: row.seen for key, row in found.items()}

    fixed = frame.where("key = 'k1'").select("key", F.struct(F.col("count.last"), F.lit(1000).alias("count")).alias("count"))
    descriptor = ValueStateDescriptor("count", Types.ROW_NAMED(["last", "count"], [Types.LONG(), Types.LONG()]))
    repair = OperatorTransformation.bootstrap_with(fixed).key_by("key", Types.STRING()).transform(descriptor)
    writer = SavepointWriter.from_existing_savepoint(spark, path).with_operator("keyed", repair)
    repaired = writer.write(str(tmp_path / "repaired"))
    assert not verify(open_snapshot(repaired))
    before, after = rows_of(path), rows_of(repaired)
    last = [n for key, _, n in read if key == "k1"][-1]
    assert after.pop("k1") == {**before.pop("k1"), "count": {"last": last, "count": 1000}}
    assert after == before

    job = continued(build, tmp_path / "job", repaired)
    again = rows_of(str(job.directory / "checkpoints" / "job"))
    assert {key: row["count"]["count"] for key, row in again.items()} == {
        key: total - counts[key] + 1000 if key == "k1" else total
        for key, total in Counter(key for key, _, _ in VALUES).items()
    }
    assert all(row["seen"] == [4 * n + e for k, _, n in VALUES if k == key for e in range(4)] for key, row in again.items())


@dataclass
class Profile:
    name: str
    visits: int = 0
    tags: list[str] = field(default_factory=list)


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return (0, 0)

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


def profile_states() -> list[Any]:
    expiring = ValueStateDescriptor("big", Types.BIG_INT())
    expiring.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
    return [
        ValueStateDescriptor("profile", Types.POJO(Profile)),
        AggregatingStateDescriptor("mean", Mean(), Types.TUPLE([Types.LONG(), Types.LONG()])),
        expiring,
        MapStateDescriptor("many", Types.LONG(), Types.STRING()),
    ]


class Profiles(KeyedProcessFunction):
    def open(self, runtime_context):
        profile, mean, big, many = profile_states()
        self.profile = runtime_context.get_state(profile)
        self.mean = runtime_context.get_aggregating_state(mean)
        self.big = runtime_context.get_state(big)
        self.many = runtime_context.get_map_state(many)

    def process_element(self, value, ctx):
        profile = self.profile.value() or Profile("new")
        self.mean.add(value[2])
        yield value[0], profile.name, profile.visits, profile.tags, self.mean.get(), self.big.value(), len(list(self.many))


def test_a_job_is_bootstrapped_from_one_row_for_each_key(spark, tmp_path):
    history = spark.createDataFrame(
        [(f"k{n}", (f"name {n}", n, ["old"]), (10 * n, 1), str(10**30 + n), {m: "m" for m in range(n)}) for n in range(300)],
        "key string, profile struct<name:string,visits:long,tags:array<string>>, mean struct<_1:long,_2:long>, big string, "
        "many map<long,string>",
    )
    begin = OperatorTransformation.bootstrap_with
    keyed = begin(history).key_by("key", Types.STRING()).transform(*profile_states())
    path = SavepointWriter.new_savepoint(spark).with_operator("keyed", keyed).write(str(tmp_path / "savepoint"))
    values = [(f"k{n}", n, 20 * n) for n in (0, 7, 299, 500)]
    for width in (1, 3):
        continued(program(Profiles(), values), tmp_path / f"job-{width}", path, width)
        assert sorted(LEDGERS["out"].values) == sorted(
            [(f"k{n}", f"name {n}", n, ["old"], 15.0 * n, 10**30 + n, n) for n in (0, 7, 299)]
            + [("k500", "new", 0, [], 10_000.0, None, 0)]
        )
    twice = begin(history.union(history)).key_by("key", Types.STRING()).transform(*profile_states())
    with pytest.raises(CheckpointError, match=r"(?s)occurs twice.*uid 'keyed'.*key: 'k"):
        SavepointWriter.new_savepoint(spark).with_operator("keyed", twice).write(str(tmp_path / "twice"))
    assert not [each for each in list_snapshots(f"file://{tmp_path}") if "twice" in each.path]
    assert Storage.open(str(tmp_path / "twice")).list("") == []


class Visits(KeyedProcessFunction):
    """Counts visits, and tells the count when a visitor has been away for 100 ms."""

    def open(self, runtime_context):
        self.visits = runtime_context.get_list_state(ListStateDescriptor("visits", Types.STRING()))

    def process_element(self, value, ctx):
        self.visits.add(value[2])
        ctx.timer_service().register_event_time_timer(value[1] + 100)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, list(self.visits.get())


class VisitsOfHistory(KeyedStateBootstrapFunction):
    def open(self, runtime_context):
        self.visits = runtime_context.get_list_state(ListStateDescriptor("visits", Types.STRING()))

    def process_element(self, value, ctx):
        self.visits.add(value.what)
        if value.last:
            ctx.timer_service().register_event_time_timer(value.at + 100)


class Sum(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator + int(value[2])

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a + acc_b


class StartOfWindow(WindowReaderFunction):
    def read_window(self, key, context, elements):
        yield context.window().start


def test_a_function_bootstraps_state_and_timers_and_windows_from_history(spark, tmp_path):
    rows = [(f"k{n % 40}", n, str(n), n >= 360) for n in range(400)]
    history = spark.createDataFrame(rows[::-1], "who string, at long, what string, last boolean").repartition(4)
    elements = OperatorTransformation.bootstrap_with(history).assign_timestamps("at")
    visits = elements.key_by("who", Types.STRING()).transform(VisitsOfHistory())
    windows = (
        elements.map(lambda row: (row.who, row.at, int(row.what)))
        .key_by(lambda value: value[0], Types.STRING())
        .window(SlidingEventTimeWindows.of(Time.milliseconds(200), Time.milliseconds(100)))
        .aggregate(Sum(), accumulator_type=Types.LONG())
    )
    writer = SavepointWriter.new_savepoint(spark).with_operator("keyed", visits).with_operator("windows", windows)
    path = writer.write(str(tmp_path / "savepoint"))
    timers = SavepointReader.read(spark, path).read_timers("keyed", Types.STRING()).collect()
    assert sorted((row.key, row.service, row.time) for row in timers) == sorted(
        (who, "event", at + 100) for who, at, _, last in rows if last
    )

    contents: Counter[Any] = Counter()
    for n in range(400):
        contents.update({(f"k{n % 40}", start, start + 200): n for start in (n // 100 * 100 - 100, n // 100 * 100)})
    sliding = SlidingEventTimeWindows.of(Time.milliseconds(200), Time.milliseconds(100))
    read = SavepointReader.read(spark, path).window(sliding)
    found = read.aggregate("windows", Sum(), acc_type=Types.LONG(), output_type=Types.LONG())
    assert {tuple(row[:3]): row[3] for row in found.collect()} == contents
    by_function = read.aggregate("windows", Sum(), StartOfWindow(), acc_type=Types.LONG(), output_type=Types.LONG())
    assert Counter(row.value for row in by_function.collect()) == Counter(start for _, start, _ in contents)

    def build(env: Any) -> None:
        stream = timed(env, [("k99", 1_000, "5")])
        stream.key_by(lambda r: r[0], Types.STRING()).process(Visits()).uid("keyed").sink_to(LedgerSink("out")).uid("out")
        (
            stream.key_by(lambda r: r[0], Types.STRING())
            .window(SlidingEventTimeWindows.of(Time.milliseconds(200), Time.milliseconds(100)))
            .aggregate(Sum(), accumulator_type=Types.LONG())
            .uid("windows")
            .map(lambda total: ("total", total))
            .sink_to(LedgerSink("totals"))
            .uid("totals")
        )

    LEDGERS["totals"].committed.clear()
    continued(build, tmp_path / "job", path)
    expected = [(f"k{n % 40}", n + 100, [str(each) for each in range(n % 40, 400, 40)]) for n in range(360, 400)]
    others = [each for each in LEDGERS["out"].values if each[1] < 1_000]
    assert sorted(others) == sorted(expected)  # in order of the timestamps, although the rows were not
    totals = Counter()
    for n in range(400):
        for end in (n // 100 * 100 + 100, n // 100 * 100 + 200):
            totals[(n % 40, end)] += n
    totals.update({(99, 1_100): 5, (99, 1_200): 5})
    assert Counter(LEDGERS["totals"].values) == Counter(("total", total) for total in totals.values())


def test_two_jobs_are_merged_with_other_numbers_of_key_groups(spark, tmp_path):
    build = program(Everything(), VALUES, cut=90)
    first, _ = saved(build, 2, budget=90)
    second, _ = saved(program(Everything(), VALUES[:300], cut=90), 2, budget=90)
    writer = (
        SavepointWriter.from_existing_savepoint(spark, first)
        .with_operator_of(second, "keyed", "theirs")
        .with_operator_of(second, "source", "their source")
        .change_max_parallelism(37)
    )
    merged = writer.write(str(tmp_path / "merged"))
    snapshot = open_snapshot(merged)
    assert not verify(snapshot)
    assert {each.uid: each.max_parallelism for each in describe(snapshot)} == {"keyed": 37, "theirs": 37}
    assert set(snapshot.checkpoint.sources) == {"source", "their source"}
    assert rows_of(merged) == rows_of(first)
    theirs = SavepointReader.read(spark, merged).read_keyed_state("theirs", key_type=Types.STRING())
    ours = SavepointReader.read(spark, second).read_keyed_state("keyed", key_type=Types.STRING())
    assert sorted(map(repr, theirs.collect())) == sorted(map(repr, ours.collect()))
    timers = [SavepointReader.read(spark, path).read_timers("keyed", Types.STRING()).collect() for path in (first, merged)]
    assert sorted(timers[0]) == sorted(timers[1])

    alone = writer.remove_operator("theirs").remove_operator("their source").write(str(tmp_path / "alone"))
    config = {"pipeline.max-parallelism": "37"}
    job = continued(build, tmp_path / "job", alone, 5, **config)
    again = rows_of(str(job.directory / "checkpoints" / "job"))
    assert all(row["seen"] == [4 * n + e for k, _, n in VALUES if k == key for e in range(4)] for key, row in again.items())
    assert {key: row["count"]["count"] for key, row in again.items()} == Counter(key for key, _, _ in VALUES)


def the_windows_of_all_elements_go_on_with_another_number_of_key_groups(spark, tmp_path):
    def build(env):
        timed(env, VALUES, 90).count_window_all(7).process(Whole()).uid("windows").sink_to(LedgerSink("out")).uid("out")

    path, _ = saved(build, 3, parallelism=2, budget=90)
    before = list(LEDGERS["out"].values)
    assert before
    other = SavepointWriter.from_existing_savepoint(spark, path).change_max_parallelism(37).write(str(tmp_path / "other"))
    continued(build, tmp_path / "job", other)
    whole = len(VALUES) // 7 * 7
    windows = sorted(before + LEDGERS["out"].values, key=lambda window: window[0][2])  # two sinks share them
    assert [value for window in windows for value in window] == VALUES[:whole]


class FireAtTheEnd(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(value[1] + 10_000)
        return ()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp


def test_a_changelog_forgets_what_it_has_under_another_number_of_key_groups(spark, tmp_path):
    values = [(f"k{n % 50}", n, n) for n in range(700)]
    build = program(FireAtTheEnd(), values, cut=90)
    config = {
        "state.backend.type": "rocksdb",
        "state.changelog.enabled": "true",
        "state.changelog.storage": "kafka",
        "state.changelog.kafka.bootstrap.servers": "in memory",
    }
    with broker(Way(seed=1)):
        path, _ = saved(build, 3, parallelism=2, budget=90, config=config)
        more = SavepointWriter.from_existing_savepoint(spark, path).change_max_parallelism(720).write(str(tmp_path / "more"))
        LEDGERS["out"].committed.clear()
        job = Lab(build, tmp_path / "job", 3, 90, config, savepoint=more, keep_disk=False)
        assert not job._run_until("after commit", 2)
        shutil.rmtree(job.disk)
        job.parallelism = 2
        job.run()
        job.close()
    assert Counter(LEDGERS["out"].values) == Counter((key, at + 10_000) for key, at, _ in values)


class Waiting(FlatMapFunction, CheckpointedFunction):
    def initialize_state(self, context):
        store = context.get_operator_state_store()
        self.waiting = list(store.get_list_state(ListStateDescriptor("waiting", Types.LONG())).get())
        self.offsets = store.get_union_list_state(
            ListStateDescriptor("offsets", Types.TUPLE([Types.STRING(), Types.LONG()]))
        )
        self.rules = store.get_broadcast_state(MapStateDescriptor("rules", Types.STRING(), Types.LONG()))

    def snapshot_state(self, context):
        pass

    def flat_map(self, value):
        yield sorted(self.waiting), sorted(self.offsets.get()), sorted(self.rules.items())


class WaitingOfHistory(StateBootstrapFunction):
    def initialize_state(self, context):
        store = context.get_operator_state_store()
        self.waiting = store.get_list_state(ListStateDescriptor("waiting", Types.LONG()))

    def process_element(self, value, ctx):
        self.waiting.add(value)

    def snapshot_state(self, context):
        pass


class RulesOfHistory(BroadcastStateBootstrapFunction):
    def process_element(self, value, ctx):
        ctx.get_broadcast_state(MapStateDescriptor("rules", Types.STRING(), Types.LONG())).put(value.key, value.value)


def test_operator_state_is_written_and_read(spark, tmp_path):
    numbers = spark.createDataFrame([(n,) for n in range(100)], "value long").repartition(3)
    rules = spark.createDataFrame([("a", 1), ("b", 2)], "key string, value long")
    offsets = spark.createDataFrame([(("p", 5),)], "value struct<_1:string,_2:long>")
    begin = OperatorTransformation.bootstrap_with
    path = (
        SavepointWriter.new_savepoint(spark)
        .with_operator("waiting", begin(numbers).list_state(ListStateDescriptor("waiting", Types.LONG())))
        .with_operator("waiting", begin(rules).broadcast_state(MapStateDescriptor("rules", Types.STRING(), Types.LONG())))
        .with_operator(
            "waiting",
            begin(offsets).union_state(ListStateDescriptor("offsets", Types.TUPLE([Types.STRING(), Types.LONG()]))),
        )
        .with_operator("made", begin(numbers).map(lambda row: row.value + 100).transform(WaitingOfHistory()))
        .with_operator("made", begin(rules.repartition(3)).transform(RulesOfHistory()))
        .write(str(tmp_path / "savepoint"))
    )
    reader = SavepointReader.read(spark, path)
    assert sorted(row.value for row in reader.read_list_state("waiting", "waiting").collect()) == list(range(100))
    assert {row.key: row.value for row in reader.read_broadcast_state("waiting", "rules").collect()} == {"a": 1, "b": 2}
    assert [tuple(row.value) for row in reader.read_union_state("waiting", "offsets").collect()] == [("p", 5)]
    batches = SavepointReader.read_arrow(path).read_union_state("waiting", "offsets")
    assert [row for batch in batches for row in batch.to_pylist()] == [{"value": {"_1": "p", "_2": 5}}]

    def build(env: Any) -> None:
        stream = timed(env, [("k", 1, 1)])
        waiting, made = (stream.flat_map(Waiting()).uid(uid) for uid in ("waiting", "made"))
        waiting.union(made).sink_to(LedgerSink("out")).uid("out")

    continued(build, tmp_path / "job", path, parallelism=1)
    assert sorted(LEDGERS["out"].values) == [
        (list(range(100)), [("p", 5)], [("a", 1), ("b", 2)]),
        (list(range(100, 200)), [], [("a", 1), ("b", 2)]),
    ]


def test_what_does_not_fit_is_refused_before_it_is_read_and_no_rows_are_an_empty_state(spark, tmp_path):
    count, begin = ValueStateDescriptor("count", Types.LONG()), OperatorTransformation.bootstrap_with

    def writer(query: str, most: int = 8) -> Any:
        made = begin(spark.sql(query)).key_by("key", Types.LONG()).transform(count)
        return SavepointWriter.new_savepoint(spark, most).with_operator("keyed", made)

    def refused(told: str, query: str) -> None:
        with pytest.raises(ConfigurationError, match=rf"operator 'keyed' \(uid 'keyed'\): {told}"):
            writer(query).write(str(tmp_path / "refused"))

    refused("the DataFrame has no column 'count'; it has key, other", "SELECT 1L AS key, 1L AS other")
    refused("the column 'key' does not fit Types.LONG.*it is string", "SELECT 'a' AS key, 1L AS count")
    refused("the DataFrame has 2 columns 'count': count, Count", "SELECT 1L AS key, 1L AS count, 2L AS Count")
    with pytest.raises(ConfigurationError, match="state 'count' is given twice"):
        begin(spark.range(1)).key_by("id", Types.LONG()).transform(count, count)
    with pytest.raises(TypeError, match=r"with_operator\('keyed', ...\) takes the result of transform\(\)"):
        writer("SELECT 1").with_operator("keyed", begin(spark.range(1)))
    assert not (tmp_path / "refused").exists()

    pair = ValueStateDescriptor("count", Types.ROW_NAMED(["last", "count"], [Types.LONG(), Types.LONG()]))
    none = spark.sql("SELECT 'a' AS `a.``key`, named_struct('last', id, 'count', id) AS count FROM range(0)")
    made = begin(none).key_by("a.`key", Types.STRING()).transform(pair)
    empty = SavepointWriter.new_savepoint(spark, 8).with_operator("keyed", made).write(str(tmp_path / "empty"))
    rows = SavepointReader.read(spark, empty).read_keyed_state("keyed")
    assert rows.dtypes == [("key", "string"), ("count", "struct<last:bigint,count:bigint>")]
    assert rows.collect() == []
    assert describe(open_snapshot(empty))[0].states[0].name == "count"
    added = writer("SELECT 1L AS key, 1L AS count", most=16).with_operator_of(empty, "keyed", "other")
    with pytest.raises(ConfigurationError, match=r"'keyed' has 16 key groups, and those of the existing savepoint have 8"):
        added.write(str(tmp_path / "refused"))
    with pytest.raises(ConfigurationError, match=r"has, too: keyed.*call with_operator\(\) afterwards"):
        writer("SELECT 1L AS key, 1L AS count").with_savepoint(empty)
    config = {"pipeline.max-parallelism": "8"}
    job = continued(program(Everything(), VALUES[:10], cut=90), tmp_path / "job", empty, **config)
    again = rows_of(str(job.directory / "checkpoints" / "job"))
    assert {key: row["count"]["count"] for key, row in again.items()} == Counter(key for key, _, _ in VALUES[:10])
