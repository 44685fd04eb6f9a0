"""The memory of task slots on Spark has bounds that the amount of state does not move: cold keys, a hot key, a large value.

A run of the suite is short, ``make test EFFORT=50 ARGS=tests/spark/test_bounded_memory_on_spark.py`` has 10 M cold keys and
a value of 100 MB.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from effort import EFFORT, examples
from holdfast.common import Configuration, Encoder, Types, WatermarkStrategy
from holdfast.datastream import (
    KeyedProcessFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from holdfast.datastream.connectors.file_system import FileSink
from holdfast.datastream.connectors.number_seq import NumberSequenceSource

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(3600)]

HOT = -1
TIMES = 2
"""How often each cold key comes."""
BIG = min(100, 20 * EFFORT) << 20
"""Bytes of the large value."""
EPOCH = 20_000
SETTINGS = {
    "rest.port": "0",
    "restart-strategy.type": "none",
    "parallelism.default": "2",
    "holdfast.epoch.max-records": str(EPOCH),
    "state.backend.cache.size": "2mb",
    "state.backend.rocksdb.writebuffer.size": "8mb",
    "state.backend.rocksdb.block.cache-size": "8mb",
}


@pytest.fixture(autouse=True)
def functions_of_this_module_travel_by_value() -> Iterator[None]:
    """The workers' path does not hold the tests."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def peak_memory() -> int:
    """Of this process, in MB."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) >> 10


class Seen(KeyedProcessFunction):
    """Counts a key's elements; the hot key's map gets an entry for each. Tells its process and by how much it grew."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.note = runtime_context.get_state(ValueStateDescriptor("note", Types.STRING()))
        self.entries = runtime_context.get_map_state(MapStateDescriptor("entries", Types.LONG(), Types.LONG()))
        self.before = peak_memory()

    def process_element(self, value: int, ctx: Any) -> Iterator[str]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        key = ctx.get_current_key()
        if key == HOT:
            self.entries.put(count, -count)
            middle = (count + 1) // 2
            assert self.entries.get(middle) == -middle, "which may long be in the store"
        else:
            self.note.update(f"{key} has a note " * 32)
        if count % 1000 == 1 if key == HOT else key % 1000 == 1 and count == TIMES:
            yield f"{key} {count} {os.getpid()} {peak_memory() - self.before}"


class Large(KeyedProcessFunction):
    """Keeps a large value, which every tenth element changes; its process is killed once."""

    def __init__(self, lives: Path) -> None:
        self.lives = lives

    def open(self, runtime_context: Any) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value"))
        self.before = peak_memory()

    def process_element(self, value: int, ctx: Any) -> Iterator[str]:
        if value % 10 == 0:
            self.value.update(bytes([value]) * BIG)
        held = self.value.value()
        if (life := self.lives / str(value)).exists():
            life.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        yield f"{value} {len(held)} {held[0]} {held[-1]} {peak_memory() - self.before}"


def run(directory: Path, last: int, key: Any, function: KeyedProcessFunction, **settings: str) -> list[list[int]]:
    """What the function tells of the numbers up to the last one."""
    config = Configuration()
    for name, value in {**SETTINGS, **settings}.items():
        config.set_string(name, value)
    env = StreamExecutionEnvironment.get_execution_environment(config)
    env.get_checkpoint_config().set_checkpoint_storage_dir((directory / "checkpoints").as_uri())
    numbers = (
        env.from_source(NumberSequenceSource(0, last), WatermarkStrategy.no_watermarks(), "numbers")
        .uid("numbers")
        .set_parallelism(1)
    )
    told = numbers.key_by(key, key_type=Types.LONG()).process(function).uid("told")
    sink = FileSink.for_row_format(str(directory / "out"), Encoder.simple_string_encoder()).build()
    told.sink_to(sink).uid("out")
    env.execute("memory")
    parts = [path for path in (directory / "out").rglob("part-*") if not path.name.startswith(".")]
    return sorted([int(word) for word in line.split()] for path in parts for line in path.read_text().splitlines())


def test_cold_keys_and_a_hot_one_leave_memory_for_the_store(tmp_path: Path) -> None:
    keys = examples(200_000)
    last = TIMES * keys - 1
    told = run(tmp_path, last, lambda n: HOT if n % 4 == 0 else n % keys, Seen())
    hot = [[HOT, count] for count in range(1, TIMES * keys // 4 + 1, 1000)]
    assert [each[:2] for each in told] == hot + [[key, TIMES] for key in range(1, keys, 1000)]
    slots = {each[2] for each in told}
    grown = {slot: max(each[3] for each in told if each[2] == slot) for slot in slots}
    print("MB by slot:", grown)
    assert len(slots) == 2, "a slot was replaced"
    assert max(grown.values()) < 400, "which has room for an epoch and a merge of deltas"


def a_large_value_is_kept_restored_and_replaced_when_its_slot_is_killed(tmp_path: Path) -> None:
    (lives := tmp_path / "lives").mkdir()
    (lives / "14").touch()
    told = run(tmp_path, 29, lambda n: HOT, Large(lives), **{"holdfast.epoch.max-records": "6"})
    assert [each[:4] for each in told] == [[n, BIG, n - n % 10, n - n % 10] for n in range(30)]
    assert not list(lives.iterdir())
    print("MB:", max(each[4] for each in told))
    assert max(each[4] for each in told) < 12 * (BIG >> 20)
