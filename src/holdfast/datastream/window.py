"""Windows, window assigners, triggers and evictors, under PyFlink's module name."""

from __future__ import annotations

from holdfast.common.windows import (
    CountWindow,
    GlobalWindow,
    TimeWindow,
    Window,
)
from holdfast.windowing.assigners import (
    GlobalWindows,
    MergingWindowAssigner,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
    WindowStagger,
)
from holdfast.windowing.continuous_triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
)
from holdfast.windowing.counts import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
)
from holdfast.windowing.cumulative import CumulativeEventTimeWindows, CumulativeProcessingTimeWindows
from holdfast.windowing.element_triggers import (
    CountTrigger,
    DeltaTrigger,
    NeverTrigger,
    PurgingTrigger,
)
from holdfast.windowing.evictors import (
    CountEvictor,
    DeltaEvictor,
    Evictor,
    TimeEvictor,
    TimestampedValue,
)
from holdfast.windowing.sessions import (
    DynamicEventTimeSessionWindows,
    DynamicProcessingTimeSessionWindows,
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
    SessionWindowTimeGapExtractor,
)
from holdfast.windowing.triggers import (
    EventTimeTrigger,
    ProcessingTimeTrigger,
    Trigger,
    TriggerResult,
)

__all__ = [
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountEvictor",
    "CountSlidingWindowAssigner",
    "CountTrigger",
    "CountTumblingWindowAssigner",
    "CountWindow",
    "CumulativeEventTimeWindows",
    "CumulativeProcessingTimeWindows",
    "DeltaEvictor",
    "DeltaTrigger",
    "DynamicEventTimeSessionWindows",
    "DynamicProcessingTimeSessionWindows",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "GlobalWindow",
    "GlobalWindows",
    "MergingWindowAssigner",
    "NeverTrigger",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "SessionWindowTimeGapExtractor",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "TimeEvictor",
    "TimeWindow",
    "TimestampedValue",
    "Trigger",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "Window",
    "WindowAssigner",
    "WindowStagger",
]
