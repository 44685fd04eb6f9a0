"""Twenty million timers a day ahead: the rates of registration, restore and firing, and the memory they need.

Every payment sets an event-time timer a day ahead, for its own key, in two subtasks on RocksDB. When all are registered,
driver, JVM and slots are killed and the job is restarted. Then payments of the next day arrive, and a million timers
fire. The number of fired timers is checked: a restart that lost or duplicated a timer would fail.

The same job runs without timers first, to measure the cost of everything else.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import jobs, measure
from holdfast.common import WatermarkStrategy
from holdfast.connectors.base import Batch, EpochInput, JobInfo, ReaderContext, SplitRange
from holdfast.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment

DAY_MS = 86_400_000
START_MS = 1_700_000_000_000
SPAN_MS = 2 * 3_600_000
"""The event time of all payments, in ms."""
SPLITS = 2
PARTS = 4
"""Epochs in which the timers fire."""
SMALL = (
    "state.backend.cache.size=48mb",
    "state.backend.rocksdb.writebuffer.size=8mb",
    "holdfast.epoch.target-duration=250 ms",
    "spark.driver.memory=512m",
    "spark.driver.defaultJavaOptions=-XX:+UseSerialGC -Xms64m -Xmn24m -Xss512k",
)
"""Settings for a job with little memory (docs/configuration.md, Memory)."""


class Payments:
    """Numbers as payments, evenly over `SPAN_MS`; then single ones at given times, each in its own epoch."""

    timestamped = True
    bounded = False

    def __init__(self, count: int, later: Sequence[int] = ()) -> None:
        self.count = count
        self.later = later

    def create_enumerator(self, job: JobInfo, uid: str) -> Payments.Enumerator:
        return self.Enumerator(self.count, self.later)

    def create_reader(self, context: ReaderContext) -> Payments.Reader:
        return self.Reader(self.count)

    class Enumerator:
        def __init__(self, count: int, later: Sequence[int]) -> None:
            self._count = count // SPLITS
            self._later = list(later)
            self._next = 0
            self._closed = threading.Event()

        def start(self, state: Any | None) -> None:
            self._next = 0 if state is None else state

        def plan(self, max_records: int) -> EpochInput:
            at = self._next
            if at < self._count:
                self._next = min(at + max(max_records // SPLITS, 1), self._count)
                ranges = [SplitRange(str(n), at, self._next, self._next - at) for n in range(SPLITS)]
                return EpochInput(tuple(ranges), SPLITS * (self._count - self._next))
            if not self._later:
                return EpochInput()
            self._next += 1
            due = self._later.pop(0)
            return EpochInput(tuple(SplitRange(str(n), at, at + 1, 1, due) for n in range(SPLITS)))

        def snapshot(self) -> Any:
            return self._next

        def checkpoint_completed(self, checkpoint_id: int, state: Any) -> None:
            pass

        def wait(self, timeout: float) -> None:
            self._closed.wait(timeout)

        def close(self) -> None:
            self._closed.set()

    class Reader:
        def __init__(self, count: int) -> None:
            self._count = count

        def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch]:
            split = int(part.split)
            if part.payload is not None:
                yield Batch([-1 - split], [part.payload])
                return
            count = self._count
            for at in range(part.start, part.end, max_batch):
                values = list(range(SPLITS * at + split, SPLITS * min(at + max_batch, part.end) + split, SPLITS))
                yield Batch(values, [START_MS + value * SPAN_MS // count for value in values])

        def close(self) -> None:
            pass


class Remind(KeyedProcessFunction):
    """Sets a timer a day ahead for every payment."""

    def __init__(self, timers: bool) -> None:
        self.timers = timers

    def open(self, runtime_context: RuntimeContext) -> None:
        self.fired = runtime_context.get_metrics_group().counter("fired")
        jobs.note_start(runtime_context)

    def process_element(self, value: int, ctx: Any) -> None:
        if value >= 0 and self.timers:
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + DAY_MS)

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        self.fired.inc()


def _key(value: int) -> int:
    return value


def job(work: Path, count: int, timers: bool, later: Sequence[int], extra: list[str]) -> None:
    """The job's process: prints a line of JSON after every epoch."""

    def tell(stats: Any) -> None:
        done = {
            "at": time.time(),
            "began": outcome.began,
            "events": outcome.events,
            "fired": outcome.counters().get("fired", 0),
            "epoch_s": stats.duration_ms / 1000,
            "phases": {name: round(seconds, 2) for name, seconds in stats.phases.items()},
            "busy": {vertex.name: round(vertex.busy_ms) for vertex in stats.vertices},
        }
        print(json.dumps(done), flush=True)

    env = StreamExecutionEnvironment.get_execution_environment(jobs.settings(work, "rocksdb", extra))
    env.set_parallelism(2)
    payments = env.from_source(Payments(count, later), WatermarkStrategy.for_monotonous_timestamps(), "payments")
    payments.key_by(_key).process(Remind(timers)).sink_to(jobs.Discard())
    client, outcome = jobs.start(env, "timers", tell)
    client.get_job_execution_result().result()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--timers", type=int, default=20_000_000)
    parser.add_argument("--fire", type=int, default=1_000_000, help="number of timers to fire")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--verbose", action="store_true", help="print every epoch")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the job without timers, then with them: fill, kill, restart, fire."""
    fire = options.fire
    extra = [*SMALL, *options.set]
    figures: dict[str, Any] = {"label": "holdfast-rocksdb", "workload": "timers", "data": f"{options.timers} timers"}
    for timers in (False, True):
        name = "timers" if timers else "plain"
        count = options.timers if timers else options.timers // 5
        work = jobs.scratch()
        try:
            with _job(work, count, timers, [], extra, options.verbose) as filling:
                for told in filling.lines():
                    if told["events"] >= count:
                        break
            figures[f"{name}_per_s"] = round(count / (told["at"] - told["began"]))
            figures[f"{name}_cpu_us"] = round(1e6 * sum(filling.usage.cpu_s.values()) / count, 2)
            figures[f"{name}_mb"] = filling.usage.peak_pss >> 20
            figures[f"{name}_mb_by_process"] = filling.usage.pss_by_role()
            if timers:
                first = START_MS + DAY_MS
                later = [first - 1, *(first + part * fire // PARTS * SPAN_MS // count for part in range(1, PARTS + 1))]
                with _job(work, count, timers, later, extra, options.verbose) as restarted:
                    lines = list(_take(restarted.lines(), len(later)))
                figures["restart_s"] = round(lines[0]["at"] - restarted.started, 1)
                figures["fired"] = lines[-1]["fired"]
                figures["fired_per_s"] = round(figures["fired"] / sum(each["epoch_s"] for each in lines[1:]))
                figures["restarted_mb"] = restarted.usage.peak_pss >> 20
        finally:
            jobs.tidy(work)
    return {**figures, "ok": figures["fired"] == fire}


def _take(told: Iterator[dict[str, Any]], count: int) -> Iterator[dict[str, Any]]:
    for each in told:
        if each["events"]:
            yield each
            count -= 1
            if not count:
                return


def _job(work: Path, count: int, timers: bool, later: Sequence[int], extra: Sequence[str], verbose: bool) -> measure.Killed:
    arguments = [str(work), str(count), str(int(timers)), json.dumps(list(later)), *extra]
    return measure.Killed("benchmarks.timers", arguments, verbose)


if __name__ == "__main__":
    job(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1", json.loads(sys.argv[4]), sys.argv[5:])
