"""Cases of Apache Beam's trigger_transcripts.yaml (apache/beam, sdks/python/apache_beam/testing/data), in the form of
`flink_window_cases`. An element's value is its timestamp, and results are sums. AfterWatermark(early, late), which Flink
does not have, is a trigger of the tests.

Beam asks a trigger once for all elements of an input, Flink after each element: where that makes a difference, the element
that reaches the count is the last one of its input here. Flink does not fire empty windows; the empty pane that ends
discarding_early_fixed is left out. Not carried over: the cases timestamp_combiner_..., since results have the end of their
window as their timestamp in Flink, and those of broken transcripts.
"""

from __future__ import annotations

import operator
from typing import Any

from holdfast.common import Time, Types
from holdfast.datastream import (
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    PurgingTrigger,
    ReducingStateDescriptor,
    TriggerResult,
    TumblingEventTimeWindows,
)

from .flink_window_cases import Case, W, result

TENS = TumblingEventTimeWindows.of(Time.milliseconds(10))


def elements(*stamps: int) -> list[tuple[str, int, int]]:
    return [("key", stamp, stamp) for stamp in stamps]


class AfterWatermark(EventTimeTrigger):
    """Fires at the end of the window, and before and after it at a number of elements since the last firing."""

    def __init__(self, early: int, late: int = 1) -> None:
        self._most = early, late
        self._counts = [ReducingStateDescriptor(name, operator.add, Types.LONG()) for name in ("early", "late")]

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        late = window.max_timestamp() <= ctx.get_current_watermark()
        if not late:
            ctx.register_event_time_timer(window.max_timestamp())
        count = ctx.get_partitioned_state(self._counts[late])
        count.add(1)
        if count.get() < self._most[late]:
            return TriggerResult.CONTINUE
        count.clear()
        return TriggerResult.FIRE

    def on_merge(self, window: Any, ctx: Any) -> None:
        super().on_merge(window, ctx)
        for count in self._counts:
            ctx.merge_partitioned_state(count)

    def clear(self, window: Any, ctx: Any) -> None:
        super().clear(window, ctx)
        for count in self._counts:
            ctx.get_partitioned_state(count).clear()


BEAM_CASES = [
    Case(
        "fixed_default",
        lambda keyed: keyed.window(TENS),
        [*elements(1, 2, 3, 10, 11), W(25), [result("key", 6, 0, 10), result("key", 21, 10, 20)]],
    ),
    Case(
        "fixed_default_late_data",
        lambda keyed: keyed.window(TENS).allowed_lateness(1000),
        [
            *elements(1, 2, 3, 10, 11, 25),
            W(100),
            [result("key", 6, 0, 10), result("key", 21, 10, 20), result("key", 25, 20, 30)],
            *elements(7),
            [result("key", 13, 0, 10)],
        ],
    ),
    Case(
        "known_late_data_watermark",
        lambda keyed: keyed.window(TENS),
        [W(5), *elements(2, 3, 7, 8), W(11), [result("key", 20, 0, 10)]],
    ),
    Case(
        "known_late_data_no_watermark_hold_possible",
        lambda keyed: keyed.window(TENS),
        [W(8), *elements(2, 3, 7), W(11), [result("key", 12, 0, 10)]],
    ),
    Case(
        "early_late_sessions",
        lambda keyed: (
            keyed.window(EventTimeSessionWindows.with_gap(Time.milliseconds(10)))
            .trigger(AfterWatermark(early=2, late=3))
            .allowed_lateness(1000)
        ),
        [
            *elements(1, 2),
            [result("key", 3, 1, 12)],
            *elements(4),
            [],
            *elements(5),
            [result("key", 12, 1, 15)],
            *elements(6),
            W(100),
            [result("key", 18, 1, 16)],
            *elements(1, 3),
            [],
            *elements(4),
            [result("key", 26, 1, 16)],
        ],
    ),
    Case(
        "discarding_early_fixed",
        lambda keyed: keyed.window(TENS).trigger(PurgingTrigger.of(AfterWatermark(early=2))),
        [
            *elements(1, 2),
            [result("key", 3, 0, 10)],
            *elements(4),
            [],
            *elements(14),
            [],
            *elements(5),
            [result("key", 9, 0, 10)],
            *elements(18),
            [result("key", 32, 10, 20)],
            *elements(6),
            W(100),
            [result("key", 6, 0, 10)],
        ],
    ),
    Case(
        "garbage_collection",
        lambda keyed: keyed.window(TENS).trigger(PurgingTrigger.of(CountTrigger.of(2))).allowed_lateness(10),
        [
            *elements(1, 2, 10, 11, 25),
            [result("key", 3, 0, 10), result("key", 21, 10, 20)],
            W(40),
            *elements(26),
            [],
        ],
    ),
]
