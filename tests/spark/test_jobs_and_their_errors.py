"""Jobs on one shared Spark: what their clients and Spark's UI show, and what bad input and bad programs get."""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pyspark
import pytest
from pyspark import SparkContext

from holdfast.common import (
    Configuration,
    Encoder,
    JobStatus,
    SimpleStringSchema,
    Types,
    WatermarkStrategy,
)
from holdfast.datastream import KeyedProcessFunction, ProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.file_system import FileSink, FileSource, StreamFormat
from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink, KafkaSource
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.errors import ConfigurationError, HoldfastError, IncompatibleState, UserCodeError
from holdfast.runtime.spark import stages
from kafka_fixtures import produce

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def functions_of_this_module_travel_by_value():
    """The workers' path does not hold the tests."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module", autouse=True)
def sparks_ui() -> None:
    """A test of another file may have left a SparkContext without one in this process."""
    context = SparkContext._active_spark_context
    if context is not None and context.uiWebUrl is None:
        context.stop()


def environment(directory: Path | None = None, **settings: str) -> StreamExecutionEnvironment:
    config = Configuration()
    defaults = {"rest.port": "0", "restart-strategy.type": "none", "spark.ui.enabled": "true"}
    for key, value in {**defaults, **settings}.items():
        config.set_string(key.replace("_", "."), value)
    env = StreamExecutionEnvironment.get_execution_environment(config).set_parallelism(1)
    if directory is not None:
        env.get_checkpoint_config().set_checkpoint_storage_dir((directory / "checkpoints").as_uri())
    return env


def written(directory: Path) -> list[str]:
    parts = [path for path in directory.rglob("part-*") if not path.name.startswith(".")]
    return [line for path in sorted(parts) for line in path.read_text().splitlines()]


def file_sink(directory: Path) -> FileSink:
    return FileSink.for_row_format(str(directory), Encoder.simple_string_encoder()).build()


def told(error: HoldfastError) -> str:
    """What the user sees of an error that nobody catches; it is short, and nothing of it is Java."""
    text = "".join(traceback.format_exception(error))
    assert "\tat " not in text
    assert "py4j" not in text.lower()
    assert "During handling" not in text
    assert "direct cause" not in text
    return str(error)


# bad input


class Judge(KeyedProcessFunction):
    """Counts a key's records; fails on what it does not like until it is mended."""

    def __init__(self, mended: bool) -> None:
        self.mended = mended

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        if value["n"] < 0 and not self.mended:
            raise ValueError("a negative payment")
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield f"{value['key']} {count}"


def parse(mended: bool) -> Callable[[str], list[Any]]:
    def function(line: str) -> list[Any]:
        try:
            return [json.loads(line)]
        except ValueError:
            if mended:
                return [{"key": "broken", "n": 0}]
            raise

    return function


LINES = [json.dumps({"key": "ab"[n % 2], "n": n}) for n in range(60)]
EXPECTED = sorted([f"a {n}" for n in range(1, 31)] + [f"b {n}" for n in range(1, 31)])


def with_line(line: str) -> list[str]:
    return [*LINES[:40], line, *LINES[40:]]


NEGATIVE = json.dumps({"key": "a", "n": -1})


def run(env: StreamExecutionEnvironment, source: Any, mended: bool, out: Path) -> None:
    lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "lines").uid("lines")
    parsed = lines.flat_map(parse(mended)).name("parse").uid("parse")
    judged = parsed.key_by(lambda value: value["key"]).process(Judge(mended)).name("judge").uid("judge")
    judged.sink_to(file_sink(out)).uid("out")
    env.execute("bad-input")


BAD = pytest.mark.parametrize(
    ("bad", "operator", "key", "extra"),
    [("{broken", "parse", "", "broken 1"), (NEGATIVE, "judge", "'a'", "a 31")],
    ids=["does not parse", "a function raises"],
)


def check(error: UserCodeError, operator: str, key: str, record: str) -> None:
    text = told(error)
    assert text.startswith("Traceback (most recent call last):\n")
    assert __file__ in text.splitlines()[1], "the user's own frames come first"
    assert f"in operator {operator!r} (uid {operator!r})" in text
    assert text.splitlines()[-1] == f"  record: {record}"
    assert (error.operator, error.uid, error.key, error.record) == (operator, operator, key, record)


@BAD
def a_bad_line_of_a_file_is_named_and_the_fixed_program_resumes_at_it(
    tmp_path: Path, bad: str, operator: str, key: str, extra: str
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(with_line(bad)) + "\n")
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(path)).build()
    settings = {"holdfast.epoch.max-records": "10"}
    with pytest.raises(UserCodeError) as failure:
        run(environment(tmp_path, **settings), source, False, tmp_path / "out")
    check(failure.value, operator, key, f"{path}, line 41")
    before = written(tmp_path / "out")
    assert before, "what came before is there"
    assert set(before) <= set(EXPECTED)
    run(environment(tmp_path, **settings), source, True, tmp_path / "out")
    assert sorted(written(tmp_path / "out")) == sorted([*EXPECTED, extra])


@pytest.mark.kafka
@BAD
def a_bad_record_of_a_topic_is_named_and_the_fixed_program_resumes_at_it(
    tmp_path: Path, kafka: Any, new_topic: Callable[..., str], bad: str, operator: str, key: str, extra: str
) -> None:
    topic = new_topic()
    produce(kafka.bootstrap_servers, topic, [line.encode() for line in with_line(bad)])
    builder = KafkaSource.builder().set_bootstrap_servers(kafka.bootstrap_servers).set_topics(topic).set_group_id("bad")
    builder = builder.set_value_only_deserializer(SimpleStringSchema())
    from holdfast.datastream.connectors.kafka import KafkaOffsetsInitializer

    source = builder.set_starting_offsets("earliest").set_bounded(KafkaOffsetsInitializer.latest()).build()
    settings = {"holdfast.epoch.max-records": "10"}
    with pytest.raises(UserCodeError) as failure:
        run(environment(tmp_path, **settings), source, False, tmp_path / "out")
    check(failure.value, operator, key, f"topic {topic}, partition 0, offset 40")
    run(environment(tmp_path, **settings), source, True, tmp_path / "out")
    assert sorted(written(tmp_path / "out")) == sorted([*EXPECTED, extra])


# bad programs and surroundings


class Greedy(KeyedProcessFunction):
    """Counts; while the flag is there, it leaves its process no more files to open."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: int, ctx: Any) -> Any:
        if value == 500 and self.flag.exists():
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))
        self.count.update((self.count.value() or 0) + 1)
        yield f"{ctx.get_current_key()} {self.count.value()}"


@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
def a_process_at_its_limit_of_open_files_is_reported_and_the_job_resumes_afterwards(tmp_path: Path, backend: str) -> None:
    flag = tmp_path / "flag"

    def count() -> None:
        settings = {"holdfast.epoch.max-records": "100", "state.backend.type": backend}
        env = environment(tmp_path, **settings)
        numbers = env.from_source(NumberSequenceSource(0, 999), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
        numbers.key_by(lambda n: n % 10).process(Greedy(flag)).uid("greedy").sink_to(file_sink(tmp_path / "out")).uid("out")
        env.execute("greedy")

    flag.touch()
    with pytest.raises(HoldfastError, match="limit of open files") as failure:
        count()
    assert "Too many open files" in told(failure.value)
    assert written(tmp_path / "out"), "what came before is there"
    flag.unlink()
    count()
    assert sorted(written(tmp_path / "out")) == sorted(f"{key} {n}" for key in range(10) for n in range(1, 101))


@pytest.mark.kafka
def a_missing_topic_is_reported(kafka: Any) -> None:
    env = environment()
    builder = KafkaSource.builder().set_bootstrap_servers(kafka.bootstrap_servers).set_topics("no-such-topic")
    source = builder.set_value_only_deserializer(SimpleStringSchema()).set_starting_offsets("earliest").build()
    env.from_source(source, WatermarkStrategy.no_watermarks(), "missing").print()
    with pytest.raises(ConfigurationError) as failure:
        env.execute()
    assert "no-such-topic" in told(failure.value)
    assert "Create it, or correct the name" in told(failure.value)


@pytest.mark.kafka
def test_two_sinks_with_one_prefix_are_refused_before_the_start(kafka: Any, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    serializer = (
        KafkaRecordSerializationSchema.builder().set_topic(topic).set_value_serialization_schema(SimpleStringSchema())
    )
    builder = KafkaSink.builder().set_bootstrap_servers(kafka.bootstrap_servers).set_record_serializer(serializer.build())
    builder.set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE).set_transactional_id_prefix(topic)
    env = environment()
    texts = env.from_source(NumberSequenceSource(1, 2), WatermarkStrategy.no_watermarks(), "numbers").map(str)
    for uid in ("one", "two"):
        texts.sink_to(builder.build()).uid(uid)
    with pytest.raises(ConfigurationError, match=rf"uids one and two\) have the transactional id prefix '{topic}'"):
        env.execute()


@pytest.mark.kafka
def test_records_that_kafka_is_about_to_delete_are_reported_once_by_the_driver(
    tmp_path: Path, kafka: Any, new_topic: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(partitions=2, retention_ms="60000")
    env = environment(tmp_path, **{"holdfast.epoch.max-records": "5"}).set_parallelism(2)
    last_century = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n, _: n)
    numbers = env.from_source(NumberSequenceSource(1, 40), last_century, "numbers").uid("numbers")
    serializer = (
        KafkaRecordSerializationSchema.builder().set_topic(topic).set_value_serialization_schema(SimpleStringSchema())
    )
    sink = KafkaSink.builder().set_bootstrap_servers(kafka.bootstrap_servers).set_record_serializer(serializer.build())
    numbers.map(str).uid("text").sink_to(sink.build()).uid("out")
    with caplog.at_level("WARNING", "holdfast"):
        env.execute("replay")
    (said,) = [record.getMessage() for record in caplog.records if "about to delete" in record.getMessage()]
    assert "Kafka sink (uid out)" in said
    assert f"topic {topic} keeps records for 1 minutes" in said


def test_functions_see_the_environment_variables_that_a_program_sets_before_execute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark has been started before by another job, with an environment of its own."""

    def seen(number: int) -> tuple[int, str | None]:
        return number, os.environ.get("HOLDFAST_TEST_REGION")

    for region in ("north", "south"):
        env = environment().set_parallelism(2)
        numbers = env.from_collection([1, 2, 3]).map(seen).rebalance().map(lambda each: (*each, *seen(each[0])))
        monkeypatch.setenv("HOLDFAST_TEST_REGION", region)
        with numbers.execute_and_collect() as found:
            assert sorted(found) == [(n, region, n, region) for n in (1, 2, 3)]


def an_unavailable_broker_is_reported() -> None:
    env = environment()
    builder = KafkaSource.builder().set_bootstrap_servers("127.0.0.1:1").set_topics("payments")
    source = builder.set_value_only_deserializer(SimpleStringSchema()).set_starting_offsets("earliest").build()
    env.from_source(source, WatermarkStrategy.no_watermarks(), "down").print()
    with pytest.raises(ConfigurationError, match="Check that the broker runs") as failure:
        env.execute()
    assert "127.0.0.1:1" in told(failure.value)


@pytest.mark.parametrize("where", ["/proc/checkpoints", "a file"])
def an_unwritable_checkpoint_directory_is_reported_with_the_setting(tmp_path: Path, where: str) -> None:
    path = tmp_path / "file"
    path.write_text("")
    env = environment()
    env.get_checkpoint_config().set_checkpoint_storage_dir(path.as_uri() if where == "a file" else f"file://{where}")
    env.from_collection([1]).print()
    with pytest.raises(ConfigurationError, match=r"execution\.checkpointing\.dir.*choose another") as failure:
        env.execute()
    assert "\n" not in told(failure.value)


class Timer(ProcessFunction):
    """Sets a timer in a way that its source does not show."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        getattr(ctx.timer_service(), self.method())(5)

    def method(self) -> str:
        return "register_event_time_timer"


def a_timer_on_a_stream_without_keys_is_reported() -> None:
    env = environment()
    env.from_collection([1]).process(Timer()).name("timers").print()
    with pytest.raises(
        UserCodeError, match=r"timers are only supported on a keyed stream; put key_by\(\) before"
    ) as failure:
        env.execute()
    assert "'timers'" in told(failure.value)


class Keep(KeyedProcessFunction):
    def __init__(self, type_info: Any, stops: bool = False) -> None:
        self.type_info = type_info
        self.stops = stops

    def open(self, runtime_context: Any) -> None:
        self.kept = runtime_context.get_state(ValueStateDescriptor("kept", self.type_info))

    def process_element(self, value: Any, ctx: Any) -> Any:
        if self.stops and value == 3:
            raise ValueError("that is enough")
        self.kept.update(value)
        yield str(value)


class Other(Keep):
    """The same by another name: another operator, for a program without uids."""


def keep(directory: Path, function: Keep, uid: str | None = "keep", **settings: str) -> None:
    env = environment(directory, **{"holdfast.epoch.max-records": "1", **settings})
    source = env.from_source(NumberSequenceSource(1, 3), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    kept = source.key_by(lambda n: n % 2).process(function)
    if uid is not None:
        kept = kept.uid(uid)
    kept.sink_to(file_sink(directory / "out")).uid("out")
    env.execute("keep")


def a_program_that_does_not_fit_its_checkpoint_is_refused_with_the_reason(tmp_path: Path) -> None:
    with_uid, without = tmp_path / "with", tmp_path / "without"
    for directory, uid in ((with_uid, "keep"), (without, None)):
        with pytest.raises(UserCodeError, match="that is enough"):
            keep(directory, Keep(Types.LONG(), stops=True), uid)
    for directory, function, uid, settings, remedy in (
        (with_uid, Keep(Types.STRING()), "keep", {}, r"(?s)state 'kept' .*stored: +a value state of LONG.*another name"),
        (with_uid, Keep(Types.LONG()), "keep", {"pipeline.max-parallelism": "64"}, "max parallelism 128"),
        (without, Other(Types.LONG()), None, {}, "uid"),
    ):
        with pytest.raises(IncompatibleState, match=remedy) as failure:
            keep(directory, function, uid, **settings)
        assert told(failure.value).count("\n") in (0, 3), "one line, or the two declarations and the remedy below it"
        assert sorted(written(directory / "out")) == ["1", "2"]
    keep(with_uid, Keep(Types.LONG()))
    assert sorted(written(with_uid / "out")) == ["1", "2", "3"]


# what the client sees, and Spark's UI


def an_asynchronous_job_has_an_id_a_status_and_a_result() -> None:
    env = environment()
    env.from_collection([1]).print()
    client = env.execute_async("short")
    result = client.get_job_execution_result().result(600)
    assert str(result.get_job_id()) == str(client.get_job_id())
    assert client.get_job_status().result() is JobStatus.FINISHED
    assert result.get_net_runtime() > 0


def a_failed_job_has_its_error_as_result() -> None:
    env = environment()
    env.from_collection([0]).map(lambda n: 1 // n).print()
    client = env.execute_async("failing")
    assert isinstance(client.get_job_execution_result().exception(120), UserCodeError)
    assert client.get_job_status().result() is JobStatus.FAILED


def a_cancelled_job_has_stopped_when_cancel_is_done_and_goes_on_with_the_next_start(tmp_path: Path) -> None:
    env = environment(tmp_path, **{"holdfast.epoch.max-records": "5"})
    numbers = env.from_source(NumberSequenceSource(1, 100), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    numbers.map(str).uid("text").sink_to(file_sink(tmp_path / "out")).uid("out")
    client = env.execute_async("cancelled")
    client.cancel().result(600)
    assert client.get_job_status().result() is JobStatus.CANCELED
    env.from_source(NumberSequenceSource(1, 100), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers").map(str).uid(
        "text"
    ).sink_to(file_sink(tmp_path / "out")).uid("out")
    env.execute("cancelled")
    assert sorted(map(int, written(tmp_path / "out"))) == list(range(1, 101))


def test_sparks_ui_shows_jobs_by_job_epoch_and_operators() -> None:
    env = environment()
    texts = env.from_collection([1, 2]).map(str).name("to-text")
    texts.key_by(lambda text: text).reduce(max).name("latest").start_new_chain().print()
    client = env.execute_async("shown")
    client.get_job_execution_result().result(600)
    context = SparkContext._active_spark_context
    assert context is not None
    numbers = context.statusTracker().getJobIdsForGroup(f"holdfast-{client.get_job_id()}")
    assert len(numbers) >= 2
    url = f"{context.uiWebUrl.replace(context.getConf().get('spark.driver.host'), '127.0.0.1')}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/api/v1/applications/{context.applicationId}/jobs", timeout=300) as answer:
        jobs = {job["jobId"]: job for job in json.load(answer)}
    names = [jobs[n]["description"] for n in sorted(numbers)]
    assert any(
        name.startswith("shown: epoch ") and "Source: Collection Source -> to-text => latest -> Sink: Print" in name
        for name in names
    ), names
    assert names[-1] == "shown: end of the job"


@pytest.mark.parametrize("limit", ["_LARGEST_PROPERTY", "_LARGEST_TASK", "_FEW_CHANNELS"])
def an_epoch_of_many_subtasks_gives_each_its_part(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """What many subtasks are told is too much for a property of the Spark job, and may be too much for a task.

    What they send one another goes through Kryo.
    """
    monkeypatch.setattr(stages, "_LARGEST_PROPERTY", 0)
    monkeypatch.setattr(stages, limit, 0)
    env = environment(**{"holdfast.epoch.max-records": "10"}).set_parallelism(2)
    numbers = env.from_source(NumberSequenceSource(1, 40), WatermarkStrategy.no_watermarks(), "numbers")
    sums = numbers.key_by(lambda n: n % 2).reduce(lambda a, b: a + b)
    with sums.execute_and_collect("many") as results:
        assert max(results) == sum(range(2, 41, 2))


def the_workers_import_pyspark_compiled_as_the_driver_does() -> None:
    environment().from_collection([1]).execute_and_collect(limit=1)  # Spark is running
    context = SparkContext._active_spark_context
    assert context is not None
    assert context.parallelize([0]).map(lambda _: __import__("pyspark").__file__).collect() == [pyspark.__file__]


def a_given_session_is_used_and_left_running() -> None:
    from pyspark.sql import SparkSession

    environment().from_collection([1]).execute_and_collect(limit=1)  # Spark is running
    session = SparkSession.builder.getOrCreate()
    env = StreamExecutionEnvironment.get_execution_environment(Configuration().set_string("rest.port", "0"), spark=session)
    client_of: list[str] = []
    with env.from_collection([1, 2]).map(lambda n: n + 1).execute_and_collect("in a session") as results:
        client_of += map(str, results)
    assert sorted(client_of) == ["2", "3"]
    assert session.range(3).count() == 3
