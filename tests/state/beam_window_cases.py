"""Cases of Apache Beam's trigger_transcripts.yaml (apache/beam, sdks/python/apache_beam/testing/data), in the form of
`flink_window_cases`: those whose triggers Flink has. An element's value is its timestamp, and results are sums.
"""

from __future__ import annotations

from holdfast.common import Time
from holdfast.datastream import CountTrigger, PurgingTrigger, TumblingEventTimeWindows

from .flink_window_cases import Case, W, result

TENS = TumblingEventTimeWindows.of(Time.milliseconds(10))


def elements(*stamps: int) -> list[tuple[str, int, int]]:
    return [("key", stamp, stamp) for stamp in stamps]


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
