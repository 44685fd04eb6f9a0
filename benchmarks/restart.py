"""Restart after kill -9 with a large state: the time to the first new results, with and without the local store.

Every key has a count and an incompressible kilobyte; with ``--value-bytes 0``, a count alone. When all keys are stored,
driver, JVM and slots are killed, and the job is restarted; then once more after the local stores were deleted, as on another
machine. The first epoch of a restart has no input: it opens the operators with their state. The first results are those of
the second one. Each event checks its key's count, so a restart that lost or duplicated an event would fail the job.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks import jobs, measure
from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.datastream.state import ValueStateDescriptor

VALUE_BYTES = 1024
PASSES = 1000
SPLITS = 8
"""The source reads a long sequence as eight parallel stretches; each has its own keys, visited in turn."""


class Remember(KeyedProcessFunction):
    """Counts a key's events, and stores a value for it."""

    def __init__(self, keys: int, value_bytes: int = VALUE_BYTES) -> None:
        self.keys = keys
        self.value_bytes = value_bytes

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.value = runtime_context.get_state(ValueStateDescriptor("value", Types.PRIMITIVE_ARRAY(Types.BYTE())))

    def process_element(self, value: int, ctx: Any) -> Iterator[int]:
        count = self.count.value() or 0
        before = value % (self.keys * PASSES // SPLITS) // (self.keys // SPLITS)
        if count != before:
            raise ValueError(f"event {value} finds a count of {count} instead of {before}")
        if count == 0 and self.value_bytes:
            self.value.update(hashlib.shake_128(str(value).encode()).digest(self.value_bytes))
        self.count.update(count + 1)
        yield count


def job(work: Path, keys: int, backend: str, value_bytes: int, extra: list[str]) -> None:
    """The job's process: prints a line of JSON after every epoch."""
    events = 0

    def tell(stats: Any) -> None:
        nonlocal events
        events += stats.records_in
        state = client.metrics.snapshot().completed[-1].full_bytes if client.metrics.snapshot().completed else 0
        told = {"at": time.time(), "events": events, "state_bytes": state, "found": stats.states_found}
        print(json.dumps(told), flush=True)

    client, _ = jobs.start(program(work, keys, backend, extra, value_bytes), "restart", tell)
    client.get_job_execution_result().result()


def program(
    work: Path, keys: int, backend: str, extra: list[str], value_bytes: int = VALUE_BYTES
) -> StreamExecutionEnvironment:
    """The program, at parallelism 2."""
    env = StreamExecutionEnvironment.get_execution_environment(jobs.settings(work, backend, extra))
    env.set_parallelism(2)
    numbers = env.from_source(NumberSequenceSource(0, PASSES * keys - 1), WatermarkStrategy.no_watermarks(), "numbers")
    stretch, own = keys * PASSES // SPLITS, keys // SPLITS
    by_key = numbers.key_by(lambda n: n // stretch * own + n % stretch % own)
    by_key.process(Remember(keys, value_bytes)).sink_to(jobs.Discard())
    return env


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys; a multiple of 8")
    parser.add_argument("--value-bytes", type=int, default=VALUE_BYTES, help="bytes of each key's value, beside its count")
    parser.add_argument("--backend", default="rocksdb", choices=("rocksdb", "hashmap"))
    parser.add_argument("--rounds", type=int, default=3, help="restarts with the local store, and as many without it")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Fill, kill, restart, kill, delete the local state, restart; returns the median seconds to the first results.

    ``opened``: to the end of the first epoch, which only opens the operators; ``found``: the local stores that it reused.
    """
    if options.keys % SPLITS:
        raise SystemExit(f"--keys {options.keys}: must be a multiple of {SPLITS}")
    work = jobs.scratch()
    figures: dict[str, Any] = {
        "label": f"holdfast-{options.backend}",
        "workload": "restart",
        "data": f"{options.keys} keys",
        "value_bytes": options.value_bytes,
    }
    try:
        with _Job(work, options) as filling:
            told = filling.until(options.keys + options.keys // 10)
            figures["fill_events_per_s"] = round(told["events"] / (told["at"] - filling.first))
            figures["state_mb"] = round(told["state_bytes"] / 2**20)
        taken: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            for store in ("kept", "deleted"):
                if store == "deleted":
                    shutil.rmtree(work / "local", ignore_errors=True)
                with _Job(work, options) as restarted:
                    told = restarted.until(1)
                    taken.setdefault(f"local_{store}_opened_s", []).append(restarted.first - restarted.started)
                    taken.setdefault(f"local_{store}_s", []).append(told["at"] - restarted.started)
                    taken.setdefault(f"local_{store}_found", []).append(restarted.found)
        for name, values in taken.items():
            figures[name] = round(statistics.median(values), 2)
            figures[f"{name}_all"] = [round(value, 2) for value in values]
    finally:
        jobs.tidy(work)
    return {**figures, "ok": True}


class _Job:
    """The job in a separate process; killed with all its descendants at the end of the block."""

    def __init__(self, work: Path, options: argparse.Namespace) -> None:
        self._command = [
            sys.executable,
            "-m",
            "benchmarks.restart",
            str(work),
            str(options.keys),
            options.backend,
            str(options.value_bytes),
            *options.set,
        ]

    def __enter__(self) -> _Job:
        self.started = time.time()
        self.first = 0.0
        self.found = 0
        environment = measure.environment()
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, env=environment, cwd=measure.ROOT)
        return self

    def until(self, events: int) -> dict[str, Any]:
        """Wait until this many events were processed since the start; returns the job's last line."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                told: dict[str, Any] = json.loads(line)
                if not self.first:
                    self.first, self.found = told["at"], told["found"]
                if told["events"] >= events:
                    return told
        raise RuntimeError(f"the job ended early, with exit code {self._process.wait()}")

    def __exit__(self, *exception: object) -> None:
        root = psutil.Process(self._process.pid)
        for process in [root, *root.children(recursive=True)]:
            try:
                process.kill()
            except psutil.Error:
                continue
        self._process.wait()


if __name__ == "__main__":
    job(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5:])
