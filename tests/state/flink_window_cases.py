"""Cases of Flink's WindowOperatorTest and EvictingWindowOperatorTest: inputs, times and expected results.

Source: apache/flink, org.apache.flink.streaming.runtime.operators.windowing. Sums of the values are emitted with key, start
and end of the window where the original has them. A step is

    ("key", value, timestamp)    an element
    W(time)                      the watermark
    P(time)                      processing time
    RESTORE                      a checkpoint, and a restart from it

and a list is what must have come out since the last list, in any order. Results of the global window have the time at
which it fired; Flink gives them the end of time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.common import Time
from holdfast.datastream import (
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    DeltaEvictor,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    OutputTag,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    PurgingTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)


@dataclass(frozen=True)
class W:
    time: int


@dataclass(frozen=True)
class P:
    time: int


RESTORE = "restore"
LATE = OutputTag("late")


def add(a: Any, b: Any) -> Any:
    return a[0], a[1] + b[1], max(a[2], b[2])


class Sum(ProcessWindowFunction):
    """Key, sum, start and end of the window."""

    def process(self, key: str, context: Any, elements: Any) -> Any:
        window = context.window()
        yield key, sum(each[1] for each in elements), getattr(window, "start", None), getattr(window, "end", None)


def reduced(windows: Any) -> Any:
    return windows.reduce(add, Sum())


def applied(windows: Any) -> Any:
    return windows.process(Sum())


Step = Any


@dataclass(frozen=True)
class Case:
    name: str
    windows: Callable[[Any], Any]
    steps: list[Step]


SECOND = 1000


def seconds(number: int) -> Time:
    return Time.seconds(number)


def result(key: str, total: int, start: int | None, end: int | None, at: int | None = None) -> Any:
    if at is None:
        assert end is not None
        at = end - 1
    return (key, total, start, end), at


SPREAD = [
    *[("key2", 1, 3999), ("key2", 1, 3000), ("key1", 1, 20), ("key1", 1, 0), ("key1", 1, 999)],
    *[("key2", 1, 1998), ("key2", 1, 1999), ("key2", 1, 1000)],
]

CASES = [
    Case(
        "testSlidingEventTimeWindows",
        lambda keyed: keyed.window(SlidingEventTimeWindows.of(seconds(3), seconds(1))),
        [
            *SPREAD,
            W(999),
            [result("key1", 3, -2000, 1000)],
            W(1999),
            [result("key1", 3, -1000, 2000), result("key2", 3, -1000, 2000)],
            W(2999),
            [result("key1", 3, 0, 3000), result("key2", 3, 0, 3000)],
            RESTORE,
            W(3999),
            [result("key2", 5, 1000, 4000)],
            W(4999),
            [result("key2", 2, 2000, 5000)],
            W(5999),
            [result("key2", 2, 3000, 6000)],
            W(6999),
            W(7999),
            [],
        ],
    ),
    Case(
        "testTumblingEventTimeWindows",
        lambda keyed: keyed.window(TumblingEventTimeWindows.of(seconds(3))),
        [
            *SPREAD,
            W(999),
            W(1999),
            [],
            RESTORE,
            W(2999),
            [result("key1", 3, 0, 3000), result("key2", 3, 0, 3000)],
            W(3999),
            W(4999),
            [],
            W(5999),
            [result("key2", 2, 3000, 6000)],
            W(7999),
            [],
        ],
    ),
    Case(
        "testSessionWindows",
        lambda keyed: keyed.window(EventTimeSessionWindows.with_gap(seconds(3))),
        [
            *[("key2", 1, 0), ("key2", 2, 1000), ("key2", 3, 2500)],
            RESTORE,
            *[("key1", 1, 10), ("key1", 2, 1000), ("key1", 3, 2500)],
            *[("key2", 4, 5501), ("key2", 5, 6000), ("key2", 5, 6000), ("key2", 6, 6050)],
            W(12000),
            [result("key1", 6, 10, 5500), result("key2", 6, 0, 5500), result("key2", 20, 5501, 9050)],
            *[("key2", 10, 15000), ("key2", 20, 15000)],
            W(17999),
            [result("key2", 30, 15000, 18000)],
        ],
    ),
    Case(
        "testSessionWindowsWithCountTrigger",
        lambda keyed: keyed.window(EventTimeSessionWindows.with_gap(seconds(3))).trigger(
            PurgingTrigger.of(CountTrigger.of(4))
        ),
        [
            *[("key2", 1, 0), ("key2", 2, 1000), ("key2", 3, 2500), ("key2", 4, 3500)],
            *[("key1", 1, 10), ("key1", 2, 1000)],
            RESTORE,
            *[("key1", 3, 2500), ("key1", 1, 6000), ("key1", 2, 6500), ("key1", 3, 7000)],
            [result("key2", 10, 0, 6500)],
            ("key1", 10, 4500),  # merges the two sessions of key1
            [result("key1", 22, 10, 10000)],
        ],
    ),
    Case(
        "testSessionWindowsWithContinuousEventTimeTrigger",
        lambda keyed: keyed.window(EventTimeSessionWindows.with_gap(seconds(3))).trigger(
            ContinuousEventTimeTrigger.of(seconds(2))
        ),
        [
            *[("key1", 1, 1500), ("key1", 2, 1600), ("key1", 3, 2500)],
            W(3000),
            [result("key1", 6, 1500, 5500)],
            ("key1", 4, 4000),
            W(5000),
            [result("key1", 10, 1500, 7000)],
            W(6999),
            [result("key1", 10, 1500, 7000), result("key1", 10, 1500, 7000)],
            ("key1", 5, 8000),
            W(10000),
            [result("key1", 5, 8000, 11000)],
            W(10999),
            [result("key1", 5, 8000, 11000)],
        ],
    ),
    Case(
        "testContinuousWatermarkTrigger",
        lambda keyed: keyed.window(GlobalWindows.create()).trigger(ContinuousEventTimeTrigger.of(seconds(3))),
        [
            *[("key1", 1, 0), ("key2", 1, 3000), ("key2", 1, 3999), ("key1", 1, 20), ("key1", 1, 999)],
            *[("key2", 1, 1998), ("key2", 1, 1999), ("key2", 1, 1000)],
            W(1000),
            W(2000),
            [],
            W(3000),
            [result("key1", 3, None, None, 3000)],
            W(4000),
            W(5000),
            [],
            W(6000),
            [result("key1", 3, None, None, 6000), result("key2", 5, None, None, 6000)],
            W(7000),
            W(8000),
            [],
        ],
    ),
    Case(
        "testCountTrigger",
        lambda keyed: keyed.window(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(4))),
        [
            *[("key2", 1, 3000), ("key2", 1, 3999), ("key1", 1, 20), ("key1", 1, 0), ("key1", 1, 999)],
            RESTORE,
            *[("key2", 1, 1998), ("key2", 1, 1999)],
            [result("key2", 4, None, None, 1999)],
            ("key2", 1, 1000),
            *[("key1", 1, 10999)],
            [result("key1", 4, None, None, 10999)],
            *[("key2", 1, 10999), ("key2", 1, 10999), ("key2", 1, 10999)],
            [result("key2", 4, None, None, 10999)],
        ],
    ),
    Case(
        "testProcessingTimeTumblingWindows",
        lambda keyed: keyed.window(TumblingProcessingTimeWindows.of(seconds(3))),
        [
            P(3),
            *[("key2", 1, 2**62), ("key2", 1, 7000), ("key2", 1, 7000), ("key1", 1, 7000), ("key1", 1, 7000)],
            P(5000),
            [result("key2", 3, 0, 3000), result("key1", 2, 0, 3000)],
            *[("key1", 1, 7000), ("key1", 1, 7000), ("key1", 1, 7000)],
            P(7000),
            [result("key1", 3, 3000, 6000)],
        ],
    ),
    Case(
        "testProcessingTimeSlidingWindows",
        lambda keyed: keyed.window(SlidingProcessingTimeWindows.of(seconds(3), seconds(1))),
        [
            P(3),
            ("key2", 1, 2**62),
            P(1000),
            [result("key2", 1, -2000, 1000)],
            *[("key2", 1, 2**62), ("key2", 1, 2**62)],
            P(2000),
            [result("key2", 3, -1000, 2000)],
            *[("key1", 1, 2**62), ("key1", 1, 2**62)],
            P(3000),
            [result("key2", 3, 0, 3000), result("key1", 2, 0, 3000)],
            *[("key1", 1, 2**62), ("key1", 1, 2**62), ("key1", 1, 2**62)],
            P(7000),
            [
                *[result("key2", 2, 1000, 4000), result("key1", 5, 1000, 4000)],
                *[result("key1", 5, 2000, 5000), result("key1", 3, 3000, 6000)],
            ],
        ],
    ),
    Case(
        "testProcessingTimeSessionWindows",
        lambda keyed: keyed.window(ProcessingTimeSessionWindows.with_gap(seconds(3))),
        [
            P(3),
            ("key2", 1, 1),
            P(1000),
            ("key2", 1, 1002),
            P(5000),
            [result("key2", 2, 3, 4000)],
            *[("key2", 1, 5000), ("key2", 1, 5000), ("key1", 1, 5000), ("key1", 1, 5000), ("key1", 1, 5000)],
            P(10000),
            [result("key2", 2, 5000, 8000), result("key1", 3, 5000, 8000)],
        ],
    ),
    Case(
        "testLateness",
        lambda keyed: (
            keyed.window(TumblingEventTimeWindows.of(seconds(2)))
            .trigger(PurgingTrigger.of(EventTimeTrigger.create()))
            .allowed_lateness(500)
            .side_output_late_data(LATE)
        ),
        [
            ("key2", 1, 500),
            W(1500),
            ("key2", 1, 1300),
            W(2300),
            [result("key2", 2, 0, 2000)],
            ("key2", 1, 1997),  # late, within the allowed lateness: fires at once, and the elements before are purged
            W(6000),
            [result("key2", 1, 0, 2000)],
            ("key2", 1, 1998),  # dropped
            W(7000),
            [(("key2", 1, 1998), 1998, "late")],
        ],
    ),
    Case(
        "testCleanupTimeOverflow",
        lambda keyed: keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(2000))).allowed_lateness(2**63 - 1 - 100),
        [
            ("key2", 1, 2**63 - 1 - 3001),
            W(2**63 - 1 - 1),
            [result("key2", 1, 2**63 - 1 - 3807, 2**63 - 1 - 1807)],
        ],
    ),
    Case(
        "testSideOutputDueToLatenessSliding",
        lambda keyed: keyed.window(SlidingEventTimeWindows.of(seconds(3), seconds(1))).side_output_late_data(LATE),
        [
            ("key2", 1, 1000),
            W(1999),
            [result("key2", 1, -1000, 2000)],
            ("key2", 1, 2000),
            W(3000),
            [result("key2", 2, 0, 3000)],
            *[("key2", 1, 3001), ("key2", 1, 1)],  # the second one is late for all windows
            [(("key2", 1, 1), 1, "late")],
            ("key2", 1, 1999),  # late for one window, in time for another
            W(25000),
            [result("key2", 4, 1000, 4000), result("key2", 2, 2000, 5000), result("key2", 1, 3000, 6000)],
        ],
    ),
    Case(
        "testSideOutputDueToLatenessSessionZeroLatenessPurgingTrigger",
        lambda keyed: (
            keyed.window(EventTimeSessionWindows.with_gap(seconds(3)))
            .trigger(PurgingTrigger.of(EventTimeTrigger.create()))
            .side_output_late_data(LATE)
        ),
        [
            ("key2", 1, 1000),
            W(1999),
            [],
            ("key2", 1, 2000),
            W(4998),
            ("key2", 1, 4500),
            W(8501),
            [result("key2", 3, 1000, 7500)],
            ("key1", 1, 7000),
            W(11000),
            [result("key1", 1, 7000, 10000)],
            ("key2", 1, 7000),
            [(("key2", 1, 7000), 7000, "late")],
            W(14600),
            ("key2", 1, 14500),
            W(20000),
            [result("key2", 1, 14500, 17500)],
        ],
    ),
    Case(
        "testDropDueToLatenessSessionWithLateness",
        lambda keyed: (
            keyed.window(EventTimeSessionWindows.with_gap(seconds(3))).allowed_lateness(10).side_output_late_data(LATE)
        ),
        [
            ("key2", 1, 1000),
            W(1999),
            ("key2", 1, 2000),
            W(4998),
            ("key2", 1, 4500),
            W(8501),
            [result("key2", 3, 1000, 7500)],
            ("key1", 1, 7000),
            W(11000),
            [result("key1", 1, 7000, 10000)],
            ("key2", 1, 7000),
            [(("key2", 1, 7000), 7000, "late")],
            W(14500),
            ("key2", 1, 11600),
            ("key2", 1, 14600),
            [],
            W(17500),
            ("key2", 1, 17000),
            W(20000),
            [result("key2", 3, 11600, 20000)],
            W(100000),
            [],
        ],
    ),
    Case(
        "EvictingWindowOperatorTest.testCountTrigger",
        lambda keyed: keyed.window(GlobalWindows.create()).trigger(CountTrigger.of(2)).evictor(CountEvictor.of(4)),
        [
            *[("key2", 1, 3000), ("key2", 1, 3999), ("key1", 1, 20), ("key1", 1, 0), ("key1", 1, 999)],
            *[("key2", 1, 1998), ("key2", 1, 1999), ("key2", 1, 1000)],
            [result("key2", 2, None, None, 3999), result("key1", 2, None, None, 0), result("key2", 4, None, None, 1999)],
            RESTORE,
            *[("key1", 1, 10999), ("key2", 1, 1000)],
            [result("key1", 4, None, None, 10999), result("key2", 4, None, None, 1000)],
        ],
    ),
    Case(
        "EvictingWindowOperatorTest.testCountEvictorEvictAfter",
        lambda keyed: keyed.window(GlobalWindows.create()).trigger(CountTrigger.of(2)).evictor(CountEvictor.of(4, True)),
        [
            *[("key2", 1, 3000), ("key2", 1, 3999), ("key1", 1, 20), ("key1", 1, 0), ("key1", 1, 999)],
            *[("key2", 1, 1998), ("key2", 1, 1999), ("key2", 1, 1000)],
            [result("key2", 2, None, None, 3999), result("key1", 2, None, None, 0), result("key2", 4, None, None, 1999)],
            *[("key1", 1, 10999), ("key2", 1, 1000)],
            [result("key1", 4, None, None, 10999), result("key2", 6, None, None, 1000)],
        ],
    ),
    Case(
        "EvictingWindowOperatorTest.testTimeEvictorEvictBefore",
        lambda keyed: keyed.window(GlobalWindows.create()).trigger(CountTrigger.of(2)).evictor(TimeEvictor.of(seconds(2))),
        [
            *[("key2", 1, 3000), ("key2", 1, 20), ("key2", 1, 999), ("key1", 1, 20), ("key1", 1, 999), ("key2", 1, 3500)],
            *[("key2", 1, 3999), ("key2", 1, 2001)],
            [
                *[result("key2", 1, None, None, 20), result("key2", 2, None, None, 3500)],
                *[result("key1", 2, None, None, 999), result("key2", 4, None, None, 2001)],
            ],
        ],
    ),
    Case(
        "EvictingWindowOperatorTest.testDeltaEvictorEvictBefore",
        lambda keyed: (
            keyed.window(GlobalWindows.create())
            .trigger(CountTrigger.of(2))
            .evictor(DeltaEvictor.of(2, lambda old, new: new[1] - old[1]))
        ),
        [
            *[("key2", 1, 3000), ("key2", 4, 3999), ("key1", 1, 20), ("key1", 1, 0), ("key2", 5, 999)],
            *[("key2", 6, 999)],
            [result("key2", 4, None, None, 3999), result("key1", 2, None, None, 0), result("key2", 11, None, None, 999)],
        ],
    ),
    Case(
        "DeltaTrigger",
        lambda keyed: keyed.window(GlobalWindows.create()).trigger(DeltaTrigger.of(2, lambda old, new: new[1] - old[1])),
        [
            *[("key2", 1, 0), ("key2", 3, 1)],
            [],
            ("key2", 4, 2),
            [result("key2", 8, None, None, 2)],
            RESTORE,
            *[("key2", 6, 3), ("key2", 7, 4)],
            [result("key2", 21, None, None, 4)],
        ],
    ),
]
