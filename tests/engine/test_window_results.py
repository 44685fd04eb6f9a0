"""Windows of all kinds give the same results for any epochs, parallelism and backend, with late elements and crashes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings

from effort import examples
from holdfast.common import Time
from holdfast.datastream import (
    AggregateFunction,
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    OutputTag,
    ProcessWindowFunction,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from holdfast.datastream.window import EventTimeTrigger

from .inprocess import LedgerSink
from .programs import DELAY, records, stream
from .test_same_results import config, few, lab, runs, visible

SECOND = 1000
LATE = OutputTag("late")

Windows = list[tuple[int, int]]


class Tell(ProcessWindowFunction):
    def process(self, key: str, context: Any, elements: Any) -> Any:
        (total,) = elements
        yield key, context.window().start, context.window().end, total


class TellAll(ProcessWindowFunction):
    def process(self, key: str, context: Any, elements: Any) -> Any:
        yield key, context.window().start, context.window().end, sum(each[2] for each in elements)


class Total(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + value[2]

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return a + b


class Unmerged(Total):
    def merge(self, a: int, b: int) -> int:
        pass  # type: ignore[empty-body]


def sliding(ts: int) -> Windows:
    last = ts // 10_000 * 10_000
    return [(start, start + 40_000) for start in range(last - 30_000, last + 1, 10_000)]


def tumbling(ts: int) -> Windows:
    return [(ts // 15_000 * 15_000, ts // 15_000 * 15_000 + 15_000)]


def cumulative(ts: int) -> Windows:
    start = ts // 60_000 * 60_000
    return [(start, end) for end in range(start + 20_000, start + 60_001, 20_000) if end > ts]


KINDS: dict[str, tuple[Any, Any]] = {
    "sliding": (SlidingEventTimeWindows.of(Time.seconds(40), Time.seconds(10)), sliding),
    "cumulative": (CumulativeEventTimeWindows.of(Time.seconds(60), Time.seconds(20)), cumulative),
    "session": (EventTimeSessionWindows.with_gap(Time.seconds(4)), None),
    "triggered": (TumblingEventTimeWindows.of(Time.seconds(15)), tumbling),
}


def program(data: Any, kind: str, how: str, cut: int) -> Any:
    def build(env: Any) -> None:
        windows = stream(env, data, cut).key_by(lambda record: record[0]).window(KINDS[kind][0])
        windows.side_output_late_data(LATE)
        if kind == "triggered":
            windows.trigger(PurgingTrigger.of(EventTimeTrigger()))
        if how == "all":
            results = windows.process(TellAll())
        elif how == "reduce":
            results = windows.reduce(lambda a, b: (a[0], a[1], a[2] + b[2]), TellAll())
        else:
            results = windows.aggregate(Total() if how == "aggregate" or kind == "session" else Unmerged(), Tell())
        late = results.get_side_output(LATE).map(lambda record: ("late", *record))
        results.union(late).sink_to(LedgerSink("out"))

    return build


def model(data: Any, kind: str) -> Counter[Any]:
    """Each split by itself: a key never changes its split, and what is late the split alone decides."""
    totals: Counter[Any] = Counter()
    late = []
    for split in data.values():
        highest = None
        sessions: dict[str, list[list[int]]] = {}
        for key, ts, value in split:
            watermark = -(2**63) if highest is None else highest - DELAY - 1
            if kind == "session":
                known = sessions.setdefault(key, [])
                touched = [s for s in known if s[0] <= ts + 4_000 and s[1] >= ts and s[1] - 1 > watermark]
                if touched or ts + 3_999 > watermark:
                    start, end = min([ts, *(s[0] for s in touched)]), max([ts + 4_000, *(s[1] for s in touched)])
                    merged = [start, end, value + sum(s[2] for s in touched)]
                    sessions[key] = [s for s in known if s not in touched] + [merged]
                else:
                    late.append(("late", key, ts, value))
            else:
                alive = [window for window in KINDS[kind][1](ts) if window[1] - 1 > watermark]
                for window in alive:
                    totals[(key, *window)] += value
                if not alive:
                    late.append(("late", key, ts, value))
            highest = ts if highest is None else max(highest, ts)
        late += [(key, *session) for key, found in sessions.items() for session in found]
    return Counter(map(repr, [*late, *((*window, total) for window, total in totals.items())]))


@pytest.mark.parametrize("how", ["all", "reduce", "aggregate", "unmerged"])
@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(few, max_examples=examples(3))
@given(**runs)
def test_windows_with_late_elements_give_what_their_splits_say(
    kind, how, seed, backend, parallelism, budget, frame, crashes
):
    data = records(seed, 120, jitter=4 * DELAY)
    options = {"parallelism": parallelism, "budget": budget, "config": config(backend, frame)}
    with lab(program(data, kind, how, cut=budget), **options) as job:
        job.run(crashes)
        assert visible() == model(data, kind)
