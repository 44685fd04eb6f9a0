"""Three small payments before a large one within ten minutes: processor time per record as a pattern, and written by hand.

Both programs get the same payments in event time and report the same; the one by hand keeps small payments and a timer. The
operators run without Spark, so that the figures hold nothing but keyed state, timers and the matcher, barriers included.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.sliding import MINUTE, spent_by
from holdfast.cep import CEP, AfterMatchSkipStrategy, Pattern
from holdfast.common import Time, Types
from holdfast.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from holdfast.datastream.state import ListStateDescriptor
from holdfast.runtime.plan.operator import OperatorFactory
from holdfast.runtime.records.records import RecordBatch

_FRAME = 2048
_SPAN = 10 * MINUTE
_SMALL, _LARGE = 5, 500

Payment = tuple[int, int]
"""Card and amount."""


class ByHand(KeyedProcessFunction):
    """The same without patterns, for payments that come in order: the last three small ones and a timer for each."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state."""
        self.small = runtime_context.get_list_state(ListStateDescriptor("small", Types.LONG()))

    def process_element(self, value: Payment, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[int, int]]:
        """Report a large payment after three small ones."""
        now = ctx.timestamp()
        if value[1] < _SMALL:
            self.small.add(now)
            ctx.timer_service().register_event_time_timer(now + _SPAN)
        elif value[1] > _LARGE:
            recent = [at for at in self.small.get() if now - at < _SPAN]
            if len(recent) >= 3:
                self.small.clear()
                yield value

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> None:
        """Drop small payments that are too long ago."""
        self.small.update([at for at in self.small.get() if at > timestamp - _SPAN])


def pattern() -> Pattern:
    """The pattern sequence."""
    begin = Pattern.begin("probes", AfterMatchSkipStrategy.skip_past_last_event())
    probes = begin.where(lambda payment: payment[1] < _SMALL).times(3)
    return probes.followed_by("large").where(lambda payment: payment[1] > _LARGE).within(Time.milliseconds(_SPAN))


def factories() -> dict[str, OperatorFactory]:
    """Both operators."""
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())
    env.set_parallelism(1)
    cards = env.from_collection([(0, 0)]).key_by(lambda payment: payment[0])
    made: dict[str, Any] = {
        "pattern": CEP.pattern(cards, pattern()).select(lambda match: match["large"][0]),
        "by hand": cards.process(ByHand()),
    }
    return {name: stream._transformation.factory for name, stream in made.items()}


def frames(keys: int, count: int, per_minute: int, small: float) -> list[RecordBatch]:
    """Payments in order of time: a share of them small, one in a hundred large."""
    draw = random.Random(7)
    amounts = random.Random(8)
    payments = [
        (draw.randrange(keys), 1 if (at := amounts.random()) < small else 900 if at > 0.99 else 50) for _ in range(count)
    ]
    stamps = [number * MINUTE // per_minute for number in range(count)]
    return [
        RecordBatch(payments[at : at + _FRAME], stamps[at : at + _FRAME], [card for card, _ in payments[at : at + _FRAME]])
        for at in range(0, count, _FRAME)
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sub-command's arguments."""
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--per-minute", type=int, default=10_000, help="records of a minute of event time")
    parser.add_argument("--small", type=float, default=0.1, help="the share of small payments")
    parser.add_argument("--rounds", type=int, default=3)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure both operators in turn; medians."""
    batches = frames(options.keys, options.records, options.per_minute, options.small)
    taken: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, factory in factories().items():
            taken.setdefault(name, []).append(spent_by(factory, batches))
    figures: dict[str, Any] = {"keys": options.keys, "records": options.records, "small": options.small}
    for name, times in taken.items():
        nanoseconds = statistics.median(times)
        figures[name] = {"ns": round(nanoseconds), "per_second": round(1e9 / nanoseconds)}
        print(f"{name:<8} {nanoseconds:6.0f} ns  {1e9 / nanoseconds:9,.0f} records/s of a core", file=sys.stderr)
    return figures
