"""Windows of an hour that slide by a minute, beside windows of a minute: processor time per record in one subtask.

Both get the same records, in event time, with as many results per key and minute. The operators run without Spark, so that
the figures hold nothing but windows, barriers included.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import jobs
from benchmarks.one_subtask import one_subtask
from holdfast.common import Time, Types
from holdfast.datastream import SlidingEventTimeWindows, TumblingEventTimeWindows, WindowAssigner
from holdfast.runtime.operators.windows.window import WindowOperator
from holdfast.runtime.operators.windows.window_content import Accumulator, Reduced, WindowContent
from holdfast.runtime.plan.operator import OperatorFactory
from holdfast.runtime.records.records import RecordBatch
from holdfast.runtime.time.clock import Clock
from holdfast.state.rows.keyed_state import KeyedState

MINUTE = 60_000
_FRAME = 2048


CONTENTS: dict[str, Callable[[], WindowContent]] = {
    "aggregate": lambda: Accumulator(jobs.Count(), Types.LONG()),
    "reduce": lambda: Reduced(lambda a, b: (a[0], a[1] + b[1])),
}


def frames(keys: int, per_minute: int, minutes: int) -> list[RecordBatch]:
    """The records, in order of time."""
    pick = random.Random(7)
    records = [(pick.randrange(keys), 1) for _ in range(per_minute * minutes)]
    stamps = [number * MINUTE // per_minute for number in range(len(records))]
    return [
        RecordBatch(records[at : at + _FRAME], stamps[at : at + _FRAME], [key for key, _ in records[at : at + _FRAME]])
        for at in range(0, len(records), _FRAME)
    ]


def spent(assigner: WindowAssigner[Any, Any], content: WindowContent, batches: list[RecordBatch]) -> float:
    """Nanoseconds of the processor for each record."""
    return spent_by(WindowOperator(assigner, assigner.get_default_trigger(None), content), batches)


def spent_by(factory: OperatorFactory, batches: list[RecordBatch]) -> float:
    """Nanoseconds of the processor for each record in an operator whose watermark follows the records."""
    clock, state = Clock(), KeyedState("benchmark")
    operator = factory.create()
    operator.context = one_subtask(clock, state)
    operator.open()
    gc.collect()
    gc.disable()  # as in a task slot, which collects between epochs
    began = time.thread_time()
    for number, batch in enumerate(batches):
        assert batch.timestamps is not None
        operator.process(batch)
        clock.watermark = batch.timestamps[-1]
        operator.advance_watermark(clock.watermark)
        if number % 25 == 24:
            state.collect()
            state.completed()
    taken = time.thread_time() - began
    gc.enable()
    return taken / sum(len(batch.values) for batch in batches) * 1e9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sub-command's arguments."""
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--per-minute", type=int, default=50_000, help="records of a minute of event time")
    parser.add_argument("--minutes", type=int, default=90)
    parser.add_argument("--rounds", type=int, default=3)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure both kinds of windows in turn; medians and their ratio."""
    batches = frames(options.keys, options.per_minute, options.minutes)
    tumbling = TumblingEventTimeWindows.of(Time.minutes(1))
    sliding = SlidingEventTimeWindows.of(Time.hours(1), Time.minutes(1))
    figures: dict[str, Any] = {"keys": options.keys, "per_minute": options.per_minute, "minutes": options.minutes}
    for name, content in CONTENTS.items():
        pairs = [(spent(tumbling, content(), batches), spent(sliding, content(), batches)) for _ in range(options.rounds)]
        minute, hour = (statistics.median(times) for times in zip(*pairs))
        ratio = statistics.median(b / a for a, b in pairs)
        figures[name] = {"tumbling_ns": round(minute), "sliding_ns": round(hour), "ratio": round(ratio, 2)}
        print(f"{name:<10} minute {minute:6.0f} ns  hour by minute {hour:6.0f} ns  ratio {ratio:.2f}", file=sys.stderr)
    return figures
