"""BATCH mode on Spark: files in, one line for each key out; a job that is cancelled ends at once and writes nothing."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from awaiting import until
from holdfast.common import Configuration, Encoder, JobStatus, WatermarkStrategy
from holdfast.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from holdfast.datastream.connectors.file_system import FileSink
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.errors import ConfigurationError

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def functions_of_this_module_travel_by_value():
    """The workers' path does not hold the tests."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def program(directory: Path) -> tuple[StreamExecutionEnvironment, FileSink]:
    config = Configuration()
    config.set_string("rest.port", "0")
    config.set_string("holdfast.epoch.max-records", "10")
    env = StreamExecutionEnvironment.get_execution_environment(config).set_parallelism(2)
    env.set_runtime_mode(RuntimeExecutionMode.AUTOMATIC)
    return env, FileSink.for_row_format(str(directory / "out"), Encoder.simple_string_encoder()).build()


def written(directory: Path) -> list[str]:
    return sorted(line for part in (directory / "out").rglob("part-*") for line in part.read_text().splitlines())


def a_job_in_batch_mode_writes_one_line_for_each_key(tmp_path):
    words = [f"w{n % 7}" for n in range(500)]
    (tmp_path / "in").mkdir()
    for part in range(12):
        (tmp_path / "in" / f"{part}.txt").write_text("\n".join(words[part::12]) + "\n")
    env, sink = program(tmp_path)
    counts = env.read_text_file(str(tmp_path / "in")).map(lambda word: (word, 1)).key_by(lambda pair: pair[0]).sum(1)
    counts.map(lambda pair: f"{pair[0]} {pair[1]}").sink_to(sink)
    env.execute("words")
    assert written(tmp_path) == [f"w{n} {len(words[n::7])}" for n in range(7)]


def a_job_in_batch_mode_that_is_cancelled_ends_at_once_and_writes_nothing(tmp_path):
    begun = tmp_path / "begun"

    def slow(number: int) -> Any:
        begun.touch()
        time.sleep(0.001)
        return str(number)

    env, sink = program(tmp_path)
    numbers = env.from_source(NumberSequenceSource(1, 50_000_000), WatermarkStrategy.no_watermarks(), "numbers")
    numbers.map(slow).sink_to(sink)
    client = env.execute_async("slow")
    with pytest.raises(ConfigurationError, match="in BATCH mode has no savepoints"):
        client.trigger_savepoint(str(tmp_path / "savepoints"))
    until(begun.exists)
    client.cancel().result()  # the whole input would take hours
    assert client.get_job_status().result() is JobStatus.CANCELED
    assert not (tmp_path / "out").exists() or written(tmp_path) == []
