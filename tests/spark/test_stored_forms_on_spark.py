"""A job on Spark goes on, at another parallelism, from checkpoints in every form that has ever been stored.

A run of the suite tries RocksDB, ``make test EFFORT=2 ARGS=tests/spark/test_stored_forms_on_spark.py`` the heap, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest
import zstandard

from effort import examples
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorCheckpoint, SubtaskState
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import Configuration, Encoder, Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from holdfast.datastream.connectors.file_system import FileSink
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from state import test_schema_evolution as evolution
from state.test_stored_forms import GOLDEN, KEYS, Stored

pytestmark = pytest.mark.spark

STORED = sorted(GOLDEN.glob("checkpoint_*.zst"))
JOB = "job"
"""Its name is in the paths of the stored files."""
EVOLVED_KEYS = 30


@pytest.fixture(autouse=True)
def functions_of_tests_travel_by_value() -> Iterator[None]:
    """The workers' path does not hold the tests."""
    modules = sys.modules[__name__], evolution
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


class Tell(KeyedProcessFunction):
    """Tells the values of a key, and its timers when they fire."""

    def __init__(self, uid: str) -> None:
        self.uid = uid

    def open(self, runtime_context: Any) -> None:
        self.n = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))
        self.text = runtime_context.get_state(ValueStateDescriptor("text", Types.STRING()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[str]:
        if self.n.value() is not None:
            yield f"{self.uid} {value} {self.n.value()} {self.text.value()}"

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[str]:
        yield f"{self.uid} timer {timestamp} {ctx.get_current_key()}"


class TellEvolved(KeyedProcessFunction):
    """Tells what a key has in states of all kinds, whose type has changed since; what expires has expired."""

    def __init__(self, uid: str, states: list[Any]) -> None:
        self.uid, self.states = uid, states

    def open(self, runtime_context: Any) -> None:
        kinds = ["state", "list_state", "map_state", "reducing_state", "aggregating_state", "state", "map_state", "state"]
        declared = zip(kinds, self.states, strict=True)
        self.handles = [getattr(runtime_context, f"get_{kind}")(descriptor) for kind, descriptor in declared]

    def process_element(self, value: Any, ctx: Any) -> Iterator[str]:
        one, many, mapped, reduced, aggregated, expiring, expiring_map, unchanged = self.handles
        if unchanged.value() is not None:
            entries = dict(mapped.items())
            rows = [one.value(), reduced.get(), aggregated.get(), *many.get(), *entries.values()]
            expired = expiring.value() is None and not list(expiring_map.keys())
            yield f"{self.uid} {value} {unchanged.value()} {rows} {list(entries)} {expired}"


def is_evolved(path: Path) -> bool:
    return "evol" in path.stem


def told_of(path: Path, stored: Stored) -> Iterator[str]:
    """What the operator tells that goes on from a stored checkpoint."""
    if is_evolved(path):
        for key in range(EVOLVED_KEYS):
            tags = ["new"] if path.stem.endswith("_evolved") and key % 3 == 0 else ["old"]
            size = 1 + key % 9
            yield f"{path.stem} {key} {key} {[evolution.new(key, tags)] * (3 + 2 * size)} {list(range(size))} True"
    for key, value in stored.content:
        if key == "timers":
            yield from (f"{path.stem} timer {at} {of}" for at, of in value)
        elif isinstance(key, int):
            yield f"{path.stem} {key} {value} {'x' * 40}"


def put_back(directory: Path) -> list[str]:
    """Make each stored checkpoint an operator's, in the log of a job that ran at parallelism 1; what is to be told."""
    storage, told = Storage.open(directory.as_uri()), []
    operators = {}
    for path in STORED:
        stored = msgspec.msgpack.decode(zstandard.decompress(path.read_bytes()), type=Stored)
        for name, data in stored.objects.items():
            storage.put(name, data)
        schemas = {stored.handles[0].schema: stored.schema}
        subtasks = [SubtaskState(keyed=stored.handles)]
        operators[path.stem] = OperatorCheckpoint(
            path.stem, uid_given=True, schemas=schemas, subtasks=subtasks, watermarks=[-(1 << 63)]
        )
        told += told_of(path, stored)
    log = CheckpointLog(storage, JobPaths.of(JOB))
    taken = log.take_over()
    log.complete(CheckpointMetadata(taken.next_id, taken.generation, "stored", JOB, 0, operators=operators))
    return sorted(told)


@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"][: examples(1)])
def a_job_goes_on_from_every_stored_form_at_another_parallelism(backend: str, tmp_path: Path) -> None:
    told = put_back(tmp_path / "checkpoints")
    assert {line.partition(" ")[0] for line in told} == {path.stem for path in STORED}
    config = Configuration()
    config.set_string("rest.port", "0").set_string("restart-strategy.type", "none").set_string("state.backend.type", backend)
    env = StreamExecutionEnvironment.get_execution_environment(config).set_parallelism(3)
    env.get_checkpoint_config().set_checkpoint_storage_dir((tmp_path / "checkpoints").as_uri())
    source = NumberSequenceSource(KEYS[0], KEYS[-1])
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers").set_parallelism(1)
    by_number = numbers.key_by(lambda n: n, key_type=Types.LONG())
    functions = {
        path.stem: TellEvolved(path.stem, evolution.states(evolution.NEW)) if is_evolved(path) else Tell(path.stem)
        for path in STORED
    }
    first, *others = (by_number.process(function).name(uid).uid(uid) for uid, function in functions.items())
    sink = FileSink.for_row_format(str(tmp_path / "out"), Encoder.simple_string_encoder()).build()
    first.union(*others).sink_to(sink).uid("out").set_parallelism(1)
    env.execute(JOB)
    parts = [path for path in (tmp_path / "out").rglob("part-*") if not path.name.startswith(".")]
    assert sorted(line for path in parts for line in path.read_text().splitlines()) == told
