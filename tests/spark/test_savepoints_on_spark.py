"""A job on Spark that moves by savepoints, triggered by its client and by REST, and one that is rescaled."""

from __future__ import annotations

import itertools
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import cloudpickle
import orjson
import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from awaiting import until
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import Configuration, Duration, Encoder, JobStatus, Types, WatermarkStrategy
from holdfast.datastream import DataStream, KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from holdfast.datastream.connectors.file_system import FileSink, FileSource, StreamFormat
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.errors import CheckpointError, ConfigurationError
from holdfast.rest.server import RestServer
from holdfast.state_api import SavepointReader

pytestmark = pytest.mark.spark

KEYS, LAST = 7, 2_000
EACH = [f"{key} {n}" for key in range(KEYS) for n in range(1, len(range(1, LAST + 1)[(key - 1) % KEYS :: KEYS]) + 1)]
"""The whole output."""


@pytest.fixture(autouse=True)
def functions_of_this_module_travel_by_value():
    """The workers' path does not hold the tests."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


class Count(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield f"{ctx.get_current_key()} {self.count.value()}"


def environment(directory: Path, parallelism: int, **settings: str) -> StreamExecutionEnvironment:
    """With a checkpoint directory of its own."""
    config = Configuration()
    defaults = {"rest.port": "0", "restart-strategy.type": "none", "holdfast.epoch.max-records": "50"}
    for key, value in {**defaults, **settings}.items():
        config.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(config).set_parallelism(parallelism)
    env.get_checkpoint_config().set_checkpoint_storage_dir((directory / f"checkpoints-{parallelism}").as_uri())
    return env


def write(directory: Path, counts: DataStream) -> None:
    """All jobs write into one directory."""
    sink = FileSink.for_row_format(str(directory / "out"), Encoder.simple_string_encoder()).build()
    counts.sink_to(sink).uid("out").set_parallelism(1)


def job(directory: Path, parallelism: int, **settings: str) -> StreamExecutionEnvironment:
    """Counts numbers by key."""
    env = environment(directory, parallelism, **settings)
    numbers = env.from_source(NumberSequenceSource(1, LAST), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    write(directory, numbers.key_by(lambda n: n % KEYS).process(Count()).uid("counts"))
    return env


def written(directory: Path) -> list[str]:
    parts = [path for path in (directory / "out").rglob("part-*") if not path.name.startswith(".")]
    return [line for path in parts for line in path.read_text().splitlines()]


def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
    server = until(RestServer.running)  # it starts beside the job
    assert server is not None
    request = urllib.request.Request(f"{server.url}{path}", orjson.dumps(body), method="POST")
    request.add_header("Authorization", f"Bearer {server.token}")
    with urllib.request.urlopen(request, timeout=300) as answer:
        return orjson.loads(answer.read())


def move_to_another_bucket(savepoint: str, bucket: str, s3_config: dict[str, str]) -> str:
    """Copy a savepoint's files, and delete them where they were; where it is now."""
    urllib.request.urlopen(urllib.request.Request(f"{s3_config['s3.endpoint']}/{bucket}", method="PUT")).close()
    old = Storage.open(savepoint, s3_config)
    new = Storage.open(f"s3://{bucket}/elsewhere", s3_config)
    paths = list(old.list(""))
    for path in paths:
        new.put(path, old.get(path))
    old.delete(paths)
    return new.uri


class RefusedFromTheSecondOn:
    """Credentials that a bucket refuses when the savepoint has begun."""

    def __init__(self) -> None:
        self.answers = itertools.chain([""], itertools.repeat("403"))

    def pop(self, _: int) -> str:
        return next(self.answers)


def test_a_job_moves_twice_by_savepoints_and_every_number_is_counted_once(
    tmp_path: Path, s3_config: dict[str, str], relay: tuple[Any, dict[str, str]]
) -> None:
    savepoints = (tmp_path / "savepoints").as_uri()
    handler, behind_relay = relay
    first = job(tmp_path, 2, **behind_relay).execute_async("first")
    handler.faults = RefusedFromTheSecondOn()
    with pytest.raises(CheckpointError, match=r"s3://checkpoints/refused/.* the job goes on: cannot put .*credentials"):
        first.stop_with_savepoint(False, "s3://checkpoints/refused").result(600)
    assert first.get_job_status().result() is JobStatus.RUNNING
    still_running = first.trigger_savepoint(savepoints).result(600)
    assert (Path(still_running.removeprefix("file://")) / "_metadata").exists()
    assert first.get_job_status().result() is JobStatus.RUNNING
    stopped = first.stop_with_savepoint(False, savepoints).result(600)
    assert first.get_job_status().result() is JobStatus.FINISHED
    so_far = len(written(tmp_path))
    assert 0 < so_far < LAST, "it was stopped in the middle"

    second = job(tmp_path, 3, **{"execution.state-recovery.path": stopped}, **s3_config).execute_async("second")
    answer = post(f"/jobs/{second.get_job_id()}/stop", {"targetDirectory": "s3://checkpoints/savepoints"})
    second.get_job_execution_result().result(600)
    assert so_far <= len(written(tmp_path)) < LAST

    moved = move_to_another_bucket(answer["location"], tmp_path.name.replace("_", "-"), s3_config)
    third = {"execution.state-recovery.path": moved, "state.backend.type": "hashmap", **s3_config}
    job(tmp_path, 1, **third).execute("third")
    assert sorted(written(tmp_path)) == sorted(EACH)
    assert SparkContext._active_spark_context is not None


def test_a_running_job_is_rescaled_up_and_down_and_every_number_is_counted_once(tmp_path: Path) -> None:
    client = job(tmp_path, 2).execute_async("rescaled")
    for parallelism in (3, 1):
        client.rescale(parallelism).result(600)
        vertices = client.metrics.snapshot().plan["nodes"]
        assert {vertex["parallelism"] for vertex in vertices} == {parallelism, 1}, "the sink has its own"
    with pytest.raises(ConfigurationError, match=r"parallelism must be"):
        client.rescale(0)
    with pytest.raises(ConfigurationError, match=r"only 128 key groups"):
        client.rescale(129).result(600)
    assert 0 < len(written(tmp_path)) < LAST, "it was rescaled in the middle"
    client.get_job_execution_result().result(600)
    assert client.metrics.snapshot().values["numRestarts"] == 0
    assert sorted(written(tmp_path)) == sorted(EACH)


def test_a_scan_of_a_running_job_is_one_committed_checkpoint_while_the_job_completes_many(tmp_path: Path) -> None:
    keep_one = {"execution.checkpointing.num-retained": "1", "holdfast.epoch.max-records": "10"}
    client = job(tmp_path, 2, **keep_one).execute_async("scanned")
    server = until(RestServer.running)
    spark = SparkSession.builder.getOrCreate()

    def completed() -> float:
        return client.metrics.snapshot().values.get("numberOfCompletedCheckpoints", 0)

    def counted(frame: DataFrame) -> dict[int, int]:
        return {row.key: row["count"] for row in frame.collect()}

    until(lambda: completed() >= 2)
    for running in (client, f"{server.url}/jobs/{client.get_job_id()}"):
        with SavepointReader.scan(spark, running) as reader:
            frame, begun = reader.read_keyed_state("counts", key_type=Types.LONG()), completed()
            once = counted(frame)
            until(lambda begun=begun: completed() >= begun + 10)  # a hold does not hold up epochs
            assert counted(frame) == once
        (read,) = reader.snapshot.checkpoint.sources["numbers"].enumerator["next"].values()
        assert once == Counter(n % KEYS for n in range(1, read + 1))
        assert 0 < read < LAST
    client.cancel().result(600)
    assert client.metrics.snapshot().values["numRestarts"] == 0


class SlowCount(Count):
    """Takes a while for each line, so that two subtasks are twice as fast as one on any number of cores."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        time.sleep(0.005)
        yield from super().process_element(value, ctx)


def test_a_job_follows_its_load_up_and_down_by_itself_and_every_line_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()

    def arrive(name: str, lines: range) -> list[int]:
        (tmp_path / name).write_text("".join(f"{n}\n" for n in lines))
        (tmp_path / name).rename(tmp_path / "in" / name)  # a file appears whole
        return list(lines)

    lines = arrive("backlog", range(800))
    pace = {"stabilization.interval": "200 ms", "metrics.window": "2 s", "vertex.max-parallelism": "2"}
    scaling = {f"job.autoscaler.{key}": value for key, value in pace.items()}
    env = environment(tmp_path, 1, **scaling, **{"job.autoscaler.enabled": "true", "holdfast.epoch.max-records": "100"})
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), (tmp_path / "in").as_uri())
    read = source.monitor_continuously(Duration.of_millis(20)).build()
    numbers = env.from_source(read, WatermarkStrategy.no_watermarks(), "lines").uid("lines").map(int)
    write(tmp_path, numbers.key_by(lambda n: n % KEYS).process(SlowCount()).uid("counts"))
    client = env.execute_async("scaled")

    def parallelism() -> int:
        assert client.get_job_status().result() in (JobStatus.CREATED, JobStatus.RUNNING)
        return max(vertex["parallelism"] for vertex in client.metrics.snapshot().plan.get("nodes", [{"parallelism": 0}]))

    def all_are_counted() -> bool:
        return len(written(tmp_path)) == len(lines)

    until(lambda: parallelism() == 2)
    until(all_are_counted)
    while parallelism() == 2:  # a line now and then
        lines += arrive(f"line {len(lines)}", range(len(lines), len(lines) + 1))
        until(all_are_counted)
    client.cancel().result(600)
    assert client.metrics.snapshot().values["numRestarts"] == 0
    counts = [f"{key} {n + 1}" for key in range(KEYS) for n in range(len(lines[key::KEYS]))]
    assert sorted(written(tmp_path)) == sorted(counts)


def a_path_without_a_savepoint_is_told_before_the_job_starts(tmp_path: Path) -> None:
    missing = (tmp_path / "savepoint-abc").as_uri()
    with pytest.raises(ConfigurationError, match="is not a savepoint"):
        job(tmp_path, 1, **{"execution.state-recovery.path": missing}).execute("never")


def a_job_without_a_directory_for_savepoints_says_which_setting_is_missing(tmp_path: Path) -> None:
    client = job(tmp_path, 1).execute_async("nowhere")
    with pytest.raises(ConfigurationError, match=r"execution\.checkpointing\.savepoint-dir"):
        client.trigger_savepoint()
    client.cancel().result(600)
