"""Jobs that are hard on memory, each run in a process of its own: ``python heavy_jobs.py NAME DIRECTORY``.

Prints what came out and how much memory the process had at most, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from engine.inprocess import LEDGERS, Lab, LedgerSink, SplitEnumerator, SplitSource
from holdfast.common import Types, WatermarkStrategy
from holdfast.connectors.base import Batch, JobInfo, ReaderContext, SplitRange
from holdfast.datastream import KeyedProcessFunction, MapStateDescriptor, StreamExecutionEnvironment, ValueStateDescriptor

COLD_KEYS = 300_000
HOT_RECORDS = 300_000
BIG = 100 << 20
SMALL_ROCKSDB = {"state.backend.rocksdb.writebuffer.size": "8mb", "state.backend.rocksdb.block.cache-size": "8mb"}


@dataclass(frozen=True)
class Numbers:
    """The numbers 0 to n-1, made when they are read."""

    count: int

    @property
    def bounded(self) -> bool:
        return True

    def create_enumerator(self, job: JobInfo, uid: str) -> SplitEnumerator:
        return SplitEnumerator(SplitSource({"all": range(self.count)}), job.generation)  # type: ignore[dict-item]

    def create_reader(self, context: ReaderContext) -> NumberReader:
        return NumberReader()


class NumberReader:
    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch]:
        for at in range(part.start, part.end, max_batch):
            yield Batch(list(range(at, min(at + max_batch, part.end))))

    def close(self) -> None:
        pass


class Seen(KeyedProcessFunction):
    """Writes a total at every thousandth element of the subtask's, and how often its key had been seen."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.note = runtime_context.get_state(ValueStateDescriptor("note", Types.STRING()))

    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.note.update(f"the note of key {ctx.get_current_key()}, which is a bit longer than the key")
        if value % 1000 == 0:
            yield ctx.get_current_key(), count


class HotMap(KeyedProcessFunction):
    """One key with a map that grows by an entry for each element."""

    def open(self, runtime_context: Any) -> None:
        self.entries = runtime_context.get_map_state(MapStateDescriptor("entries", Types.LONG(), Types.LONG()))
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.entries.put(value, count)
        if value % 1000 == 0:
            yield value, count, self.entries.get(value // 2)


class BigValue(KeyedProcessFunction):
    """Keeps one value of 100 MB, which every tenth element changes."""

    def open(self, runtime_context: Any) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value"))

    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        if value % 10 == 0:
            self.value.update(bytes([value]) * BIG)
        held = self.value.value()
        yield value, len(held), held[0], held[-1]


def cold_keys(cache: str) -> Any:
    def build(env: StreamExecutionEnvironment) -> None:
        source = env.from_source(Numbers(2 * COLD_KEYS), WatermarkStrategy.no_watermarks(), "numbers")
        source.key_by(lambda n: n % COLD_KEYS).process(Seen()).sink_to(LedgerSink("out"))

    return build, {**SMALL_ROCKSDB, "state.backend.cache.size": cache}, 20_000


def hot_key() -> Any:
    def build(env: StreamExecutionEnvironment) -> None:
        source = env.from_source(Numbers(HOT_RECORDS), WatermarkStrategy.no_watermarks(), "numbers")
        source.key_by(lambda n: "hot").process(HotMap()).sink_to(LedgerSink("out"))

    return build, {**SMALL_ROCKSDB, "state.backend.cache.size": "2mb"}, 20_000


def big_value() -> Any:
    def build(env: StreamExecutionEnvironment) -> None:
        source = env.from_source(Numbers(40), WatermarkStrategy.no_watermarks(), "numbers")
        source.key_by(lambda n: "one").process(BigValue()).sink_to(LedgerSink("out"))

    return build, {}, 10


def peak_memory() -> int:
    """Of this process, in kB. (The ru_maxrss of getrusage would count the process that forked this one.)"""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def main() -> None:
    name, directory = sys.argv[1:3]
    jobs = {
        "cold keys, small cache": lambda: cold_keys("2mb"),
        "cold keys, large cache": lambda: cold_keys("1gb"),
        "hot key": hot_key,
        "big value": big_value,
    }
    build, config, budget = jobs[name]()
    crashes = [("after complete", 2), ("run", 2)] if name == "big value" else []
    lab = Lab(build, Path(directory), parallelism=1, budget=budget, config=config, keep_disk=False)
    before = peak_memory()
    lab.run(crashes)
    print(json.dumps({"megabytes": (peak_memory() - before) // 1024, "values": LEDGERS["out"].values}))


if __name__ == "__main__":
    main()
