"""Triggers: when a window fires."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, Generic

from holdfast.common.values.type_variables import WINDOWS, V
from holdfast.common.windows import TimeWindow
from holdfast.metrics.user import MetricGroup
from holdfast.state.api.descriptors import StateDescriptor
from holdfast.state.api.interfaces import State

__all__ = ["EventTimeTrigger", "ProcessingTimeTrigger", "Trigger", "TriggerResult"]


class TriggerResult(Enum):
    """The decision of a trigger: whether the window fires, and whether its elements are purged."""

    CONTINUE = (False, False)
    FIRE_AND_PURGE = (True, True)
    FIRE = (True, False)
    PURGE = (False, True)

    def is_fire(self) -> bool:
        """Whether the window fires."""
        return self.value[0]

    def is_purge(self) -> bool:
        """Whether the window's elements are purged."""
        return self.value[1]


class Trigger(ABC, Generic[V, WINDOWS]):
    """Decides when a window fires."""

    class TriggerContext(ABC):
        """The context of a trigger: clocks, timers and state."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """The machine's time, in ms since 1970."""

        @abstractmethod
        def get_metric_group(self) -> MetricGroup:
            """The metric group of the trigger."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """The watermark, in ms; ``-2**63`` before the first."""

        @abstractmethod
        def register_processing_time_timer(self, time: int) -> None:
            """Register a timer that calls ``on_processing_time`` at this time (ms)."""

        @abstractmethod
        def register_event_time_timer(self, time: int) -> None:
            """Register a timer that calls ``on_event_time`` at this time (ms)."""

        @abstractmethod
        def delete_processing_time_timer(self, time: int) -> None:
            """Delete the processing-time timer at this time."""

        @abstractmethod
        def delete_event_time_timer(self, time: int) -> None:
            """Delete the event-time timer at this time."""

        @abstractmethod
        def get_partitioned_state(self, state_descriptor: StateDescriptor) -> State:
            """State per key and window."""

    class OnMergeContext(TriggerContext):
        """The context of a merge of windows."""

        @abstractmethod
        def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
            """Merge the state of the merged windows into that of the new one."""

    @abstractmethod
    def on_element(self, element: V, timestamp: int, window: WINDOWS, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Handle an element added to the window."""

    @abstractmethod
    def on_processing_time(self, time: int, window: WINDOWS, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Handle a processing-time timer."""

    @abstractmethod
    def on_event_time(self, time: int, window: WINDOWS, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Handle an event-time timer."""

    def can_merge(self) -> bool:
        """Whether the trigger supports merging windows."""
        return False

    @abstractmethod
    def on_merge(self, window: WINDOWS, ctx: Trigger.OnMergeContext) -> None:
        """Handle a merge of windows into this one."""

    @abstractmethod
    def clear(self, window: WINDOWS, ctx: Trigger.TriggerContext) -> None:
        """Delete the timers and state of the window; called when the window is deleted."""


class EventTimeTrigger(Trigger[V, TimeWindow]):
    """Fires when the watermark passes the window's end, and at each late element after that."""

    def on_element(self, element: V, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Fire at once if the watermark has passed the window's end, else register the timer."""
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Continue."""
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Fire at the window's last timestamp."""
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        """Always True."""
        return True

    def on_merge(self, window: TimeWindow, ctx: Trigger.OnMergeContext) -> None:
        """Register the timer of the new window unless its time has passed."""
        if window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        """Delete the timer."""
        ctx.delete_event_time_timer(window.max_timestamp())

    @staticmethod
    def create() -> EventTimeTrigger[Any]:
        """Create a trigger."""
        return EventTimeTrigger()

    def __repr__(self) -> str:
        return "EventTimeTrigger()"


class ProcessingTimeTrigger(Trigger[V, TimeWindow]):
    """Fires when processing time passes the window's end."""

    def on_element(self, element: V, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Register the timer."""
        ctx.register_processing_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Fire."""
        return TriggerResult.FIRE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Continue."""
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        """Always True."""
        return True

    def on_merge(self, window: TimeWindow, ctx: Trigger.OnMergeContext) -> None:
        """Register the timer of the new window unless its time has passed."""
        if window.max_timestamp() > ctx.get_current_processing_time():
            ctx.register_processing_time_timer(window.max_timestamp())

    def clear(self, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        """Delete the timer."""
        ctx.delete_processing_time_timer(window.max_timestamp())

    @staticmethod
    def create() -> ProcessingTimeTrigger[Any]:
        """Create a trigger."""
        return ProcessingTimeTrigger()

    def __repr__(self) -> str:
        return "ProcessingTimeTrigger()"
