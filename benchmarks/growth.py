"""Whether the cost of an event stays constant while RocksDB's state grows tenfold.

Every second event is the first one of a new key; the others read and write existing keys, chosen uniformly. A key has a
count and an incompressible kilobyte, both written by every event. The count is read; with ``--read``, the kilobyte, too.

    python -m benchmarks growth --keys 2000000 --points 8
    python -m benchmarks growth --keys 2000000 --points 8 --engine flink-java
"""

from __future__ import annotations

import argparse
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import jobs, measure
from benchmarks.flat import Watch
from benchmarks.peers.run import flink_java
from benchmarks.restart import SPLITS, VALUE_BYTES
from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.datastream.state import ValueStateDescriptor

_GOLDEN = 0x9E3779B97F4A7C15
"""Spreads numbers over 64 bits."""

_DISK = {"holdfast": 2.6, "flink-java": 3.7}
"""Bytes of the disk for each byte of the state, by engine."""


class KeyOf:
    """The key of the n-th number."""

    def __init__(self, keys: int) -> None:
        self.stretch = 2 * keys // SPLITS

    def __call__(self, n: int) -> int:
        """A new key for an even number; for an odd one, any earlier key of the same stretch."""
        number, position = divmod(n, self.stretch)
        new = position // 2
        own = n * _GOLDEN % 2**64 * (new + 1) >> 64 if position % 2 else new
        return number * self.stretch + own


_POOL_BITS = 24
"""Kilobytes are excerpts of 16 MB of random bytes, so that making one costs next to nothing."""


class Rewrite(KeyedProcessFunction):
    """Counts a key's events, and rewrites a kilobyte for it with every event."""

    def __init__(self, read: bool) -> None:
        self.read = read

    def open(self, runtime_context: RuntimeContext) -> None:
        self.pool = random.Random(1).randbytes((1 << _POOL_BITS) + VALUE_BYTES)
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.value = runtime_context.get_state(ValueStateDescriptor("value", Types.PRIMITIVE_ARRAY(Types.BYTE())))
        self.keys = runtime_context.get_metrics_group().counter("keys")

    def process_element(self, value: int, ctx: Any) -> Iterator[int]:
        count = self.count.value() or 0
        if not count:
            self.keys.inc()
        elif self.read and len(self.value.value() or b"") != VALUE_BYTES:
            raise ValueError(f"event {value} finds no kilobyte")
        self.count.update(count + 1)
        at = value * _GOLDEN % 2**64 >> 64 - _POOL_BITS
        self.value.update(self.pool[at : at + VALUE_BYTES])
        yield count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--keys", type=int, default=10_000_000, help="keys of 1 KiB each; a multiple of 8")
    parser.add_argument("--points", type=int, default=20, help="measurements while the state grows")
    parser.add_argument("--read", action="store_true", help="read a key's kilobyte before it is rewritten")
    parser.add_argument("--engine", default="holdfast", choices=tuple(_DISK))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Let the state grow; returns the figures point by point."""
    if options.keys % SPLITS:
        raise SystemExit(f"--keys {options.keys}: must be a multiple of {SPLITS}")
    work = jobs.scratch()
    needed = int(_DISK[options.engine] * options.keys * VALUE_BYTES)
    if (free := shutil.disk_usage(work).free) < needed:
        raise SystemExit(f"not enough space in {work}: {free >> 30} GiB free, {needed >> 30} GiB needed")
    try:
        figures = (_run_flink if options.engine == "flink-java" else _run)(options, work)
    finally:
        jobs.tidy(work)
    for point in figures["points"]:
        point["state_gb"] = round(point["events"] / 2 * VALUE_BYTES / 1e9, 2)
    return {"workload": "growth", "data": f"{options.keys} keys", "read": options.read, **figures}


def _run(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    events = 2 * options.keys
    watch = Watch(events // options.points, work)
    env = StreamExecutionEnvironment.get_execution_environment(jobs.settings(work, "rocksdb", options.set))
    env.set_parallelism(2)
    numbers = env.from_source(NumberSequenceSource(0, events - 1), WatermarkStrategy.no_watermarks(), "numbers")
    numbers.key_by(KeyOf(options.keys)).process(Rewrite(options.read)).sink_to(jobs.Discard())
    outcome = jobs.run(env, "growth", watch.epoch)
    return {
        "label": "holdfast-rocksdb",
        **outcome.summary(),
        "points": watch.points,
        "ok": outcome.events == events and outcome.counters()["keys"] == options.keys,
    }


def _run_flink(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    program = [str(options.keys), str(options.points), str(work), *(["read"] if options.read else [])]
    done = measure.run(flink_java("FlinkGrowth", program), 3600)
    figures, got = {"label": "flink-java-rocksdb", **measure.usage_of(done)}, done.told
    if got is None:
        return {**figures, "points": [], "ok": False, "error": done.output[-2000:]}
    return {**figures, **got, "ok": got["events"] == 2 * options.keys and got["keys"] == options.keys}
