"""Windows, window assigners and triggers, under PyFlink's module name."""

from __future__ import annotations

from holdfast.common.windows import TimeWindow, Window
from holdfast.windowing.assigners import TumblingEventTimeWindows, TumblingProcessingTimeWindows, WindowAssigner
from holdfast.windowing.triggers import EventTimeTrigger, ProcessingTimeTrigger, Trigger, TriggerResult

__all__ = [
    "EventTimeTrigger",
    "ProcessingTimeTrigger",
    "TimeWindow",
    "Trigger",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "Window",
    "WindowAssigner",
]
