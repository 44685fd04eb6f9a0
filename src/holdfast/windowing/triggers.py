"""Triggers: when a window gives its result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, Generic, TypeVar

from holdfast.common.windows import TimeWindow, Window
from holdfast.metrics.user import MetricGroup
from holdfast.state.descriptors import StateDescriptor
from holdfast.state.interfaces import State

__all__ = ["EventTimeTrigger", "ProcessingTimeTrigger", "Trigger", "TriggerResult"]

T = TypeVar("T")
W = TypeVar("W", bound=Window)


class TriggerResult(Enum):
    """What becomes of a window now: whether it gives its result, and whether its elements are deleted."""

    CONTINUE = (False, False)
    FIRE_AND_PURGE = (True, True)
    FIRE = (True, False)
    PURGE = (False, True)

    def is_fire(self) -> bool:
        """Whether the window gives its result."""
        return self.value[0]

    def is_purge(self) -> bool:
        """Whether the window's elements are deleted."""
        return self.value[1]


class Trigger(ABC, Generic[T, W]):
    """Decides when a window gives its result."""

    class TriggerContext(ABC):
        """What a trigger may ask and do."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """The machine's time, in ms since 1970."""

        @abstractmethod
        def get_metric_group(self) -> MetricGroup:
            """Where the trigger registers its metrics."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """The watermark, in ms; ``-2**63`` before the first."""

        @abstractmethod
        def register_processing_time_timer(self, time: int) -> None:
            """Have ``on_processing_time`` called at this time (ms)."""

        @abstractmethod
        def register_event_time_timer(self, time: int) -> None:
            """Have ``on_event_time`` called at this time (ms)."""

        @abstractmethod
        def delete_processing_time_timer(self, time: int) -> None:
            """Take back ``register_processing_time_timer``."""

        @abstractmethod
        def delete_event_time_timer(self, time: int) -> None:
            """Take back ``register_event_time_timer``."""

        @abstractmethod
        def get_partitioned_state(self, state_descriptor: StateDescriptor) -> State:
            """State of the key and the window."""

    class OnMergeContext(TriggerContext):
        """The same when windows merge."""

        @abstractmethod
        def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
            """Merge the state of the merged windows into that of the new one."""

    @abstractmethod
    def on_element(self, element: T, timestamp: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        """An element has come into the window."""

    @abstractmethod
    def on_processing_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        """A processing-time timer has fired."""

    @abstractmethod
    def on_event_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        """An event-time timer has fired."""

    def can_merge(self) -> bool:
        """Whether the trigger works with windows that merge."""
        return False

    @abstractmethod
    def on_merge(self, window: W, ctx: Trigger.OnMergeContext) -> None:
        """Windows have merged into this one."""

    @abstractmethod
    def clear(self, window: W, ctx: Trigger.TriggerContext) -> None:
        """The window is being deleted: delete its timers and state."""


class EventTimeTrigger(Trigger[T, TimeWindow]):
    """Fires when the watermark passes the window's end, and for each late element after that."""

    def on_element(self, element: T, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Fire at once if the watermark has passed the window's end, else set the timer."""
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Nothing to do."""
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Fire if it is the window's time."""
        return TriggerResult.FIRE if time >= window.max_timestamp() else TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        """It does."""
        return True

    def on_merge(self, window: TimeWindow, ctx: Trigger.OnMergeContext) -> None:
        """Set the timer of the new window, unless its time has come already."""
        if window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        """Delete the timer."""
        ctx.delete_event_time_timer(window.max_timestamp())

    @staticmethod
    def create() -> EventTimeTrigger[Any]:
        """A new trigger."""
        return EventTimeTrigger()


class ProcessingTimeTrigger(Trigger[T, TimeWindow]):
    """Fires when the machine's time passes the window's end."""

    def on_element(self, element: T, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Set the timer."""
        ctx.register_processing_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Fire."""
        return TriggerResult.FIRE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Nothing to do."""
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        """It does."""
        return True

    def on_merge(self, window: TimeWindow, ctx: Trigger.OnMergeContext) -> None:
        """Set the timer of the new window, unless its time has come already."""
        if window.max_timestamp() > ctx.get_current_processing_time():
            ctx.register_processing_time_timer(window.max_timestamp())

    def clear(self, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        """Delete the timer."""
        ctx.delete_processing_time_timer(window.max_timestamp())

    @staticmethod
    def create() -> ProcessingTimeTrigger[Any]:
        """A new trigger."""
        return ProcessingTimeTrigger()
